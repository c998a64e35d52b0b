"""What stages send each other: activations forward, their gradients back, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from perfmodel.training.pipeline.pass_actions import PassAction, PipelineSchedule
from perfmodel.training.plan.step_plan import Stream

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
