"""Communication hooks: what each sends, keeps and costs, against published formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import InputError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario.strategies.ddp import Hook, HookSection
from perfmodel.simulate.engine.engine import simulate
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.ddp.strategy import ddp_memory
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

KINDS = (
    "none",
    "allreduce",
    "fp16",
    "bf16",
    "powersgd",
    "quantization_pertensor",
    "quantization_perchannel",
)
SHAPES = ((64, 32), (64,), (128, 64), (128,), (8, 8, 3, 3))


def hook_of(value: object) -> Hook:
    hook: Hook = TypeAdapter(HookSection).validate_python(value)
    return hook


def model_of(shapes: Any = SHAPES, dtype: str = "fp32") -> Workload:
    tensors = tuple(ParameterTensor(f"t{i}", tuple(shape), dtype) for i, shape in enumerate(shapes))
    layers = tuple(Layer(f"l{i}", (i,)) for i in range(len(tensors)))
    return Workload("layers", tensors, layers)


def planned(hook: object, workload: Workload, **changes: Any) -> StepPlan:
    options = DdpOptions(hook=hook_of(hook), **changes.pop("options", {}))
    layers = len(workload.layers)
    launch_s = changes.pop("launch_s", 0.0)
    times = LayerTimes(
        np.full(layers, 1e-3),
        np.full(layers, 2e-3),
        np.ones(layers, int),
        np.ones(layers, int),
        launch_s,
        1e-3,
        3,
        1e11,
        "equal",
    )
    request = {"ranks": 4, "batch_per_gpu": 2} | changes
    plan = ddp_plan(StepRequest(workload, times, **request), options)
    check_plan(plan)
    return plan


def sent(plan: StepPlan) -> dict[str, int]:
    """Bytes by operation, as nccl-tests counts them."""
    totals: dict[str, int] = {}
    for task in plan.tasks:
        if isinstance(task.work, Collective):
            totals[task.work.op] = totals.get(task.work.op, 0) + task.work.nbytes
    return totals


shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 300)),
        st.tuples(st.integers(1, 90), st.integers(1, 90)),
        st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3), st.just(3)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(shapes=shapes, rank=st.integers(1, 40), rate=st.floats(0.5, 4), cap=st.integers(1, 20_000))
def test_power_sgd_sends_both_factors_of_what_is_worth_it(
    shapes: list[tuple[int, ...]], rank: int, rate: float, cap: int
) -> None:
    """Vogels and others, section 3: r(n + m) elements of an n x m matrix; vectors whole."""
    hook = {"kind": "powersgd", "rank": rank, "min_compression_rate": rate}
    plan = planned(hook, model_of(shapes), options={"bucket_cap": cap})
    expected = 0
    for shape in shapes:
        rows, numel = shape[0], math.prod(shape)
        columns = numel // rows
        thin = min(rank, rows, columns) * (rows + columns)
        expected += thin if thin * rate < numel else numel
    assert sent(plan) == {"all_reduce": 4 * expected}


@settings(max_examples=40, deadline=None)
@given(shapes=shapes, rate=st.floats(1, 4))
def test_a_full_rank_saves_nothing(shapes: list[tuple[int, ...]], rate: float) -> None:
    model = model_of(shapes)
    hook = {"kind": "powersgd", "rank": 300, "min_compression_rate": rate}
    assert sent(planned(hook, model)) == {"all_reduce": model.nbytes}
    forced = {"kind": "powersgd", "rank": 300, "min_compression_rate": 1e-9}
    assert sent(planned(forced, model))["all_reduce"] >= model.nbytes


@settings(max_examples=40, deadline=None)
@given(shapes=shapes, ranks=st.integers(2, 9))
def test_gathered_hooks_send_the_published_bytes(shapes: list[tuple[int, ...]], ranks: int) -> None:
    """One bucket: a byte per element and two numbers for each scale."""
    model = model_of(shapes)
    numel = sum(math.prod(shape) for shape in shapes)
    one = {"bucket_cap": 1e12}
    whole = planned("quantization_pertensor", model, ranks=ranks, options=one)
    assert sent(whole) == {"all_gather": ranks * (numel + 8)}
    padded = numel + 512 - numel % 512  # a whole channel more where none is needed
    channels = planned("quantization_perchannel", model, ranks=ranks, options=one)
    assert sent(channels) == {"all_gather": ranks * (padded + 8 * padded // 512)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("micro_steps", [1, 3])
def test_micro_steps_communicate_once(kind: str, micro_steps: int) -> None:
    once, several = (
        planned(kind, model_of(), options={"accumulate": count}) for count in (1, micro_steps)
    )
    assert sent(once) == sent(several)
    last = {t.micro_batch for t in several.tasks if isinstance(t.work, Collective)}
    assert last == {micro_steps - 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_takes_no_less_than_its_work_and_its_bytes(kind: str) -> None:
    machine = Machine(
        build_topology("shaped-ethernet", hosts=4, fabric="one-switch"), load_library("plain")
    )
    plan = planned(kind, model_of(((2048, 1024), (2048,))), launch_s=5e-6)
    run = simulate(plan, machine)
    busy: dict[str, float] = {}
    for task in plan.tasks:
        if isinstance(task.work, Compute):
            busy[task.stream] = busy.get(task.stream, 0.0) + task.work.duration_s
    assert run.step_time_s >= max(busy.values()) * (1 - 1e-9)
    wire_Bps = machine.topology.graph["n0/nic0"]["fabric/switch0"][0]["bandwidth"]
    totals = sent(plan)
    least = totals.get("all_reduce", 0) * 2 * 3 / 4 + totals.get("all_gather", 0) * 3 / 4
    assert run.step_time_s >= least / wire_Bps * (1 - 1e-9)


def test_power_sgd_holds_backward_until_a_bucket_is_reduced() -> None:
    """Its hook waits for the device, so the next layer is issued once Q is reduced."""
    for launch_s in (0.0, 5e-6):
        plan = planned("powersgd", model_of(), options={"bucket_cap": 1}, launch_s=launch_s)
        waits = [i for i, task in enumerate(plan.tasks) if task.kind == "wait"]
        assert len(waits) == len(SHAPES)
        following = [task for task in plan.tasks[waits[0] :] if task.kind == "backward"]
        assert len(following) == len(SHAPES) - 1
        stream = "host" if launch_s else "compute"
        assert {plan.tasks[i].stream for i in waits} == {stream}
        assert all(plan.tasks[plan.tasks[i].after[0]].name.startswith("decompress") for i in waits)


def test_callbacks_that_wait_need_a_thread_each() -> None:
    """Seen with torch 2.13 over Gloo's two threads: several buckets hang, one is reduced."""
    gloo = {"blocking_wait": True, "comm_workers": 2}
    with pytest.raises(InputError, match=r"strategy\.hook.*5 buckets.*at most 1"):
        planned("powersgd", model_of(), options={"bucket_cap": 1}, **gloo)
    planned("powersgd", model_of(), options={"bucket_cap": 1e12}, **gloo)
    with pytest.raises(InputError, match="quantization_pertensor"):
        planned("quantization_pertensor", model_of(), **gloo)


