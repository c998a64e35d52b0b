"""A schedule as data: the passes of each stage in order, and the messages between stages.

Stages send each other activations forward and their gradients back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, failed
from perfmodel.memo import grouped
from perfmodel.training.plan.step_plan import Stream

PassKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]

Layout = Literal["loop", "v", "bidirectional", "vocabulary"]
"""How chunks of the model stand on stages.

"loop": chunk c of stage s is part c P + s of the model (Narayanan et al. 2021). "v": every other
chunk runs the other way, so that the last stage holds neighbours (Qi et al. 2024).
"bidirectional": each stage holds part s and, a second time, part P - 1 - s (DeepSeek-V3 report):
half of the micro-batches enter at the last stage. "vocabulary": chunk 1 of stage s is its share of
the embedding and of the output layer, part P + s, which stands before and behind no other (Yeung et
al. 2024, arXiv:2411.05288).
"""


@dataclass(frozen=True, slots=True)
class PassAction:
    """One pass of a micro-batch through a chunk.

    `kind`: "backward" is both of "input_gradient" and "weight_gradient".
    `chunk`: of the stage, counted from 0 in the order of forward ("bidirectional": direction).
    `joined`: runs together with the pass after it: both begin when both inputs are there, and
        outputs of both go once both have ended.
    """

    kind: PassKind
    chunk: int
    micro_batch: int
    joined: bool = False


StageActions = tuple[PassAction, ...]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Passes of all stages.

    `chunks`: of each stage.
    `stages`: how many.
    `actions`: of each stage, in order.
    """

    name: str
    stages: int
    micro_batches: int
    chunks: int
    layout: Layout
    actions: tuple[StageActions, ...]

    @property
    def parts(self) -> int:
        """Parts that the model is cut into, one behind the other."""
        return self.stages * (1 if self.layout in ("bidirectional", "vocabulary") else self.chunks)

    def part(self, stage: int, chunk: int) -> int:
        """Return which part of the model a chunk of a stage is, from 0 in forward's order."""
        if self.layout == "bidirectional":
            return stage if chunk == 0 else self.stages - 1 - stage
        return chunk * self.stages + self._along(chunk, stage)

    def place(self, part: int, direction: int = 0) -> tuple[int, int]:
        """Stage and chunk that hold a part; `direction`: which of two ("bidirectional")."""
        if self.layout == "bidirectional":
            return (part, 0) if direction == 0 else (self.stages - 1 - part, 1)
        chunk, stage = divmod(part, self.stages)
        return self._along(chunk, stage), chunk

    def _along(self, chunk: int, stage: int) -> int:
        """Turn a stage into its place in a chunk, and back: the second chunk of a V is reversed."""
        return self.stages - 1 - stage if self.layout == "v" and chunk % 2 else stage

    def before(self, stage: int, chunk: int) -> tuple[int, int] | None:
        """Stage and chunk that forward comes from; None: it begins there."""
        part = self.part(stage, chunk)
        return self.place(part - 1, chunk) if 0 < part < self.parts else None

    def behind(self, stage: int, chunk: int) -> tuple[int, int] | None:
        """Stage and chunk that forward goes to; None: it ends there."""
        part = self.part(stage, chunk) + 1
        return self.place(part, chunk) if part < self.parts else None

    def chunk_micro_batches(self, chunk: int) -> range:
        """Micro-batches that run through a chunk, the same on all stages."""
        if self.layout != "bidirectional":
            return range(self.micro_batches)
        half = self.micro_batches // 2
        return range(chunk * half, (chunk + 1) * half)


# ---------------------------------------------------------------- what no schedule can do

SECTION = "parallel.pipeline"
"""Section of a scenario that the fields of faults are of."""
MICRO_BATCHES = "strategy.accumulate"
"""Field of a scenario that counts micro-batches."""


def count_faults(field: str, value: int, least: int = 1, why: str = "") -> list[Fault]:
    """Fault of a count below its least value."""
    odd = isinstance(value, bool) or not isinstance(value, int) or value < least
    return failed((odd, field, repr(value), f"a whole number of at least {least}{why}"))


Direction = Literal["next", "previous"]

TRANSFER_STREAMS = tuple(
    Stream(name, "comm") for name in ("to next", "from previous", "to previous", "from next")
)
"""Of a stage: a direction each, in which messages follow each other."""


@dataclass(frozen=True, slots=True)
class Message:
    """The output of a pass on its way to the stage that needs it.

    `source`, `target`: stages.
    `part`: of the model that it goes to.
    `direction`: around the stages.
    """

    kind: Literal["activations", "gradients"]
    source: int
    target: int
    part: int
    micro_batch: int
    direction: Direction

    @property
    def key(self) -> str:
        """Name that sender and receiver share; a stage's further chunks by their part, too."""
        part = "" if self.part == self.target else f", part {self.part}"
        return f"{self.kind} of micro-batch {self.micro_batch} to stage {self.target}{part}"

    @property
    def boundary(self) -> int:
        """Part of the model after which it is handed on, forward or back."""
        return self.part - (self.kind == "activations")

    @property
    def sent_on(self) -> str:
        """Stream of the sender."""
        return f"to {self.direction}"

    @property
    def received_on(self) -> str:
        """Stream of the receiver."""
        return "from previous" if self.direction == "next" else "from next"

    @property
    def communicator(self) -> str:
        """Of both stages."""
        return f"stage {self.source} to stage {self.target}"


def message_of(
    schedule: PipelineSchedule, stage: int, action: PassAction, *, sent: bool
) -> Message | None:
    """Return what a pass sends, or receives; None where that is on the stage."""
    if action.kind == "weight_gradient":
        return None
    here, forward = (stage, action.chunk), action.kind == "forward"
    there = (schedule.behind if forward == sent else schedule.before)(*here)
    if there is None or there[0] == stage:
        return None
    source, target = (here, there) if sent else (there, here)
    turned = schedule.layout != "loop" and bool(source[1] % 2)
    return Message(
        "activations" if forward else "gradients",
        source[0],
        target[0],
        schedule.part(*target),
        action.micro_batch,
        "next" if forward != turned else "previous",
    )


def action_groups(actions: tuple[PassAction, ...]) -> Iterator[tuple[PassAction, ...]]:
    """Passes that run together."""
    pending: list[PassAction] = []
    for action in actions:
        pending.append(action)
        if not action.joined:
            yield tuple(pending)
            pending = []


def sent_messages(schedule: PipelineSchedule) -> dict[str, list[Message]]:
    """What stages receive, in the order in which it is sent: that in which it is taken.

    By receiver and its stream.
    """
    messages = (
        message_of(schedule, stage, action, sent=True)
        for stage, actions in enumerate(schedule.actions)
        for action in actions
    )
    return grouped(
        (f"{message.target} {message.received_on}", message)
        for message in messages
        if message is not None
    )
