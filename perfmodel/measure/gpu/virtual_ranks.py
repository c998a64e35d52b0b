"""Several ranks on one device: a buffer and a stream each, events where one waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from perfmodel.measure.processes.p2p import find_staged_moves
from perfmodel.measure.reference import Move


class RankStreams(Protocol):
    """Ordered queues of work, one per rank."""

    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Return a context whose work goes into a rank's queue."""

    def mark(self, rank: int) -> Any:
        """Return an event that completes after all work now in the rank's queue."""

    def wait(self, rank: int, event: Any) -> None:
        """Let the rank's queue wait for an event."""


class HostStreams:
    """Queues that execute at once, in program order; for tests without a GPU."""

    def on(self, rank: int) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Return an empty context."""
        return nullcontext()

    def mark(self, rank: int) -> Any:
        """Do nothing: all work is complete."""

    def wait(self, rank: int, event: Any) -> None:
        """Do nothing: all work is complete."""


class CudaStreams:
    """A CUDA stream per rank."""

    def __init__(self, torch: Any, ranks: int) -> None:
        self._torch = torch
        self.streams = [torch.cuda.Stream() for _ in range(ranks)]

    def on(self, rank: int) -> AbstractContextManager[Any]:
        """Return a context whose kernels go into the rank's stream."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self.streams[rank])
        return context

    def mark(self, rank: int) -> Any:
        """Record an event on the rank's stream."""
        return self.streams[rank].record_event()

    def wait(self, rank: int, event: Any) -> None:
        """Let the rank's stream wait for an event."""
        self.streams[rank].wait_event(event)


def execute_on_streams(
    rounds: Sequence[Sequence[Move]],
    buffers: Sequence[Any],
    scratch: Sequence[Any],
    streams: RankStreams,
) -> None:
    """Execute rounds between buffers of one device.

    A copy runs on the receiver's stream, after the sender's work of earlier rounds. A rank writes
    to its buffer only after the ranks that read its old content.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    buffers, scratch : sequence of torch.Tensor, shape (ranks,)
        `scratch` with `count_scratch` each.
    streams : RankStreams
    """
    last_events = [streams.mark(rank) for rank in range(len(buffers))]
    for moves in rounds:
        last_events = _execute_round(moves, buffers, scratch, streams, last_events)


def _execute_round(
    moves: Sequence[Move],
    buffers: Sequence[Any],
    scratch: Sequence[Any],
    streams: RankStreams,
    last_events: list[Any],
) -> list[Any]:
    staged = {
        id(move) for rank in {m.dst for m in moves} for move in find_staged_moves(moves, rank)
    }
    used = [0] * len(buffers)
    merges, copy_events = [], []
    for move in moves:
        destination = buffers[move.dst][move.write]
        if id(move) in staged:
            begin = used[move.dst]
            used[move.dst] += move.count
            merges.append((move, scratch[move.dst][begin : used[move.dst]]))
            destination = merges[-1][1]
        if move.src != move.dst:
            streams.wait(move.dst, last_events[move.src])
        with streams.on(move.dst):
            destination.copy_(buffers[move.src][move.read], non_blocking=True)
        copy_events.append((move, streams.mark(move.dst)))
    for move, event in copy_events:
        if move.src != move.dst:
            streams.wait(move.src, event)
    for move, received in merges:
        with streams.on(move.dst):
            target = buffers[move.dst][move.write]
            if move.reduce:
                target.add_(received)
            else:
                target.copy_(received, non_blocking=True)
    active = {move.dst for move in moves} | {move.src for move in moves}
    return [
        streams.mark(rank) if rank in active else last_events[rank]
        for rank in range(len(last_events))
    ]
