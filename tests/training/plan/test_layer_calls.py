"""Calls of layers in plans: sums stay, exposed calls add up, others hide behind their kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.simulate.engine.engine import simulate
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.megatron import megatron_plan
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.model import LayerTimes
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape

RANKS, RATE_BPS = 4, 1e9
SHAPE = gpt_shape(3, 64, 8, 64, 512)
SEQUENCE = Shard(tensor=RANKS, sequence_parallel=True)
FORWARD_S, MATRIX_S = 1e-4, 4e-5
RING = {"all_reduce": 2 * (RANKS - 1) / RANKS, "send_recv": 1.0}
"""Bytes that cross a link over those of the buffer; of others (n - 1) / n."""


def request(shard: Shard, *, segments: int = 1000, matrix_s: float = MATRIX_S) -> StepRequest:
    model = gpt("toy", dtype="fp32", sequence_length=64, shape=SHAPE, shard=shard)
    each, kernels = np.ones(len(model.layers)), np.ones(len(model.layers), int)
    times = LayerTimes(
        FORWARD_S * each,
        2 * FORWARD_S * each,
        kernels,
        kernels,
        0.0,
        1e-3,
        3,
        1e12,
        "equal",
        matrix_forward_s=matrix_s * each,
        matrix_backward_s=2 * matrix_s * each,
    )
    return StepRequest(model, times, 1, 2, segments=segments)


def called(asked: StepRequest, recompute: Recompute | None = None) -> StepPlan:
    """A plan of the only replica, whose ranks are those of the tensor or context group."""
    plain = ddp_plan(asked, DdpOptions())
    plan = add_layer_calls(plain, asked, "fp32", *(() if recompute is None else (recompute,)))
    group = range(RANKS)
    return replace(
        plan,
        classes=tuple(RankClass(each.name, group) for each in plan.classes),
        communicators=tuple(Communicator(each.name, (group,)) for each in plan.communicators),
    )


def step_s(plan: StepPlan, topology: Callable[..., Topology]) -> float:
    machine = Machine(topology([RATE_BPS] * RANKS, [0.0] * RANKS), load_library("plain"))
    return max(span.end_s for span in simulate(plan, machine, steps=1).timeline.spans)


def moved(plan: StepPlan) -> Counter[tuple[str, str]]:
    """Bytes of all calls by communicator and operation."""
    total: Counter[tuple[str, str]] = Counter()
    for task in plan.tasks:
        if isinstance(task.work, Collective):
            at = (task.work.communicator, task.work.op)
            total[at] += task.work.nbytes * task.work.times
    return total


def worked_s(plan: StepPlan) -> float:
    return sum(task.work.duration_s for task in plan.tasks if isinstance(task.work, Compute))


def expected_s(asked: StepRequest) -> float:
    """Passes, one layer after the other: exposed calls, and the longer of others and kernels."""
    total = 1e-3  # optimizer
    for layer in asked.workload.layers:
        for phase, pass_s, matrix_s in (
            ("forward", FORWARD_S, asked.times.matrix_forward_s),
            ("backward", 2 * FORWARD_S, asked.times.matrix_backward_s),
            ("step", 0.0, None),
        ):
            total += pass_s
            for call in layer.calls:
                if call.phase != phase:
                    continue
                samples = 1 if phase == "step" else asked.batch_per_gpu
                share = RING.get(call.op, (RANKS - 1) / RANKS)
                call_s = call.times * 4 * samples * call.elements * share / RATE_BPS
                window_s = call.overlap * (0.0 if matrix_s is None else float(matrix_s[0]))
                total += max(0.0, call_s - window_s)
    return total


SHARDS = [
    Shard(tensor=RANKS),
    SEQUENCE,
    replace(SEQUENCE, overlap="none"),
    replace(SEQUENCE, overlap="asynchronous"),
    replace(SEQUENCE, library="torch"),
    Shard(context=RANKS),
    Shard(context=RANKS, context_kind="ulysses"),
    Shard(context=RANKS, context_kind="all_gather"),
    Shard(context=RANKS, library="torch"),
]


@pytest.mark.parametrize("shard", SHARDS, ids=repr)
def test_a_step_takes_its_kernels_and_what_they_do_not_hide(
    shard: Shard, switched_topology: Callable[..., Topology]
) -> None:
    """Products of 40 us hide some of the calls, of 32 KiB at 1 GB/s, and not others."""
    for segments in (1, 1000):
        asked = request(shard, segments=segments)
        plan = called(asked)
        check_plan(plan)
        assert step_s(plan, switched_topology) == pytest.approx(expected_s(asked), rel=1e-6)


@pytest.mark.slow
@given(
    shard=st.sampled_from(SHARDS),
    segments=st.integers(1, 20),
    matrix_s=st.floats(0.0, 1e-4),
    recompute=st.sampled_from([None, Recompute("full"), Recompute("selective")]),
)
def test_merging_layers_changes_no_sum(
    shard: Shard, segments: int, matrix_s: float, recompute: Recompute | None
) -> None:
    apart = called(request(shard, matrix_s=matrix_s), recompute)
    asked = request(shard, segments=segments, matrix_s=matrix_s)
    merged = called(asked, recompute)
    assert moved(merged) == moved(apart)
    assert worked_s(merged) == pytest.approx(worked_s(apart))
    assert worked_s(merged) == pytest.approx(worked_s(ddp_plan(asked, DdpOptions())))


def test_merged_calls_are_few_tasks() -> None:
    """A whole pass as one segment has a task for each kind of call, whatever the blocks."""
    short = called(request(SEQUENCE, segments=1))
    long_request = request(SEQUENCE, segments=1)
    deeper = gpt(
        "toy", dtype="fp32", sequence_length=64, shape=replace(SHAPE, layers=3), shard=SEQUENCE
    )
    assert len(called(replace(long_request, workload=deeper)).tasks) == len(short.tasks)


def test_a_model_without_calls_keeps_its_plan() -> None:
    asked = request(Shard())
    plan = ddp_plan(asked, DdpOptions())
    assert add_layer_calls(plan, asked, "bf16") is plan


def test_recomputation_repeats_the_calls_of_forward() -> None:
    """Megatron repeats all of a block, attention's ring alone where it alone runs again."""
    blocks, samples = SHAPE.layers, 2
    each = 4 * samples * 64 * 64
    plain, full = (called(request(SEQUENCE), kind) for kind in (None, Recompute("full")))
    more = moved(full) - moved(plain)
    assert more == {
        ("tensor", "all_gather"): 2 * blocks * each,
        ("tensor", "reduce_scatter"): 2 * blocks * each,
    }
    ring = Shard(context=RANKS)
    plain, again = (called(request(ring), kind) for kind in (None, Recompute("selective")))
    forward = (RANKS - 1) * 2 * each // RANKS
    assert moved(again) - moved(plain) == {("context", "send_recv"): blocks * forward}


