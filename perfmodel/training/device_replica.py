"""DistributedDataParallel around a module whose layers sit on several GPUs of one process.

``DistributedDataParallel(module)`` without ``device_ids``: forward goes from GPU to GPU, backward
the other way, and no two of them work at a time on layers. One process drives all of them: its host
thread issues the kernels of every GPU in one order, and one reducer launches buckets, each of
gradients of one GPU, in one order too; what each GPU runs waits for nothing else than its own work
and messages.

So every GPU of a replica gets the tasks of the process's host, and of the others its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from perfmodel.errors import failed, raise_faults
from perfmodel.training.ddp.buckets import Bucket, ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.pipeline.pass_actions import TRANSFER_STREAMS, Message
from perfmodel.training.pipeline.stage_passes import of_part
from perfmodel.training.pipeline.stage_workload import ModelPart
from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import (
    PASSES,
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Task,
)
from perfmodel.training.strategy import StepRequest


def layer_devices(parts: Sequence[range]) -> tuple[int, ...]:
    """GPU of each layer: that of its part of the model."""
    return tuple(device for device, layers in enumerate(parts) for _ in layers)


def check_replica(options: DdpOptions, parts: Sequence[ModelPart], request: StepRequest) -> None:
    """Check what DDP is told of a module with a part on each GPU of a process.

    Raises `InputError`: what PyTorch does not have for such a module, or nobody has planned.
    """
    sequential = "with schedule: sequential"
    raise_faults(
        failed(
            (
                any(part.shared for part in parts),
                "model",
                f"{request.workload.name!r}, whose head is tied to its embedding",
                "one without: a parameter is on one GPU",
            ),
            (
                options.hook.kind not in ("none", "allreduce", "fp16", "bf16"),
                "strategy.hook",
                repr(options.hook.kind),
                f"none, allreduce, fp16 or bf16 {sequential}: no wait of the host",
            ),
            (options.join, "strategy.join", "true", f"false {sequential}"),
            (
                request.blocking_wait,
                "library.name",
                "a library whose results the host waits for",
                "NCCL with GPUs",
            ),
            (request.float8, "compute.precision", "'fp8'", f"another precision {sequential}"),
        )
    )


def spread_replica(
    plan: StepPlan,
    request: StepRequest,
    options: DdpOptions,
    parts: Sequence[ModelPart],
    transfer_bytes: tuple[int, ...],
) -> StepPlan:
    """Put the plan of DDP, of one class, on the GPUs of its replicas.

    `plan`: rank r is process r; here rank d R + r is GPU d of R processes.
    `options`: with `layer_devices`.
    `transfer_bytes`: of a micro-batch's activations from each GPU to the next, and of gradients.
    """
    ranks, devices = request.ranks, range(len(parts))
    buckets = ddp_buckets(
        request.workload, options, iteration=request.iteration, ready_order=request.ready_order
    )
    on_device = [_device_of(task, options, buckets) for task in plan.tasks]
    messages = _crossings(plan, on_device)
    tasks: list[Task] = []
    for device, part in enumerate(parts):
        _add_device(plan, on_device, messages, device, part, tasks, transfer_bytes)
    communicators = [
        replace(
            each,
            name=f"{each.name} of part {device}",
            groups=tuple(tuple(device * ranks + rank for rank in group) for group in each.groups),
        )
        for each in plan.communicators
        for device in devices
    ]
    for source, target in permutations(devices, 2):
        pairs = tuple((source * ranks + r, target * ranks + r) for r in range(ranks))
        communicators.append(Communicator(f"stage {source} to stage {target}", pairs, "stages"))
    used = {task.work.communicator for task in tasks if isinstance(task.work, Collective)}
    streams = {task.stream for task in tasks}
    return replace(
        plan,
        name=f"{plan.name}, each replica on {len(parts)} GPUs",
        classes=tuple(
            RankClass(f"stage {device}", range(device * ranks, (device + 1) * ranks))
            for device in devices
        ),
        streams=tuple(s for s in (*plan.streams, *TRANSFER_STREAMS) if s.name in streams),
        communicators=tuple(each for each in communicators if each.name in used),
        tasks=tuple(tasks),
    )


def _device_of(task: Task, options: DdpOptions, buckets: Sequence[Bucket]) -> int | None:
    """GPU of a task; None: every GPU runs its own part of it.

    Buffers are the first's, and so is the map of used parameters (``params[0].device``).
    """
    if task.layers:
        return options.layer_devices[task.layers[0]]
    if task.bucket is not None:
        return buckets[task.bucket].device
    return (
        0
        if (isinstance(task.work, Collective) or task.kind == "copy") and task.role != "step_end"
        else None
    )


def _crossings(plan: StepPlan, on_device: Sequence[int | None]) -> dict[int, Message]:
    """Messages where passes go on to another GPU, by the task of the plan that needs them.

    They are activations forward and gradients backward. Forward of the next micro-batch begins on
    the first GPU, and needs nothing.
    """
    messages: dict[int, Message] = {}
    kind, source = "", 0
    for index, (task, target) in enumerate(zip(plan.tasks, on_device, strict=True)):
        if task.kind not in PASSES or target is None:
            continue
        if task.kind == kind and target != source:
            is_forward = source < target
            messages[index] = Message(
                "activations" if is_forward else "gradients",
                source,
                target,
                target,
                task.micro_batch,
                "next" if is_forward else "previous",
            )
        kind, source = task.kind, target
    return messages


def _add_device(
    plan: StepPlan,
    on_device: Sequence[int | None],
    messages: Mapping[int, Message],
    device: int,
    part: ModelPart,
    tasks: list[Task],
    transfer_bytes: tuple[int, ...],
) -> None:
    """Append the tasks of one GPU, and its messages where passes go on to another GPU.

    It waits for work of other GPUs by way of the host, which has issued it.
    """
    written: dict[int, int] = {}  # of the plan's tasks, which of `tasks` each is on this GPU
    newest: tuple[int, ...] = ()  # the last task on its computing stream
    issued: tuple[int, ...] = ()  # the last task of the host
    issued_before: list[tuple[int, ...]] = []  # of each task of the plan, the host's last one

    def append(task: Task) -> int:
        tasks.append(replace(task, rank_class=f"stage {device}"))
        return len(tasks) - 1

    def transfer(message: Message, stream: str, after: tuple[int, ...]) -> int:
        nbytes, key = transfer_bytes[message.boundary], message.key
        work, batch = Collective("send", nbytes, message.communicator, key), message.micro_batch
        return append(Task(key, "communication", "", stream, work, after, micro_batch=batch))

    for index, task in enumerate(plan.tasks):
        issued = (index,) if task.stream == HOST.name else issued
        issued_before.append(issued)
        message, arrived = messages.get(index), tuple[int, ...]()
        if message is not None and message.source == device:
            transfer(message, message.sent_on, newest)
        elif message is not None and message.target == device:
            arrived = (transfer(message, message.received_on, ()),)
        if task.stream != HOST.name and on_device[index] not in (None, device):
            continue
        work = of_part(task.work, device)
        if task.kind == "optimizer" and task.stream == COMPUTE.name:
            work = Compute(part.times.optimizer_s)
        sources = [(each,) if each in written else issued_before[each] for each in task.after]
        own = dict.fromkeys(written[each] for alike in sources for each in alike)
        written[index] = append(replace(task, work=work, after=(*arrived, *own), after_previous=()))
        newest = (written[index],) if task.stream == COMPUTE.name else newest
    # the first work of a step on the GPU follows the last of the step before
    previous = tuple(written[source] for task in plan.tasks for source in task.after_previous)
    first = next(index for index in written.values() if tasks[index].stream == COMPUTE.name)
    tasks[first] = replace(tasks[first], after_previous=previous)
