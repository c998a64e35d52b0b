"""p2pBandwidthLatencyTest and nvbandwidth: matrices between GPUs, and between host and GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.sweep_records import LinkMatrix, number, refuse
from perfmodel.errors import Fault, InputError
from perfmodel.files import collect_faults

_P2P = re.compile(r"(Unidirectional |Bidirectional |)P2P=(Enabled|Disabled) (Bandwidth|Latency)")
_P2P_TITLE = re.compile(_P2P.pattern + r"(?! Test\b).{0,24}$")
UNIT_BEHIND = "(GB/s) or (us) on the line of a matrix's title: was it wrapped?"
_TEST = re.compile(r"(?:^|\s)Running (\w+)\.?$")
_TITLE = re.compile(
    r"(?:memcpy|memory latency|device to device latency|multicast)\b.*\((?:row|column)\)",
    re.IGNORECASE,
)
_SUM = re.compile(r"(?:^|\s)SUM (\w+) ([\d.]+)$")
_DEVICE = re.compile(r"(?:^|\s)Device:? (\d+)[:,] (.+?)(?:,| \(|$)")
_JSON_DEVICE = re.compile(r"\d+: (.+?)(?: \(|$)")
UNITS = {"GB/s": 1e9, "us": 1e-6, "ns": 1e-9}
LIMITS = {"GB/s": (1e-6, 1e5), "us": (1e-3, 1e8), "ns": (1.0, 1e11)}
"""Limits of a cell in its unit: 100 TB/s is ten times the memory of any GPU; a latency is from a
nanosecond to 100 s."""

NOT_MEASURED = {"N/A", "X", "-", "nan"}
_CORNERS = {"D\\D", "D\\\\D", "GPU", "CPU"}
MOST_COLUMNS = 1024

OTHER_TOOL = re.compile(r"Measured bandwidth in GB/s of size|^nvloom", re.MULTILINE)


_OTHER_OUTPUT = re.compile(r"NCCL (?:INFO|WARN|TRACE)|\bWarning\b|\w+Warning:|^\s*\d+ ?%\||\[W\b")
"""Lines that other programs wrote between the rows of a matrix."""

_Head = tuple[int, str, str]
"""The line behind the title of a matrix (zero-based), its test, and its unit."""

Values = tuple[tuple[float | None, ...], ...]
"""Cells of a matrix in SI units; None: not measured."""


def is_matrix_log(lines: Sequence[str]) -> bool:
    """Tell whether cleaned lines are one of these tools' output."""
    return any(
        "nvbandwidth Version" in line
        or ("Matrix" in line and _P2P.search(line))
        or (_TITLE.search(line) and _unit(line))
        for line in map(_plain, lines)
    )


def _plain(line: str) -> str:
    """A line with single spaces; nothing of what another program wrote."""
    return "" if _OTHER_OUTPUT.search(line) else " ".join(line.split())


def is_nvbandwidth_json(document: object) -> bool:
    """Tell whether a document is what ``nvbandwidth --json`` writes."""
    return isinstance(document, Mapping) and isinstance(document.get("nvbandwidth"), Mapping)


def read_matrix_log(lines: Sequence[str], file: str) -> list[LinkMatrix]:
    """Read all matrices of the cleaned lines of a log.

    Raises
    ------
    InputError
        No matrix, or one that is cut off or does not add up; every fault at once.
    """
    lines = [_plain(line) for line in lines]
    named = {int(match[1]): match[2].strip() for line in lines if (match := _DEVICE.search(line))}
    devices = tuple(named[number] for number in sorted(named))
    no_access = any("CANNOT Access Peer" in line for line in lines)
    matrices: list[LinkMatrix] = []
    faults = [
        Fault("file", f"a title without its unit, {line[:60]!r}", UNIT_BEHIND, line=at)
        for at, line in enumerate(lines, start=1)
        if _unit(line) is None and _P2P_TITLE.search(line)
    ]
    for behind, test, unit in _heads(lines):
        with collect_faults(faults):
            values, end = _values(lines, (behind, test, unit), devices)
            if values:
                # Nvbandwidth prints the sum of a matrix below it: a digit that was lost shows.
                _check_total(values, unit, _sum_below(lines, end)[1], line=end + 1)
                _check_both_ways(values, (behind, test, unit))
                matrices.append(_matrix(test, unit, values, devices, file, barred=no_access))
    none = Fault("file", "no matrix with numbers", "at least one test that ran")
    if faults or not matrices:
        raise InputError(faults or none).located(file)
    return matrices


