"""p2pBandwidthLatencyTest and nvbandwidth: matrices between GPUs, and between host and GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.log_lines import number
from perfmodel.calibrate.readers.sweep_records import LinkMatrix
from perfmodel.errors import Fault, InputError
from perfmodel.files.pasted_text import clean_characters, clean_lines

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
"""Of a cell in its unit: 100 TB/s is ten times the memory of any GPU; a latency is a nanosecond to
100 s."""

NOT_MEASURED = {"N/A", "X", "-", "nan"}
_CORNERS = {"D\\D", "D\\\\D", "GPU", "CPU"}
MOST_COLUMNS = 1024

OTHER_TOOL = re.compile(r"Measured bandwidth in GB/s of size|^nvloom", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Head:
    """Title of a matrix: the line behind it (zero-based), test, unit."""

    behind: int
    test: str
    unit: str


def is_matrices(text: str) -> bool:
    """Whether a text is one of these tools' output."""
    return is_matrix_log(clean_lines(clean_characters(text)))


def is_matrix_log(lines: Sequence[str]) -> bool:
    """Whether cleaned lines are one of these tools' output."""
    return any(
        "nvbandwidth Version" in line
        or ("Matrix" in line and _P2P.search(line))
        or (_TITLE.search(line) and _unit(line))
        for line in lines
    )


def is_nvbandwidth_json(document: object) -> bool:
    """Whether a document is what ``nvbandwidth --json`` writes."""
    return isinstance(document, Mapping) and isinstance(document.get("nvbandwidth"), Mapping)


def read_matrices(text: str, file: str) -> list[LinkMatrix]:
    """Read all matrices of a log.

    Raises
    ------
    InputError
        No matrix, or one that is cut off or does not add up; every fault at once.
    """
    return read_matrix_log(clean_lines(clean_characters(text)), file)


def read_matrix_log(lines: Sequence[str], file: str) -> list[LinkMatrix]:
    """Read all matrices of cleaned lines; see `read_matrices`."""
    lines = [line.strip() for line in lines]
    named = {int(match[1]): match[2].strip() for line in lines if (match := _DEVICE.search(line))}
    devices = tuple(named[number] for number in sorted(named))
    no_access = any("CANNOT Access Peer" in line for line in lines)
    matrices: list[LinkMatrix] = []
    faults = [
        Fault("file", f"a title without its unit, {line[:60]!r}", UNIT_BEHIND, line=at)
        for at, line in enumerate(lines, start=1)
        if _unit(line) is None and _P2P_TITLE.search(line)
    ]
    for head in _heads(lines):
        try:
            values, end = _values(lines, head, devices)
            if values:
                _check_sum(lines, end, values, UNITS[head.unit])
                _check_both_ways(values, head)
        except InputError as error:
            faults += error.faults
            continue
        if values:
            matrices.append(_matrix(head.test, head.unit, values, devices, file, barred=no_access))
    if not matrices and not faults:
        faults.append(Fault("file", "no matrix with numbers", "at least one test that ran"))
    if faults:
        raise InputError(faults).located(file)
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
            rows = case.get("bandwidth_matrix")
            if rows:
                unit = "ns" if "latency" in case["name"] else "GB/s"
                cells = tuple(tuple(_cell(str(c), unit) for c in row) for row in rows)
                _check_shape(cells, str(case["name"]))
                if isinstance(case.get("sum"), float | int):
                    _check_total(cells, UNITS[unit], float(case["sum"]), digits=4)
                matrices.append(_matrix(str(case["name"]), unit, cells, devices, file))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            Fault("testcases", f"{type(error).__name__}: {error}", "tests with a name", file)
        ) from None
    except InputError as error:
        raise error.located(file) from None
    if not matrices:
        raise InputError(Fault("testcases", "no test that ran", "at least one", file))
    return matrices


def _check_shape(cells: Sequence[Sequence[float | None]], name: str) -> None:
    widths = {len(row) for row in cells}
    if len(widths) != 1 or widths == {0}:
        problem = f"rows of {', '.join(map(str, sorted(widths)))} cells in {name!r}"
        raise InputError(Fault("testcases", problem, "as many in each row"))


# ---------------------------------------------------------------- text


def _unit(line: str) -> str | None:
    return next((unit for unit in UNITS if f"({unit})" in line), None)


