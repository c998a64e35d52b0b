"""One rank's part of a schedule as torch.distributed point-to-point operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.measure.job import PARTED
from perfmodel.measure.processes.status import BEFORE, DONE, POSTED, Status
from perfmodel.measure.reference import Move


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one rank does in one round.

    `copies` keep, before anything is sent, what the rank moves within its own buffer; `posts` are
    the sends and receives, posted together; `merges` put what arrived in scratch where it belongs,
    after the rank's own sends have read the state from before the round.
    """

    copies: tuple[tuple[Any, Any], ...]
    posts: list[Any]
    merges: tuple[tuple[Any, Any, bool], ...]


def scratch_elements(rounds: Sequence[Sequence[Move]], rank: int) -> int:
    """Elements of scratch that a rank needs: the most that it has to keep aside in one round."""
    return max((sum(m.count for m in staged_moves(part, rank)) for part in rounds), default=0)


def most_scratch(rounds: Sequence[Sequence[Move]]) -> int:
    """Elements of scratch that the rank needs which needs most."""
    return max((_scratch_of_round(part) for part in rounds), default=0)


def _scratch_of_round(part: Sequence[Move]) -> int:
    concerned: dict[int, list[Move]] = {}
    for move in part:
        for rank in {move.src, move.dst}:
            concerned.setdefault(rank, []).append(move)
    return max(
        (sum(m.count for m in staged_moves(mine, rank)) for rank, mine in concerned.items()),
        default=0,
    )


def staged_moves(part: Sequence[Move], rank: int) -> list[Move]:
    """Arrivals that cannot go straight into the buffer.

    They are added, or overwrite what the rank itself sends in this round, or another writes to
    the same place.
    """
    reads = {(m.read.start, m.read.stop) for m in part if m.src == rank}
    targets = [(m.write.start, m.write.stop) for m in part if m.dst == rank]
    return [
        move
        for move, target in zip((m for m in part if m.dst == rank), targets, strict=True)
        if move.reduce or move.src == rank or target in reads or targets.count(target) > 1
    ]


def program(
    rounds: Sequence[Sequence[Move]], rank: int, buffer: Any, scratch: Any
) -> list[Exchange]:
    """All rounds of one rank, over views of its buffer and its scratch.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    rank : int
    buffer, scratch : torch.Tensor
        One-dimensional; `scratch` has at least `scratch_elements`.
    """
    return [_exchange(part, rank, buffer, scratch) for part in rounds]


def _exchange(part: Sequence[Move], rank: int, buffer: Any, scratch: Any) -> Exchange:
    import torch.distributed as dist

    staged = {id(move) for move in staged_moves(part, rank)}
    copies, posts, merges = [], [], []
    used = 0
    for move in part:
        if move.dst == rank:
            target = buffer[move.write]
            place = target
            if id(move) in staged:
                place = scratch[used : used + move.count]
                used += move.count
                merges.append((target, place, move.reduce))
            if move.src == rank:
                copies.append((place, buffer[move.read]))
            else:
                posts.append(dist.P2POp(dist.irecv, place, move.src))
        elif move.src == rank:
            posts.append(dist.P2POp(dist.isend, buffer[move.read], move.dst))
    return Exchange(tuple(copies), posts, tuple(merges))


def run(exchanges: Sequence[Exchange], status: Status) -> None:
    """Execute one rank's rounds, one after the other."""
    import torch.distributed as dist

    for number, exchange in enumerate(exchanges):
        status.step(BEFORE, number)
        for place, source in exchange.copies:
            place.copy_(source)
        works = dist.batch_isend_irecv(exchange.posts) if exchange.posts else ()
        status.step(POSTED, number)
        for work in works:
            work.wait()
        for target, place, reduce in exchange.merges:
            if reduce:
                target.add_(place)
            else:
                target.copy_(place)
    status.step(DONE)


def library_call(
    collective: str, ranks: int, rank: int, root: int, buffer: Any, spare: Any
) -> Callable[[], Any] | None:
    """The library's own collective on the same sizes; None where it has none.

    Parameters
    ----------
    collective : str
    ranks, rank, root : int
    buffer, spare : torch.Tensor
        Of the whole size; the result stands in one or the other, as the library has it.
    """
    import torch.distributed as dist

    if len(buffer) % ranks and collective in PARTED:
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
    here = parts if rank == root else None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(buffer),
        "broadcast": lambda: dist.broadcast(buffer, root),
        "reduce": lambda: dist.reduce(buffer, root),
        "all_to_all": lambda: dist.all_to_all_single(spare, buffer),
        "scatter": lambda: dist.scatter(
            spare.chunk(ranks)[rank], list(buffer.chunk(ranks)) if rank == root else None, src=root
        ),
        "gather": lambda: dist.gather(buffer.chunk(ranks)[rank], here, dst=root),
    }
    return calls.get(collective)
