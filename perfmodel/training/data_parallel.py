"""nn.DataParallel: one process drives all GPUs of a host, the first one is the server.

Every forward broadcasts the parameters from GPU 0, scatters the inputs and gathers the outputs;
the gradients are reduced to GPU 0 only when backward has ended, because to autograd the broadcast
is a single operation; only GPU 0 runs the optimizer. From torch 2.13: torch/nn/parallel/
{data_parallel,replicate,_functions,comm}.py, torch/csrc/cuda/comm.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import COMPUTE, GROUP, HOST, TaskList
from perfmodel.training.plan.forward_backward import Segment, backward_segments, forward_segments
from perfmodel.training.plan.step_plan import Communicator, Op, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

FIRST, OTHERS = "gpu 0", "other gpus"

NO_OPTIONS = DdpOptions(broadcast_buffers=False)
"""It has none; buffers are broadcast with the parameters."""


def data_parallel_plan(request: StepRequest, _options: DdpOptions = NO_OPTIONS) -> StepPlan:
    """Return one step of nn.DataParallel training; of plain training for one GPU.

    The threads that run forward share Python's interpreter lock: assumption: all launches of
    forward happen one after the other (`ranks` times as long). Backward is issued by one C++
    thread per GPU. The loss is taken as free, the input as already on GPU 0.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    workload, times, ranks = request.workload, request.times, request.ranks
    batch = request.batch_per_gpu
    if ranks == 1:
        alone = StepRequest(
            workload, times, 1, batch, kernel_s=request.kernel_s, segments=request.segments
        )
        return ddp_plan(alone, DdpOptions())
    tasks = TaskList.of(request)
    _add_forward(request, tasks)
    _add_backward(request, tasks)
    _add_reduction(request, tasks)
    return StepPlan(
        name=f"nn.DataParallel, {workload.name}",
        classes=(RankClass(FIRST, range(1)), RankClass(OTHERS, range(1, ranks))),
        streams=((HOST,) if times.launch_s > 0 else ()) + (COMPUTE, Stream("comm", "comm")),
        communicators=(Communicator(GROUP, (range(ranks),)),),
        tasks=tuple(tasks.tasks),
        samples=ranks * batch,
    )


def broadcast_pieces(tensors: Sequence[ParameterTensor]) -> tuple[tuple[int, str], ...]:
    """Return bytes and dtype of each coalesced broadcast of the parameters.

    A piece is closed when one more tensor like its last would fill it (``take_tensors`` in
    torch/csrc/utils/tensor_flatten.cpp); each dtype has its own.
    """
    return _pieces(tensors, closes_behind=True)


def reduction_pieces(tensors: Sequence[ParameterTensor]) -> tuple[tuple[int, str], ...]:
    """Return bytes and dtype of each coalesced reduction of the gradients.

    A piece is closed before the tensor that would overfill it (``_take_tensors`` in
    torch/_utils.py, which is not the rule of the broadcast); each dtype has its own.
    """
    return _pieces(tensors, closes_behind=False)


def _pieces(
    tensors: Sequence[ParameterTensor], *, closes_behind: bool
) -> tuple[tuple[int, str], ...]:
    pieces: list[tuple[int, str]] = []
    filling: dict[str, int] = {}
    for tensor in tensors:
        dtype, before = tensor.dtype, filling.get(tensor.dtype, 0)
        filled = before + tensor.nbytes
        if closes_behind and filled + tensor.nbytes >= fixed_in("torch", "data_parallel_bytes"):
            pieces.append((filled, dtype))
            filled = 0
        elif not closes_behind and filled > fixed_in("torch", "data_parallel_bytes"):
            pieces.append((before, dtype))
            filled = tensor.nbytes
        filling[dtype] = filled
    pieces += [(nbytes, dtype) for dtype, nbytes in filling.items()]
    return tuple(piece for piece in pieces if piece[0])


