"""One row of a table of nccl-tests: its columns, and whether its numbers agree with one another.

A row holds the same twice and three times: size, count and type; time and algorithm bandwidth; this
and bus bandwidth. What a torn, shifted or mistyped row says does not fit.

Bandwidths also tell the collective and the number of ranks, where no name in the log does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfmodel.calibrate.readers.sweep_records import (
    Printed,
    number,
    plain_number,
    plain_whole,
    printed,
)

ITEM_BYTES = {
    "int8": 1,
    "uint8": 1,
    "char": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "float16": 2,
    "int32": 4,
    "uint32": 4,
    "int": 4,
    "float": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
    "float64": 8,
}
"""Data types as the tests print them, and their bytes."""

ROW = re.compile(rf"(?:^|[\s:|>#])(\d+)\s+(\d+)\s+({'|'.join(ITEM_BYTES)})(?=\s|$)(.*)$", re.DOTALL)

_ALMOST = re.compile(
    rf"(?:^|[\s:|>#])(\S*\d\S*)\s+(\S*\d\S*)\s+({'|'.join(ITEM_BYTES)})(?=\s|$)(.*)$", re.DOTALL
)
_FEWEST_NUMBERS = 3
"""Behind the type of a row: a time and two bandwidths."""
NO_TIME = re.compile(r"(?i)n/?a|-?nan|-?inf|-+")
"""What stands for a time that was not taken."""

_ALIASES = {"bytes": "size", "N": "count", "n": "count", "op": "redop", "res": "error"}
"""Heads of NCCL 1 and of the first tests of NCCL 2."""

COLUMNS = frozenset(
    (
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "cputime",
        "algbw",
        "busbw",
        "#wrong",
        "error",
        "timestamp",
        "wrong",
    )
)

HEAD = re.compile(r"\b(?:size\s+count|bytes\s+N)\s+type\b")
"""First columns of a table, whatever stands before them."""

_REDOPS = frozenset(("sum", "prod", "max", "min", "avg", "mulsum", "none", "all"))


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and bandwidths of one placement."""

    time: Printed
    algbw: Printed | None
    busbw: Printed | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size.

    `timings`: out of place, in place; None where there is no time. `line`: one-based. `text`: the
    first cell that should be a time and is no number.
    """

    nbytes: int
    count: int
    dtype: str
    redop: str
    root: str | None
    timings: tuple[Timing | None, ...]
    line: int
    text: str = ""


def plain_row(line: str) -> str:
    """A row whose numbers have no marks between thousands, and a point before decimals.

    Its numbers agree with each other only if they were understood (`disagreement`). Other lines are
    returned as they are.
    """
    almost = _ALMOST.search(line)
    if almost is None:
        return line
    cells = (plain_number(cell) for cell in almost[4].split())
    row = (plain_whole(almost[1]), plain_whole(almost[2]), almost[3], *cells)
    return line[: almost.start(1)] + " ".join(row)


def garbled_start(line: str) -> str | None:
    """Return the first two cells of what is a row but for them; None: it is no row."""
    almost = _ALMOST.search(line)
    numbers = 0 if almost is None else sum(number(c) is not None for c in almost[4].split())
    return None if almost is None or numbers < _FEWEST_NUMBERS else f"{almost[1]} {almost[2]}"[:60]


def columns_of(line: str) -> list[str] | None:
    """Return the columns, if a line is the head of a table; the first of tables side by side."""
    head = HEAD.search(line)
    tokens = line[head.start() :].replace("|", " ").split() if head else []
    columns = [_ALIASES.get(word, word) for word in tokens]
    times = (at for at, name in enumerate(columns) if at >= 3 and name in {"time", "cputime"})
    first, bandwidths = next(times, len(columns)), {"algbw", "busbw"}
    # Bandwidths before the first time: that of the times out of place is torn.
    is_whole = bandwidths <= set(columns[first:]) and not bandwidths & set(columns[:first])
    return columns if is_whole else None


def joined_head(line: str, following: str) -> str | None:
    """Head of a table that was wrapped onto a second line, even inside of a word; else None."""
    rest = following.strip("# \t")
    if not 0 < len(rest.split()) <= 9 or (columns_of(line) is None and "size" not in line):
        return None
    wholes = (line.rstrip() + joint + rest for joint in (" ", ""))
    return next((whole for whole in wholes if _has_both_times(columns_of(whole) or [])), None)


def _has_both_times(columns: Sequence[str]) -> bool:
    return set(columns) <= COLUMNS and columns.count("time") == 2


def guess_columns(cells: Sequence[str]) -> list[str] | None:
    """Guess the columns of a row whose head is missing by its cells behind the type.

    Returns None where it is no such row.
    """
    has_redop = bool(cells) and cells[0] in _REDOPS
    rest = cells[has_redop:]
    has_root = len(rest) % 4 == 1 and re.fullmatch(r"-?\d+", rest[0]) is not None
    rest = rest[has_root:]
    if len(rest) not in (4, 8):
        return None
    named = ["redop"] * has_redop + ["root"] * has_root
    results = ["time", "algbw", "busbw", "#wrong"] * (len(rest) // 4)
    return ["size", "count", "type", *named, *results]


def result_columns(columns: Sequence[str], cells: Sequence[str]) -> tuple[list[str], str]:
    """Return names of the cells behind the type, and the reduction (if empty it has no cell)."""
    names = list(columns[3:])
    redop = cells[0] if cells and "redop" in names and number(cells[0]) is None else ""
    return [name for name in names if redop or name != "redop"], redop


def row_of(
    match: re.Match[str], names: Sequence[str], redop: str, cells: Sequence[str], line: int
) -> Row:
    """Make a row of the cells behind its type."""
    starts = [at for at, name in enumerate(names) if name == "time"]
    timings = tuple(_timing(names, cells, at) for at in starts)
    unread = next((cells[at] for at in starts if at < len(cells) and number(cells[at]) is None), "")
    root = cells[names.index("root")] if "root" in names else None
    return Row(int(match[1]), int(match[2]), match[3], redop, root, timings, line, unread)


def _timing(names: Sequence[str], cells: Sequence[str], at: int) -> Timing | None:
    """Return the first time and bandwidths from a column on."""
    cell_of = dict(reversed(list(zip(names[at:], cells[at:], strict=False))))
    time, algbw, busbw = (printed(cell_of.get(name, "")) for name in ("time", "algbw", "busbw"))
    return None if time is None or time.value < 0 else Timing(time, algbw, busbw)


# ---------------------------------------------------------------- do its numbers agree?


def disagreement(row: Row, unit_s: float) -> str | None:
    """Say what in a row contradicts the rest of it; None: it agrees."""
    if not row.nbytes:
        return None
    if not row.count:
        return f"{row.nbytes:,} B of no elements"
    each = ITEM_BYTES[row.dtype]
    if row.nbytes % (row.count * each):
        return f"{row.nbytes:,} B of {row.count:,} elements of {each} B ({row.dtype})"
    for timing in row.timings:
        if timing is not None and timing.algbw and not _agrees(row.nbytes, timing, unit_s):
            rate = row.nbytes / (timing.time.value * unit_s) * 1e-9 if timing.time.value else 0.0
            return (
                f"{row.nbytes:,} B in {timing.time.value:g} (algbw {rate:.2f} GB/s) beside an "
                f"algbw of {timing.algbw.value:g}"
            )
    return None


_ROUNDING_SHARE = 0.0005
"""Tests round time and bandwidth apart, some of them to four digits in between."""


def _agrees(nbytes: int, timing: Timing, unit_s: float) -> bool:
    assert timing.algbw is not None
    least_s = max(timing.time.low, 0.0) * unit_s
    slowest = nbytes / (timing.time.high * unit_s) * 1e-9 * (1 - _ROUNDING_SHARE)
    fastest = nbytes / least_s * 1e-9 * (1 + _ROUNDING_SHARE) if least_s > 0 else float("inf")
    return slowest <= timing.algbw.high and timing.algbw.low <= fastest


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
"""Ranks of the largest machine; a factor next to 1 implies no number."""


def op_named(text: str) -> str | None:
    """Return the collective of the last executable that a text names."""
    return next((OPS[name] for name in reversed(_PERF.findall(text)) if name in OPS), None)


def op_of_file(name: str) -> str | None:
    """Return the collective that a file's name contains."""
    match = _IN_NAME.search(name.lower().replace("-", "_"))
    return OPS.get(match.group(0)) if match else None


def factor_of(points: Points) -> tuple[float, float] | None:
    """Return the least and the greatest busbw / algbw that agree with all rows; None if none does.

    A row's two rates are rounded, so each row allows a range; more digits make it narrower.
    """
    usable = [(algbw, busbw) for algbw, busbw in points if algbw.high > 0]
    low = max([0.0, *(busbw.low / algbw.high for algbw, busbw in usable)])
    high = min([math.inf, *(busbw.high / algbw.low for algbw, busbw in usable if algbw.low > 0)])
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
    return numbers.pop() if gathers and len(numbers) == 1 and numbers != {1} else None