def test_memory_of_error_feedback_is_a_copy_of_the_gradients() -> None:
    model = model_of()

    def beside(hook: object) -> float:
        options = DdpOptions(hook=hook_of(hook))
        use = ddp_memory(Setup(model, "fp32", "sgd", 4, 2, options=options))
        return use.buckets_bytes - model.nbytes

    assert beside("none") == beside("allreduce") == 0
    assert beside("fp16") == model.nbytes / 2
    cold = {"kind": "powersgd", "use_error_feedback": False}
    # the error of all buckets, and the copy of the one that is reduced
    assert beside("powersgd") - beside(cold) == 2 * model.nbytes
    assert beside({"kind": "powersgd", "rank": 8}) > beside("powersgd")


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("in_one_bucket", [True, False])
def test_memory_of_powersgd_is_errors_factors_and_copies(warm: bool, in_one_bucket: bool) -> None:
    """Counted from `powerSGD_hook`: P and Q of all buckets stay only with a warm start."""
    factors = (64 + 32) + (128 + 64) + (8 + 8 * 3 * 3)  # of rank 1, for the three matrices
    vectors, elements = 64 + 128, 64 * 32 + 64 + 128 * 64 + 128 + 8 * 8 * 3 * 3
    largest, of_largest = (elements, factors) if in_one_bucket else (128 * 64, 128 + 64)
    staying = elements + (factors if warm else 0)
    passing = largest + (vectors if in_one_bucket else 0) + (0 if warm else of_largest)
    model = model_of()
    options = DdpOptions(
        hook=hook_of({"kind": "powersgd", "warm_start": warm}),
        bucket_cap=25 * 2**20 if in_one_bucket else 1,
    )
    use = ddp_memory(Setup(model, "fp32", "sgd", 4, 2, options=options))
    assert use.buckets_bytes - model.nbytes == 4 * (staying + passing)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "powersgd", "start_iteration": 1}, "start_iteration' of 2 or more"),
        ("batched_powersgd", "AssertionError in _orthogonalize"),
        ({"kind": "powersgd", "min_compression_rate": 0.0}, "greater than 0"),
        ("topk", "'none', 'allreduce', 'fp16', 'bf16', 'powersgd'"),
        ({"kind": "quantization_pertensor", "bucket_size": 4}, "one scale"),
        ("int4", "'none', 'allreduce', 'fp16', 'bf16', 'powersgd'"),
    ],
)
def test_what_pytorch_refuses_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        hook_of(value)
    early = {"kind": "powersgd", "start_iteration": 0}
    hook_of(early | {"use_error_feedback": False, "warm_start": False})


def test_a_hook_is_named_alone_or_with_fields() -> None:
    assert hook_of("fp16") == hook_of({"kind": "fp16"})
    assert hook_of("powersgd") == hook_of({"kind": "powersgd", "rank": 1})
    assert TypeAdapter(HookSection).dump_python(hook_of("fp16")) == "fp16"
