"""What a rank is doing, kept in memory that the parent process can read even after it has died."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Any

from perfmodel.units import format_bytes

STAGES = (
    "starting Python and torch", "joining the group", "checking the data", "warming up",
    "timing", "handing in its times",
)  # fmt: skip
START, JOIN, CHECK, WARM, TIME, COLLECT = range(len(STAGES))

KINDS = ("schedule", "library")
STEPS = (
    "preparing", "waiting at the barrier", "before posting round",
    "waiting for sends and receives of round", "inside the library's collective", "done",
)  # fmt: skip
PREPARE, BARRIER, BEFORE, POSTED, LIBRARY, DONE = range(len(STEPS))

_TICKS, _STAGE, _NBYTES, _KIND, _REPEAT, _STEP, _ROUND, _PROGRESS, _TOTAL = range(9)
FIELDS = 9


class Status:
    """One rank's place in the run: a slice of shared memory, written often and cheaply.

    All ranks tick at the same places, so the one with the fewest ticks is the one waited for.
    """

    def __init__(self, memory: MutableSequence[int], rank: int) -> None:
        self._memory = memory
        self._base = rank * FIELDS
        self.rank = rank
        self.listener: Callable[[int, int], None] | None = None

    def stage(self, stage: int) -> None:
        """Enter a stage of the run."""
        self._set(_STAGE, stage)
        self._set(_STEP, PREPARE)

    def item(self, nbytes: int, kind: int, repeat: int) -> None:
        """Begin one execution."""
        self._set(_NBYTES, nbytes)
        self._set(_KIND, kind)
        self._set(_REPEAT, repeat)
        self.step(PREPARE)

    def step(self, step: int, round_: int = 0) -> None:
        """Reach a step of an execution."""
        memory, base = self._memory, self._base
        memory[base + _STEP] = step
        memory[base + _ROUND] = round_
        memory[base + _TICKS] += 1

    def progress(self, done: int, total: int) -> None:
        """Say how far the whole run is."""
        self._set(_PROGRESS, done)
        self._set(_TOTAL, total)
        if self.listener is not None:
            self.listener(done, total)

    def _set(self, field: int, value: int) -> None:
        self._memory[self._base + field] = value

    def __str__(self) -> str:
        return describe(self._memory, self.rank)


def describe(memory: Any, rank: int) -> str:
    """What a rank is doing, or was when it died."""
    row = memory[rank * FIELDS : (rank + 1) * FIELDS]
    said = STAGES[row[_STAGE]]
    if row[_STAGE] not in {CHECK, WARM, TIME} or not row[_NBYTES]:
        return said
    said += f", {KINDS[row[_KIND]]} of {format_bytes(row[_NBYTES])}, repeat {row[_REPEAT] + 1}"
    said += f", {STEPS[row[_STEP]]}"
    return f"{said} {row[_ROUND] + 1}" if row[_STEP] in {BEFORE, POSTED} else said


def ticks(memory: Any, ranks: int) -> list[int]:
    """How far each rank has come."""
    return [memory[rank * FIELDS + _TICKS] for rank in range(ranks)]


def progress_of(memory: Any) -> tuple[int, int]:
    """How far the run is, as rank 0 says: (done, total)."""
    return memory[_PROGRESS], memory[_TOTAL]


def new_status(rank: int, ranks: int) -> Status:
    """A status that nobody else reads: where somebody else started the processes."""
    return Status([0] * (FIELDS * ranks), rank)
