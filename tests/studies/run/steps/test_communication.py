"""What a step communicates, by operation: bytes as published, exposed times that add up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.outcome import Run
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.step_parts import communication_uses, ring_bytes
from perfmodel.timeline import covered_s
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

RANKS = 16


def point_of(*changes: str) -> SizeResult:
    settings = ["cluster.nodes=2", "scale.gpus=[16]", *changes]
    return run_scenario(load_scenario("resnet50-dgx-a100", settings)).main


@pytest.fixture(scope="module")
def ddp() -> SizeResult:
    return point_of()


@pytest.fixture(scope="module")
def fsdp() -> SizeResult:
    return point_of("strategy={kind: fsdp}")


def test_ddp_sends_what_a_ring_sends(ddp: SizeResult) -> None:
    uses = {use.op: use for use in ddp.communication}
    gradients = sum(bucket.nbytes for bucket in ddp.buckets)
    assert uses["all_reduce"].nbytes == gradients
    assert uses["all_reduce"].calls == len(ddp.buckets)
    assert uses["all_reduce"].sent_bytes == pytest.approx(2 * (RANKS - 1) / RANKS * gradients)


def test_sharding_sends_half_as_much_again(ddp: SizeResult, fsdp: SizeResult) -> None:
    """Two gathers of the parameters and one reduction: 3 to 2, but for the padding of shards."""
    uses = {use.op: use for use in fsdp.communication}
    assert uses.keys() == {"all_gather", "reduce_scatter"}
    gradients = sum(bucket.nbytes for bucket in ddp.buckets)
    assert uses["reduce_scatter"].nbytes == pytest.approx(gradients, rel=2e-3)
    ratio = fsdp.sent_bytes / next(u for u in ddp.communication if u.op == "all_reduce").sent_bytes
    assert 1.3 < ratio <= 1.5 * 1.002  # the root is gathered once


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_exposed_times_add_up(strategy: str, request: pytest.FixtureRequest) -> None:
    point: SizeResult = request.getfixturevalue(strategy)
    assert sum(use.exposed_s for use in point.communication) == pytest.approx(point.exposed_comm_s)
    assert point.exposed_comm_s > 0
    assert all(0 <= use.exposed_s <= use.busy_s * (1 + 1e-9) for use in point.communication)
    spans = [(s.start_s, s.end_s) for s in point.timeline.spans if s.kind == "communication"]
    assert max(use.busy_s for use in point.communication) <= covered_s(spans) * (1 + 1e-9)


def test_operations_in_flight_together_share_exposed_time() -> None:
    """A gather from 0 to 4 s, a reduction from 2 to 6 s, layers from 0 to 1 s."""
    comms = ("gather", "all_gather", 0.0, 4.0), ("reduce", "reduce_scatter", 2.0, 6.0)
    tasks = [
        (Task(name, "communication", "ranks", name, Collective(op, 8, "all", name)), 0, start, end)
        for name, op, start, end in comms
    ]
    layers = Task("layers", "forward", "ranks", "compute", Compute(1.0))
    executions = [(*each, 0.0, 1.0) for each in [*tasks, (layers, 0, 0.0, 1.0)]]
    streams = Stream("compute", "compute"), Stream("gather", "comm"), Stream("reduce", "comm")
    plan = StepPlan(
        "two at once",
        (RankClass("ranks", range(4)),),
        streams,
        (Communicator("all", (range(4),)),),
        tuple(each[0] for each in executions),
        1,
    )
    run = cast("Run", SimpleNamespace(executions=executions))
    gather, reduction = communication_uses(plan, run, range(1), "ranks")
    assert (gather.busy_s, reduction.busy_s) == (4.0, 4.0)
    assert (gather.exposed_s, reduction.exposed_s) == (1.0 + 2.0 / 2, 2.0 + 2.0 / 2)


def test_utilisation_is_of_the_products(ddp: SizeResult) -> None:
    """ResNet-50 v1.5: 4.09 G multiplications and additions (torchvision's table), thrice a step."""
    peak = 312e12
    flops = 3 * 2 * 4.09e9 * ddp.samples_per_s / RANKS
    assert ddp.mfu == pytest.approx(flops / peak, rel=0.02)


def test_a_pair_exchanges_halves() -> None:
    assert ring_bytes("all_reduce", 100, 2) == 100
    assert ring_bytes("all_gather", 100, 4) == ring_bytes("reduce_scatter", 100, 4) == 75
    assert ring_bytes("broadcast", 100, 4) == 100
    assert [ring_bytes(op, 100, 1) for op in ("all_reduce", "broadcast", "all_gather")] == [0] * 3