def read_nvbandwidth_json(document: Mapping[str, Any], file: str) -> list[LinkMatrix]:
    """Read the tests that ran; waived ones are left out.

    Raises
    ------
    InputError
        No test that ran, or a matrix that is not one.
    """
    matrices = []
    try:
        run = document["nvbandwidth"]
        listed = [text for key in run if "evice list" in str(key) for text in run[key] or []]
        devices = tuple(match[1] for text in listed if (match := _JSON_DEVICE.match(str(text))))
        for case in run.get("testcases") or []:
            if rows := case.get("bandwidth_matrix"):
                test, unit = str(case["name"]), "ns" if "latency" in case["name"] else "GB/s"
                cells = tuple(tuple(_cell(str(c), unit) for c in row) for row in rows)
                widths = sorted({len(row) for row in cells})
                problem = f"rows of {', '.join(map(str, widths))} cells in {test!r}"
                is_uneven = len(widths) != 1 or widths == [0]
                refuse(None, (is_uneven, "testcases", problem, "as many in each row"))
                if isinstance(case.get("sum"), float | int):
                    _check_total(cells, unit, float(case["sum"]), digits=4)
                matrices.append(_matrix(test, unit, cells, devices, file))
        refuse(None, (not matrices, "testcases", "no test that ran", "at least one"))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            Fault("testcases", f"{type(error).__name__}: {error}", "tests with a name", file)
        ) from None
    except InputError as error:
        raise error.located(file) from None
    return matrices


# ---------------------------------------------------------------- text


def _unit(line: str) -> str | None:
    return next((unit for unit in UNITS if f"({unit})" in line), None)


def _heads(lines: Sequence[str]) -> Iterator[_Head]:
    """Yield titles of matrices; a test is named above, or below where that line is missing."""
    running = ""
    for at, line in enumerate(lines):
        unit = _unit(line)
        if (test := _TEST.search(line)) is not None:
            running = test.group(1)
        elif unit is not None and (p2p := _P2P.search(line)) is not None:
            yield at + 1, re.split(r"\s*\(", line[p2p.start() :])[0].removesuffix(" Matrix"), unit
        elif unit is not None and _TITLE.search(line):
            yield at + 1, running or _sum_below(lines, at + 1)[0] or _test_of(line), unit
        elif _SUM.search(line):
            running = ""


def _sum_below(lines: Sequence[str], start: int) -> tuple[str, float | None]:
    """Return name and sum that stand below a matrix, before the next test."""
    for line in lines[start : start + 2 * MOST_COLUMNS]:
        if (match := _SUM.search(line)) is not None:
            total = number(match[2])
            return "" if total is None else match[1], total
        if _TEST.search(line) or _TITLE.search(line):
            break
    return "", None


def _test_of(title: str) -> str:
    """Name a test by the title of its matrix, as nvbandwidth's sources pair them."""
    first = "device" if "GPU(row)" in title else "host"
    there, back = {
        "device": ("device_to_device_memcpy_read", "device_to_device_memcpy_write"),
        "host": ("host_to_device_memcpy", "device_to_host_memcpy"),
    }[first]
    both = f"{first}_to_device_bidirectional_memcpy"
    test = both if "<->" in title else there if "->" in title else back
    return f"{test}_{'sm' if ' SM ' in title else 'ce'}"


def _values(lines: Sequence[str], head: _Head, devices: Sequence[str]) -> tuple[Values, int]:
    """Return rows below a line of column numbers, and the line behind; () without a matrix."""
    behind, test, unit = head
    start = next((at for at in range(behind, len(lines)) if lines[at]), len(lines))
    block, end = _block(lines, start)
    tokens = [word for line in block for word in line.split()]
    square = bool(tokens) and tokens[0] in _CORNERS
    tokens = tokens[square:]
    columns = next((n for n, word in enumerate(tokens) if word != str(n)), len(tokens))
    before = f"{tokens[0][:40]!r} before the first column" if tokens else "no column"
    refuse(start + 1, (not columns and len(block) > 1, "matrix", before, "0: its head is garbled"))
    if len(tokens) == columns or not columns:
        if columns:
            _check_no_row(lines, end)
        return (), end
    torn = next((w for w in tokens if w not in NOT_MEASURED and number(w) is None), None)
    refuse(start + 1, (torn, "matrix", repr((torn or "")[:40]), "numbers: it is garbled"))
    rows = _rows(tokens[columns:], columns, start + 2, len(block))
    refuse(
        start + 1,
        (
            (square or "device_to_device" in test) and len(rows) != columns,
            "matrix",
            f"{len(rows)} rows in {test!r}",
            f"{columns}: it is cut off",
        ),
        (
            columns < len(devices),
            "matrix",
            f"{columns} columns in {test!r}",
            f"{len(devices)}, one for each GPU that the log names",
        ),
    )
    return tuple(tuple(_cell(cell, unit, start + 1) for cell in row) for row in rows), end


