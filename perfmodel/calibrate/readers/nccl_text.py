"""nccl-tests and rccl-tests, as they print: tables of times over size.

Spellings that occur: prefixes of job launchers and timestamps before each line, no ``root`` column
(before 2.9), ``error`` for ``#wrong``, ``N/A`` where nothing was checked, lines of ``NCCL INFO``
between rows and inside of them, rows of size zero, statistics per iteration, several tables.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.calibrate.readers.infer_op import op_named, op_of_file, ops_allowed, ranks_of_factor
from perfmodel.calibrate.readers.log_lines import number, plain
from perfmodel.calibrate.readers.sweep_records import PERFORMANCE, Sweep, rows_of, version_text
from perfmodel.errors import Fault, InputError, allowed_names

TYPES = (
    "int8", "uint8", "char", "int32", "uint32", "int", "int64", "uint64", "half", "float", "double",
    "bfloat16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2",
)  # fmt: skip
"""Data types as the tests print them."""

ROW = re.compile(rf"(?:^|[\s:|>])(\d+)\s+(\d+)\s+({'|'.join(TYPES)})(?=\s|$)(.*)$")

_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s*(.*)$"
)
_VERSION = re.compile(r"\bNCCL version (\d+\.\d+(?:\.\d+)?)|nccl-library=(\d+)")
_ENV = re.compile(r"\b(NCCL_\w+)(?:=| set by environment to )\"?([\w:,^.-]*[\w:,^-])")


@dataclass
class _Table:
    """A table while it is read."""

    line: int
    columns: list[str]
    ranks: list[tuple[str, str, str, str]]  # group, process, host, model
    op: str | None
    cells: list[tuple[int, str, str, str | None, list[str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Log:
    """What was read so far."""

    tables: list[_Table] = field(default_factory=list)
    ranks: list[tuple[str, str, str, str]] = field(default_factory=list)
    op: str | None = None
    version: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    tool: str = "nccl-tests"
    begun: tuple[re.Match[str], list[str]] | None = None
    faults: list[Fault] = field(default_factory=list)


def is_nccl_text(text: str) -> bool:
    """Whether a text has the head of such a table, or its list of ranks."""
    lines = (plain(line) for line in text.splitlines())
    return any(_columns(line) or _RANK.search(line) for line in lines)


def read_nccl_text(
    text: str, file: str, *, op: str | None = None, ranks: int | None = None
) -> list[Sweep]:
    """Read all tables of a log, out of place and in place.

    Parameters
    ----------
    text : str
    file : str
        Name for messages and provenance.
    op : str, optional
        The collective, where the log does not say it.
    ranks : int, optional
        How many ranks, where the log does not say it.

    Raises
    ------
    InputError
        No table, a table without rows, cut rows, or a table whose collective or ranks are unknown;
        every fault at once.
    """
    log = _Log()
    for at, raw in enumerate(text.splitlines(), start=1):
        _line(log, at, plain(raw))
    _drop_cut_row(log)
    if not log.tables:
        allowed = "a table with the columns size, count, type, time, algbw, busbw"
        raise InputError(Fault("file", "no table of nccl-tests", allowed, file))
    sweeps: list[Sweep] = []
    for table in log.tables:
        try:
            sweeps += _sweeps(table, log, file, op, ranks)
        except InputError as error:
            log.faults += error.faults
    if log.faults:
        raise InputError(InputError(log.faults).located(file).faults)
    return sweeps


def _columns(line: str) -> list[str] | None:
    """Names of the columns, if a line is the head of a table."""
    columns = line.lstrip("# \t").split()
    if columns[:2] != ["size", "count"] or "time" not in columns[3:]:
        return None
    return columns if {"algbw", "busbw"} <= set(_result_columns(columns)) else None


def _result_columns(columns: list[str]) -> list[str]:
    """Names of the columns of results, from the first time on."""
    return columns[columns.index("time", 3) :]


def _line(log: _Log, at: int, line: str) -> None:
    if (columns := _columns(line)) is not None:
        _drop_cut_row(log)
        log.tables.append(_Table(at, columns, log.ranks, log.op))
        log.ranks = []
    elif (rank := _RANK.search(line)) is not None:
        group, process, host, model = rank.group(2, 3, 4, 5)
        log.ranks.append((group or "0", process or "", host, model.strip()))
    elif log.tables and (row := ROW.search(line)) is not None and not line.startswith("#"):
        _row(log, at, row)
    elif log.begun is not None and (cells := line.split()) and number(cells[0]) is not None:
        _finish(log, at, cells)
    else:
        _read_context(log, line)


def _read_context(log: _Log, line: str) -> None:
    """Read collective, version and settings from a line between tables."""
    log.op = op_named(line) or log.op
    if (version := _VERSION.search(line)) is not None:
        log.version = version.group(1) or version_text(int(version.group(2)))
    if "rccl-tests" in line.lower() or "RCCL version" in line:
        log.tool = "rccl-tests"
    log.env.update({name: to for name, to in _ENV.findall(line) if name in PERFORMANCE})


def _row(log: _Log, at: int, row: re.Match[str]) -> None:
    _drop_cut_row(log)
    rest, other, _ = row.group(4).partition("NCCL")
    cells = rest.split()
    if other:  # a line of NCCL's own came in between; it may run into the last cell
        log.begun = (row, [restored for cell in cells if (restored := _restore_cell(cell))])
        return
    _add(log, at, row, cells)


def _restore_cell(cell: str) -> str:
    """The part of a cell before the name of a host that was written into it."""
    if ":" not in cell and not cell.startswith("["):
        return cell
    begin = re.match(r"-1|N/A", cell)
    return begin.group(0) if begin else ""


def _finish(log: _Log, at: int, cells: list[str]) -> None:
    """The rest, or more, of a row that other output had cut in two."""
    assert log.begun is not None
    row, head = log.begun
    log.begun = (row, head + cells)
    if len(head) + len(cells) >= len(log.tables[-1].columns) - 3:
        log.begun = None
        _add(log, at, row, head + cells)


def _drop_cut_row(log: _Log) -> None:
    if log.begun is not None:
        size = log.begun[0].group(1)
        log.tables[-1].notes.append(f"the row of {size} bytes, cut by other output, was left out")
        log.begun = None


def _add(log: _Log, at: int, row: re.Match[str], cells: list[str]) -> None:
    table = log.tables[-1]
    names = table.columns[3:]
    redop = cells[0] if cells and "redop" in names and number(cells[0]) is None else ""
    if "redop" in names and not redop:
        names = [name for name in names if name != "redop"]  # a column that is empty
    if len(cells) < len(names):
        actual = f"a row of {3 + len(cells)} cells"
        allowed = f"{len(table.columns)}, as its head has: the table is cut off"
        log.faults.append(Fault("table", actual, allowed, line=at))
        return
    root = cells[names.index("root")] if "root" in names else None
    if root is not None and not re.fullmatch(r"-?\d+", root):
        log.faults.append(Fault("root", repr(root), "a number: the table is garbled", line=at))
        return
    first = names.index("time")
    table.cells.append((int(row.group(1)), row.group(3), redop, root, cells[first:]))


def _sweeps(table: _Table, log: _Log, file: str, op: str | None, ranks: int | None) -> list[Sweep]:
    if not table.cells:
        fault = Fault("table", "a head without rows", "rows: the table is cut off", line=table.line)
        raise InputError(fault)
    named = _result_columns(table.columns)
    starts = [at for at, name in enumerate(named) if name == "time"]
    points = [
        (alg, bus)
        for *_, cells in table.cells
        if (alg := number(cells[named.index("algbw")])) is not None
        and (bus := number(cells[named.index("busbw")])) is not None
    ]
    listed = _listed_ranks(table)
    chosen, count = _identify(table, file, op, ranks, points, len(listed) or None)
    hosts = Counter(host for _, _, host, _ in listed)
    processes = {(host, process) for _, process, host, _ in listed if process}
    sweeps = [
        Sweep(
            op=chosen, ranks=count, nodes=len(hosts) or None,
            gpus_per_node=max(hosts.values()) if len(set(hosts.values())) == 1 else None,
            dtype=table.cells[0][1], in_place=place > 0, rows=rows,
            devices=tuple(dict.fromkeys(model for *_, model in listed if model)),
            version=log.version,
            one_process=len(processes) < len(listed) if processes else None,
            env=dict(log.env), tool=log.tool, file=Path(file).name, line=table.line,
            notes=tuple(table.notes),
        )
        for place, start in enumerate(starts)
        if (rows := rows_of((n, number(cells[start])) for n, *_, cells in table.cells))
    ]  # fmt: skip
    if not sweeps:
        raise InputError(Fault("table", "no row with a size and a time", "one", line=table.line))
    return sweeps


def _listed_ranks(table: _Table) -> list[tuple[str, str, str, str]]:
    groups = {group for group, *_ in table.ranks}
    if len(groups) > 1:
        actual = f"{len(groups)} groups of ranks that run at once (NCCL_TESTS_SPLIT)"
        raise InputError(Fault("table", actual, "one group", line=table.line))
    return table.ranks


def _identify(
    table: _Table, file: str, op: str | None, ranks: int | None,
    points: list[tuple[float, float]], listed: int | None,
) -> tuple[str, int]:  # fmt: skip
    """Collective and number of ranks of a table; faults if anything contradicts them."""
    _, _, redop, root, _ = table.cells[0]
    count = listed or ranks
    allowed = ops_allowed(points, count, redop, root)
    name = op or table.op or op_of_file(Path(file).name)
    if not allowed:
        actual = "busbw over algbw that no collective has" + (
            f" among {count} ranks" if count else ""
        )
        raise InputError(Fault("table", actual, "a table that is not garbled", line=table.line))
    if name is None and len(allowed) == 1:
        (name,) = allowed
    if name is None:
        choices = allowed_names(allowed) + " (--op)"
        actual = "a table that does not say which"
        raise InputError(Fault("collective", actual, choices, line=table.line))
    if name not in allowed:
        actual = f"{name!r}, whose busbw would be another multiple of algbw among {count} ranks"
        raise InputError(Fault("collective", actual, allowed_names(allowed), line=table.line))
    count = count or ranks_of_factor(name, points)
    if count is None:
        actual = "a table without its list of devices"
        raise InputError(
            Fault(
                "ranks", actual, "how many there were (--nodes, --gpus-per-node)", line=table.line
            )
        )
    if count < 2:
        allowed_ = "at least 2: was the test built without MPI, so that each process ran alone?"
        raise InputError(Fault("ranks", str(count), allowed_, line=table.line))
    return name, count
