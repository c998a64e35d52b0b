"""What a trace says about training, whatever program wrote it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from perfmodel.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as one rank recorded it; seconds since the start of its trace.

    `op`: as in `perfmodel.training.plan.step_plan.Op`, or the library's own word.
    `elements`, `dtype`, `group_size`: None where the trace does not say.
    `issued_s`: when the process called it.
    """

    op: str
    elements: int | None
    dtype: str | None
    group_size: int | None
    group: str
    issued_s: float
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Transfer, and waiting for ranks that come later."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient, in the order in which backward completes them.

    `name`, `shape`: None where the trace does not say.
    `bucket`: index of its bucket; None: it is not reduced in backward.
    """

    elements: int | None
    shape: tuple[int, ...] | None
    dtype: str | None
    bucket: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TracedLayer:
    """Operators whose backward ends with the gradients of some parameters.

    `gradients`: indices, in the order in which they get ready.
    """

    name: str
    gradients: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Parts of the time of a step.

    `forward_s`, `backward_s`: of each layer, in the order of backward, with the gaps before its
        work; waiting for collectives left out of forward.
    `copied_in_s`: for each layer, the part of `backward_s` that copies gradients into buckets.
    `exposed_s`: from the end of backward to that of the last bucket.
    `tail_s`: what is left: copies out of buckets, optimizer, the next batch.
    `busy_s`: device at work.
    `launch_wait_s`: gaps in which the device waits for the host to launch something.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    copied_in_s: FloatArray
    exposed_s: float
    tail_s: float
    busy_s: float
    launch_wait_s: float


@dataclass(frozen=True, slots=True)
class TracedStep(StepParts):
    """A step of one rank: its time from its first work to that of the next step, cut into parts.

    `backward_end_s`: on the clock of the trace.
    `overlapped_s`: part of the time of backward in which a collective is in progress;
        `overlapped_work_s`: part of that in which the device works, too.
    `buckets`: collectives that reduce gradients: all-reduces, of sharded ones reduce-scatters.
    `waited_s`: for collectives of sharded parameters, in neither forward nor backward.
    """

    name: str
    start_s: float
    length_s: float
    backward_end_s: float
    buckets: tuple[Call, ...]
    others: tuple[Call, ...]
    overlapped_s: float
    overlapped_work_s: float
    waited_s: float = 0.0

    def others_of(self, operation: str) -> tuple[Call, ...]:
        """Return the collectives of one kind that reduce no bucket."""
        return tuple(call for call in self.others if call.op == operation)


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one rank.

    `device`: the GPU's name, or "CPU".
    `device_GB`: memory of the GPU, as people say it.
    `layers`, `gradients`: in the order of backward.
    `slowdown`: of kernels while a collective is in progress, over the same kernels alone; None
        where too few run both ways.
    `views`: gradients are views of their buckets, so that nothing is copied back.
    `passes`: forward passes of a step: more than 1 accumulate gradients.
    `batch`: first dimension of the first operator's input.
    `fsdp`: its version, 0 where nothing is sharded; `units`: the unit of each bucket, empty for the
        outermost one; `gathers`: all-gathers of a step.
    """

    path: Path
    rank: int
    world_size: int
    backend: str | None
    device: str
    device_GB: int
    events: int
    layers: tuple[TracedLayer, ...]
    gradients: tuple[Gradient, ...]
    steps: tuple[TracedStep, ...]
    slowdown: float | None
    views: bool
    passes: int
    batch: int | None
    notes: tuple[str, ...] = ()
    fsdp: int = 0
    units: tuple[str, ...] = ()
    gathers: int = 0

    @property
    def on_cpu(self) -> bool:
        """Whether layers ran on a CPU."""
        return self.device == "CPU"

    @property
    def blocks(self) -> bool:
        """Whether layers wait for each collective: of sharded parameters, without a GPU."""
        return self.on_cpu and self.fsdp > 0

    @property
    def median_step_s(self) -> float:
        """Seconds."""
        return statistics.median(step.length_s for step in self.steps)

    @property
    def shard_ranks(self) -> int:
        """Ranks that a unit is split over; the others hold copies (hybrid sharding).

        By what is left of each reduce-scatter for the all-reduce behind it: where both are not
        alike for all units, or there are none, all ranks.
        """
        step = self.steps[-1]
        averages = step.others_of("all_reduce")
        pairs = list(zip(step.buckets, averages, strict=False))
        if not self.fsdp or not pairs or len(averages) != len(step.buckets):
            return self.world_size
        shares = {divmod(whole.elements or 0, part.elements or 1) for whole, part in pairs}
        (ranks, rest), *more = shares
        splits = not (more or rest) and ranks > 1 and self.world_size % ranks == 0
        return ranks if splits else self.world_size
