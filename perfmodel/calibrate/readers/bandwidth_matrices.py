"""p2pBandwidthLatencyTest and nvbandwidth: matrices between GPUs, and between host and GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.log_lines import number, plain
from perfmodel.calibrate.readers.sweep_records import LinkMatrix
from perfmodel.errors import Fault, InputError

_P2P = re.compile(r"^(Unidirectional |Bidirectional |)P2P=(Enabled|Disabled) (Bandwidth|Latency)")
_TEST = re.compile(r"^Running (\w+)\.?$")
_MATRIX = re.compile(r"^memory latency|^memcpy .* bandwidth", re.IGNORECASE)
_DEVICE = re.compile(r"^Device:? \d+[:,] (.+?)(?:,| \(|$)")
UNITS = {"GB/s": 1e9, "us": 1e-6, "ns": 1e-9}
SMALLEST, LARGEST = 1e-6, 1e9
"""Of a cell in its unit: 1 kB/s to 1,000 PB/s, or a femtosecond to 17 minutes."""

NOT_MEASURED = {"N/A", "X", "-", "nan"}


def is_matrices(text: str) -> bool:
    """Whether a text is one of these tools' output."""
    lines = [plain(line).strip() for line in text.splitlines()]
    p2p = any(_P2P.match(line) and "Matrix" in line for line in lines)
    return p2p or any(line.startswith("nvbandwidth Version") for line in lines)


def is_nvbandwidth_json(document: object) -> bool:
    """Whether a document is what ``nvbandwidth --json`` writes."""
    return isinstance(document, Mapping) and isinstance(document.get("nvbandwidth"), Mapping)


def read_matrices(text: str, file: str) -> list[LinkMatrix]:
    """Read all matrices of a log.

    Raises
    ------
    InputError
        No matrix, or one that is cut off; every fault at once.
    """
    lines = [plain(line).strip() for line in text.splitlines()]
    devices = tuple(match.group(1).strip() for line in lines if (match := _DEVICE.match(line)))
    no_access = any("CANNOT Access Peer" in line for line in lines)
    matrices: list[LinkMatrix] = []
    faults: list[Fault] = []
    for at, test, unit in _heads(lines):
        try:
            values = _values(lines, at, UNITS[unit])
        except InputError as error:
            faults += error.faults
            continue
        if values:
            matrices.append(_matrix(test, unit, values, devices, file, barred=no_access))
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
        for case in document["nvbandwidth"].get("testcases") or []:
            rows = case.get("bandwidth_matrix")
            if rows:
                unit = "ns" if "latency" in case["name"] else "GB/s"
                cells = tuple(tuple(_cell(str(c), UNITS[unit]) for c in row) for row in rows)
                matrices.append(_matrix(str(case["name"]), unit, cells, (), file))
    except (KeyError, TypeError, AttributeError) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise InputError(Fault("testcases", wrong, "tests with a name", file)) from None
    if not matrices:
        raise InputError(Fault("testcases", "no test that ran", "at least one", file))
    return matrices


def _heads(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """(line after the title, test, unit) of each matrix."""
    running = ""
    for at, line in enumerate(lines):
        unit = next((unit for unit in UNITS if f"({unit})" in line), None)
        if (test := _TEST.match(line)) is not None:
            running = test.group(1)
        elif unit is not None and _P2P.match(line):
            yield at + 1, line.partition(" (")[0].removesuffix(" Matrix"), unit
        elif unit is not None and running and _MATRIX.match(line):
            yield at + 1, running, unit


def _values(lines: list[str], at: int, scale: float) -> tuple[tuple[float | None, ...], ...]:
    """Rows below a line of column numbers; () where a title has no matrix below it."""
    head = lines[at].split() if at < len(lines) else []
    columns = [word for word in head if word.isdecimal()]
    if not columns or columns != [str(n) for n in range(len(columns))]:
        return ()
    rows: list[tuple[float | None, ...]] = []
    for below, line in enumerate(lines[at + 1 :], start=at + 2):
        cells = line.split()
        if not cells or cells[0] != str(len(rows)):
            break
        if len(cells) != len(columns) + 1:
            actual, allowed = f"a row of {len(cells) - 1} numbers", f"{len(columns)}: it is cut off"
            raise InputError(Fault("matrix", actual, allowed, line=below))
        rows.append(tuple(_cell(cell, scale) for cell in cells[1:]))
    square = head[0] in {"D\\D", "GPU"}
    if not rows or (square and len(rows) != len(columns)):
        actual, allowed = f"{len(rows)} rows", f"{len(columns)}: the matrix is cut off"
        raise InputError(Fault("matrix", actual, allowed, line=at + 1))
    return tuple(rows)


def _cell(text: str, scale: float) -> float | None:
    value = None if text in NOT_MEASURED else number(text)
    if value is None or value <= 0:
        return None
    if not SMALLEST <= value <= LARGEST:
        raise InputError(Fault("matrix", repr(text[:80]), f"from {SMALLEST:g} to {LARGEST:g}"))
    return value * scale


def _matrix(
    test: str, unit: str, values: tuple[tuple[float | None, ...], ...], devices: tuple[str, ...],
    file: str, *, barred: bool = False,
) -> LinkMatrix:  # fmt: skip
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
