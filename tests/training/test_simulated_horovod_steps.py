"""Simulated steps between their bounds: compute, the narrowest link, and one after the other."""

from __future__ import annotations

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.training.plan.step_plan import Collective

LINK_BPS = 10e9 / 8
"""Of the node of the scenario."""
OVERLAP_SLOWDOWN = 1.25
"""Of compute beside collectives, at most."""


def stepped(*sets: str, nodes: int = 8) -> tuple[ReportedRun, int]:
    base = ["scale=null", "model.name=resnet18", f"cluster.nodes={nodes}"]
    prepared = prepare(load_scenario("bucket-size-slow-ethernet", [*base, *sets]))
    return prepared.step(), prepared.job.workload.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 8])
@pytest.mark.parametrize(
    "strategy",
    [
        "{kind: horovod}",
        "{kind: horovod, fusion_threshold: 0 B}",
        "{kind: horovod, compression: fp16, cycle_time: 10 ms}",
        "{kind: horovod, accumulate: 3}",
        "{kind: priority}",
        "{kind: priority, partition_size: 1 MiB, credit: 1 MiB}",
        "{kind: priority, order: fifo, accumulate: 2}",
    ],
)
def test_a_step_is_within_its_bounds(strategy: str, nodes: int) -> None:
    step, gradients = stepped(f"strategy={strategy}", nodes=nodes)
    sent = sum(task.work.nbytes for task in step.plan.tasks if isinstance(task.work, Collective))
    assert sent == pytest.approx(gradients / (2 if "fp16" in strategy else 1), rel=1e-4)
    narrowest_s = 2 * (nodes - 1) / nodes * sent / LINK_BPS
    assert step.parts.comm_s >= narrowest_s
    assert step.step_time_s >= max(step.parts.compute_s, narrowest_s) * (1 - 1e-9)
    waits_s = 0.02  # cycles, agreement, copies, launches after the last reduction
    assert step.step_time_s <= step.parts.compute_s + step.parts.comm_s + waits_s
    assert step.parts.exposed_comm_s <= step.parts.comm_s


def test_slow_cycles_make_a_step_longer() -> None:
    """A cycle of 200 ms waits 100 ms on average for what backward hands over at once."""
    usual, _ = stepped("strategy={kind: horovod}")
    slow, _ = stepped("strategy={kind: horovod, cycle_time: 200 ms}")
    assert slow.step_time_s > usual.step_time_s + 0.02


def test_priority_hides_what_first_in_first_out_cannot() -> None:
    """Half of the step is spent waiting: the forward of front layers fits into that."""
    first, _ = stepped("strategy={kind: priority}", "model.name=vgg16")
    in_turn, _ = stepped("strategy={kind: priority, order: fifo}", "model.name=vgg16")
    assert first.step_time_s < 0.99 * in_turn.step_time_s
    assert first.parts.comm_s == pytest.approx(in_turn.parts.comm_s, rel=0.02)


def test_a_straggler_is_hidden_until_it_computes_longer_than_all_communicate() -> None:
    """Ranks wait for it, but half of a step is communication, beside which it computes."""
    for kind in ("horovod", "priority"):
        even, _ = stepped(f"strategy.kind={kind}")
        slow, _ = stepped(f"strategy.kind={kind}", "events=[{slow: {ranks: [3], by: 8}}]")
        work_s = even.parts.compute_s / OVERLAP_SLOWDOWN  # at least
        assert slow.step_time_s >= 8 * work_s
        assert slow.step_time_s >= even.step_time_s
        assert slow.step_time_s <= even.step_time_s + 7 * even.parts.compute_s + 1e-3
