"""The DDP step: what is launched, in which order, after what, and how many bytes it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import InputError, ScheduleError
from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
Run = Callable[..., list[tuple[float, float]]]


def plan_of(workload: Workload, times: LayerTimes, **changed: Any) -> StepPlan:
    options = changed.pop("options", DdpOptions())
    given: dict[str, Any] = {"ranks": 4, "batch_per_gpu": 8}
    return ddp_plan(StepRequest(workload, times, **(given | changed)), options)


def reductions(plan: StepPlan) -> list[Task]:
    return [t for t in plan.tasks if isinstance(t.work, Collective) and t.bucket is not None]


def moved_bytes(plan: StepPlan, prefix: str, copy_Bps: float = 1e12) -> float:
    copies = [task for task in plan.tasks if task.name.startswith(prefix)]
    return sum(task.work.duration_s for task in copies) * copy_Bps  # type: ignore[union-attr]


@pytest.fixture
def toy() -> Workload:
    """Three layers of 4, 8 and 16 MB; buckets capped at 12 MB are {third}, {second, first}."""
    tensors = tuple(
        ParameterTensor(f"w{i}", (mega * 250_000,)) for i, mega in enumerate((4, 8, 16))
    )
    return Workload("toy", tensors, tuple(Layer(f"layer{i}", (i,)) for i in range(3)))


CAP = DdpOptions(bucket_cap=12e6)
MODES = [
    DdpOptions(),
    CAP,
    DdpOptions(find_unused_parameters=True),
    DdpOptions(static_graph=True),
    DdpOptions(gradient_as_bucket_view=True, accumulate=3),
    DdpOptions(bucket_caps=(3e6, 7e6)),
    DdpOptions(set_last_bucket_cap=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("iteration", ["first", "steady"])
def test_plans_are_well_formed_and_reduce_every_byte(
    model: str, options: DdpOptions, iteration: Any, times_of: Times
) -> None:
    workload = build_model(model)
    plan = plan_of(
        workload, times_of(workload, launch_s=1e-6), options=options, iteration=iteration
    )
    check_plan(plan)
    buckets = ddp_buckets(workload, options, iteration=iteration)
    done = reductions(plan)
    assert [(t.bucket, t.work.nbytes) for t in done] == [(b.index, b.nbytes) for b in buckets]
    assert sum(task.work.nbytes for task in done) == workload.nbytes
    assert moved_bytes(plan, "copy in") == pytest.approx(workload.nbytes)
    copied_out = 0 if options.gradient_as_bucket_view else workload.nbytes
    assert moved_bytes(plan, "copy out") == pytest.approx(copied_out)


def test_the_step_of_a_toy_by_hand(toy: Workload, times_of: Times, run_plan: Run) -> None:
    """Copies at 4 MB per ms; an all-reduce takes 1 ms per MB."""
    times = times_of(
        toy,
        forward_s=np.array([1e-3, 2e-3, 3e-3]),
        backward_s=np.array([2e-3, 4e-3, 6e-3]),
        copy_Bps=4e9,
    )
    plan = plan_of(toy, times, options=CAP)
    spans = run_plan(plan, lambda work: work.nbytes * 1e-9)
    by_name = {task.name: span for task, span in zip(plan.tasks, spans, strict=True)}
    wanted_ms = {
        "forward layer0": (0, 1),
        "forward layer1": (1, 3),
        "forward layer2": (3, 6),
        "backward layer2": (6, 12),
        "copy in layer2": (12, 16),
        "backward layer1": (16, 20),
        "copy in layer1": (20, 22),
        "backward layer0": (22, 24),
        "copy in layer0": (24, 25),
        "all-reduce bucket 0": (16, 32),
        "all-reduce bucket 1": (32, 44),
        "copy out bucket 0": (32, 36),
        "copy out bucket 1": (44, 47),
        "optimizer": (47, 48),
    }
    assert set(by_name) == set(wanted_ms)
    for name, wanted in wanted_ms.items():
        assert np.array(by_name[name]) * 1e3 == pytest.approx(wanted), name


def test_a_bucket_is_launched_after_its_last_gradient_and_after_the_bucket_before(
    times_of: Times,
) -> None:
    workload = build_model("resnet50")
    plan = plan_of(workload, times_of(workload))
    for task in reductions(plan):
        (ready,) = task.after
        copies = [
            index
            for index, other in enumerate(plan.tasks)
            if other.name.startswith("copy in") and other.bucket == task.bucket
        ]
        assert ready == copies[-1]
        assert task.stream == "comm"
    assert [task.bucket for task in reductions(plan)] == [0, 1, 2, 3, 4]
    assert [s.workers for s in plan.streams if s.name == "comm"] == [1]


def test_a_complete_bucket_waits_for_those_before_it(times_of: Times) -> None:
    tensors = (ParameterTensor("a", (10,)), ParameterTensor("b", (10,)))
    workload = Workload("two", tensors, (Layer("one", (0,)), Layer("two", (1,))))
    # rank 0 saw a before b, here b gets ready first: bucket 1 is full, but bucket 0 goes first
    plan = plan_of(
        workload, times_of(workload), options=DdpOptions(bucket_cap=1), ready_order=(0, 1)
    )
    check_plan(plan)
    names = [task.name for task in plan.tasks]
    assert names.index("all-reduce bucket 0") > names.index("copy in one")
    assert names.index("all-reduce bucket 1") == names.index("all-reduce bucket 0") + 1
    waits = [[names[i] for i in task.after] for task in reductions(plan)]
    assert waits == [["copy in one"], ["copy in two", "copy in one"]]


def test_first_iteration_overlaps_nothing(times_of: Times, run_plan: Run) -> None:
    workload = build_model("resnet18")
    plan = plan_of(workload, times_of(workload), iteration="first")
    spans = run_plan(plan, lambda _: 1.0)
    starts = [
        s
        for t, (s, _) in zip(plan.tasks, spans, strict=True)
        if t.bucket == 0 and isinstance(t.work, Collective)
    ]
    ends = [e for t, (_, e) in zip(plan.tasks, spans, strict=True) if t.kind == "backward"]
    assert len(starts) == 1
    assert starts[0] >= max(ends)


@pytest.mark.parametrize("segments", [1, 7, 1000])
def test_merging_layers_moves_no_bucket(segments: int, times_of: Times, run_plan: Run) -> None:
    workload = build_model("bert-base")
    rates = np.random.default_rng(0).uniform(1e-4, 1e-2, (2, len(workload.layers)))
    times = times_of(workload, forward_s=rates[0], backward_s=rates[1], copy_Bps=1e15)

    def starts(plan: StepPlan) -> list[float]:
        spans = run_plan(plan)
        pairs = zip(plan.tasks, spans, strict=True)
        return [span[0] for task, span in pairs if isinstance(task.work, Collective)]

    exact = starts(plan_of(workload, times, segments=10**6))
    merged = plan_of(workload, times, segments=segments)
    assert starts(merged) == pytest.approx(exact, rel=1e-6)
    assert sum(task.kind == "forward" for task in merged.tasks) == min(
        segments, len(workload.layers)
    )


def test_a_model_bound_by_launches_takes_as_long_as_the_host(
    times_of: Times, run_plan: Run
) -> None:
    workload = build_model("resnet18")
    layers = len(workload.layers)
    times = times_of(
        workload, launch_s=1e-3, forward_s=np.full(layers, 1e-6), backward_s=np.full(layers, 1e-6)
    )
    plan = plan_of(workload, times, ranks=1)
    kernels = 9 * layers + 10
    assert run_plan(plan)[-1][0] == pytest.approx(kernels * 1e-3)
    ddp = plan_of(workload, times, options=DdpOptions(broadcast_buffers=False))
    # DDP issues a copy in and a copy out per parameter, from C++: operations alone
    copies = 2 * len(workload.tensors)
    assert run_plan(ddp)[-1][0] == pytest.approx((kernels + copies) * 1e-3, rel=5e-3)
    slower = plan_of(workload, replace(times, layer_launches=5.0), ranks=1)
    assert run_plan(slower)[-1][0] == pytest.approx((5 * 9 * layers + 10) * 1e-3)


def test_the_host_reads_whether_gradients_are_finite(toy: Workload, times_of: Times) -> None:
    """Loss scaling ends its lead: the optimizer is issued after the check, in two parts."""
    times = times_of(toy, launch_s=1e-6, unscale_s=1e-3, optimizer_lists=4)
    tasks = plan_of(toy, times).tasks
    unscaled, waited, issued, end, rest = tasks[-5:]
    reduced = {at for at, task in enumerate(tasks) if task.role == "copy_out"}
    assert reduced <= set(unscaled.after)
    assert unscaled.work == Compute(1e-3)
    assert (waited.stream, issued.stream, rest.stream) == ("host", "host", "host")
    assert waited.after == (len(tasks) - 5,)
    assert issued.after == (len(tasks) - 4,)
    assert (issued.work, rest.work) == (Compute(4e-6), Compute(6e-6))
    assert end.after[0] == len(tasks) - 3


def test_copy_kernels_have_a_least_time(toy: Workload, times_of: Times) -> None:
    plan = plan_of(toy, times_of(toy), options=CAP, kernel_s=1e-3)
    assert moved_bytes(plan, "copy in") == pytest.approx(28e6 + 3 * 1e9)


def test_one_rank_trains_without_ddp(times_of: Times) -> None:
    workload = build_model("resnet50")
    plan = plan_of(workload, times_of(workload), ranks=1, options=DdpOptions(accumulate=2))
    check_plan(plan)
    assert {task.kind for task in plan.tasks} == {"forward", "backward", "optimizer"}
    assert not plan.communicators
    assert [stream.name for stream in plan.streams] == ["compute"]
    assert plan.samples == 16


def test_accumulation_communicates_in_the_last_micro_batch_only(
    toy: Workload, times_of: Times
) -> None:
    options = DdpOptions(bucket_cap=12e6, accumulate=3)
    plan = plan_of(toy, times_of(toy, copy_Bps=4e9), options=options)
    check_plan(plan)
    assert plan.samples == 4 * 8 * 3
    assert {t.micro_batch for t in plan.tasks if isinstance(t.work, Collective)} == {2}
    passes = [(t.micro_batch, t.kind) for t in plan.tasks if t.kind in ("forward", "backward")]
    assert passes == [(m, kind) for m in range(3) for kind in ("forward",) * 3 + ("backward",) * 3]
    # adding up reads two and writes one where a copy reads and writes one: 1.5 copies of 16 MB
    third = [t.work.duration_s for t in plan.tasks if t.name == "backward layer2"]  # type: ignore[union-attr]
    assert third == pytest.approx([2e-3, 2e-3 + 6e-3, 2e-3 + 6e-3])


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_compression_halves_what_travels(toy: Workload, times_of: Times, hook: Any) -> None:
    plan = plan_of(toy, times_of(toy), options=CAP.model_copy(update={"hook": CastHook(kind=hook)}))
    check_plan(plan)
    assert [task.work.nbytes for task in reductions(plan)] == [8_000_000, 6_000_000]
    # per fp32 element: a cast moves 6 bytes there and 6 back, a division in place 4 (copy: 8)
    assert moved_bytes(plan, "compress bucket 0") == pytest.approx(16e6 * (6 + 4) / 8)
    assert moved_bytes(plan, "decompress bucket 0") == pytest.approx(16e6 * 6 / 8)
    finish = next(t for t in plan.tasks if t.name == "copy out bucket 0")
    assert [plan.tasks[i].name for i in finish.after] == ["decompress bucket 0"]


def test_unused_parameters_cost_one_more_reduction(times_of: Times) -> None:
    workload = build_model("resnet50")
    plan = plan_of(workload, times_of(workload), options=DdpOptions(find_unused_parameters=True))
    last = [task for task in plan.tasks if isinstance(task.work, Collective)][-1]
    assert last.work.nbytes == 4 * 161  # int32 per parameter tensor of ResNet-50
    optimizer = plan.tasks[-1]
    assert plan.tasks.index(last) in optimizer.after


def test_static_graph_reduces_after_its_first_backward(times_of: Times) -> None:
    workload = build_model("resnet18")
    options = DdpOptions(static_graph=True, broadcast_buffers=False)
    plan = plan_of(workload, times_of(workload), options=options, iteration="first")
    check_plan(plan)
    kinds = [task.kind for task in plan.tasks]
    last_backward = len(kinds) - 1 - kinds[::-1].index("backward")
    communication = [i for i, kind in enumerate(kinds) if kind == "communication"]
    assert min(communication) > last_backward
    assert plan.tasks[communication[0]].name == "all-reduce used-parameter map"
    steady = plan_of(workload, times_of(workload), options=options)
    assert not any("map" in task.name for task in steady.tasks)


def test_forward_waits_for_the_buffers_of_rank_0(times_of: Times) -> None:
    workload = build_model("resnet50")
    plan = plan_of(workload, times_of(workload), options=DdpOptions(accumulate=2))
    broadcasts = [
        t for t in plan.tasks if isinstance(t.work, Collective) and t.work.op == "broadcast"
    ]
    assert sum(task.work.nbytes for task in broadcasts) == workload.buffer_bytes > 0
    assert len(broadcasts) == 2  # once per step, not once per micro-batch
    first = next(task for task in plan.tasks if task.kind == "forward")
    # Batch normalisation has statistics in fp32 and a counter in int64: two broadcasts, and a
    # kernel for each of its 3 x 53 buffers to copy it back.
    assert [plan.tasks[i].name for i in first.after] == ["copy buffers back"] * 2
    awaited = [plan.tasks[j].name for i in first.after for j in plan.tasks[i].after]
    assert awaited == ["broadcast buffers (fp32)", "broadcast buffers (int64)"]
    assert [(g.tensors, g.nbytes) for g in workload.buffers] == [(106, 212480), (53, 424)]
    without = plan_of(workload, times_of(workload), options=DdpOptions(broadcast_buffers=False))
    assert not any("buffers" in task.name for task in without.tasks)
    transformer = build_model("gpt2-xl")
    assert transformer.buffer_bytes == 0
    assert not any("broadcast" in t.name for t in plan_of(transformer, times_of(transformer)).tasks)


def test_optimizer_follows_all_gradients_and_the_next_step_follows_it(
    toy: Workload, times_of: Times
) -> None:
    plan = plan_of(toy, times_of(toy), options=CAP)
    optimizer = len(plan.tasks) - 1
    assert plan.tasks[optimizer].kind == "optimizer"
    names = [plan.tasks[i].name for i in plan.tasks[optimizer].after]
    assert names == ["copy out bucket 0", "copy out bucket 1"]
    assert plan.tasks[0].after_previous == (optimizer,)
    views = plan_of(
        toy, times_of(toy), options=DdpOptions(bucket_cap=12e6, gradient_as_bucket_view=True)
    )
    names = [views.tasks[i].name for i in views.tasks[-1].after]
    assert names == ["all-reduce bucket 0", "all-reduce bucket 1"]


def test_gloo_has_two_workers_and_blocks_the_host(toy: Workload, times_of: Times) -> None:
    plan = plan_of(
        toy, times_of(toy, launch_s=1e-6), options=CAP, comm_workers=2, blocking_wait=True
    )
    assert [s.workers for s in plan.streams if s.name == "comm"] == [2]
    issue = next(task for task in plan.tasks if task.name == "issue copy out bucket 1")
    assert [plan.tasks[i].name for i in issue.after] == ["all-reduce bucket 1"]
    free = plan_of(toy, times_of(toy, launch_s=1e-6), options=CAP)
    assert not next(t for t in free.tasks if t.name == "issue copy out bucket 1").after


def test_ranks_are_one_class_however_many(toy: Workload, times_of: Times) -> None:
    few, many = (plan_of(toy, times_of(toy), ranks=ranks) for ranks in (2, 100_000))
    assert few.tasks == many.tasks
    assert many.classes[0].ranks == range(100_000) == many.communicators[0].groups[0]


def test_plans_are_small(times_of: Times) -> None:
    for model, most in (("resnet50", 700), ("gpt2-xl", 1500)):
        workload = build_model(model)
        plan = plan_of(workload, times_of(workload, launch_s=1e-6))
        assert len(plan.tasks) < most, model


def test_impossible_requests_are_refused(toy: Workload, times_of: Times) -> None:
    times = times_of(toy)
    with pytest.raises(InputError) as caught:
        plan_of(toy, times, ranks=0, batch_per_gpu=0)
    assert [fault.field for fault in caught.value.faults] == ["ranks", "batch_per_gpu"]
    with pytest.raises(ScheduleError, match="3 layers"):
        plan_of(toy, times_of(toy, forward_s=np.ones(2)))
    with pytest.raises(ScheduleError, match="negative or not finite"):
        plan_of(toy, times_of(toy, backward_s=np.array([1.0, -1.0, 1.0])))
    with pytest.raises(ScheduleError, match="no layers"):
        plan_of(Workload("empty", toy.tensors, ()), times)


def test_host_tasks_only_where_launching_takes_time(toy: Workload, times_of: Times) -> None:
    assert all(t.stream != "host" for t in plan_of(toy, times_of(toy)).tasks)
    issuing = [t for t in plan_of(toy, times_of(toy, launch_s=1e-6)).tasks if t.stream == "host"]
    assert all(isinstance(task.work, Compute) for task in issuing)
    # forward 3 x 3, backward 3 x 6, optimizer 10; a copy in and out each
    seconds = sum(t.work.duration_s for t in issuing)  # type: ignore[union-attr]
    assert seconds == pytest.approx(43e-6)


def test_adding_gradients_up_is_issued_too(toy: Workload, times_of: Times) -> None:
    times = times_of(toy, launch_s=1e-6)
    plan = plan_of(toy, times, ranks=1, options=DdpOptions(accumulate=2))
    kernels = [
        round(task.work.duration_s * 1e6)  # type: ignore[union-attr]
        for task in plan.tasks
        if task.name.startswith("issue backward")
    ]
    assert kernels == [6, 6, 6, 7, 7, 7]


def test_default_buckets_overlap_backward(times_of: Times, run_plan: Run) -> None:
    """The exposed tail is the last bucket alone once communication is faster than backward."""
    workload = build_model("resnet50")
    plan = plan_of(workload, times_of(workload, copy_Bps=1e18))
    spans = run_plan(plan, lambda work: work.nbytes / (100 * MIB / 0.1))
    pairs = list(zip(plan.tasks, spans, strict=True))
    end = max(span[1] for task, span in pairs if task.kind == "backward")
    tail = [
        task.bucket for task, span in pairs if isinstance(task.work, Collective) and span[1] > end
    ]
    assert tail == [4]


@pytest.mark.parametrize(("hook", "sent"), [("none", "bf16"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_each_collective_names_its_dtype(times_of: Times, hook: Any, sent: str) -> None:
    resnet = build_model("resnet18")
    half = replace(resnet, tensors=tuple(replace(t, dtype="bf16") for t in resnet.tensors))
    options = DdpOptions(find_unused_parameters=True, hook=CastHook(kind=hook))
    plan = plan_of(half, times_of(half), options=options)
    check_plan(plan)
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    assert {work.dtype for work in works if work.key.startswith("bucket")} == {sent}
    # running statistics and their counts; the map of used parameters is int32
    assert [work.dtype for work in works if work.op == "broadcast"] == ["fp32", "int64"]
    assert works[-1].dtype == "int32"
