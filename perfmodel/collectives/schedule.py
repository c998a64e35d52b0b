"""Schedule: how a collective moves its chunks, the same for every executor.

A schedule has two views of the same traffic. `phases` is short (one entry per traffic pattern)
and is what timing 100,000 ranks can afford. `rounds()` unrolls it lazily into single sends, which
NumPy executes to check the data, SimPy times one by one, and real processes run. A test proves
that both views agree. `dependencies.py` derives the dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.errors import ScheduleError


@dataclass(frozen=True, slots=True)
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


def split_elements(nbytes: int, parts: int, itemsize: int) -> IntArray:
    """Cut a buffer at elements into parts that differ by one element at most; bytes.

    Raises `ScheduleError`: as `check_elements`.
    """
    check_elements(nbytes, itemsize)
    elements = nbytes // itemsize
    edges = (np.arange(parts + 1, dtype=np.int64) * elements) // parts
    return np.diff(edges) * itemsize


def check_elements(nbytes: int, itemsize: int) -> None:
    """Raise `ScheduleError` for a size that is negative or not a whole number of elements."""
    if nbytes < 0 or itemsize <= 0 or nbytes % itemsize:
        raise ScheduleError(
            f"a buffer of {nbytes} bytes is not a whole number of {itemsize}-byte elements"
        )


def check_ranks(ranks: int, root: int = 0) -> int:
    """Return the number of ranks, or raise `ScheduleError`."""
    if ranks < 1:
        raise ScheduleError(f"a collective of {ranks} ranks; allowed: 1 or more")
    if not 0 <= root < ranks:
        raise ScheduleError(f"root {root} of {ranks} ranks; allowed: 0 to {ranks - 1}")
    return ranks
