"""The step under Horovod: what is reduced, when, after what, and how long it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.options import MIB
from perfmodel.training.horovod import HOROVOD, horovod_plan
from perfmodel.training.horovod_cycles import agreement_s, bit_vector_bytes, handed_over_s
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, Compute, Op, StepPlan, Task
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
Run = Callable[..., list[tuple[float, float]]]
MS = 1e-3


def horovod(**fields: Any) -> HorovodStrategy:
    return validate_document(HorovodStrategy, {"kind": "horovod", **fields})


@pytest.fixture
def toy() -> Workload:
    """Four layers of 1, 2, 4 and 8 MB."""
    tensors = tuple(ParameterTensor(f"w{i}", (250_000 << i,)) for i in range(4))
    return Workload("toy", tensors, tuple(Layer(f"layer{i}", (i,)) for i in range(4)))


def request(workload: Workload, times: LayerTimes, **changed: Any) -> StepRequest:
    usual: dict[str, Any] = {"ranks": 4, "batch_per_gpu": 8}
    return StepRequest(workload, times, **(usual | changed))


def reductions(plan: StepPlan) -> list[int]:
    return [task.work.nbytes for task in plan.tasks if isinstance(task.work, Collective)]


def named(plan: StepPlan, prefix: str) -> list[Task]:
    return [task for task in plan.tasks if task.name.startswith(prefix)]


def test_cycles_cut_backward_where_they_begin(toy: Workload, times_of: Times) -> None:
    """Layers of 2 ms on the device, cycles of 5 ms from 2.5 ms on: the first one, then two."""
    plan = horovod_plan(request(toy, times_of(toy)), horovod(cycle_time="5 ms"))
    check_plan(plan)
    assert reductions(plan) == [8_000_000, 4_000_000 + 2_000_000, 1_000_000]


def test_the_host_decides_what_is_handed_over(toy: Workload, times_of: Times) -> None:
    """6 kernels of 0.1 ms a layer are issued in 0.6 ms, whatever the device takes."""
    times = times_of(toy, launch_s=0.1 * MS, backward_s=np.full(4, 50 * MS))
    asked = request(toy, times)
    assert handed_over_s(asked, HorovodStrategy(kind="horovod")) == pytest.approx(
        (0.6 * MS, 1.2 * MS, 1.8 * MS, 2.4 * MS)
    )
    plan = horovod_plan(asked, HorovodStrategy(kind="horovod"))
    assert reductions(plan) == [8_000_000 + 4_000_000, 2_000_000 + 1_000_000]


def test_reductions_follow_each_other_on_one_stream(
    toy: Workload, times_of: Times, run_plan: Run
) -> None:
    """8 MB alone needs no copies; 6 MB are copied in and out, at 1 TB/s, before the next."""
    plan = horovod_plan(request(toy, times_of(toy)), horovod(cycle_time="5 ms"))
    spans = run_plan(plan, lambda work: work.nbytes / 1e9)
    start = spans[plan.tasks.index(named(plan, "backward")[0])][0]
    at = {task.name: spans[index][1] - start for index, task in enumerate(plan.tasks)}
    assert at["all-reduce buffer 0"] == pytest.approx(2.5 * MS + 8 * MS)
    second = 10.5 * MS + 6e6 / 1e12 + 6 * MS
    assert at["all-reduce buffer 1"] == pytest.approx(second)
    assert at["all-reduce buffer 2"] == pytest.approx(second + 6e6 / 1e12 + 1 * MS)
    assert at["optimizer"] == pytest.approx(at["all-reduce buffer 2"] + 1 * MS)


def test_a_threshold_of_zero_reduces_tensor_by_tensor(times_of: Times) -> None:
    model = build_model("resnet50")
    plan = horovod_plan(request(model, times_of(model)), horovod(fusion_threshold="0 B"))
    check_plan(plan)
    assert reductions(plan) == [model.tensors[index].nbytes for index in model.ready_order]
    assert not named(plan, "copy")


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("threshold", [0, 5 * MIB, 128 * MIB])
def test_bytes_of_a_step(
    times_of: Times, compression: Any, accumulate: int, threshold: int
) -> None:
    """All gradients once a step, whatever is accumulated; in the buffer, padded to 16 bytes."""
    model = build_model("resnet18")
    options = horovod(
        fusion_threshold=f"{threshold} B",
        cycle_time="5 ms",
        compression=compression,
        accumulate=accumulate,
    )
    plan = horovod_plan(request(model, times_of(model)), options)
    check_plan(plan)
    item = 2 if compression == "fp16" else 4
    padded = sum(math.ceil(item * tensor.numel / 16) * 16 for tensor in model.tensors)
    assert item * model.parameters <= sum(reductions(plan)) <= padded
    assert plan.samples == 4 * 8 * accumulate
    casts = [task.work.duration_s for task in named(plan, "compress")]  # type: ignore[union-attr]
    moved = 3 * model.parameters if compression == "fp16" else 0  # 4 bytes read, 2 written, halved
    assert sum(casts) == pytest.approx(moved / 1e12)


def test_the_host_waits_for_reductions_before_it_issues_the_optimizer(
    toy: Workload, times_of: Times
) -> None:
    """``optimizer.synchronize`` in horovod/torch/optimizer.py."""
    plan = horovod_plan(request(toy, times_of(toy, launch_s=0.1 * MS)), horovod())
    (update,) = named(plan, "optimizer")
    (issue,) = (at for at, task in enumerate(plan.tasks) if task.issues == "optimizer")
    assert set(update.after) == {issue, *plan.tasks[issue].after} > {issue}


def test_a_torus_reduces_host_by_host(toy: Workload, times_of: Times) -> None:
    options = horovod(cycle_time="50 ms", allreduce="torus")
    plan = horovod_plan(request(toy, times_of(toy), ranks=8, ranks_per_host=4), options)
    check_plan(plan)
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    assert [(work.op, work.nbytes) for work in works] == [
        ("reduce_scatter", 15_000_000),
        ("all_reduce", 3_750_000),
        ("all_gather", 15_000_000),
    ]
    groups = {each.name: [list(group) for group in each.groups] for each in plan.communicators}
    assert groups["hosts"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups["across hosts"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert {work.dtype for work in works} == {"fp32"}
    flat = horovod_plan(request(toy, times_of(toy), ranks=4, ranks_per_host=4), options)
    assert reductions(flat) == [15_000_000]  # on one host there is nothing to go across


def test_on_cpus_the_thread_waits_for_its_all_reduces(toy: Workload, times_of: Times) -> None:
    """9 ms for the first tensor, in which all others get ready."""

    def collective_s(op: Op, nbytes: int, library: str | None) -> float:
        return 0.0 if library else nbytes / 1e9 + 1 * MS

    asked = request(toy, times_of(toy), blocking_wait=True, collective_s=collective_s)
    plan = horovod_plan(asked, HorovodStrategy(kind="horovod"))
    assert reductions(plan) == [8_000_000, 7_000_000]
    waits = [task.work.duration_s for task in named(plan, "cycle")]  # type: ignore[union-attr]
    assert waits == pytest.approx([0.5 * MS, 0.0])
    second = named(plan, "cycle")[1]
    assert plan.tasks.index(named(plan, "all-reduce")[0]) in second.after


def test_ranks_agree_by_a_bit_for_each_tensor() -> None:
    """A first step gathers and broadcasts requests as well, and so do more tensors than cached."""
    asked: list[tuple[str, int, str | None]] = []

    def collective_s(op: Op, nbytes: int, library: str | None) -> float:
        asked.append((op, nbytes, library))
        return 1 * MS

    model = build_model("resnet50")
    times = LayerTimes(np.ones(1), np.ones(1), np.ones(1), np.ones(1), 0.0, 1.0, 1, 1e12, "test")
    steady = request(model, times, collective_s=collective_s)
    assert agreement_s(steady, HorovodStrategy(kind="horovod")) == 1 * MS
    assert asked == [("all_reduce", bit_vector_bytes(161), "mpi")]
    assert agreement_s(steady, horovod(cache_capacity=160)) == pytest.approx(5 * MS)
    assert agreement_s(steady, horovod(cache_capacity=0)) == pytest.approx(4 * MS)
    first = request(model, times, collective_s=collective_s, iteration="first")
    assert agreement_s(first, horovod(controller="gloo")) == pytest.approx(5 * MS)
    assert {library for _, _, library in asked[1:]} == {"mpi", "gloo"}


def test_one_rank_trains_without_horovod(toy: Workload, times_of: Times) -> None:
    plan = horovod_plan(request(toy, times_of(toy), ranks=1), HorovodStrategy(kind="horovod"))
    check_plan(plan)
    assert {task.stream for task in plan.tasks} == {"compute"}
    works = [task.work for task in plan.tasks if isinstance(task.work, Compute)]
    assert sum(work.duration_s for work in works) == pytest.approx(4 * 3 * MS + 1 * MS)


def test_memory_is_the_whole_buffer() -> None:
    model = build_model("resnet18")
    setup = Setup(model, "fp32", "sgd", 4, 8, options=HorovodStrategy(kind="horovod"))
    assert HOROVOD.memory(setup).buckets_bytes == 128 * MIB
    half = Setup(model, "fp32", "sgd", 4, 8, options=horovod(compression="fp16"))
    assert HOROVOD.memory(half).buckets_bytes == 128 * MIB + 2 * model.parameters
    alone = Setup(model, "fp32", "sgd", 1, 8, options=HorovodStrategy(kind="horovod"))
    assert HOROVOD.memory(alone).buckets_bytes == 0


def test_impossible_options_are_named_together() -> None:
    with pytest.raises(InputError) as caught:
        horovod(fusion_threshold="-1 B", cycle_time="-1 s", accumulate=0)
    fields = [fault.field for fault in caught.value.faults]
    assert fields == ["fusion_threshold", "cycle_time", "accumulate"]
