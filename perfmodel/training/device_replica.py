"""DistributedDataParallel around a module whose layers sit on several GPUs of one process.

``DistributedDataParallel(module)`` without ``device_ids``: forward goes from GPU to GPU, backward
the other way, and no two of them work at a time on layers. One process drives all of them: its host
thread issues the kernels of every GPU in one order, and one reducer launches buckets, each of
gradients of one GPU, in one order too; what each GPU runs waits for nothing else than its own work
and messages.

So every GPU of a replica gets the tasks of the process's host, and of the others its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from perfmodel.errors import Fault, InputError
from perfmodel.training.ddp.buckets import Bucket, ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.pipeline.pass_actions import TRANSFER_STREAMS, Message
from perfmodel.training.pipeline.pass_regions import PASSES
from perfmodel.training.pipeline.stage_workload import ModelPart
from perfmodel.training.plan.builder import COMPUTE, HOST
from perfmodel.training.plan.step_plan import (
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
    tied = f"{request.workload.name!r}, whose head is tied to its embedding"
    rules = (
        (
            "model",
            any(part.shared for part in parts),
            tied,
            "one without: a parameter is on one GPU",
        ),
        (
            "strategy.hook",
            options.hook.kind not in ("none", "allreduce", "fp16", "bf16"),
            repr(options.hook.kind),
            f"none, allreduce, fp16 or bf16 {sequential}: no wait of the host",
        ),
        ("strategy.join", options.join, "true", f"false {sequential}"),
        (
            "library.name",
            request.blocking_wait,
            "a library whose results the host waits for",
            "NCCL with GPUs",
        ),
        (
            "compute.precision",
            request.float8 is not None,
            "'fp8'",
            f"another precision {sequential}",
        ),
    )
    faults = [Fault(name, text, allowed) for name, is_wrong, text, allowed in rules if is_wrong]
    if faults:
        raise InputError(faults)


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
    tasks: list[Task] = []
    for device, part in enumerate(parts):
        _DeviceTasks(plan, on_device, device, part, tasks, transfer_bytes).write()
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
        communicators.append(
            Communicator(_message(source, target, 0).communicator, pairs, "stages")
        )
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


@dataclass(slots=True)
class _DeviceTasks:
    """Tasks of one GPU under construction.

    `written`: of the plan's tasks, which of `tasks` each is on this GPU.
    `newest`: the last task on its computing stream.
    `passing`: the last pass of layers, of all GPUs, with its GPU.
    `issued`: the last task of the host; `issued_before`: the same of each task of the plan.
    """

    plan: StepPlan
    on_device: Sequence[int | None]
    device: int
    part: ModelPart
    tasks: list[Task]
    transfer_bytes: tuple[int, ...]
    written: dict[int, int] = field(default_factory=dict)
    newest: tuple[int, ...] = ()
    passing: tuple[str, int] | None = None
    issued: tuple[int, ...] = ()
    issued_before: list[tuple[int, ...]] = field(default_factory=list)

    def write(self) -> None:
        """Append the GPU's tasks, and its messages where passes go on to another GPU."""
        for index, task in enumerate(self.plan.tasks):
            if task.stream == HOST.name:
                self.issued = (index,)
            self.issued_before.append(self.issued)
            arrived = self._cross(index, task)
            if task.stream != HOST.name and self.on_device[index] not in (None, self.device):
                continue
            work = self._placed(task.work)
            if task.kind == "optimizer" and task.stream == COMPUTE.name:
                work = Compute(self.part.times.optimizer_s)
            placed = replace(
                task, work=work, after=(*arrived, *self._after(task.after)), after_previous=()
            )
            self.written[index] = self._append(placed)
        # the first work of a step on the GPU follows the last of the step before
        previous = [source for task in self.plan.tasks for source in task.after_previous]
        first = next(i for i in self.written.values() if self.tasks[i].stream == COMPUTE.name)
        self.tasks[first] = replace(
            self.tasks[first], after_previous=tuple(self.written[source] for source in previous)
        )

    def _append(self, task: Task) -> int:
        self.tasks.append(replace(task, rank_class=f"stage {self.device}"))
        if task.stream == COMPUTE.name:
            self.newest = (len(self.tasks) - 1,)
        return len(self.tasks) - 1

    def _after(self, sources: Sequence[int]) -> tuple[int, ...]:
        """What a task waits for on this GPU; of other GPUs' work, that the host has issued it."""
        waits: dict[int, None] = {}
        for source in sources:
            mine = (source,) if source in self.written else self.issued_before[source]
            waits.update(dict.fromkeys(self.written[index] for index in mine))
        return tuple(waits)

    def _placed(self, work: Compute | Collective) -> Compute | Collective:
        if not isinstance(work, Collective):
            return work
        name, key = (f"{each} of part {self.device}" for each in (work.communicator, work.key))
        return replace(work, communicator=name, key=key)

    def _cross(self, index: int, task: Task) -> tuple[int, ...]:
        """Send, or receive, what a pass needs that another GPU's pass has made.

        Forward of the next micro-batch begins on the first GPU, and needs nothing.
        """
        target, before = self.on_device[index], self.passing
        if task.kind not in PASSES or target is None:
            return ()
        self.passing = (task.kind, target)
        if before is None or before[1] == target or before[0] != task.kind:
            return ()
        message = _message(before[1], target, task.micro_batch)
        if self.device == before[1]:
            self._transfer(message, message.sent_on, self.newest)
        return (
            (self._transfer(message, message.received_on, ()),) if (self.device == target) else ()
        )

    def _transfer(self, message: Message, stream: str, after: tuple[int, ...]) -> int:
        nbytes, key = self.transfer_bytes[message.boundary], message.key
        work = Collective("send", nbytes, message.communicator, key)
        return self._append(
            Task(key, "communication", "", stream, work, after, micro_batch=message.micro_batch)
        )


def _message(source: int, target: int, micro_batch: int) -> Message:
    """From GPU to GPU: activations forward, gradients backward."""
    forward = source < target
    return Message(
        "activations" if forward else "gradients",
        source,
        target,
        target,
        micro_batch,
        "next" if forward else "previous",
    )
