"""What all of the package shares: types of arrays and of groups of ranks, and a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
"""Indices: ranks, edges, arcs, chunks; or whole bytes."""

FloatArray = NDArray[np.float64]
"""Quantities: seconds, bytes, bytes per second."""

KEPT_BITS = 40
"""Significant bits of a random number or a table that answers rest on."""

SMALL_TABLE = 1 << 16
"""Entries of a table that a processor's cache holds."""

AT_ONCE = 1 << 14
"""Rows that are worked on at once: a large array takes longer to get than to fill."""

Z80 = 1.2815515655446004
"""Half width of the middle 80 % of a normal distribution, in standard deviations."""

RankGroup = range | tuple[int, ...]
"""Ranks of the topology that take part in a collective, in their order; hashable, a cache key."""


def rank_array(group: RankGroup) -> IntArray:
    """Ranks of a group as an array."""
    if isinstance(group, range):
        return np.arange(group.start, group.stop, group.step, dtype=np.int64)
    return np.asarray(group, dtype=np.int64)


def same_for_all(value: np.float64 | np.int64, count: int) -> NDArray[Any]:
    """`count` times the same value, which takes the memory of one; read-only."""
    return np.broadcast_to(value, count)


def running_sum(values: FloatArray) -> FloatArray:
    """Sum of the values before each, and of all of them; one longer."""
    return np.concatenate([[0.0], np.cumsum(values)])


def round_up(count: int, multiple: int) -> int:
    """Return the least multiple that is no less than a count."""
    return -(-count // multiple) * multiple


def digest(*columns: NDArray[Any]) -> bytes:
    """16 bytes that tell arrays with unlike values apart: a key that holds no large array."""
    found = blake2b(digest_size=16)
    for values in columns:
        own = values[:1] if values.strides == (0,) else values
        found.update(b"%d of %d" % (len(own), len(values)) + own.tobytes())
    return found.digest()


def distinct(numbers: IntArray) -> IntArray:
    """Numbers that occur, each once, ascending; of indices, none negative.

    By marks, or in order where few numbers are spread widely: ``numpy.unique`` hashes a million
    numbers in the hundredfold time.
    """
    if int(numbers.max(initial=0)) <= 4 * len(numbers) + SMALL_TABLE // 64:
        return np.flatnonzero(np.bincount(numbers))
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def first_of_each(codes: IntArray) -> tuple[IntArray, IntArray]:
    """Position of the first of each code, codes ascending, and the place of every code among them.

    As ``numpy.unique`` with its index and inverse, without a sort where codes are small.

    Parameters
    ----------
    codes : ndarray of int
        None negative.
    """
    count, most = len(codes), int(codes.max(initial=-1)) + 1
    if most > 4 * count + SMALL_TABLE:
        _, first, of = np.unique(codes, return_index=True, return_inverse=True)
        return first, of
    table = np.full(most, -1)
    table[codes[::-1]] = np.arange(count - 1, -1, -1)  # of equal ones, the last written stays
    occurs = table >= 0
    return table[occurs], (np.cumsum(occurs) - 1)[codes]


def each_of(counts: IntArray) -> tuple[IntArray, IntArray]:
    """So many items of each group: the number of its group, and which of its items it is."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)


def parts_of(count: int) -> Iterator[slice]:
    """Parts of so many rows, each of as many as stay in a processor's cache while worked on."""
    return (slice(begin, begin + AT_ONCE) for begin in range(0, count, AT_ONCE))


def stable_order(numbers: IntArray) -> IntArray:
    """Positions that put whole numbers in order, equal ones as they stand.

    Of many, by 16 bits after the other, each of which NumPy sorts by counting.
    """
    least = int(numbers.min(initial=0))
    bits = int(numbers.max(initial=0) - least).bit_length()
    if len(numbers) < SMALL_TABLE or bits > 32:
        return np.argsort(numbers, kind="stable")
    digits = numbers - least
    order = np.argsort((digits & 0xFFFF).astype(np.uint16), kind="stable")
    if bits > 16:
        order = order[np.argsort((digits >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def sending_s(nbytes: FloatArray, rate_Bps: FloatArray) -> FloatArray:
    """Time to send bytes at a rate, element by element; seconds.

    Zero where there is nothing to send, also over a dead link; infinite where a dead link, of rate
    0, has something to carry.
    """
    times_s = np.where(nbytes > 0, np.inf, 0.0) + np.zeros(np.shape(rate_Bps))
    return np.divide(nbytes, rate_Bps, out=times_s, where=np.asarray(rate_Bps) > 0)


def round_bits(values: FloatArray) -> FloatArray:
    """Round to `KEPT_BITS` significant bits: what processors differ in is gone.

    Powers, exponentials and logarithms differ in the last of 53 bits between processors, by the
    vector units for which NumPy has versions of its own.
    """
    mantissa, exponent = np.frexp(values)
    rounded: FloatArray = np.ldexp(np.rint(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
    return rounded


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Odd number by which SplitMix64 counts."""
_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


def mix(*columns: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Hash of each row of some columns, of 64 bits.

    Source of the mixing: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    hashes = np.zeros(len(columns[0]), dtype=np.uint64)
    parts = [part for column in columns for part in np.atleast_2d(column.T)]
    for rows in parts_of(len(hashes)):
        _mix_into(hashes[rows], [values[rows] for values in parts])
    return hashes


def _mix_into(hashes: NDArray[np.uint64], columns: Iterable[NDArray[np.generic]]) -> None:
    shifted = np.empty_like(hashes)
    for values in columns:
        hashes += np.ascontiguousarray(values).view(np.uint64)
        hashes += GOLDEN
        for shift, factor in _STEPS:
            hashes ^= np.right_shift(hashes, shift, out=shifted)
            hashes *= factor
        hashes ^= np.right_shift(hashes, np.uint64(31), out=shifted)
