"""Reader of `nvidia-smi topo -m`, in the spellings of all drivers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.nvidia_smi.path_levels import template_from_matrix
from perfmodel.topology.importers.nvidia_smi.path_matrix import Matrix
from perfmodel.topology.importers.nvidia_smi.table_lines import (
    STATUS_CELLS,
    TableLines,
    is_cell,
    is_gpu,
    tables_of,
)

_OLD = {"SOC": "SYS", "PSB": "PXB"}
"""Names of old drivers: SOC is SYS; PSB is a switch on a board of two GPUs."""
_SAME_TO_NCCL = {"PHB", "NODE"}


def read_matrix(text: str, file: str, *, gpu: str | None, template: str | None) -> ImportedTopology:
    """Read a topology matrix.

    It names path types, not rates: those come from the model of the GPU (in a line of ``nvidia-smi
    -L``, or `gpu`) and of the NICs (from `template`, or as usual).

    Raises `InputError`: rows that are cut off or wrapped beyond repair, cells that mean nothing, no
    model of GPU; every fault.
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
    tables = [table for table in tables_of(lines) if not _is_status(table)]
    if not tables:
        raise InputError(
            Fault(
                "header",
                "no line of device names that begins with GPU0",
                "the table whole, as nvidia-smi topo -m prints it",
                file,
            )
        )
    first = _checked(tables[0], file)
    for other in tables[1:]:
        if other.devices != tables[0].devices or _checked(other, file)[0] != first[0]:
            raise InputError(
                Fault(
                    "table",
                    "another table",
                    f"the table of one host (the first begins on line {tables[0].line})",
                    file,
                    other.line,
                )
            )
    cells, notes = first
    table = tables[0]
    numa = {name: domain for name, domain in table.numa.items() if domain is not None}
    model = _model(lines, file)
    return Matrix(
        table.devices, cells, numa, _legend(text), table.places, model, (*table.notes, *notes)
    )


def _is_status(table: TableLines) -> bool:
    """Whether it is a table of ``topo -p2p`` below that of ``topo -m``."""
    return any(cell in STATUS_CELLS for row in table.rows.values() for cell in row)


def _checked(table: TableLines, file: str) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Cells of both directions, and notes; every fault of the table."""
    faults = [
        Fault(field, problem, allowed, file, line) for field, problem, allowed, line in table.faults
    ]
    for name, row in table.rows.items():
        faults += _row_faults(name, row, table, file)
    faults += _affinity_faults(table, file)
    missing = [name for name in table.devices if is_gpu(name) and name not in table.rows]
    if missing:
        problem = f"no row of {', '.join(missing)}"
        faults.append(Fault("row", problem, "a row for every GPU (cut off?)", file, table.line))
    numbers = [int(name[3:]) for name in table.devices if is_gpu(name)]
    absent = next((at for at in count() if at not in numbers), 0)
    if absent < len(numbers):
        problem = f"{len(numbers)} GPUs, and GPU{absent} not among them"
        faults.append(Fault("header", problem, "all from GPU0 on", file, table.line))
    if faults:
        raise InputError(faults)
    cells, notes, faults = _fill_cells(table, file)
    if faults:
        raise InputError(faults)
    unlisted = [name for name in table.devices if name not in table.rows]
    if unlisted:
        notes.append(
            f"{_spelled(unlisted)} as the rows of GPUs have them: their own rows are missing"
        )
    return cells, notes


def _affinity_faults(table: TableLines, file: str) -> list[Fault]:
    """CPUs and NUMA domain of a GPU belong together: GPUs with the same of one have both alike."""
    faults = []
    for name, cpus in table.cpus.items():
        for other, theirs in table.cpus.items():
            numa, other_numa = table.numa[name], table.numa[other]
            if table.places[other] < table.places[name] and (cpus == theirs) != (
                numa == other_numa
            ):
                faults.append(
                    Fault(
                        f"row of {name}",
                        f"CPUs {cpus} of NUMA domain {numa}",
                        f"what fits {other}: CPUs {theirs} of NUMA domain {other_numa}",
                        file,
                        table.places[name],
                    )
                )
                break
    return faults


def _spelled(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _row_faults(name: str, cells: Sequence[str], table: TableLines, file: str) -> list[Fault]:
    devices, line = table.devices, table.places[name]
    wrong = [cell for cell in cells[: len(devices)] if not is_cell(cell)]
    if wrong:
        return [
            Fault(
                f"row of {name}",
                repr(wrong[0][:40]),
                "X, NV#, PIX, PXB, PHB, NODE or SYS",
                file,
                line,
            )
        ]
    if len(cells) != len(devices):
        more = "a name is missing in the header" if len(cells) > len(devices) else "cut off?"
        return [
            Fault(
                f"row of {name}",
                f"{len(cells)} cells",
                f"{len(devices)}, one per device ({more})",
                file,
                line,
            )
        ]
    linked = [
        other for other, cell in zip(devices, cells, strict=False) if cell.upper().startswith("NV")
    ]
    bonded = [other for other in linked if not (is_gpu(name) and is_gpu(other))]
    if bonded:
        problem = f"NVLinks to {bonded[0]}" if is_gpu(name) else f"NVLinks of {name}"
        return [Fault(f"row of {name}", problem, "NV# between GPUs alone", file, line)]
    own = [other for other, cell in zip(devices, cells, strict=True) if cell.upper() == "X"]
    if own != [name]:
        at = cells[devices.index(name)]
        return [
            Fault(
                f"row of {name}",
                repr(at) if at.upper() != "X" else f"X for {own}",
                "X in its own column alone",
                file,
                line,
            )
        ]
    return []


def _fill_cells(
    table: TableLines, file: str
) -> tuple[dict[tuple[str, str], str], list[str], list[Fault]]:
    """Cells of both directions; a row that is missing is that of its column."""
    cells: dict[tuple[str, str], str] = {}
    for name, row in table.rows.items():
        for other, cell in zip(table.devices, row, strict=False):
            if other != name:
                cells[name, other] = _OLD.get(cell.upper(), cell.upper())
    notes: list[str] = []
    faults: list[Fault] = []
    for (a, b), cell in list(cells.items()):
        back = cells.setdefault((b, a), cell)
        if back == cell or table.devices.index(a) > table.devices.index(b):
            continue
        if {cell, back} == _SAME_TO_NCCL:
            notes.append(f"{a} to {b} is {cell}, and back {back}: the first counts")
            cells[b, a] = cell
            continue
        problem, allowed = f"{cell} to {b}, whose row says {back}", "the same both ways"
        faults.append(Fault(f"row of {a}", problem, allowed, file, table.places.get(a)))
    return cells, notes, faults


def _legend(text: str) -> dict[str, str]:
    return dict(re.findall(r"^[ \t]*(NIC\d+):[ \t]*(\S+)", text, re.MULTILINE))


def _model(lines: Sequence[str], file: str) -> str | None:
    """Model of the GPUs by ``nvidia-smi -L``."""
    models: dict[str, int] = {}
    for at, line in enumerate(lines, 1):
        match = re.match(r"\s*GPU[ \t]+\d+:[ \t]*(.+?)[ \t]*(?:\(UUID.*)?$", line)
        if match is not None:
            models.setdefault(match[1], at)
    if len(models) > 1:
        raise InputError(
            Fault(
                "gpu",
                f"GPUs of several kinds: {', '.join(sorted(models))}",
                "one kind",
                file,
                max(models.values()),
            )
        )
    return next(iter(models), None)