def test_half_precision_halves_what_travels_but_not_the_loss() -> None:
    asked = request(Shard(tensor=RANKS))
    plan = ddp_plan(asked, DdpOptions())
    wide, narrow = (add_layer_calls(plan, asked, dtype) for dtype in ("fp32", "bf16"))
    loss = 3 * 4 * 2 * 64
    key = ("tensor", "all_reduce")
    assert moved(wide)[key] - loss == 2 * (moved(narrow)[key] - loss)


def test_megatron_sums_norms_once_a_step_after_the_reductions() -> None:
    """``finalize_model_grads``, whatever the micro-batches."""
    asked = replace(request(SEQUENCE), ranks=2)
    options = MegatronStrategy(kind="megatron", accumulate=3, overlap_grad_reduce=True)
    plan = add_layer_calls(megatron_plan(asked, options), asked, "bf16")
    places = [
        index
        for index, task in enumerate(plan.tasks)
        if isinstance(task.work, Collective)
        and task.work.communicator == "tensor"
        and task.work.op == "all_reduce"
        and task.name.endswith("optimizer")
    ]
    assert len(places) == 1
    norms = SHAPE.layers * (4 * 64 + 2 * 64) + 2 * 64
    assert plan.tasks[places[0]].work.nbytes == 4 * norms  # type: ignore[union-attr]
    backward = [index for index, task in enumerate(plan.tasks) if task.kind == "backward"]
    assert places[0] > max(backward)


def test_a_call_beside_another_begins_with_it_and_both_are_waited_for() -> None:
    """Each layer takes the longer of both, whichever is issued first."""
    asked = request(Shard(), segments=1)
    layers = asked.workload.layers
    first = LayerCall("expert_rail", "all_to_all", 3e5, RANKS, "forward", "before")
    second = replace(first, group="expert_node", elements=5e5, joins_previous=True)

    def step_with(*calls: LayerCall) -> StepPlan:
        own = (*(replace(layer, calls=calls) for layer in layers[:2]), *layers[2:])
        return called(replace(asked, workload=replace(asked.workload, layers=own)))

    together, one = step_with(first, second), step_with(first)
    check_plan(together)
    names = [
        task.work.communicator if isinstance(task.work, Collective) else task.kind
        for task in together.tasks
    ]
    rail, node = names.index("expert_rail"), names.index("expert_node")
    assert together.tasks[rail].after == together.tasks[node].after
    assert together.tasks[rail].stream != together.tasks[node].stream
    following = next(t for t in together.tasks[node:] if t.kind == "forward")
    assert {rail, node} <= set(following.after)
    assert together.tasks[rail].work.times == together.tasks[node].work.times == 2
    assert sum(name == "expert_rail" for name in names) == sum(
        isinstance(t.work, Collective) and t.work.communicator == "expert_rail" for t in one.tasks
    )
