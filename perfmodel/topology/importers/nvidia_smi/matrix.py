"""Reader of `nvidia-smi topo -m`, in the spellings of all drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.nvidia_smi.path_levels import Matrix, template_from_matrix
from perfmodel.topology.importers.nvidia_smi.table_lines import (
    STATUS_CELLS,
    Problem,
    TableLines,
    is_cell,
    is_gpu,
    tables_of,
)

_OLD = {"SOC": "SYS", "PSB": "PXB"}
"""Names of old drivers: SOC is SYS; PSB is a switch on a board of two GPUs."""
_SAME_TO_NCCL = {"PHB", "NODE"}

_Cells = dict[tuple[str, str], str]


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
        problem = "no line of device names that begins with GPU0"
        allowed = "the table whole, as nvidia-smi topo -m prints it"
        raise InputError(Fault("header", problem, allowed, file))
    table = tables[0]
    cells, notes = _checked(table, file)
    for other in tables[1:]:
        if other.devices != table.devices or _checked(other, file)[0] != cells:
            allowed = f"the table of one host (the first begins on line {table.line})"
            raise InputError(Fault("table", "another table", allowed, file, other.line))
    return Matrix(
        table.devices,
        cells,
        {name: domain for name, domain in table.numa.items() if domain is not None},
        dict(re.findall(r"^[ \t]*(NIC\d+):[ \t]*(\S+)", text, re.MULTILINE)),
        table.places,
        _model(lines, file),
        (*table.notes, *notes),
    )


def _is_status(table: TableLines) -> bool:
    """Whether it is a table of ``topo -p2p`` below that of ``topo -m``."""
    return any(cell in STATUS_CELLS for row in table.rows.values() for cell in row)


def _checked(table: TableLines, file: str) -> tuple[_Cells, list[str]]:
    """Cells of both directions, and notes.

    Raises `InputError`: every fault of the table.
    """
    _refuse([*table.faults, *_table_problems(table)], file)
    cells, notes, problems = _fill_cells(table)
    _refuse(problems, file)
    unlisted = [name for name in table.devices if name not in table.rows]
    if unlisted:
        spelled = unlisted[0] if len(unlisted) == 1 else f"{unlisted[0]} to {unlisted[-1]}"
        notes.append(f"{spelled} as the rows of GPUs have them: their own rows are missing")
    return cells, notes


def _refuse(problems: Sequence[Problem], file: str) -> None:
    if problems:
        raise InputError(Fault(*problem[:3], file, problem[3]) for problem in problems)


def _table_problems(table: TableLines) -> Iterator[Problem]:
    for name, row in table.rows.items():
        if problem := _row_problem(name, row, table):
            yield f"row of {name}", *problem, table.places[name]
    yield from _affinity_problems(table)
    gpus = [name for name in table.devices if is_gpu(name)]
    if missing := [name for name in gpus if name not in table.rows]:
        found, allowed = f"no row of {', '.join(missing)}", "a row for every GPU (cut off?)"
        yield "row", found, allowed, table.line
    absent = next(at for at in count() if f"GPU{at}" not in gpus)
    if absent < len(gpus):
        found = f"{len(gpus)} GPUs, and GPU{absent} not among them"
        yield "header", found, "all from GPU0 on", table.line


def _affinity_problems(table: TableLines) -> Iterator[Problem]:
    """CPUs and NUMA domain of a GPU belong together: GPUs with the same of one have both alike."""
    for name, cpus in table.cpus.items():
        numa = table.numa[name]
        for other, theirs in table.cpus.items():
            other_numa, is_before = table.numa[other], table.places[other] < table.places[name]
            if is_before and (cpus == theirs) != (numa == other_numa):
                allowed = f"what fits {other}: CPUs {theirs} of NUMA domain {other_numa}"
                found = f"CPUs {cpus} of NUMA domain {numa}"
                yield f"row of {name}", found, allowed, table.places[name]
                break


def _row_problem(name: str, cells: Sequence[str], table: TableLines) -> tuple[str, str] | None:
    """What is wrong in a row, and what may stand there."""
    devices = table.devices
    wrong = [cell for cell in cells[: len(devices)] if not is_cell(cell)]
    if wrong:
        return repr(wrong[0][:40]), "X, NV#, PIX, PXB, PHB, NODE or SYS"
    if len(cells) != len(devices):
        more = "a name is missing in the header" if len(cells) > len(devices) else "cut off?"
        return f"{len(cells)} cells", f"{len(devices)}, one per device ({more})"
    cell_of = {device: cell.upper() for device, cell in zip(devices, cells, strict=True)}
    linked = [other for other, cell in cell_of.items() if cell.startswith("NV")]
    bonded = [other for other in linked if not (is_gpu(name) and is_gpu(other))]
    if bonded:
        found = f"NVLinks to {bonded[0]}" if is_gpu(name) else f"NVLinks of {name}"
        return found, "NV# between GPUs alone"
    own = [other for other, cell in cell_of.items() if cell == "X"]
    if own != [name]:
        at = cells[devices.index(name)]
        return repr(at) if at.upper() != "X" else f"X for {own}", "X in its own column alone"
    return None


def _fill_cells(table: TableLines) -> tuple[_Cells, list[str], list[Problem]]:
    """Cells of both directions; a row that is missing is that of its column."""
    stated = {
        (name, other): _OLD.get(cell.upper(), cell.upper())
        for name, row in table.rows.items()
        for other, cell in zip(table.devices, row, strict=False)
        if other != name
    }
    backwards = {(b, a): cell for (a, b), cell in stated.items() if (b, a) not in stated}
    cells = stated | backwards
    notes: list[str] = []
    problems: list[Problem] = []
    for (a, b), cell in stated.items():
        back = cells[b, a]
        if back == cell or table.devices.index(a) > table.devices.index(b):
            continue
        if {cell, back} == _SAME_TO_NCCL:
            notes.append(f"{a} to {b} is {cell}, and back {back}: the first counts")
            cells[b, a] = cell
        else:
            found = f"{cell} to {b}, whose row says {back}"
            problems.append((f"row of {a}", found, "the same both ways", table.places[a]))
    return cells, notes, problems


def _model(lines: Sequence[str], file: str) -> str | None:
    """Model of the GPUs by ``nvidia-smi -L``."""
    models: dict[str, int] = {}
    for at, line in enumerate(lines, 1):
        match = re.match(r"\s*GPU[ \t]+\d+:[ \t]*(.+?)[ \t]*(?:\(UUID.*)?$", line)
        if match is not None:
            models.setdefault(match[1], at)
    if len(models) > 1:
        problem = f"GPUs of several kinds: {', '.join(sorted(models))}"
        raise InputError(Fault("gpu", problem, "one kind", file, max(models.values())))
    return next(iter(models), None)
