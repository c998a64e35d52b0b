"""What ZeRO and Megatron's optimizer have in common: layers, the end of a step, the plan of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perfmodel.training.memory.use import StepOptions
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.forward_backward import Segment
from perfmodel.training.plan.step_plan import Communicator, Op, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES

RANKS = "ranks"
EVERYONE = "data parallel"
"""Communicator of all ranks."""

GATHERING, REDUCTION = "gather copy", "reduction copy"
"""DeepSpeed's streams beside the computing one, without the collectives that are issued on them."""

DRIVE_READS, DRIVE_WRITES = "drive reads", "drive writes"
"""Of a rank's share of its host's drives."""

STREAMS = (
    HOST,
    COMPUTE,
    Stream(GATHERING, "copy"),
    Stream(REDUCTION, "copy"),
    Stream("comm", "comm"),
    Stream(DRIVE_READS, "copy"),
    Stream(DRIVE_WRITES, "copy"),
)

MASTER_BYTES = 4
"""Bytes of an element that the optimizer updates: fp32, whatever the model's dtype."""


OptionsT = TypeVar("OptionsT", bound=StepOptions)


@dataclass(slots=True)
class ShardingStep(Generic[OptionsT]):
    """A step under construction.

    `dtype`: what the model is trained in.
    `device_waits`: what the next kernel of a layer waits for.
    `host_waits`: what the host waits for before it issues the next work.
    `last`: last task on the computing stream.
    """

    request: StepRequest
    options: OptionsT
    tasks: TaskList
    dtype: str
    device_waits: tuple[int, ...] = ()
    host_waits: tuple[int, ...] = ()
    last: int | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of a parameter."""
        return ITEM_BYTES[self.dtype]

    def numel(self, tensors: Iterable[int]) -> int:
        """Elements of some parameters."""
        return sum(self.request.workload.tensors[tensor].numel for tensor in tensors)

    def resolution(self) -> int:
        """Segments per pass."""
        least = min(8, self.request.segments)
        return max(least, self.request.segments // self.options.accumulate)


def begin_sharding_step(request: StepRequest, options: OptionsT) -> ShardingStep[OptionsT]:
    """Begin an empty list of tasks."""
    tasks = TaskList.of(request)
    workload = request.workload
    dtype = workload.tensors[workload.ready_order[0]].dtype
    return ShardingStep(request, options, tasks, dtype)


def add_segment(step: ShardingStep[Any], part: Segment, kind: str, micro_batch: int) -> int:
    """Add some layers of one pass."""
    return add_work(
        step, f"{kind} {part.name}", kind, part.duration_s, part.kernels, micro_batch, part.indices
    )


def add_work(
    step: ShardingStep[Any],
    name: str,
    kind: str,
    duration_s: float,
    kernels: int,
    micro_batch: int = 0,
    layers: tuple[int, ...] = (),
) -> int:
    """Add kernels to the computing stream, after what it and the host wait for."""
    step.last = step.tasks.launch(
        name,
        kind,
        duration_s,
        kernels,
        RANKS,
        issue_after=step.host_waits,
        after=(*step.host_waits, *step.device_waits),
        micro_batch=micro_batch,
        layers=layers,
    )
    step.device_waits = step.host_waits = ()
    return step.last


def add_collective(
    step: ShardingStep[Any],
    name: str,
    op: Op,
    elements: int,
    *,
    dtype: str,
    after: Sequence[int],
    communicator: str = EVERYONE,
    root: int = 0,
    bucket: int | None = None,
    micro_batch: int = 0,
) -> int:
    """Add a collective of so many elements, after what it waits for on the device."""
    return step.tasks.collective(
        name,
        op,
        elements * ITEM_BYTES[dtype],
        RANKS,
        communicator=communicator,
        key=f"{name} {len(step.tasks.tasks)}",
        after=dict.fromkeys(after),
        bucket=bucket,
        micro_batch=micro_batch,
        dtype=dtype,
        root=root,
    )


def add_agreement(
    step: ShardingStep[Any],
    name: str,
    dtype: str,
    read_bytes: float,
    communicator: str | None = EVERYONE,
) -> None:
    """All-reduce one number of all gradients, which the host reads: their norm, or an overflow.

    `communicator`: None: each rank has all of them.
    """
    tensors = len(step.request.workload.ready_order)
    counted = add_work(
        step, f"count {name}", "copy", step.tasks.copy_s(read_bytes / 2, tensors), tensors
    )
    agreed = counted
    if communicator is not None:
        agreed = add_collective(
            step, name, "all_reduce", 1, after=(counted,), communicator=communicator, dtype=dtype
        )
    step.device_waits = step.host_waits = (agreed,)


def add_update(step: ShardingStep[Any], elements: float) -> int:
    """Update so many elements: gradients in fp32, the optimizer, and parameters in their dtype."""
    times = step.request.times
    total = step.numel(step.request.workload.ready_order)
    casts = elements * (step.item_bytes + MASTER_BYTES)
    name, kernels = "optimizer", times.optimizer_kernels + 2
    return add_work(
        step,
        name,
        "optimizer",
        times.optimizer_s * elements / total + step.tasks.copy_s(casts, 2),
        kernels,
    )


def finish_plan(
    step: ShardingStep[Any], end: int, name: str, others: Sequence[Communicator] = ()
) -> StepPlan:
    """Join the tasks of a step; the next one begins after `end`.

    `others`: communicators beside that of all ranks.
    """
    request = step.request
    step.tasks.begin_after(end)
    return step.tasks.plan(
        name=f"{name}, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=STREAMS,
        communicators=(Communicator(EVERYONE, (range(request.ranks),)), *others),
        samples=request.ranks * request.batch_per_gpu * step.options.accumulate,
    )
