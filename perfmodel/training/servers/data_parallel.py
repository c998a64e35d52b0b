"""nn.DataParallel: one process drives all GPUs of a host, the first one is the server.

Every forward broadcasts the parameters from GPU 0, scatters the inputs and gathers the outputs;
the gradients are reduced to GPU 0 only when backward has ended, because to autograd the broadcast
is a single operation; only GPU 0 runs the optimizer. From torch 2.13: torch/nn/parallel/
{data_parallel,replicate,_functions,comm}.py, torch/csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.forward_backward import Segment, backward_segments, forward_segments
from perfmodel.training.plan.step_plan import Communicator, Op, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

COALESCED_BYTES = 10 * MIB
"""Parameters and gradients travel in pieces of this size (default `buffer_size`, comm.py)."""

FIRST, OTHERS = "gpu 0", "other gpus"
GROUP = "data parallel"

NO_OPTIONS = DdpOptions(broadcast_buffers=False)
"""It has none; buffers are broadcast with the parameters."""


@dataclass(frozen=True, slots=True)
class _Step:
    request: StepRequest
    tasks: TaskList


def data_parallel_plan(request: StepRequest, _options: DdpOptions = NO_OPTIONS) -> StepPlan:
    """Return one step of nn.DataParallel training; of plain training for one GPU.

    The threads that run forward share Python's interpreter lock: assumption: all launches of
    forward happen one after the other (`ranks` times as long). Backward is issued by one C++
    thread per GPU. The loss is taken as free, the input as already on GPU 0.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    workload, times, ranks = request.workload, request.times, request.ranks
    if ranks == 1:
        alone = StepRequest(
            workload,
            times,
            1,
            request.batch_per_gpu,
            kernel_s=request.kernel_s,
            segments=request.segments,
        )
        return ddp_plan(alone, DdpOptions())
    tasks = TaskList.of(request)
    step = _Step(request, tasks)
    _add_forward(step)
    _add_backward(step)
    _add_reduction(step)
    return StepPlan(
        name=f"nn.DataParallel, {workload.name}",
        classes=(RankClass(FIRST, range(1)), RankClass(OTHERS, range(1, ranks))),
        streams=((HOST,) if times.launch_s > 0 else ()) + (COMPUTE, Stream("comm", "comm")),
        communicators=(Communicator(GROUP, (range(ranks),)),),
        tasks=tuple(tasks.tasks),
        samples=ranks * request.batch_per_gpu,
    )


def broadcast_pieces(tensors: Sequence[ParameterTensor]) -> tuple[tuple[int, str], ...]:
    """Return bytes and dtype of each coalesced broadcast of the parameters.

    A piece is closed when one more tensor like its last would fill it (``take_tensors`` in
    torch/csrc/utils/tensor_flatten.cpp); each dtype has its own.
    """
    pieces: list[tuple[int, str]] = []
    filling: dict[str, int] = {}
    for tensor in tensors:
        filled = filling.get(tensor.dtype, 0) + tensor.nbytes
        filling[tensor.dtype] = filled
        if filled + tensor.nbytes >= COALESCED_BYTES:
            pieces.append((filled, tensor.dtype))
            filling[tensor.dtype] = 0
    pieces += [(nbytes, dtype) for dtype, nbytes in filling.items()]
    return tuple(piece for piece in pieces if piece[0])


def reduction_pieces(tensors: Sequence[ParameterTensor]) -> tuple[tuple[int, str], ...]:
    """Return bytes and dtype of each coalesced reduction of the gradients.

    A piece is closed before the tensor that would overfill it (``_take_tensors`` in
    torch/_utils.py, which is not the rule of the broadcast); each dtype has its own.
    """
    pieces: list[tuple[int, str]] = []
    filling: dict[str, int] = {}
    for tensor in tensors:
        filled = filling.get(tensor.dtype, 0)
        if filled and filled + tensor.nbytes > COALESCED_BYTES:
            pieces.append((filled, tensor.dtype))
            filled = 0
        filling[tensor.dtype] = filled + tensor.nbytes
    pieces += [(nbytes, dtype) for dtype, nbytes in filling.items()]
    return tuple(piece for piece in pieces if piece[0])


def _together(
    step: _Step, name: str, op: Op, nbytes: int, ready: dict[str, int], dtype: str | None = None
) -> dict[str, int]:
    """Add a collective for both classes, each after its own task; returns its tasks by class."""
    return {
        rank_class: step.tasks.collective(
            name,
            op,
            nbytes,
            rank_class,
            communicator=GROUP,
            key=name,
            after=(ready[rank_class],) if rank_class in ready else (),
            dtype=dtype,
        )
        for rank_class in (FIRST, OTHERS)
    }


