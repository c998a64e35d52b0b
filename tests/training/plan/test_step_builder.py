"""Plans written by hand: order, hosts, classes and messages; all pass the check of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_builder import StepBuilder
from perfmodel.training.plan.step_plan import Collective, Stream
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, ParameterTensor, Workload

MODEL = Workload("two", (ParameterTensor("w", (256,)),), (Layer("a", (0,)), Layer("b")))


@pytest.fixture
def asked(times_of: Callable[..., Any]) -> Callable[..., StepRequest]:
    def make(ranks: int = 4, **times: Any) -> StepRequest:
        return StepRequest(MODEL, times_of(MODEL, **times), ranks, batch_per_gpu=3)

    return make


def test_tasks_wait_for_what_they_name(asked: Any, run_plan: Any) -> None:
    step = StepBuilder(asked())
    first = step.compute("forward", 1e-3)
    summed = step.collective("all_reduce", 1024, after=first, bucket=0)
    step.compute("backward", 2e-3, after=[first])
    step.compute("optimizer", 1e-3, after=(first, summed))
    plan = step.plan()
    check_plan(plan, 4)
    spans = run_plan(plan, lambda _: 5e-3)
    assert spans == [
        (0.0, 1e-3),
        (1e-3, 6e-3),
        (1e-3, pytest.approx(3e-3)),
        (6e-3, pytest.approx(7e-3)),
    ]
    assert plan.samples == 12
    assert [stream.name for stream in plan.streams] == ["compute", "comm"]


def test_a_host_launches_kernels_where_that_takes_time(asked: Any) -> None:
    """Five kernels of 10 us each: the device waits for 50 us of the host's."""
    slow, quick = (StepBuilder(asked(launch_s=launch_s)) for launch_s in (10e-6, 0.0))
    for step in (slow, quick):
        step.compute("forward", 1e-3, kernels=5)
    issued, run = slow.plan().tasks
    assert (issued.stream, issued.kind) == ("host", "issue")
    assert issued.work.duration_s == pytest.approx(50e-6)
    assert run.after == (0,)
    assert [task.kind for task in quick.plan().tasks] == ["forward"]


def test_classes_take_part_in_the_collectives_of_their_ranks(asked: Any) -> None:
    classes = {"front": range(2), "back": range(2, 4)}
    groups = {"all": [range(4)], "front": [range(2)]}
    step = StepBuilder(asked(), classes=classes, groups=groups, streams=[Stream("copy", "copy")])
    first = step.compute("forward", 1e-3, stream="copy")
    step.collective("all_gather", 64, group="front", after=first)
    arrived = step.send(64, "front", "back", after=first)
    last = step.compute("forward", 1e-3, rank_class="back", after=arrived)
    step.collective("broadcast", 64, root=2, after=(first, last))
    plan = step.plan("halves", samples=7)
    check_plan(plan, 4)
    assert (plan.name, plan.samples) == ("halves", 7)
    works = [
        (task.rank_class, task.work.op) for task in plan.tasks if isinstance(task.work, Collective)
    ]
    assert works == [
        ("front", "all_gather"),
        ("front", "send"),
        ("back", "send"),
        ("front", "broadcast"),
        ("back", "broadcast"),
    ]
    assert {each.name: each.groups for each in plan.communicators}["front to back"] == (
        (0, 2),
        (1, 3),
    )
    assert plan.tasks[-1].after == (last,)
    assert plan.tasks[-2].after == (first,)


def test_what_there_is_not_is_a_fault(asked: Any) -> None:
    step = StepBuilder(asked())
    with pytest.raises(InputError, match=r"group: found 'al' .did you mean 'all'"):
        step.collective("all_reduce", 4, group="al")
    with pytest.raises(InputError, match="target: found 'back'; allowed: one of 'ranks'"):
        step.send(4, "ranks", "back")
    uneven = StepBuilder(asked(), classes={"front": range(1), "back": range(1, 4)})
    with pytest.raises(InputError, match="target: found 3 ranks; allowed: 1, as 'front' has"):
        uneven.send(4, "front", "back")


def test_a_misspelt_field_of_a_task_is_refused(asked: Any) -> None:
    step = StepBuilder(asked())
    step.collective("all_reduce", 1024, bucket=0, times=2, dtype="bf16")
    with pytest.raises(InputError, match=r"bucktet.*did you mean 'bucket'"):
        step.compute("forward", 1e-3, bucktet=1)
    with pytest.raises(InputError, match="micro_batchs"):
        step.collective("all_reduce", 1024, micro_batchs=1)
