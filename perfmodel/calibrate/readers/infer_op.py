"""Infer the collective and the number of ranks of a table from names and bandwidths in a log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from perfmodel.calibrate.readers.log_lines import Printed

OPS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
"""Spellings of collectives, in the executables' names and in rccl-tests' records."""

_PERF = re.compile(r"\b([a-z_]+?)_perf(?:_mpi)?\b")
_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|send_?recv|reduce|scatter|gather"
)

Points = Sequence[tuple[Printed, Printed]]
"""algbw and busbw as printed; GB/s."""

MOST_RANKS = 200_000
"""Of any machine; a factor next to 1 implies no number."""


def op_named(text: str) -> str | None:
    """Return the collective of the last executable that a text names."""
    return next((OPS[name] for name in reversed(_PERF.findall(text)) if name in OPS), None)


def op_of_file(name: str) -> str | None:
    """Return the collective that a file's name contains."""
    match = _IN_NAME.search(name.lower().replace("-", "_"))
    return OPS.get(match.group(0)) if match else None


def factor_of(points: Points) -> tuple[float, float] | None:
    """Least and greatest multiple of algbw that busbw may be in all rows; None: they disagree.

    Both are rounded, so that rows with many digits say most.
    """
    low, high = 0.0, math.inf
    for algbw, busbw in points:
        if algbw.high <= 0:
            continue
        low = max(low, busbw.low / algbw.high)
        if algbw.low > 0:
            high = min(high, busbw.high / algbw.low)
    return (low, high) if low <= high * 1.0005 else None


def ops_allowed(
    points: Points, ranks: int | None, redop: str = "", root: str | None = None
) -> set[str]:
    """Return collectives whose bus bandwidth is such a multiple of the algorithm bandwidth.

    `redop` and `root`, where they are given, exclude those that print others: a send prints "sum".
    Source of the factors: nccl-tests ``doc/PERFORMANCE.md``.
    """
    allowed, adds = set(OPS.values()), {"all_reduce", "reduce_scatter", "reduce"}
    if redop:
        allowed = {*adds, "send_recv"} if redop != "none" else allowed - adds
    if root is not None and int(root) < 0:
        allowed -= {"reduce", "broadcast"}
    measured = factor_of(points)
    return set() if measured is None else {op for op in allowed if _fits(op, ranks, *measured)}


def _fits(op: str, ranks: int | None, low: float, high: float) -> bool:
    """Tell whether the bus factor of a collective lies between two."""
    if ranks is not None and ranks >= 2:
        factor = 1.0 if op in _ALIKE else _scale(op) * (ranks - 1) / ranks
        return low * 0.9995 <= factor <= high * 1.0005
    return low <= 1.0 <= high if op in _ALIKE else bool(_ranks_between(op, low, high))


_ALIKE = frozenset(("broadcast", "reduce", "send_recv"))
"""Bus bandwidth is algorithm bandwidth, among however many."""


def _scale(op: str) -> float:
    return 2.0 if op == "all_reduce" else 1.0


def _ranks_between(op: str, low: float, high: float) -> range:
    """Return the numbers of ranks whose factor lies between two."""
    least, most = low / _scale(op), high / _scale(op)
    if least >= 1.0 or most < 0.5:
        return range(0)
    first = max(2, math.ceil(1.0 / (1.0 - least) - 1e-9))
    last = MOST_RANKS if most >= 1.0 else math.floor(1.0 / (1.0 - most) + 1e-9)
    return range(first, min(last, MOST_RANKS) + 1)


def ranks_of_factor(op: str, points: Points) -> int | None:
    """Return the number of ranks that a bus factor implies; None where it is ambiguous."""
    measured = None if op in _ALIKE else factor_of(points)
    numbers = range(0) if measured is None else _ranks_between(op, *measured)
    return numbers[0] if len(numbers) == 1 else None


def ranks_of_parts(op: str, parts: Iterable[int]) -> int | None:
    """Number of ranks by how many times the counted elements fit into the size, in all rows.

    Gathers, scatters and exchanges count the elements of one rank and state the bytes of all.
    """
    numbers = set(parts)
    gathers = op in {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
    (number,) = numbers if len(numbers) == 1 else (1,)
    return number if gathers and number > 1 else None
