"""Reader of `nvidia-smi topo -m`, in the spellings of all drivers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.nvidia_smi.path_levels import template_from_matrix
from perfmodel.topology.importers.nvidia_smi.path_matrix import Matrix

_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A|DIS", re.IGNORECASE)
_OLD = {"SOC": "SYS", "PSB": "PXB"}
"""Names of old drivers: SOC is SYS; PSB is a switch on a board of two GPUs."""
_COLUMNS = {"CPU", "NUMA", "GPU"}
"""First words of the columns that follow the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""


def read_matrix(text: str, file: str, *, gpu: str | None, template: str | None) -> ImportedTopology:
    """Read a topology matrix.

    It names path types, not rates: those come from the model of the GPU (in a line of ``nvidia-smi
    -L``, or `gpu`) and of the NICs (from `template`, or as usual).

    Raises `InputError`: rows that are cut off, cells that mean nothing, no model of GPU; every
    fault.
    """
    return template_from_matrix(
        matrix_of(text, file),
        file,
        kind="topo-matrix",
        title=f"Imported from {Path(file).name}, nvidia-smi topo -m.",
        gpu=gpu,
        template=template,
    )


def matrix_of(text: str, file: str) -> Matrix:
    """Parse the table, its legend, and lines of ``nvidia-smi -L`` beside it."""
    lines = text.splitlines()
    at, devices = _header(lines, file)
    faults: list[Fault] = []
    rows: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    numa: dict[str, str] = {}
    for number, line in enumerate(lines[at + 1 :], at + 2):
        fields = line.split()
        if not fields or fields[0] not in devices or fields[0] in rows:
            continue
        cells = fields[1 : 1 + len(devices)]
        rows[fields[0]], places[fields[0]] = cells, number
        faults += _row_faults(fields[0], cells, devices, number, file)
        own = _affinity(fields[1 + len(devices) :])
        if own is not None:
            numa[fields[0]] = own
    missing = [name for name in devices if name.startswith("GPU") and name not in rows]
    if missing:
        problem = f"no row of {', '.join(missing)}"
        faults.append(Fault("row", problem, "a row for every GPU (cut off?)", file))
    if faults:
        raise InputError(faults)
    cells_of, notes = _fill_cells(devices, rows)
    return Matrix(devices, cells_of, numa, _legend(text), places, _model(text), tuple(notes))


def _header(lines: Sequence[str], file: str) -> tuple[int, tuple[str, ...]]:
    for at, line in enumerate(lines):
        fields = line.split()
        if fields[:1] == ["GPU0"] and fields[1:2] not in (["X"], ["x"]):
            end = next((i for i, field in enumerate(fields) if field in _COLUMNS), len(fields))
            devices = tuple(fields[:end])
            if len(set(devices)) == len(devices):
                return at, devices
    raise InputError(Fault("header", "no line of device names that begins with GPU0",
                           "the table whole, as nvidia-smi topo -m prints it", file))  # fmt: skip


def _row_faults(
    name: str, cells: Sequence[str], devices: Sequence[str], line: int, file: str
) -> list[Fault]:
    wrong = [cell for cell in cells if not _CELL.fullmatch(cell)]
    if wrong:
        return [Fault(f"row of {name}", repr(wrong[0][:40]),
                      "X, NV#, PIX, PXB, PHB, NODE or SYS", file, line)]  # fmt: skip
    if len(cells) < len(devices):
        return [Fault(f"row of {name}", f"{len(cells)} cells",
                      f"{len(devices)}, one per device (cut off?)", file, line)]  # fmt: skip
    linked = [
        other for other, cell in zip(devices, cells, strict=False) if cell.upper().startswith("NV")
    ]
    bonded = [other for other in linked if not (_is_gpu(name) and _is_gpu(other))]
    if bonded:
        problem = f"NVLinks to {bonded[0]}" if _is_gpu(name) else f"NVLinks of {name}"
        return [Fault(f"row of {name}", problem, "NV# between GPUs alone", file, line)]
    if cells[list(devices).index(name)].upper() != "X":
        return [Fault(f"row of {name}", repr(cells[list(devices).index(name)]),
                      "X in its own column", file, line)]  # fmt: skip
    return []


def _is_gpu(name: str) -> bool:
    return re.fullmatch(r"GPU\d+", name) is not None


def _affinity(fields: Sequence[str]) -> str | None:
    """NUMA domain of a GPU: its own column, or the CPUs near it."""
    if len(fields) >= 2 and re.fullmatch(r"[\d,-]+", fields[1]):
        return fields[1]
    return fields[0] if fields and re.fullmatch(r"[\d,-]+", fields[0]) else None


def _fill_cells(
    devices: Sequence[str], rows: dict[str, list[str]]
) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Cells of both directions; a row that is missing is that of its column."""
    cells: dict[tuple[str, str], str] = {}
    for name, row in rows.items():
        for other, cell in zip(devices, row, strict=False):
            if other != name:
                cells[name, other] = _OLD.get(cell.upper(), cell.upper())
    notes = []
    for (a, b), cell in list(cells.items()):
        back = cells.setdefault((b, a), cell)
        if back != cell and a < b:
            notes.append(f"{a} to {b} is {cell}, and back {back}: the first counts")
            cells[b, a] = cell
    return cells, notes


def _legend(text: str) -> dict[str, str]:
    return dict(re.findall(r"^[ \t]*(NIC\d+):[ \t]*(\S+)", text, re.MULTILINE))


def _model(text: str) -> str | None:
    """Model of the GPUs by ``nvidia-smi -L``."""
    named = re.search(r"^[ \t]*GPU[ \t]+\d+:[ \t]*(.+?)[ \t]*(?:\(UUID.*)?$", text, re.MULTILINE)
    return named[1] if named else None
