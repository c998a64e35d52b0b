"""What FSDP, ZeRO and Megatron's optimizer have in common: layers, a step's end, the plan of it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

from perfmodel.memo import once
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.plan.builder import COMPUTE, GROUP, HOST, RANKS, TaskList
from perfmodel.training.plan.forward_backward import Segment, backward_segments, forward_segments
from perfmodel.training.plan.step_plan import Communicator, Op, RankClass, StepPlan, Stream
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.model import ITEM_BYTES, Workload

GATHERING, REDUCTION = "gather copy", "reduction copy"
"""DeepSpeed's streams beside the computing one, without the collectives that are issued on them."""

DRIVE_READS, DRIVE_WRITES = "drive reads", "drive writes"
"""Of a rank's share of its host's drives."""

COPY_STREAMS = (GATHERING, REDUCTION, DRIVE_READS, DRIVE_WRITES)


OptionsT = TypeVar("OptionsT", bound=StepOptions)


def full_groups(
    tensors: Iterable[int], workload: Workload, most: int, *, ranks: int = 1, exceeds: bool
) -> tuple[tuple[int, ...], ...]:
    """Join tensors one after the other to groups of so many elements.

    `ranks`: whose equal parts of each tensor are counted.
    `exceeds`: a group is closed once it has `most`; otherwise before it would have more.
    """
    groups: list[list[int]] = []
    elements = 0
    for tensor in tensors:
        numel = -(-workload.tensors[tensor].numel // ranks)
        if not groups or (elements >= most if exceeds else elements + numel > most):
            groups.append([])
            elements = 0
        groups[-1].append(tensor)
        elements += numel
    return tuple(map(tuple, groups))


@dataclass(slots=True)
class ShardingStep(Generic[OptionsT]):
    """A step under construction.

    `dtype`: what the model is trained in.
    `micro_batch`: that tasks are added of.
    `device_waits`: what the next kernel of a layer waits for.
    `host_waits`: what the host waits for before it issues the next work.
    `last`: last task on the computing stream.
    `known`: what is the same in all micro-batches.
    """

    request: StepRequest
    options: OptionsT
    tasks: TaskList
    dtype: str
    micro_batch: int = 0
    device_waits: tuple[int, ...] = ()
    host_waits: tuple[int, ...] = ()
    last: int | None = None
    known: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, request: StepRequest, options: OptionsT, **more: Any) -> Self:
        """Begin an empty list of tasks; `more`: what a strategy has beside."""
        dtype = request.workload.tensors[request.workload.ready_order[0]].dtype
        return cls(request, options, TaskList.of(request), dtype, **more)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of a parameter."""
        return ITEM_BYTES[self.dtype]

    @property
    def behind(self) -> tuple[int, ...]:
        """What waits for all that the computing stream has so far."""
        return () if self.last is None else (self.last,)

    @property
    def is_last(self) -> bool:
        """Whether this is the last micro-batch."""
        return self.micro_batch == self.options.accumulate - 1

    @property
    def resolution(self) -> int:
        """Segments per pass."""
        return max(min(8, self.request.segments), self.request.segments // self.options.accumulate)

    def backward_parts(self, cut_after: Collection[int] = ()) -> tuple[Segment, ...]:
        """Return backward of a micro-batch, cut after each layer with a tensor of `cut_after`."""
        workload, times = self.request.workload, self.request.times
        find = partial(
            backward_segments, workload, times, at_most=self.resolution, cut_after=cut_after
        )
        return once(self.known, frozenset(cut_after), find)

    def numel(self, tensors: Iterable[int]) -> int:
        """Return the elements of some parameters."""
        return sum(self.request.workload.tensors[tensor].numel for tensor in tensors)

    def run(
        self,
        name: str,
        kind: str,
        duration_s: float,
        *,
        after: Iterable[int] = (),
        layers: tuple[int, ...] = (),
    ) -> int:
        """Add kernels that were issued to the computing stream, after what it waits for."""
        self.last = self.tasks.compute(
            name,
            kind,
            duration_s,
            RANKS,
            after=dict.fromkeys((*after, *self.device_waits)),
            layers=layers,
            micro_batch=self.micro_batch,
        )
        self.device_waits = ()
        return self.last

    def work(
        self,
        name: str,
        kind: str,
        duration_s: float,
        kernels: float,
        layers: tuple[int, ...] = (),
    ) -> int:
        """Let the host issue kernels once all that it waits for has happened, and run them."""
        waits, self.host_waits = self.host_waits, ()
        issued = self.tasks.issue(name, kernels, RANKS, after=waits, micro_batch=self.micro_batch)
        return self.run(name, kind, duration_s, after=(*issued, *waits), layers=layers)

    def copy(self, name: str, nbytes: float, kernels: int) -> int:
        """Add copies among the layers."""
        return self.work(name, "copy", self.tasks.copy_s(nbytes, kernels), kernels)

    def segment(self, part: Segment, kind: str) -> int:
        """Add some layers of one pass."""
        return self.work(f"{kind} {part.name}", kind, part.duration_s, part.kernels, part.indices)

    def forward(self) -> None:
        """Add forward of the micro-batch."""
        workload, times = self.request.workload, self.request.times
        find = partial(forward_segments, workload, times, at_most=self.resolution)
        for part in once(self.known, "forward", find):
            self.segment(part, "forward")

    def collective(
        self,
        name: str,
        op: Op,
        elements: int,
        *,
        after: Sequence[int],
        dtype: str | None = None,
        communicator: str = GROUP,
        root: int = 0,
        bucket: int | None = None,
    ) -> int:
        """Add a collective of so many elements, after what it waits for on the device.

        `dtype`: by default that of the model.
        """
        return self.tasks.collective(
            name,
            op,
            elements * ITEM_BYTES[dtype or self.dtype],
            RANKS,
            communicator=communicator,
            key=f"{name} {len(self.tasks.tasks)}",
            after=dict.fromkeys(after),
            bucket=bucket,
            micro_batch=self.micro_batch,
            dtype=dtype or self.dtype,
            root=root,
        )

    def agree(
        self, name: str, dtype: str, read_bytes: float, communicator: str | None = GROUP
    ) -> None:
        """All-reduce one number of all gradients, which the host reads: a norm, or an overflow.

        `communicator`: None: each rank has all of them.
        """
        agreed = self.copy(f"count {name}", read_bytes / 2, len(self.request.workload.ready_order))
        if communicator is not None:
            agreed = self.collective(
                name, "all_reduce", 1, after=(agreed,), communicator=communicator, dtype=dtype
            )
        self.device_waits = self.host_waits = (agreed,)

    def update(self, elements: float, of_elements: float = 0) -> int:
        """Update so many elements: gradients in fp32, the optimizer, parameters in their dtype.

        `of_elements`: that the optimizer's time is of; default: all.
        """
        times, trained = self.request.times, self.request.workload.ready_order
        seconds = times.optimizer_s * elements / (
            of_elements or self.numel(trained)
        ) + self.tasks.copy_s(elements * (self.item_bytes + WIDE_BYTES), 2)
        return self.work("optimizer", "optimizer", seconds, times.optimizer_kernels + 2)

    def plan(self, end: int, name: str, others: Sequence[Communicator] = ()) -> StepPlan:
        """Join the tasks of a step; the next one begins after `end`.

        `others`: communicators beside that of all ranks.
        """
        request, ranks = self.request, range(self.request.ranks)
        self.tasks.begin_after(end)
        gathering, reduction, *drives = (Stream(each, "copy") for each in COPY_STREAMS)
        return self.tasks.plan(
            name=f"{name}, {request.workload.name}",
            classes=(RankClass(RANKS, ranks),),
            streams=(HOST, COMPUTE, gathering, reduction, Stream("comm", "comm"), *drives),
            communicators=(Communicator(GROUP, (ranks,)), *others),
            samples=request.ranks * request.batch_per_gpu * self.options.accumulate,
        )
