"""A schedule as data: the passes of each stage in order, and the messages between stages.

Stages send each other activations forward and their gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from perfmodel.errors import Fault, InputError
from perfmodel.training.plan.step_plan import Stream

PassKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]

Layout = Literal["loop", "v", "bidirectional"]
"""How chunks of the model stand on stages.

"loop": chunk c of stage s is part c P + s of the model (Narayanan et al. 2021). "v": every other
chunk runs the other way, so that the last stage holds neighbours (Qi et al. 2024).
"bidirectional": each stage holds part s and, a second time, part P - 1 - s (DeepSeek-V3 report):
half of the micro-batches enter at the last stage.
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
        """Parts that the model is cut into."""
        return self.stages if self.layout == "bidirectional" else self.stages * self.chunks

    def part(self, stage: int, chunk: int) -> int:
        """Part of the model that a chunk of a stage is, counted from 0 in the order of forward."""
        return part_of(self.layout, self.stages, stage, chunk)

    def place(self, part: int, direction: int = 0) -> tuple[int, int]:
        """Stage and chunk that hold a part; `direction`: which of two ("bidirectional")."""
        if self.layout == "bidirectional":
            return (part, 0) if direction == 0 else (self.stages - 1 - part, 1)
        chunk, stage = divmod(part, self.stages)
        if self.layout == "v" and chunk % 2:
            stage = self.stages - 1 - stage
        return stage, chunk

    def before(self, stage: int, chunk: int) -> tuple[int, int] | None:
        """Stage and chunk that forward comes from; None: it begins there."""
        part = self.part(stage, chunk)
        return self.place(part - 1, chunk) if part else None

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

    def most_held(self, stage: int) -> tuple[int, ...]:
        """Micro-batches of each chunk whose activations a stage holds when it holds most of all.

        From forward until the gradients of weights are computed.
        """
        change = {"forward": 1, "backward": -1, "weight_gradient": -1, "input_gradient": 0}
        held = [0] * self.chunks
        most = tuple(held)
        for action in self.actions[stage]:
            held[action.chunk] += change[action.kind]
            most = tuple(held) if sum(held) > sum(most) else most
        return most

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart."""
        return any(a.kind == "weight_gradient" for stage in self.actions for a in stage)


def part_of(layout: Layout, stages: int, stage: int, chunk: int) -> int:
    """Part of the model that a chunk of a stage is."""
    if layout == "bidirectional":
        return stage if chunk == 0 else stages - 1 - stage
    turned = layout == "v" and chunk % 2
    return chunk * stages + (stages - 1 - stage if turned else stage)


@dataclass(slots=True)
class StageWriter:
    """Writes the passes of a stage, counting micro-batches of each chunk and kind.

    `put_off`: chunks and micro-batches whose weight gradients are still to be computed.
    """

    actions: list[PassAction] = field(default_factory=list)
    counts: dict[tuple[int, PassKind], int] = field(default_factory=dict)
    put_off: list[tuple[int, int]] = field(default_factory=list)

    def forward(self, chunk: int, *, joined: bool = False) -> None:
        """Add the next forward of a chunk."""
        self.actions.append(PassAction("forward", chunk, self._next(chunk, "forward"), joined))

    def backward(self, chunk: int, *, split: bool = False) -> None:
        """Add the next backward of a chunk; with `split` its weight gradients are put off."""
        micro_batch = self._next(chunk, "backward")
        kind: PassKind = "input_gradient" if split else "backward"
        self.actions.append(PassAction(kind, chunk, micro_batch))
        if split:
            self.put_off.append((chunk, micro_batch))

    def weights(self, chunk: int | None = None) -> None:
        """Add the weight gradients put off for longest, if any, of a chunk or of all."""
        for each in self.put_off:
            if chunk in (None, each[0]):
                self.put_off.remove(each)
                self.actions.append(PassAction("weight_gradient", *each))
                return

    def _next(self, chunk: int, kind: PassKind) -> int:
        number = self.counts.get((chunk, kind), 0)
        self.counts[chunk, kind] = number + 1
        return number


def every_stage(
    stages: int, write: Callable[[int], Iterable[PassAction]]
) -> tuple[StageActions, ...]:
    """Passes of each stage."""
    return tuple(tuple(write(stage)) for stage in range(stages))


# ---------------------------------------------------------------- what no schedule can do

SECTION = "parallel.pipeline"
"""Section of a scenario that the fields of faults are of."""
MICRO_BATCHES = "strategy.accumulate"
"""Field of a scenario that counts micro-batches."""


def require(*faults: Iterator[Fault]) -> None:
    """Raise `InputError` of all faults, if there are any."""
    listed = [fault for each in faults for fault in each]
    if listed:
        raise InputError(listed)


def count_of(field_path: str, value: int, least: int = 1, why: str = "") -> Iterator[Fault]:
    """Fault of a count below its least value."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = f"a whole number of at least {least}{why}"
        yield Fault(field_path, repr(value), allowed)


def sizes_of(stages: int, micro_batches: int, chunks: int) -> Iterator[Fault]:
    """Faults of counts that are not above zero."""
    yield from count_of(f"{SECTION}.stages", stages)
    yield from count_of(MICRO_BATCHES, micro_batches)
    yield from count_of(f"{SECTION}.chunks", chunks)


def chunks_of(name: str, chunks: int, allowed: int) -> Iterator[Fault]:
    """Fault of a number of chunks that a schedule does not have."""
    if chunks != allowed:
        yield Fault(f"{SECTION}.chunks", repr(chunks), f"{allowed}, which {name} has by definition")


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


def bytes_after(transfer_bytes: int | tuple[int, ...], part: int) -> int:
    """Bytes of a message between a part and the next, of what all or each of them hand on."""
    return transfer_bytes if isinstance(transfer_bytes, int) else transfer_bytes[part]


def output_of(schedule: PipelineSchedule, stage: int, action: PassAction) -> Message | None:
    """What a pass sends; None where its result stays on the stage."""
    if action.kind == "weight_gradient":
        return None
    forward = action.kind == "forward"
    neighbour = (schedule.behind if forward else schedule.before)(stage, action.chunk)
    return _message(schedule, (stage, action.chunk), neighbour, action.micro_batch, forward)


def input_of(schedule: PipelineSchedule, stage: int, action: PassAction) -> Message | None:
    """What a pass receives; None where its input is on the stage."""
    if action.kind == "weight_gradient":
        return None
    forward = action.kind == "forward"
    neighbour = (schedule.before if forward else schedule.behind)(stage, action.chunk)
    if neighbour is None:
        return None
    return _message(schedule, neighbour, (stage, action.chunk), action.micro_batch, forward)


def _message(
    schedule: PipelineSchedule,
    source: tuple[int, int],
    target: tuple[int, int] | None,
    micro_batch: int,
    forward: bool,
) -> Message | None:
    if target is None or source[0] == target[0]:
        return None
    turned = schedule.layout != "loop" and bool(source[1] % 2)
    return Message(
        "activations" if forward else "gradients",
        source[0],
        target[0],
        schedule.part(*target),
        micro_batch,
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


def sent_messages(schedule: PipelineSchedule, stage: int) -> dict[str, list[Message]]:
    """What each stage receives from this one, in the order of its passes.

    By receiver and its stream: the order in which the receiver takes them.
    """
    sent: dict[str, list[Message]] = {}
    for action in schedule.actions[stage]:
        message = output_of(schedule, stage, action)
        if message is not None:
            sent.setdefault(f"{message.target} {message.received_on}", []).append(message)
    return sent