def _together(
    tasks: TaskList,
    name: str,
    op: Op,
    nbytes: int,
    ready: Mapping[str, int],
    dtype: str | None = None,
) -> dict[str, int]:
    """Add a collective for both classes, each after its own task; return its tasks by class."""
    return {
        rank_class: tasks.collective(
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


def _add_forward(request: StepRequest, tasks: TaskList) -> None:
    workload = request.workload
    inputs, ready = _batch_bytes(request, workload.input_elements), dict[str, int]()
    if inputs:
        ready = _together(tasks, "scatter inputs", "scatter", inputs, {})
    pieces: list[tuple[int, str | None]] = [*broadcast_pieces(workload.tensors)]
    if workload.buffer_bytes:
        pieces.append((workload.buffer_bytes, None))
    for number, (nbytes, dtype) in enumerate(pieces):
        after = (
            *tasks.issue(f"replicate {number}", 1 + request.ranks, FIRST),
            *([ready[FIRST]] if ready else []),
        )
        flat = tasks.copy(f"flatten parameters {number}", nbytes, 1, FIRST, after=after)
        ready = _together(
            tasks, f"broadcast parameters {number}", "broadcast", nbytes, {FIRST: flat}, dtype
        )
    parts = forward_segments(workload, request.times, at_most=request.segments)
    _add_layers(tasks, "forward", parts, ready, launches=request.ranks)


def _add_layers(
    tasks: TaskList,
    kind: str,
    parts: Sequence[Segment],
    ready: Mapping[str, int],
    launches: int = 1,
) -> None:
    """Add layers of all GPUs, whose first kernels wait for what is `ready`.

    `launches`: how many threads launch kernels one after the other.
    """
    for rank_class in (FIRST, OTHERS):
        waits: tuple[int, ...] = (ready[rank_class],)
        for part in parts:
            name, kernels = f"{kind} {part.name}", part.kernels * launches
            tasks.launch(name, kind, part.duration_s, kernels, rank_class, after=waits)
            waits = ()


def _add_backward(request: StepRequest, tasks: TaskList) -> None:
    outputs = _batch_bytes(request, request.workload.output_elements)
    on_device = ((at, task) for at, task in enumerate(tasks.tasks) if task.stream == COMPUTE.name)
    ready = {task.rank_class: at for at, task in on_device}  # the newest of each class
    if outputs:
        gathered = _together(tasks, "gather outputs", "gather", outputs, ready)
        ready = _together(tasks, "scatter gradient of outputs", "scatter", outputs, gathered)
    _add_layers(
        tasks,
        "backward",
        backward_segments(request.workload, request.times, at_most=request.segments),
        ready,
    )


def _add_reduction(request: StepRequest, tasks: TaskList) -> None:
    """Reduce all gradients to GPU 0 once backward has ended, and let it run the optimizer.

    The next step begins with GPU 0's first task on each device stream.
    """
    tensors = [request.workload.tensors[index] for index in request.workload.ready_order]
    times, ready = request.times, dict[str, int]()
    for number, (nbytes, dtype) in enumerate(reduction_pieces(tensors)):
        name = f"flatten gradients {number}"
        flat = {
            each: tasks.copy(name, nbytes, 1, each, after=(ready[each],) if ready else ())
            for each in (FIRST, OTHERS)
        }
        ready = _together(tasks, f"reduce gradients {number}", "reduce", nbytes, flat, dtype)
    kernels, after = times.optimizer_kernels, (ready[FIRST],)
    end = tasks.launch("optimizer", "optimizer", times.optimizer_s, kernels, FIRST, after=after)
    own = [(at, task) for at, task in enumerate(tasks.tasks) if task.rank_class == FIRST]
    firsts = {task.stream: at for at, task in reversed(own) if task.stream != HOST.name}
    for index in firsts.values():
        tasks.tasks[index] = replace(tasks.tasks[index], after_previous=(end,))


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
    data_parallel_plan,
    data_parallel_memory,
    assumptions=("Cloning Python modules per replica costs nothing here: a lower bound.",),
    options=lambda _section: NO_OPTIONS,
)
