"""What a step communicates, by operation: bytes as published, exposed times that add up."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.outcome import Run
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.step_parts import _shared, communication_uses, ring_bytes
from perfmodel.timeline import covered_s, exposed
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


@given(st.data())
def test_exposed_time_is_shared_as_counted_moment_by_moment(data: st.DataObject) -> None:
    """Between two whole numbers nothing begins or ends: each such second has its operations."""
    second = st.integers(0, 12)
    spans = data.draw(st.lists(st.tuples(st.sampled_from("abc"), second, second), max_size=8))
    comm = [(op, (float(min(a, b)), float(max(a, b)))) for op, a, b in spans]
    busy = [(float(a), float(a + 1)) for a in data.draw(st.sets(second, max_size=6))]
    free = exposed([interval for _, interval in comm], busy)
    found: dict[tuple[int, str], float] = {}
    for start, end, ops in _shared(comm, free):
        for at in range(int(start), int(end)):
            found |= {(at, op): 1 / len(ops) for op in ops}
    running = {
        at: {op for op, (a, b) in comm if a <= at < b}
        for at in range(13)
        if (float(at), float(at + 1)) not in busy
    }
    assert found == {(at, op): 1 / len(ops) for at, ops in running.items() for op in ops}


def test_many_operations_in_one_exposed_interval_take_linear_time() -> None:
    """ZeRO-3 of 1,024 layers has 18,000 of them; each counted against all takes a minute."""
    comm = [(f"{at % 3}", (float(at), at + 1.5)) for at in range(20_000)]
    begin_s = time.process_time()
    parts = list(_shared(comm, [(0.0, 20_000.5)]))
    assert time.process_time() - begin_s < 5.0
    assert len(parts) > 39_000


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
