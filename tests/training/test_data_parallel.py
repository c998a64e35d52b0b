"""nn.DataParallel: GPU 0 serves the others, and nothing overlaps backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.data_parallel import (
    broadcast_pieces,
    data_parallel_plan,
    reduction_pieces,
)
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
MIB = 1024 * 1024


def collectives(plan: StepPlan, op: str, rank_class: str) -> list[Collective]:
    return [
        task.work
        for task in plan.tasks
        if isinstance(task.work, Collective)
        and task.work.op == op
        and task.rank_class == rank_class
    ]


@pytest.fixture
def resnet() -> Workload:
    return build_model("resnet50")


def test_bytes_of_each_phase(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 4, 8))
    check_plan(plan)
    for rank_class in ("gpu 0", "other gpus"):
        sent = sum(work.nbytes for work in collectives(plan, "broadcast", rank_class))
        assert sent == resnet.nbytes + resnet.buffer_bytes
        reduced = sum(work.nbytes for work in collectives(plan, "reduce", rank_class))
        assert reduced == resnet.nbytes
    inputs, gradient = collectives(plan, "scatter", "gpu 0")
    assert inputs.nbytes == 4 * 8 * 3 * 224 * 224 * 4
    (outputs,) = collectives(plan, "gather", "gpu 0")
    assert outputs.nbytes == gradient.nbytes == 4 * 8 * 1000 * 4
    assert plan.samples == 32
    assert [list(each.ranks) for each in plan.classes] == [[0], [1, 2, 3]]


def test_gradients_are_reduced_only_after_backward(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 4, 8))
    names = [(task.kind, task.name.split(" ")[0]) for task in plan.tasks]
    last_backward = max(i for i, (kind, _) in enumerate(names) if kind == "backward")
    assert min(i for i, (_, what) in enumerate(names) if what == "reduce") > last_backward
    first_forward = min(i for i, (kind, _) in enumerate(names) if kind == "forward")
    assert max(i for i, (_, what) in enumerate(names) if what == "broadcast") < first_forward


def test_each_pass_waits_for_what_gpu_0_sends(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 4, 8))
    for rank_class in ("gpu 0", "other gpus"):
        mine = [task for task in plan.tasks if task.rank_class == rank_class]
        forward = next(task for task in mine if task.kind == "forward")
        (last,) = forward.after
        assert plan.tasks[last].rank_class == rank_class
        assert plan.tasks[last].work == collectives(plan, "broadcast", rank_class)[-1]
        backward = next(task for task in mine if task.kind == "backward")
        waits = [plan.tasks[i] for i in backward.after]
        assert [task.name for task in waits] == ["scatter gradient of outputs"]
        gathered = next(task for task in mine if task.name == "gather outputs")
        assert [plan.tasks[i].kind for i in gathered.after] == ["forward"]
        for op, before in (("broadcast", "flatten parameters"), ("reduce", "flatten gradients")):
            if (rank_class, op) == ("other gpus", "broadcast"):
                continue  # they only receive
            moves = [t for t in mine if isinstance(t.work, Collective) and t.work.op == op]
            names = [plan.tasks[i].name for task in moves for i in task.after]
            assert names == [f"{before} {number}" for number in range(len(moves))]


def test_only_gpu_0_runs_the_optimizer(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 4, 8))
    places = [i for i, task in enumerate(plan.tasks) if task.kind == "optimizer"]
    assert [plan.tasks[i].rank_class for i in places] == ["gpu 0"]
    waits = [plan.tasks[i].name for i in plan.tasks[places[0]].after]
    last = len(collectives(plan, "reduce", "gpu 0")) - 1
    assert waits == [f"reduce gradients {last}"]
    waiting = [task for task in plan.tasks if task.after_previous]
    assert {task.after_previous for task in waiting} == {(places[0],)}
    assert {task.name for task in waiting} == {"scatter inputs", "flatten parameters 0"}


def test_all_gpus_compute_all_layers(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 4, 8))
    count = Counter((task.rank_class, task.kind) for task in plan.tasks)
    for rank_class in ("gpu 0", "other gpus"):
        assert count[rank_class, "forward"] == count[rank_class, "backward"] == len(resnet.layers)


def test_one_python_thread_launches_forward_for_all(resnet: Workload, times_of: Times) -> None:
    times = times_of(resnet, launch_s=1e-6)

    def issued_s(ranks: int, direction: str) -> float:
        plan = data_parallel_plan(StepRequest(resnet, times, ranks, 8))
        return sum(
            task.work.duration_s  # type: ignore[union-attr]
            for task in plan.tasks
            if task.name.startswith(f"issue {direction}") and task.rank_class == "gpu 0"
        )

    assert issued_s(8, "forward") == pytest.approx(4 * issued_s(2, "forward"))
    assert issued_s(8, "backward") == pytest.approx(issued_s(2, "backward"))


def test_one_gpu_is_plain_training(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 1, 8))
    check_plan(plan)
    assert not plan.communicators
    assert {task.kind for task in plan.tasks} == {"forward", "backward", "optimizer"}


def test_a_workload_without_inputs_or_outputs_still_has_a_plan(times_of: Times) -> None:
    bare = build_model("resnet18")
    bare = Workload(bare.name, bare.tensors, bare.layers)
    plan = data_parallel_plan(StepRequest(bare, times_of(bare), 2, 1))
    check_plan(plan)
    assert not collectives(plan, "scatter", "gpu 0")


def test_refuses_nothing_to_do(resnet: Workload, times_of: Times) -> None:
    with pytest.raises(InputError) as caught:
        data_parallel_plan(StepRequest(resnet, times_of(resnet), 0, 0))
    assert [fault.field for fault in caught.value.faults] == ["ranks", "batch_per_gpu"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6 * MIB), st.sampled_from(["fp32", "fp16"])), max_size=12))
def test_reductions_are_cut_as_in_pytorch(sizes: Sequence[tuple[int, str]]) -> None:
    torch = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    from torch._utils import _take_tensors

    tensors = [ParameterTensor("t", (numel,), dtype) for numel, dtype in sizes]
    names = {"fp32": torch.float32, "fp16": torch.float16}
    real = [torch.empty(t.shape, dtype=names[t.dtype], device="meta") for t in tensors]
    dtypes = {dtype: name for name, dtype in names.items()}
    wanted = [
        (sum(t.numel() * t.element_size() for t in p), dtypes[p[0].dtype])
        for p in _take_tensors(real, 10 * MIB)
    ]
    assert list(reduction_pieces(tensors)) == [piece for piece in wanted if piece[0]]


@given(st.lists(st.integers(1, 6 * MIB), min_size=1, max_size=12))
def test_pieces_hold_every_byte(numels: Sequence[int]) -> None:
    tensors = [ParameterTensor("t", (numel,)) for numel in numels]
    largest = 4 * max(numels)
    most = {
        broadcast_pieces: 10 * MIB + largest,
        reduction_pieces: max(10 * MIB, largest),
    }
    for cut, bound in most.items():
        assert sum(nbytes for nbytes, _ in cut(tensors)) == 4 * sum(numels)
        assert all(nbytes <= bound for nbytes, _ in cut(tensors))


def test_a_broadcast_closes_when_another_such_tensor_would_fill_it() -> None:
    # 4 + 4 MiB: one more of 4 would exceed 10; 6 MiB: 6 + 6 would
    tensors = [ParameterTensor("t", (n * MIB // 4,)) for n in (4, 4, 6, 1)]
    assert [nbytes // MIB for nbytes, _ in broadcast_pieces(tensors)] == [8, 6, 1]
    assert [nbytes // MIB for nbytes, _ in reduction_pieces(tensors)] == [8, 7]


def test_gradients_leave_in_pieces_of_10_mib(resnet: Workload, times_of: Times) -> None:
    plan = data_parallel_plan(StepRequest(resnet, times_of(resnet), 2, 1))
    pieces = np.array([work.nbytes for work in collectives(plan, "reduce", "gpu 0")])
    assert len(pieces) >= resnet.nbytes / (10 * MIB)
    assert pieces.max() <= 10 * MIB
