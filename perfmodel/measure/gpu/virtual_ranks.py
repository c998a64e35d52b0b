"""Several ranks on one device: a buffer and a stream each, events where one waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from perfmodel.measure.processes.p2p import staged_moves
from perfmodel.measure.reference import Move


class Lanes(Protocol):
    """Ordered queues of work, one per rank."""

    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Put what follows into a rank's queue."""

    def mark(self, rank: int) -> Any:
        """An event: all that the rank's queue holds so far."""

    def wait(self, rank: int, event: Any) -> None:
        """Let the rank's queue wait for an event."""


class HostLanes:
    """Queues that run at once, in the order of the program; for tests without a GPU."""

    def on(self, rank: int) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Nothing to choose."""
        return nullcontext()

    def mark(self, rank: int) -> Any:
        """Everything is done already."""

    def wait(self, rank: int, event: Any) -> None:
        """Everything is done already."""


class CudaLanes:
    """A CUDA stream per rank."""

    def __init__(self, torch: Any, ranks: int) -> None:
        self._torch = torch
        self.streams = [torch.cuda.Stream() for _ in range(ranks)]

    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Kernels go into the rank's stream."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self.streams[rank])
        return context

    def mark(self, rank: int) -> Any:
        """Record an event on the rank's stream."""
        return self.streams[rank].record_event()

    def wait(self, rank: int, event: Any) -> None:
        """Let the rank's stream wait for an event."""
        self.streams[rank].wait_event(event)


def run_virtual(
    rounds: Sequence[Sequence[Move]], buffers: Sequence[Any], scratch: Sequence[Any], lanes: Lanes
) -> None:
    """Execute rounds between buffers of one device.

    The receiver's stream carries a copy, as if it pulled. It waits for what the sender did in the
    rounds before; a rank writes to its buffer only after those who read the old state have.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    buffers, scratch : sequence of torch.Tensor, shape (ranks,)
        `scratch` with `scratch_elements` each.
    lanes : Lanes
    """
    done = [lanes.mark(rank) for rank in range(len(buffers))]
    for part in rounds:
        done = _round(part, buffers, scratch, lanes, done)


def _round(
    part: Sequence[Move],
    buffers: Sequence[Any],
    scratch: Sequence[Any],
    lanes: Lanes,
    done: list[Any],
) -> list[Any]:
    staged = {id(move) for rank in {m.dst for m in part} for move in staged_moves(part, rank)}
    used = [0] * len(buffers)
    merges, read = [], []
    for move in part:
        place = buffers[move.dst][move.write]
        if id(move) in staged:
            begin = used[move.dst]
            used[move.dst] += move.count
            merges.append((move, scratch[move.dst][begin : used[move.dst]]))
            place = merges[-1][1]
        if move.src != move.dst:
            lanes.wait(move.dst, done[move.src])
        with lanes.on(move.dst):
            place.copy_(buffers[move.src][move.read], non_blocking=True)
        read.append((move, lanes.mark(move.dst)))
    for move, event in read:
        if move.src != move.dst:
            lanes.wait(move.src, event)
    for move, place in merges:
        with lanes.on(move.dst):
            target = buffers[move.dst][move.write]
            if move.reduce:
                target.add_(place)
            else:
                target.copy_(place, non_blocking=True)
    changed = {move.dst for move in part} | {move.src for move in part}
    return [lanes.mark(rank) if rank in changed else done[rank] for rank in range(len(done))]