def _block(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    """Lines of cells from one on, without empty ones between them; the line behind them."""
    block: list[str] = []
    end = start
    for at in range(start, len(lines)):
        if lines[at] and _is_cells(lines[at], block):
            block.append(lines[at])
            end = at + 1
        elif lines[at]:
            break
    return block, end


def _check_no_row(lines: Sequence[str], end: int) -> None:
    """Refuse a row that is none, below column numbers without any: a garbled first one."""
    at = next((at for at in range(end, min(end + 2, len(lines))) if lines[at]), None)
    cells = lines[at].split() if at is not None else []
    digits = sum(any(map(str.isdigit, cell)) for cell in cells)
    if at is not None and len(cells) > 1 and 2 * digits > len(cells) and cells[0] in {"0", "O"}:
        found = f"a first row {lines[at][:40]!r}"
        raise InputError(Fault("matrix", found, "numbers: it is garbled", line=at + 1))


def _is_cells(line: str, before: Sequence[str]) -> bool:
    """Tell whether a line holds numbers alone, behind a corner in the first."""
    tokens = line.split()
    tokens = tokens[tokens[0] in _CORNERS and not before :]
    return bool(tokens) and all(
        word in NOT_MEASURED or word == "A" or re.fullmatch(r"[\d.,eE+-]+|N/?", word)
        for word in tokens
    )


def _rows(cells: Sequence[str], columns: int, line: int, lines: int) -> list[Sequence[str]]:
    """Return the cells of each row: its number, then one for each column, even if wrapped.

    `line`: of the first row. `lines`: of the whole matrix.
    """
    rows = [cells[at : at + columns + 1] for at in range(0, len(cells), columns + 1)]
    by_number = f"rows of {columns} cells by number (is a cell missing, or a row doubled?)"
    for at, row in enumerate(rows):
        refuse(
            line + at,
            (
                row[0] != str(at),
                "matrix",
                f"{row[0][:40]!r} before row {at}",
                by_number,
            ),
            (
                len(row) != columns + 1,
                "matrix",
                f"a row of {len(row) - 1} numbers",
                f"{columns}: it is cut off",
            ),
        )
    refuse(line - 1, (lines == 1, "matrix", "one line", "a head and rows below it"))
    return [row[1:] for row in rows]


def _check_total(
    values: Values, unit: str, summed: float | None, *, line: int | None = None, digits: int = 2
) -> None:
    """Refuse cells that do not add up to a sum, where there is one."""
    if summed is not None:
        cells = [cell / UNITS[unit] for row in values for cell in row if cell is not None]
        total = math.fsum(cells)
        off = 0.6 * 10.0**-digits * (len(cells) + 1) + 2e-5 * abs(total)
        problem = f"cells that add up to {total:.6g}, and a sum of {summed:.6g}"
        refuse(line, (not abs(total - summed) <= off, "matrix", problem, "the same: it is garbled"))


MOST_UNLIKE = 8.0
"""Times between both directions of a pair: they take the same links."""


def _check_both_ways(values: Values, head: _Head) -> None:
    """Refuse two directions of a pair that differ much."""
    behind, test, unit = head
    allowed = f"rates that differ less than {MOST_UNLIKE:g} times: is a digit lost?"
    is_square = len(values) == len(values[0])
    for i, j in combinations(range(len(values) if is_square and unit == "GB/s" else 0), 2):
        there, back = values[i][j], values[j][i]
        if there and back and max(there, back) > MOST_UNLIKE * min(there, back):
            rates = f"{there * 1e-9:g} GB/s from {i} to {j}, and {back * 1e-9:g} back"
            raise InputError(Fault("matrix", f"{rates}, in {test!r}", allowed, line=behind + i + 2))


def _cell(text: str, unit: str, line: int | None = None) -> float | None:
    value, (low, high) = number(text), LIMITS[unit]
    if value is None or value <= 0:  # not measured
        return None
    is_beyond = not low <= value <= high
    refuse(line, (is_beyond, "matrix", f"{text[:80]} {unit}", f"from {low:g} to {high:g}"))
    return value * UNITS[unit]


def _matrix(
    test: str,
    unit: str,
    values: Values,
    devices: tuple[str, ...],
    file: str,
    *,
    barred: bool = False,
) -> LinkMatrix:
    host = "host" in test
    return LinkMatrix(
        test=test,
        what="bandwidth" if unit == "GB/s" else "latency",
        ends="host-gpu" if host else "gpu-gpu",
        p2p="Disabled" not in test and not host and not barred,
        values=values,
        devices=devices,
        file=Path(file).name,
    )