def _heads(lines: Sequence[str]) -> Iterator[_Head]:
    """Titles of matrices; a test is named above, or below where that line is missing."""
    running = ""
    for at, line in enumerate(lines):
        unit = _unit(line)
        if (test := _TEST.search(line)) is not None:
            running = test.group(1)
        elif unit is not None and (p2p := _P2P.search(line)) is not None:
            test_name = re.split(r"\s*\(", line[p2p.start() :])[0].removesuffix(" Matrix")
            yield _Head(at + 1, test_name, unit)
        elif unit is not None and _TITLE.search(line):
            summed = _sum_below(lines, at + 1)
            yield _Head(at + 1, running or (summed[0] if summed else _test_of(line)), unit)
        elif _SUM.search(line):
            running = ""


def _sum_below(lines: Sequence[str], start: int) -> tuple[str, float] | None:
    """Name and sum that stand below a matrix, before the next test."""
    for line in lines[start : start + 2 * MOST_COLUMNS]:
        if (match := _SUM.search(line)) is not None:
            total = number(match[2])
            return None if total is None else (match[1], total)
        if _TEST.search(line) or _TITLE.search(line):
            return None
    return None


def _test_of(title: str) -> str:
    """Name of a test by the title of its matrix, as nvbandwidth's sources pair them."""
    how = "sm" if " SM " in title else "ce"
    ends = ("device", "device") if "GPU(row)" in title else ("host", "device")
    if "<->" in title:
        return f"{ends[0]}_to_{ends[1]}_bidirectional_memcpy_{how}"
    if ends[0] == "device":
        return f"device_to_device_memcpy_{'read' if '->' in title else 'write'}_{how}"
    return f"host_to_device_memcpy_{how}" if "->" in title else f"device_to_host_memcpy_{how}"


def _values(
    lines: Sequence[str], head: _Head, devices: Sequence[str]
) -> tuple[tuple[tuple[float | None, ...], ...], int]:
    """Rows below a line of column numbers, and the line behind them; () without a matrix."""
    start = head.behind
    while start < len(lines) and not lines[start]:
        start += 1
    block, end = _block(lines, start)
    tokens = [word for line in block for word in line.split()]
    square = bool(tokens) and tokens[0] in _CORNERS
    tokens = tokens[1:] if square else tokens
    columns = 0
    while columns < len(tokens) and tokens[columns] == str(columns):
        columns += 1
    if not columns and len(block) > 1:
        problem = f"{tokens[0][:40]!r} before the first column" if tokens else "no column"
        raise InputError(Fault("matrix", problem, "0: its head is garbled", line=start + 1))
    if columns and len(tokens) == columns:
        _check_no_row(lines, end)
    if not columns or len(tokens) == columns:
        return (), end
    if any(word not in NOT_MEASURED and number(word) is None for word in tokens):
        torn = next(word for word in tokens if word not in NOT_MEASURED and number(word) is None)
        raise InputError(Fault("matrix", repr(torn[:40]), "numbers: it is garbled", line=start + 1))
    rows = _rows(tokens, columns, start, block)
    between_gpus = square or "device_to_device" in head.test
    if between_gpus and len(rows) != columns:
        problem = f"{len(rows)} rows in {head.test!r}"
        raise InputError(Fault("matrix", problem, f"{columns}: it is cut off", line=start + 1))
    if columns < len(devices):
        problem = f"{columns} columns in {head.test!r}"
        raise InputError(
            Fault(
                "matrix",
                problem,
                f"{len(devices)}, one for each GPU that the log names",
                line=start + 1,
            )
        )
    return tuple(tuple(_cell(cell, head.unit, start + 1) for cell in row) for row in rows), end


