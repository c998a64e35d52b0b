"""Schedule: how a collective moves its chunks, the same for every executor.

A schedule has two views of the same traffic. `phases` is short (one entry per traffic pattern)
and is what timing 100,000 ranks can afford. `rounds()` unrolls it lazily into single sends, which
NumPy executes to check the data, SimPy times one by one, and real processes run. A test proves
that both views agree. `dependencies.py` derives the dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray, digest
from perfmodel.errors import (
    Fault,
    InputError,
    allowed_names,
    check_schedule,
    failed,
    raise_faults,
    refuse_if,
)

SentChunk = Sequence[int]
"""``(src, dst, chunk)``, ``(src, dst, chunk, adds)`` or ``(src, dst, chunk, adds, into)``."""

OWNED = frozenset({"reduce_scatter", "all_gather", "scatter", "gather"})
"""Collectives whose chunks have an owner."""

COLLECTIVES = ("all_reduce", "all_to_all", "broadcast", "reduce", *sorted(OWNED))


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One traffic pattern, repeated: edge e carries `nbytes[e]` in each repeat that it works in.

    Arrays have shape (edges,).
    """

    name: str
    src: IntArray
    dst: IntArray
    """`src` and `dst`: ranks."""
    channel: IntArray
    """Parallel copy of the pattern (ring) that the edge belongs to."""
    nbytes: FloatArray
    """Bytes per working repeat, averaged over the repeats."""
    repeat: int
    """How often the pattern repeats."""
    first: IntArray
    active: IntArray
    """`first` and `active`: the edge works in repeats first ... first + active - 1 (a pipeline
    fills and drains)."""
    lag: int = 1
    """In repeat k a rank sends what had reached it by the end of repeat k - lag, counted on through
    the phases over the same edges."""
    drained: bool = False
    """A rank begins the phase when all that it sent and was sent in the phase before has landed."""
    adds: bool | NDArray[np.bool_] = False
    """Whether the receiver adds what it is sent to its own."""
    overwrites: bool = False
    """Whether what the receiver is sent replaces what it was sent in phases before. It is sent
    nothing to add to such data, or to replace it, before they have landed."""

    def likeness(self) -> Hashable:
        """Return a value that phases which are alike have in common, whatever their names."""
        columns = [self.src, self.dst, self.channel, self.nbytes, self.first, self.active]
        return (
            digest(*columns),
            self.repeat,
            self.lag,
            self.drained,
            self.overwrites,
            self.adds if isinstance(self.adds, bool) else digest(self.adds),
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Sends that may happen at once; each reads the state from before the round.

    All arrays have shape (sends,). Chunk numbers index `Schedule.chunk_bytes`. With `reduce` the
    chunk is added to what the receiver has; otherwise it replaces it. Several chunks that one
    rank sends to another on one channel in the same round travel as one message
    (`perfmodel.collectives.dependencies.messages`).
    """

    src: IntArray
    dst: IntArray
    src_chunk: IntArray
    dst_chunk: IntArray
    nbytes: IntArray
    channel: IntArray
    reduce: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective, planned.

    Parameters
    ----------
    collective : str
        "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather",
        "all_to_all".
    algorithm : str
    ranks : int
    nbytes : int
        Size as nccl-tests counts it (the whole buffer).
    itemsize : int
        Bytes per element; chunks are cut at elements.
    chunk_bytes : ndarray of int, shape (chunks,)
        Every rank holds every chunk number; a rank's copy of chunk c has chunk_bytes[c] bytes.
    owner : ndarray of int, shape (chunks,)
        Rank whose chunk it is in the pre- or postcondition of scattering and gathering
        collectives; -1 where all ranks alike hold it.
    root : int
    switches : int
        Participants that are no ranks: switches that reduce and copy on the way (NVLS, SHARP).
        They are numbered ranks, ranks + 1 ... in sends, hold zeros at first and nothing is
        expected of them at the end.
    phases : tuple of Phase
    unroll : callable
        Makes the rounds; use `rounds()`.
    """

    collective: str
    algorithm: str
    ranks: int
    nbytes: int
    itemsize: int
    chunk_bytes: IntArray
    owner: IntArray
    root: int
    phases: tuple[Phase, ...]
    unroll: Callable[[], Iterator[Round]]
    switches: int = 0

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds, one after the other."""
        return self.unroll()

    @classmethod
    def from_rounds(
        cls,
        ranks: int,
        nbytes: int,
        rounds: Iterable[Iterable[SentChunk]],
        *,
        collective: str = "all_reduce",
        chunks: int | Sequence[int] | None = None,
        owner: Sequence[int] | None = None,
        root: int = 0,
        itemsize: int = 4,
    ) -> Schedule:
        """Make a schedule of who sends what to whom, round by round.

        The buffer of every rank is cut into numbered chunks. A send is a tuple
        ``(src, dst, chunk)``: rank `src` sends its copy of the chunk to rank `dst`, which keeps it
        in place of its own, or adds it to its own with ``(src, dst, chunk, True)``. Sends of one
        round happen at once and read what was there before it. Chunks that one rank sends to
        another in the same round travel as one message. A rank sends in a round when all that it
        sent and was sent in the rounds before has landed; rounds over the same edges follow each
        other without waiting for more than what they pass on.

        Parameters
        ----------
        ranks : int
        nbytes : int
            Size as nccl-tests counts it (the whole buffer).
        rounds : iterable of iterables of tuples
            Arrays of integers with a row for each send do as well. Of ``(src, dst, chunk, adds,
            into)``, `into` is the number of the chunk at the receiver, where it is another; both
            chunks have one size.
        collective : str
            What the ranks hold at first and at the end: "all_reduce", "reduce_scatter",
            "all_gather", "broadcast", "reduce", "scatter", "gather" or "all_to_all" (whose chunks
            0 ... N-1 are the input by receiver, N ... 2N-1 the output by sender, then scratch).
        chunks : int or sequence of int, optional
            How many equal chunks there are, cut at elements, or the bytes of each. Default: as many
            as the sends name.
        owner : sequence of int, optional
            Rank whose chunk it is, where collectives scatter or gather. Default: in rank order.
        root : int
            Of "broadcast", "reduce", "scatter" and "gather".
        itemsize : int
            Bytes per element.

        Raises
        ------
        InputError
            A send that is no such tuple, or names ranks or chunks that there are not; every fault.
        ScheduleError
            A size that is not whole elements.

        Examples
        --------
        Two ranks that swap halves, add, and swap the sums:

        >>> swap = [[(0, 1, 1, True), (1, 0, 0, True)], [(0, 1, 0), (1, 0, 1)]]
        >>> schedule = Schedule.from_rounds(2, 1024, swap)
        >>> schedule.chunk_bytes.tolist(), len(schedule.phases)
        ([512, 512], 2)
        """
        check_ranks(ranks, root)
        tables = [_send_table(number, sends) for number, sends in enumerate(rounds)]
        sizes = _chunk_sizes(collective, ranks, nbytes, itemsize, chunks, tables)
        owners = np.full(len(sizes), -1)
        if owner is not None or collective in OWNED:
            in_order = np.arange(len(sizes)) * ranks // max(1, len(sizes))
            owners = in_order if owner is None else np.asarray(owner, dtype=np.int64)
        _check_sends(tables, ranks, sizes, owners)
        parts = [_round_of(table, sizes) for table in tables if len(table)]
        return cls(
            collective,
            "own",
            ranks,
            nbytes,
            itemsize,
            sizes,
            owners,
            root,
            tuple(_phases_of(parts, itemsize)),
            lambda: iter(parts),
        )


def split_elements(nbytes: int, parts: int, itemsize: int) -> IntArray:
    """Cut a buffer at elements into parts that differ by one element at most; bytes.

    Raises `ScheduleError`: as `check_elements`.
    """
    check_elements(nbytes, itemsize)
    edges = (np.arange(parts + 1, dtype=np.int64) * (nbytes // itemsize)) // parts
    return np.diff(edges) * itemsize


def check_elements(nbytes: int, itemsize: int) -> None:
    """Raise `ScheduleError` for a size that is negative or not a whole number of elements."""
    check_schedule(
        (
            nbytes < 0 or itemsize <= 0 or nbytes % itemsize,
            f"a buffer of {nbytes} bytes is not a whole number of {itemsize}-byte elements",
        )
    )


def check_ranks(ranks: int, root: int = 0) -> int:
    """Return the number of ranks, or raise `ScheduleError`."""
    check_schedule(
        (ranks < 1, f"a collective of {ranks} ranks; allowed: 1 or more"),
        (not 0 <= root < ranks, f"root {root} of {ranks} ranks; allowed: 0 to {ranks - 1}"),
    )
    return ranks


# ---------------------------------------------------------------- rounds as tuples

_SEND = "whole numbers (src, dst, chunk), (src, dst, chunk, adds) or (src, dst, chunk, adds, into)"
_ADDS, _INTO = 3, 4
"""Columns of a table of sends that may be left out."""


def _send_table(number: int, sends: Iterable[SentChunk]) -> IntArray:
    """Sends of a round as rows of source, destination, chunk, whether it is added, chunk there."""
    try:
        rows = list(sends)
    except TypeError:
        raise InputError(
            Fault(f"rounds.{number}", repr(sends), f"a list of sends, each {_SEND}")
        ) from None
    raise_faults(
        Fault(f"rounds.{number}.{at}", repr(send), _SEND)
        for at, send in enumerate(rows)
        if not _is_send(send)
    )
    table = np.zeros((len(rows), _INTO + 1), dtype=np.int64)
    for at, send in enumerate(rows):
        table[at, _INTO] = send[2]
        table[at, : len(send)] = send
    return table


def _is_send(send: object) -> bool:
    return (
        isinstance(send, Sequence | np.ndarray)
        and 3 <= len(send) <= _INTO + 1
        and all(isinstance(entry, int | np.integer | np.bool_) for entry in send)
    )


def _chunk_sizes(
    collective: str,
    ranks: int,
    nbytes: int,
    itemsize: int,
    chunks: int | Sequence[int] | None,
    tables: Sequence[IntArray],
) -> IntArray:
    """Return the bytes of each chunk; equal ones unless they are given."""
    refuse_if(
        collective not in COLLECTIVES,
        "collective",
        repr(collective),
        allowed_names(COLLECTIVES, collective),
    )
    if chunks is None:
        highest = max((int(table[:, [2, _INTO]].max(initial=0)) for table in tables), default=0)
        chunks = max(highest + 1, 2 * ranks if collective == "all_to_all" else 1)
    if not isinstance(chunks, int | np.integer):
        is_text = isinstance(chunks, str) or not isinstance(chunks, Sequence | np.ndarray)
        refuse_if(
            is_text, "chunks", repr(chunks), "a whole number of equal chunks, or the bytes of each"
        )
        return np.asarray(chunks, dtype=np.int64)
    refuse_if(chunks < 1, "chunks", str(chunks), "1 or more")
    if collective == "all_to_all":  # output and scratch beside the input
        check_elements(nbytes, itemsize)
        return np.full(chunks, -(-nbytes // (ranks * itemsize)) * itemsize, dtype=np.int64)
    return split_elements(nbytes, int(chunks), itemsize)


def _check_sends(tables: Sequence[IntArray], ranks: int, sizes: IntArray, owners: IntArray) -> None:
    """Raise `InputError` for ranks and chunks that there are not."""
    owned = len(owners) == len(sizes) and ((owners >= -1) & (owners < ranks)).all()
    allowed = f"a rank for each of the {len(sizes)} chunks"
    faults = failed((not owned, "owner", str(owners.tolist()), allowed))
    for number, table in enumerate(tables):
        src, dst, chunk, adds, into = table.T
        for ends in (src, dst):
            wrong = (ends < 0) | (ends >= ranks)
            faults += _faults_at(number, table, wrong, f"ranks from 0 to {ranks - 1}")
        faults += _faults_at(number, table, src == dst, "two ranks")
        wrong = (chunk < 0) | (chunk >= len(sizes)) | (into < 0) | (into >= len(sizes))
        faults += _faults_at(number, table, wrong, f"chunks from 0 to {len(sizes) - 1}")
        if not wrong.any():
            faults += _faults_at(number, table, sizes[chunk] != sizes[into], "chunks of one size")
        faults += _faults_at(number, table, adds & ~1 != 0, "True or False for adds")
    raise_faults(faults)


def _faults_at(
    number: int, table: IntArray, wrong: NDArray[np.bool_], allowed: str
) -> Iterator[Fault]:
    return (
        Fault(f"rounds.{number}.{at}", str(tuple(table[at].tolist())), allowed)
        for at in np.flatnonzero(wrong).tolist()
    )


def _round_of(table: IntArray, sizes: IntArray) -> Round:
    src, dst, chunk, adds, into = table.T
    zeros = np.zeros(len(table), dtype=np.int64)
    return Round(src, dst, chunk, into, sizes[chunk], zeros, adds.astype(np.bool_))


@dataclass(frozen=True, slots=True)
class _Messages:
    """What travels in a round over each edge: bytes, chunks, and whether any is added."""

    ends: IntArray
    nbytes: FloatArray
    chunks: IntArray
    adds: NDArray[np.bool_]


def _messages_of(part: Round) -> _Messages:
    ends, of = np.unique(np.stack([part.src, part.dst]), axis=1, return_inverse=True)
    count = ends.shape[1]
    of = of.ravel()
    adds = np.bincount(of, weights=part.reduce, minlength=count) > 0
    return _Messages(
        ends,
        np.bincount(of, weights=part.nbytes, minlength=count).astype(float),
        np.bincount(of, minlength=count),
        adds,
    )


def _phases_of(rounds: Sequence[Round], itemsize: int) -> Iterator[Phase]:
    """A phase for all rounds in a row that differ by an element for each chunk at most."""
    group: list[_Messages] = []
    for part in rounds:
        messages = _messages_of(part)
        if group and not _are_alike(group[0], messages, itemsize):
            yield _phase_of(group)
            group = []
        group.append(messages)
    if group:
        yield _phase_of(group)


def _are_alike(first: _Messages, other: _Messages, itemsize: int) -> bool:
    return (
        np.array_equal(first.ends, other.ends)
        and np.array_equal(first.adds, other.adds)
        and bool(
            np.all(
                np.abs(first.nbytes - other.nbytes)
                <= itemsize * np.minimum(first.chunks, other.chunks)
            )
        )
    )


def _phase_of(group: Sequence[_Messages]) -> Phase:
    first, repeat = group[0], len(group)
    (src, dst), zeros = first.ends, np.zeros(len(first.nbytes), dtype=np.int64)
    nbytes = np.mean([each.nbytes for each in group], axis=0)
    name = "add" if first.adds.any() else "pass on"
    return Phase(name, src, dst, zeros, nbytes, repeat, zeros, zeros + repeat, adds=first.adds)
