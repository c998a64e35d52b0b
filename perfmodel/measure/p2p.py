"""One rank's part of a schedule as torch.distributed point-to-point operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.measure.job import PARTED_COLLECTIVES
from perfmodel.measure.reference import Move
from perfmodel.measure.status import BEFORE, DONE, POSTED, Status


@dataclass(frozen=True, slots=True)
class Exchange:
    """The operations of one rank in one round.

    `copies`, within the rank's own buffer, run before anything is sent; `posts` are the sends and
    receives, posted together; `merges` move or add received chunks from scratch to the buffer,
    after the rank's own sends have read the buffer's old content.
    """

    copies: tuple[tuple[Any, Any], ...]
    posts: list[Any]
    merges: tuple[tuple[Any, Any, bool], ...]


def count_scratch(rounds: Sequence[Sequence[Move]], rank: int) -> int:
    """Elements of scratch that a rank needs, the most of all rounds."""
    return max(
        (sum(m.count for m in find_staged_moves(moves, rank)) for moves in rounds), default=0
    )


def largest_scratch(rounds: Sequence[Sequence[Move]]) -> int:
    """Count the elements of scratch that a rank needs, the most of all ranks."""
    most = 0
    for moves in rounds:
        moves_by_rank: dict[int, list[Move]] = {}
        for move in moves:
            for rank in {move.src, move.dst}:
                moves_by_rank.setdefault(rank, []).append(move)
        own = (count_scratch([mine], rank) for rank, mine in moves_by_rank.items())
        most = max(most, *own, 0)
    return most


def find_staged_moves(moves: Sequence[Move], rank: int) -> list[Move]:
    """Find the moves to a rank that cannot be received into its buffer directly.

    They are added, or overwrite elements that the rank itself sends in this round, or another move
    writes to the same elements.
    """
    reads = {(m.read.start, m.read.stop) for m in moves if m.src == rank}
    targets = [(m, (m.write.start, m.write.stop)) for m in moves if m.dst == rank]
    times = Counter(target for _, target in targets)
    return [
        move
        for move, target in targets
        if move.reduce or move.src == rank or target in reads or times[target] > 1
    ]


def make_exchanges(
    rounds: Sequence[Sequence[Move]], rank: int, buffer: Any, scratch: Any
) -> list[Exchange]:
    """Make the exchanges of one rank for all rounds, on views of its buffer and its scratch.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    rank : int
    buffer, scratch : torch.Tensor
        One-dimensional; `scratch` has at least `count_scratch`.
    """
    return [_make_exchange(moves, rank, buffer, scratch) for moves in rounds]


def _make_exchange(moves: Sequence[Move], rank: int, buffer: Any, scratch: Any) -> Exchange:
    import torch.distributed as dist

    staged = {id(move) for move in find_staged_moves(moves, rank)}
    copies, posts, merges = [], [], []
    used = 0
    for move in moves:
        if move.dst == rank:
            target = buffer[move.write]
            destination = target
            if id(move) in staged:
                destination = scratch[used : used + move.count]
                used += move.count
                merges.append((target, destination, move.reduce))
            if move.src == rank:
                copies.append((destination, buffer[move.read]))
            else:
                posts.append(dist.P2POp(dist.irecv, destination, move.src))
        elif move.src == rank:
            posts.append(dist.P2POp(dist.isend, buffer[move.read], move.dst))
    return Exchange(tuple(copies), posts, tuple(merges))


def run_exchanges(exchanges: Sequence[Exchange], status: Status) -> None:
    """Execute one rank's rounds, one after the other."""
    import torch.distributed as dist

    for number, exchange in enumerate(exchanges):
        status.step(BEFORE, number)
        for destination, source in exchange.copies:
            destination.copy_(source)
        works = dist.batch_isend_irecv(exchange.posts) if exchange.posts else ()
        status.step(POSTED, number)
        for work in works:
            work.wait()
        for target, received, reduce in exchange.merges:
            if reduce:
                target.add_(received)
            else:
                target.copy_(received)
    status.step(DONE)


def make_library_call(
    collective: str, ranks: int, rank: int, root: int, buffer: Any, spare: Any
) -> Callable[[], Any] | None:
    """Make a call of the library's own collective on the same sizes; None if it has none.

    Parameters
    ----------
    collective : str
    ranks, rank, root : int
    buffer, spare : torch.Tensor
        Of the whole size; which of them holds the result depends on the collective.
    """
    import torch.distributed as dist

    if len(buffer) % ranks and collective in PARTED_COLLECTIVES:
        return None
    parts = list(spare.chunk(ranks)) if len(buffer) % ranks == 0 else []
    if collective in {"reduce_scatter", "all_gather"}:
        # torch 2.13 renamed both and warns about the old names.
        old = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
        call = getattr(dist, f"{collective}_single", None) or getattr(dist, old[collective])
        if collective == "reduce_scatter":
            return lambda: call(parts[rank], buffer)
        return lambda: call(spare, buffer.chunk(ranks)[rank])
    if collective == "send":
        return (lambda: dist.send(buffer, 1)) if rank == 0 else (lambda: dist.recv(buffer, 0))
    root_parts = parts if rank == root else None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(buffer),
        "broadcast": lambda: dist.broadcast(buffer, root),
        "reduce": lambda: dist.reduce(buffer, root),
        "all_to_all": lambda: dist.all_to_all_single(spare, buffer),
        "scatter": lambda: dist.scatter(
            spare.chunk(ranks)[rank], list(buffer.chunk(ranks)) if rank == root else None, src=root
        ),
        "gather": lambda: dist.gather(buffer.chunk(ranks)[rank], root_parts, dst=root),
    }
    return calls.get(collective)
