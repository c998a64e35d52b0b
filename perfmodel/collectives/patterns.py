"""Building blocks of schedules: traffic patterns that follow one another.

A pattern has both views of its traffic: its `Phase`, and the `Round` of each repeat.
Several chunks that one rank sends to another in the same round travel as one message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, each_of, same_for_all
from perfmodel.collectives.schedule import Phase, Round, Schedule


@dataclass(frozen=True, slots=True)
class Pattern:
    """A phase and a function from repeat (0 ... phase.repeat - 1) to its round."""

    phase: Phase
    step: Callable[[int], Round]


def concatenate(
    patterns: Sequence[Pattern],
    collective: str,
    algorithm: str,
    ranks: int,
    nbytes: int,
    itemsize: int,
    chunk_bytes: IntArray,
    *,
    owner: IntArray | None = None,
    root: int = 0,
    switches: int = 0,
) -> Schedule:
    """Return the schedule of patterns one after the other; those without edges are left out.

    The other parameters are fields of `Schedule`; by default every chunk is everyone's.
    """
    used = [pattern for pattern in patterns if len(pattern.phase.src) and pattern.phase.repeat]

    def rounds() -> Iterator[Round]:
        return (pattern.step(at) for pattern in used for at in range(pattern.phase.repeat))

    return Schedule(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        nbytes=nbytes,
        itemsize=itemsize,
        chunk_bytes=chunk_bytes,
        owner=np.full(len(chunk_bytes), -1) if owner is None else owner,
        root=root,
        phases=tuple(pattern.phase for pattern in used),
        unroll=rounds,
        switches=switches,
    )


def single_step(
    name: str, src: IntArray, dst: IntArray, nbytes: FloatArray, *, adds: bool = False
) -> Phase:
    """Return a phase in which each edge sends once, all at the same time."""
    zeros, ones = np.zeros(len(src), dtype=np.int64), np.ones(len(src), dtype=np.int64)
    return Phase(name, src, dst, zeros, nbytes, 1, zeros, ones, adds=adds)


def exchange(
    name: str,
    src: IntArray,
    dst: IntArray,
    begin: IntArray,
    count: IntArray | int,
    sizes: IntArray,
    *,
    reduces: bool,
) -> Pattern:
    """One step: each edge carries `count` chunks from `begin` on, past the last to the first.

    `src`, `dst`, `begin` and `count` have shape (edges,). `sizes`: bytes of the chunks that take
    part (a prefix of the schedule's chunks); with `reduces` they are added to the receiver's.
    """
    counts = np.broadcast_to(np.asarray(count, dtype=np.int64), src.shape)
    nbytes = _range_bytes(sizes, begin, counts)
    phase = single_step(name, src, dst, nbytes.astype(float), adds=reduces)
    return Pattern(
        phase, lambda _: ranges(src, dst, phase.channel, begin, counts, sizes, reduces=reduces)
    )


def around(
    name: str,
    table: IntArray,
    begin: IntArray,
    count: int,
    sizes: IntArray,
    *,
    reduces: bool,
    channels: bool = False,
) -> Pattern:
    """Rings side by side: reduce-scatter (`reduces`) or all-gather on each row of ranks.

    `table`: ranks of each ring in order, shape (teams, n); after reduce-scatter position p has
    block p + 1. Block b of a ring is `count` chunks from `begin` on, shape (teams, n); `sizes` has
    shape (chunks,). With `channels`, where rings share ranks, each has a channel of its own.
    """
    ranks = table.shape[1]
    edges, offset = table.size, 0 if reduces else ranks - 1
    src, dst = table.ravel(), np.roll(table, -1, axis=1).ravel()
    zeros = np.zeros(edges, dtype=np.int64)
    channel = np.repeat(np.arange(len(table)), ranks) if channels else zeros
    position = np.arange(ranks)
    counts = np.full(begin.shape, count)
    block = sizes[begin] if count == 1 else _range_bytes(sizes, begin, counts)
    # Over the repeats position p sends blocks p - offset, p - offset - 1 ...: all but one.
    left_out = np.take(block, (position - offset + 1) % ranks, axis=1)
    mean = (block.sum(axis=1, keepdims=True) - left_out) / max(ranks - 1, 1)

    def step(repeat: int) -> Round:
        first = np.take(begin, (position - repeat - offset) % ranks, axis=1).ravel()
        return ranges(src, dst, channel, first, counts.ravel(), sizes, reduces=reduces)

    active = np.full(edges, ranks - 1)
    return Pattern(
        Phase(name, src, dst, channel, mean.ravel(), ranks - 1, zeros, active, adds=reduces), step
    )


def ranges(
    src: IntArray,
    dst: IntArray,
    channel: IntArray,
    begin: IntArray,
    counts: IntArray,
    sizes: IntArray,
    *,
    reduces: bool,
) -> Round:
    """Return a round in which each edge carries a range of chunks, which may wrap around."""
    edge, place = each_of(counts)
    chunk = (begin[edge] + place) % len(sizes)
    return Round(
        src=src[edge],
        dst=dst[edge],
        src_chunk=chunk,
        dst_chunk=chunk,
        nbytes=sizes[chunk],
        channel=channel[edge],
        reduce=np.full(len(edge), reduces),
    )


def _range_bytes(sizes: IntArray, begin: IntArray, counts: IntArray) -> IntArray:
    """Return the bytes of ranges of chunks, which may wrap around once."""
    ends = np.concatenate([[0], np.cumsum(np.concatenate([sizes, sizes]))])
    return np.asarray(ends[begin + counts] - ends[begin])


def pipeline(
    name: str,
    src: IntArray,
    dst: IntArray,
    channel: IntArray,
    first: IntArray,
    sizes: IntArray,
    *,
    reduces: IntArray | NDArray[np.bool_],
    part: IntArray | None = None,
) -> Pattern:
    """Pieces that follow each other over every edge, one per repeat, from repeat `first` on.

    Edges of channel c, in arrays of shape (edges,), carry the pieces of c. `sizes`: bytes of
    chunks, which are the parts of pieces, shape (channels, pieces, parts); chunks are numbered in
    this order. `part`: which part of each piece an edge carries; -1, and the default: all.
    """
    pieces, parts = sizes.shape[1:]
    adds, begin = np.asarray(reduces, dtype=np.bool_), np.zeros(len(src), dtype=np.int64)
    whole = sizes.sum(axis=2).mean(axis=1)
    equal = part is None and bool((whole == whole[0]).all())
    nbytes = same_for_all(whole[0], len(src)) if equal else whole[channel]
    counts = np.full(len(src), parts)
    if part is not None:
        begin, counts = np.maximum(part, 0), np.where(part < 0, parts, 1)
        nbytes = np.where(part < 0, nbytes, sizes.mean(axis=1)[channel, begin])
    active = same_for_all(np.int64(pieces), len(src))
    repeat = int(first.max(initial=0)) + pieces
    phase = Phase(name, src, dst, channel, nbytes, repeat, first, active, adds=adds)

    def step(repeat: int) -> Round:
        works = np.flatnonzero((first <= repeat) & (repeat < first + pieces))
        edge, place = each_of(counts[works])
        edge = works[edge]
        piece = channel[edge] * pieces + repeat - first[edge]
        chunk = piece * parts + begin[edge] + place
        return Round(
            src[edge], dst[edge], chunk, chunk, sizes.ravel()[chunk], channel[edge], adds[edge]
        )

    return Pattern(phase, step)


def near_root(ranks: int) -> int:
    """Return the divisor of N nearest to its square root from above.

    Examples
    --------
    >>> [near_root(n) for n in (1, 7, 8, 12, 16)]
    [1, 7, 4, 4, 4]
    """
    return ranks // max(d for d in range(1, math.isqrt(ranks) + 1) if ranks % d == 0)


def pieces_of(nbytes: int, shares: int, piece_bytes: int, itemsize: int) -> int:
    """Count pieces so that each of equal shares is cut into pieces of `piece_bytes` or less."""
    return max(1, -(-nbytes // (shares * max(piece_bytes, itemsize))))
