"""nccl-tests and rccl-tests, as they print: tables of times over size.

Spellings that occur: prefixes of job launchers (`files.pasted_text`), heads of NCCL 1 ("bytes N"),
no ``root`` column (before 2.9), ``error`` for ``#wrong``, ``N/A`` where nothing was checked, no
times in place, lines of ``NCCL INFO`` between rows and inside of them, rows wrapped or without
their head, rows of size zero, statistics per iteration, several tables, reductions and types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.nccl_rows import (
    HEAD,
    ROW,
    columns_of,
    garbled_start,
    guess_columns,
    joined_head,
    op_named,
    plain_row,
    result_columns,
    row_of,
)
from perfmodel.calibrate.readers.nccl_sweeps import Table, sweeps_of
from perfmodel.calibrate.readers.sweep_records import (
    PERFORMANCE,
    WITHOUT_MPI,
    ListedRank,
    Sweep,
    listed_rank,
    number,
    version_text,
)
from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.files import collect_faults
from perfmodel.memo import grouped

_VERSION = re.compile(r"\bNCCL version (\d+\.\d+(?:\.\d+)?)|nccl-library=(\d+)")
_ENV = re.compile(r"\b(NCCL_\w+)(?:=| set by environment to )\"?([\w:,^.-]*[\w:,^-])")
_CELL = re.compile(r"[-+.\de]+|N/?A?|/A|A")
ONE_TABLE = "one table: the lines of one run alone"
_FAILURE = re.compile(r"Test (?:NCCL|CUDA) failure .*|.*NCCL WARN .*|.*\bSegmentation fault\b.*")


@dataclass
class _Begun:
    """A row whose cells go on in later lines.

    `torn`: other output stands in it, so that cells that are missing are lost; else it was wrapped.
    """

    match: re.Match[str]
    cells: list[str]
    line: int
    torn: bool


@dataclass
class _Log:
    """What was read so far.

    `told`: fields of all sweeps that lines between tables tell; "op": of the last executable named.
    `torn_head`: there is a head whose columns do not fit; what stands below it is not read.
    """

    told: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    ranks: list[ListedRank] = field(default_factory=list)
    begun: _Begun | None = None
    faults: list[Fault] = field(default_factory=list)
    torn_head: bool = False

    def fault(self, line: int, found: str, allowed: str, field_name: str = "table") -> None:
        """Note what is wrong with a line."""
        self.faults.append(Fault(field_name, found, allowed, line=line))


def is_nccl_log(lines: Sequence[str]) -> bool:
    """Tell whether cleaned lines hold the head of such a table, its list of ranks, or its rows."""
    return any(HEAD.search(line) or ROW.search(line) or listed_rank(line) for line in lines)


def read_nccl_log(
    lines: Sequence[str], file: str, *, op: str | None = None, ranks: int | None = None
) -> list[Sweep]:
    """Read all tables of a log, out of place and in place.

    Parameters
    ----------
    lines : sequence of str
        Cleaned (`files.pasted_text`).
    file : str
        Name for messages and provenance.
    op : str, optional
        The collective, where the log does not say it.
    ranks : int, optional
        How many ranks, where the log does not say it.

    Raises
    ------
    InputError
        No table, a table without rows, cut rows, rows whose numbers contradict each other, or a
        table whose collective or ranks are unknown; every fault at once.
    """
    log = _Log({"op": "", "env": {}, "file": Path(file).name})
    wrapped = -1
    for at, line in enumerate(lines, start=1):
        if at == wrapped or not line.strip():
            continue
        # Times of one placement alone: the head may go on in the next line.
        may_wrap = HEAD.search(line) is not None and len(re.findall(r"\btime\b", line)) < 2
        whole = joined_head(line, lines[at]) if at < len(lines) and may_wrap else None
        wrapped = at + 1 if whole else wrapped
        _line(log, at, whole or line)
    _end_row(log)
    torn = ", but a head cut or wrapped" if log.torn_head else ""
    allowed = "a table with the columns size, count, type, time, algbw, busbw"
    refuse_if(not log.tables, "file", f"no table of nccl-tests{torn}", allowed, file)
    told = Sweep(ranks=0, nodes=None, dtype="", in_place=False, rows=(), **log.told)
    sweeps: list[Sweep] = []
    for table in log.tables:
        with collect_faults(log.faults):
            sweeps += sweeps_of(table, told, op, ranks)
    if log.faults:
        # From one of these all others follow.
        first = next((f for f in log.faults if f.allowed in {WITHOUT_MPI, ONE_TABLE}), None)
        raise InputError(log.faults if first is None else first).located(file)
    return each_once(sweeps)


def _line(log: _Log, at: int, line: str) -> None:
    # Under the head of a table numbers are read as the tests print them.
    plain = plain_row(line) if log.tables else line
    if (columns := columns_of(line)) is not None:
        _end_row(log)
        _open_table(log, at, columns, line)
    elif (rank := listed_rank(line)) is not None:
        log.ranks.append(rank)
    elif (row := ROW.search(plain)) is not None and not _COMMENT.match(line):
        _row(log, at, row)
    elif log.tables and (start := garbled_start(line)) is not None:
        _end_row(log)
        allowed = "size and count as whole numbers: the table is garbled"
        log.fault(at, f"a row that begins with {start!r}", allowed)
    elif log.begun is not None and all(_CELL.fullmatch(cell) for cell in line.split()):
        _continue_row(log, log.begun, line.split())
    else:
        if log.begun is not None and not log.begun.torn:
            _end_row(log)
        _read_context(log, line)


_COMMENT = re.compile(r"\s*#(?!\s*\d+\s+\d+\s)")
"""Begin of a comment; NCCL 1 commented its rows, so that numbers follow."""


def _open_table(log: _Log, at: int, columns: list[str] | None, line: str) -> None:
    names = columns or []
    if names.count("size") > 1:
        log.fault(at, "tables side by side", ONE_TABLE)
    if "cputime" in names:
        log.fault(at, "times that the CPU took to launch (-C)", "times of the GPUs")
    unit_s = 1e-3 if "bytes" in line else 1e-6  # milliseconds under the heads of NCCL 1
    log.tables.append(Table(at, columns, log.ranks, log.told["op"], unit_s))
    log.ranks = []


def _read_context(log: _Log, line: str) -> None:
    """Read collective, version and settings from a line between tables."""
    told = log.told
    told["op"] = op_named(line) or told["op"]
    if (version := _VERSION.search(line)) is not None:
        told["version"] = version.group(1) or version_text(int(version.group(2)[:9]))
    if "rccl-tests" in line.lower() or "RCCL version" in line:
        told["tool"] = "rccl-tests"
    told["env"] |= {name: to for name, to in _ENV.findall(line) if name in PERFORMANCE}
    log.torn_head |= HEAD.search(line) is not None
    if log.tables:
        table = log.tables[-1]
        table.elided |= "..." in line and not line.strip(". ")
        failure = None if table.rows else _FAILURE.search(line)
        table.failure = table.failure or (failure[0].strip()[:120] if failure else "")


# ---------------------------------------------------------------- rows


def _row(log: _Log, at: int, match: re.Match[str]) -> None:
    _end_row(log)
    rest, torn, _ = match[4].partition("NCCL")
    rest = rest.partition("|")[0]
    if ROW.search(rest) is not None:
        log.fault(at, "two rows in one line", "a line for each")
        return
    cells = rest.split()
    if torn:  # a line of NCCL's own came in between; a host's name may run into the last cell
        begins = (_NAMED_HOST.sub(r"\1", cell) for cell in cells)
        cells = [begin for begin in begins if begin]
    if not log.tables:
        if log.torn_head or guess_columns(cells) is None:
            return
        _open_table(log, at, None, "")
        log.tables[-1].notes.append("its head is missing: columns by how their numbers fit")
    log.begun = _Begun(match, cells, at, torn=bool(torn))
    columns = log.tables[-1].columns
    if columns is None or len(cells) >= len(result_columns(columns, cells)[0]):
        _add(log, log.begun)


_NAMED_HOST = re.compile(r"^(?:(-1|N/A|\d+(?=[A-Za-z])|).*:.*|\[.*)$")
"""A cell that the name of a host was written into, and what stands before that."""


def _continue_row(log: _Log, begun: _Begun, cells: list[str]) -> None:
    """Add the rest, or more, of a row that other output or the width of a terminal cut in two."""
    columns = log.tables[-1].columns
    if columns is None or not cells:
        return
    names, _ = result_columns(columns, begun.cells + cells)
    if len(begun.cells) + len(cells) == len(names) + 1 and begun.cells and not begun.torn:
        begun.cells[-1] += cells.pop(0)  # the width cut a cell in two
    begun.cells += cells
    if len(begun.cells) >= len(names):
        _add(log, begun)


def _end_row(log: _Log) -> None:
    """End a row whose cells did not come: times out of place may be whole all the same."""
    begun, log.begun = log.begun, None
    if begun is None:
        return
    table = log.tables[-1]
    if begun.torn:
        table.notes.append(f"the row of {begun.match[1]} bytes, cut by other output, was left out")
        return
    columns = table.columns or guess_columns(begun.cells)
    names = result_columns(columns, begun.cells)[0] if columns else []
    if names.count("time") > 1 and _is_one(names, begun.cells):
        table.without_in_place += 1
        _add(log, begun)
        return
    whole = len(table.columns) if table.columns else "9 or 13"
    allowed = f"{whole}, as its head has: the table is cut off"
    log.fault(begun.line, f"a row of {3 + len(begun.cells)} cells", allowed)


def _is_one(names: Sequence[str], cells: Sequence[str]) -> bool:
    """Tell whether a row is whole and ends where the times in place would begin."""
    first, second, *_ = (at for at, name in enumerate(names) if name == "time")
    is_number = len(cells) in {second, second - 1} and number(cells[-1]) is not None
    return first + 2 < len(cells) and (is_number or cells[second - 1 :] == ["N/A"])


def _add(log: _Log, begun: _Begun) -> None:
    """Add a row to the last table, or say what is wrong with it."""
    table, cells, log.begun = log.tables[-1], begun.cells, None
    columns = table.columns or guess_columns(cells)
    if columns is None:
        log.fault(begun.line, f"{len(cells)} cells behind the type", "a row as nccl-tests print it")
        return
    names, redop = result_columns(columns, cells)
    root = cells[names.index("root")] if "root" in names and cells else None
    if root is not None and not re.fullmatch(r"-?\d{1,9}", root):
        log.fault(begun.line, repr(root[:40]), "a number: the table is garbled", "root")
        return
    if table.elided:
        table.notes.append("rows that its author left out ('...') are missing")
        table.elided = False
    table.rows.append(row_of(begun.match, names, redop, cells, begun.line))


REPEATED = "pasted more than once: taken once"


def each_once(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Sweeps without those whose every time stands above already: a log that was pasted twice."""
    alike = grouped(
        ((sweep.op, sweep.ranks, sweep.dtype, sweep.in_place, sweep.rows), sweep)
        for sweep in sweeps
    )
    return [
        replace(first, notes=(*first.notes, REPEATED)) if others else first
        for first, *others in alike.values()
    ]
