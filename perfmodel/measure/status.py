"""Status of each rank, in shared memory that the parent can read even after a rank has died."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager

from perfmodel.units import format_bytes

STAGES = (
    "starting Python and torch",
    "joining the group",
    "checking the data",
    "warming up",
    "timing",
    "handing in its times",
)
START, JOIN, CHECK, WARM, TIME, COLLECT = range(len(STAGES))

KINDS = ("schedule", "library")
STEPS = (
    "preparing",
    "waiting at the barrier",
    "before posting round",
    "waiting for sends and receives of round",
    "inside the library's collective",
    "done",
)
PREPARE, BARRIER, BEFORE, POSTED, LIBRARY, DONE = range(len(STEPS))

_TICKS, _STAGE, _NBYTES, _KIND, _REPEAT, _STEP, _ROUND, _PROGRESS, _TOTAL = range(9)
FIELDS = 9


class Status:
    """One rank's status: a slice of shared memory, written at every step.

    All ranks count the same steps, so the rank with the fewest steps is the one that others wait
    for.
    """

    def __init__(self, memory: MutableSequence[int], rank: int) -> None:
        self._memory, self._base, self.rank = memory, rank * FIELDS, rank
        self.listener: Callable[[int, int], None] | None = None

    def stage(self, stage: int) -> None:
        """Enter a stage of the run."""
        self._set(_STAGE, stage)
        self._set(_STEP, PREPARE)

    def item(self, nbytes: int, kind: int, repeat: int) -> None:
        """Begin one execution."""
        self._set(_NBYTES, nbytes, kind, repeat)
        self.step(PREPARE)

    def step(self, step: int, round_: int = 0) -> None:
        """Reach a step of an execution."""
        self._set(_STEP, step, round_)
        self._memory[self._base + _TICKS] += 1

    def progress(self, done: int, total: int) -> None:
        """Report the repeats done and their total, over all sizes."""
        self._set(_PROGRESS, done, total)
        if self.listener is not None:
            self.listener(done, total)

    def _set(self, field: int, *values: int) -> None:
        """Write neighbouring fields."""
        at = self._base + field
        self._memory[at : at + len(values)] = values

    @property
    def fields(self) -> Sequence[int]:
        """All that is written, as another process may read it: steps first, progress last."""
        return self._memory[self._base : self._base + FIELDS]

    def __str__(self) -> str:
        """Say what the rank is doing, or was doing when it died."""
        _, stage, nbytes, kind, repeat, step, round_, *_ = self.fields
        if stage not in {CHECK, WARM, TIME} or not nbytes:
            return STAGES[stage]
        number = f" {round_ + 1}" if step in {BEFORE, POSTED} else ""
        item = f"{KINDS[kind]} of {format_bytes(nbytes)}, repeat {repeat + 1}"
        return f"{STAGES[stage]}, {item}, {STEPS[step]}{number}"


def make_private_status(rank: int, ranks: int) -> Status:
    """Make a status in private memory, for ranks that torchrun has started."""
    return Status([0] * (FIELDS * ranks), rank)


@contextmanager
def shield_from_interrupt(*trackers: Callable[[], None]) -> Iterator[None]:
    """Start processes and threads that ignore Ctrl-C: the parent ends them without tracebacks.

    From their first instruction: what a process does about a signal once it runs is too late
    for one that comes while it starts.

    Parameters
    ----------
    trackers : callables
        Start the resource trackers that the processes need; started later, some would unblock
        the signal.
    """
    for ensure_running in trackers:
        ensure_running()
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where no process group is signalled
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