def _batch_bytes(request: StepRequest, elements: float) -> int:
    """Bytes of all GPUs' samples, each of so many elements."""
    return round(request.ranks * request.batch_per_gpu * elements) * request.item_bytes


def _add_forward(step: _Step) -> None:
    inputs = _batch_bytes(step.request, step.request.workload.input_elements)
    ready: dict[str, int] = {}
    if inputs:
        ready = _together(step, "scatter inputs", "scatter", inputs, {})
    pieces: list[tuple[int, str | None]] = [*broadcast_pieces(step.request.workload.tensors)]
    if step.request.workload.buffer_bytes:
        pieces.append((step.request.workload.buffer_bytes, None))
    for number, (nbytes, dtype) in enumerate(pieces):
        issued = step.tasks.issue(f"replicate {number}", 1 + step.request.ranks, FIRST)
        before = (ready[FIRST],) if ready else ()
        flat = step.tasks.copy(
            f"flatten parameters {number}", nbytes, 1, FIRST, after=(*issued, *before)
        )
        name = f"broadcast parameters {number}"
        ready = _together(step, name, "broadcast", nbytes, {FIRST: flat}, dtype)
    parts = forward_segments(
        step.request.workload, step.request.times, at_most=step.request.segments
    )
    _add_layers(step, "forward", parts, ready, launches=step.request.ranks)


def _add_layers(
    step: _Step, kind: str, parts: Sequence[Segment], ready: Mapping[str, int], launches: int = 1
) -> None:
    """Add layers of all GPUs, whose first kernels wait for what is `ready`.

    `launches`: how many threads launch kernels one after the other.
    """
    for rank_class in (FIRST, OTHERS):
        waits: tuple[int, ...] = (ready[rank_class],)
        for part in parts:
            name, kernels = f"{kind} {part.name}", part.kernels * launches
            step.tasks.launch(name, kind, part.duration_s, kernels, rank_class, after=waits)
            waits = ()


def _add_backward(step: _Step) -> None:
    outputs = _batch_bytes(step.request, step.request.workload.output_elements)
    ready = _newest(step)
    if outputs:
        gathered = _together(step, "gather outputs", "gather", outputs, ready)
        ready = _together(step, "scatter gradient of outputs", "scatter", outputs, gathered)
    parts = backward_segments(
        step.request.workload, step.request.times, at_most=step.request.segments
    )
    _add_layers(step, "backward", parts, ready)


def _add_reduction(step: _Step) -> None:
    """Reduce all gradients to GPU 0 once backward has ended, and let it run the optimizer."""
    tensors = [step.request.workload.tensors[index] for index in step.request.workload.ready_order]
    ready: dict[str, int] = {}
    for number, (nbytes, dtype) in enumerate(reduction_pieces(tensors)):
        flat = {
            rank_class: step.tasks.copy(
                f"flatten gradients {number}",
                nbytes,
                1,
                rank_class,
                after=(ready[rank_class],) if ready else (),
            )
            for rank_class in (FIRST, OTHERS)
        }
        ready = _together(step, f"reduce gradients {number}", "reduce", nbytes, flat, dtype)
    times = step.request.times
    end = step.tasks.launch(
        "optimizer",
        "optimizer",
        times.optimizer_s,
        times.optimizer_kernels,
        FIRST,
        after=(ready[FIRST],),
    )
    for index in _firsts(step):
        task = step.tasks.tasks[index]
        step.tasks.tasks[index] = replace(task, after_previous=(end,))


def _newest(step: _Step) -> dict[str, int]:
    """Return the newest device task of each class."""
    return {
        task.rank_class: index
        for index, task in enumerate(step.tasks.tasks)
        if task.stream == COMPUTE.name
    }


def _firsts(step: _Step) -> Iterator[int]:
    """Return GPU 0's first task on each device stream, with which the next step begins."""
    streams = {HOST.name}
    for index, task in enumerate(step.tasks.tasks):
        if task.rank_class == FIRST and task.stream not in streams:
            streams.add(task.stream)
            yield index


def data_parallel_memory(setup: Setup) -> MemoryUse:
    """Add up what nn.DataParallel keeps on GPU 0.

    With several GPUs, it holds its own gradients and the reduced ones, and the outputs of all GPUs
    with their gradient.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    outputs = setup.ranks * setup.batch_per_gpu * setup.workload.output_elements
    return replace(
        use,
        buckets_bytes=use.gradients_bytes,
        activations_bytes=use.activations_bytes + 2 * outputs * ITEM_BYTES[setup.precision],
    )


DATA_PARALLEL = Strategy(
    "nn.DataParallel",
    lambda _section: NO_OPTIONS,
    data_parallel_plan,
    data_parallel_memory,
    assumptions=("Cloning Python modules per replica costs nothing here: a lower bound.",),
)