def _block(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    """Lines of cells from one on, without single empty ones between them; the line behind them."""
    block: list[str] = []
    end = at = start
    while at < len(lines) and (not lines[at] or _is_cells(lines[at], block)):
        if lines[at]:
            block.append(lines[at])
            end = at + 1
        elif at > end:
            break
        at += 1
    return block, end


def _check_no_row(lines: Sequence[str], end: int) -> None:
    """Refuse a row that is none, below column numbers without any: a garbled first one."""
    at = next((at for at in range(end, min(end + 2, len(lines))) if lines[at]), None)
    cells = lines[at].split() if at is not None else []
    digits = sum(any(map(str.isdigit, cell)) for cell in cells)
    if at is not None and len(cells) > 1 and 2 * digits > len(cells) and cells[0] in {"0", "O"}:
        raise InputError(
            Fault(
                "matrix", f"a first row {lines[at][:40]!r}", "numbers: it is garbled", line=at + 1
            )
        )


def _is_cells(line: str, before: Sequence[str]) -> bool:
    """Whether a line holds numbers alone, behind a corner in the first."""
    tokens = line.split()
    if tokens and tokens[0] in _CORNERS and not before:
        tokens = tokens[1:]
    return bool(tokens) and all(
        word in NOT_MEASURED or word == "A" or re.fullmatch(r"[\d.,eE+-]+|N/?", word)
        for word in tokens
    )


def _rows(tokens: Sequence[str], columns: int, start: int, block: Sequence[str]) -> list[list[str]]:
    """Cells of each row: its number, then as many as there are columns, on one line or wrapped."""
    rest = list(tokens[columns:])
    rows: list[list[str]] = []
    while rest:
        row, rest = rest[: columns + 1], rest[columns + 1 :]
        line = start + 2 + len(rows)
        if row[0] != str(len(rows)):
            problem = f"{row[0][:40]!r} before row {len(rows)}"
            raise InputError(
                Fault(
                    "matrix",
                    problem,
                    f"rows of {columns} cells by number (is a cell missing, or a row doubled?)",
                    line=line,
                )
            )
        if len(row) != columns + 1:
            problem = f"a row of {len(row) - 1} numbers"
            raise InputError(Fault("matrix", problem, f"{columns}: it is cut off", line=line))
        rows.append(row[1:])
    if len(block) == 1:
        raise InputError(Fault("matrix", "one line", "a head and rows below it", line=start + 1))
    return rows


def _check_sum(
    lines: Sequence[str], end: int, values: Sequence[Sequence[float | None]], scale: float
) -> None:
    """Nvbandwidth prints the sum of a matrix below it: a digit that was lost shows."""
    summed = _sum_below(lines, end)
    if summed is None:
        return
    _check_total(values, scale, summed[1], line=end + 1)


def _check_total(
    values: Sequence[Sequence[float | None]],
    scale: float,
    summed: float,
    *,
    line: int | None = None,
    digits: int = 2,
) -> None:
    cells = [cell / scale for row in values for cell in row if cell is not None]
    total = math.fsum(cells)
    off = 0.6 * 10.0**-digits * (len(cells) + 1) + 2e-5 * abs(total)
    if not abs(total - summed) <= off:
        raise InputError(
            Fault(
                "matrix",
                f"cells that add up to {total:.6g}, and a sum of {summed:.6g}",
                "the same: it is garbled",
                line=line,
            )
        )


MOST_UNLIKE = 8.0
"""Times between both directions of a pair: they take the same links."""


def _check_both_ways(values: Sequence[Sequence[float | None]], head: _Head) -> None:
    """The two directions of a pair differ little."""
    if len(values) != len(values[0]) or head.unit != "GB/s":
        return
    for i, row in enumerate(values):
        for j, cell in enumerate(row[:i]):
            back = values[j][i]
            if cell and back and max(cell, back) > MOST_UNLIKE * min(cell, back):
                rates = f"{back * 1e-9:g} GB/s from {j} to {i}, and {cell * 1e-9:g} back"
                raise InputError(
                    Fault(
                        "matrix",
                        f"{rates}, in {head.test!r}",
                        f"rates that differ less than {MOST_UNLIKE:g} times: is a digit lost?",
                        line=head.behind + j + 2,
                    )
                )


def _cell(text: str, unit: str, line: int | None = None) -> float | None:
    value = None if text in NOT_MEASURED else number(text)
    if value is None or value <= 0:
        return None
    low, high = LIMITS[unit]
    if not low <= value <= high:
        raise InputError(
            Fault("matrix", f"{text[:80]} {unit}", f"from {low:g} to {high:g}", line=line)
        )
    return value * UNITS[unit]


def _matrix(
    test: str,
    unit: str,
    values: tuple[tuple[float | None, ...], ...],
    devices: tuple[str, ...],
    file: str,
    *,
    barred: bool = False,
) -> LinkMatrix:
    p2p_tool = test.startswith(("Uni", "Bi", "P2P"))
    host = "host" in test
    return LinkMatrix(
        test=test,
        what="bandwidth" if unit == "GB/s" else "latency",
        ends="host-gpu" if host else "gpu-gpu",
        p2p="Disabled" not in test and not host and not barred,
        both_ways="idirectional" in test and not test.startswith("Uni"),
        values=values,
        devices=devices,
        tool="p2pBandwidthLatencyTest" if p2p_tool else "nvbandwidth",
        file=Path(file).name,
    )
