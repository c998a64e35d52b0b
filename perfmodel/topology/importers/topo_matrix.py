"""Reader of `nvidia-smi topo -m`, in the spellings of all drivers.

Lines become logical rows: glued names are split, and wrapped lines put together. A terminal of 80
columns breaks a row anywhere, also inside of a cell; the header says how many cells a row has, so
that there is one way at most to put it together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product

from perfmodel.errors import Fault, raise_faults, refuse_if
from perfmodel.memo import applying
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.path_levels import Matrix, template_from_matrix

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
    return template_from_matrix(matrix_of(text, file), file, gpu=gpu, template=template)


def matrix_of(text: str, file: str) -> Matrix:
    """Parse the table, its legend, and lines of ``nvidia-smi -L`` beside it."""
    lines = text.splitlines()
    tables = [table for table in tables_of(lines) if not _is_status(table)]
    refuse_if(
        not tables,
        "header",
        "no line of device names that begins with GPU0",
        "the table whole, as nvidia-smi topo -m prints it",
        file,
    )
    table = tables[0]
    cells, notes = _checked(table, file)
    for other in tables[1:]:
        refuse_if(
            other.devices != table.devices or _checked(other, file)[0] != cells,
            "table",
            "another table",
            f"the table of one host (the first begins on line {table.line})",
            file,
            other.line,
        )
    return Matrix(
        table.devices,
        cells,
        {name: domain for name, domain in table.numa.items() if domain is not None},
        dict(re.findall(r"^[ \t]*(NIC\d+):[ \t,;|]*(\S+)", text, re.MULTILINE)),
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
    raise_faults(Fault(*problem[:3], file, problem[3]) for problem in problems)


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
    cells = stated | {(b, a): cell for (a, b), cell in stated.items() if (b, a) not in stated}
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
    refuse_if(
        len(models) > 1,
        "gpu",
        f"GPUs of several kinds: {', '.join(sorted(models))}",
        "one kind",
        file,
        max(models.values(), default=None),
    )
    return next(iter(models), None)


STATUS_CELLS = frozenset(("OK", "NS", "CNS", "GNS", "TNS", "DR", "U"))
_CELL = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A|DIS", re.IGNORECASE)
_PATH = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB", re.IGNORECASE)
_GLUED = re.compile(
    r"((?:GPU|NIC|mlx5_(?:bond_)?)\d+)"
    r"(?=(?:GPU|NIC|mlx5_|hfi1_|bnxt)\w*\d|CPU Aff|NUMA Aff|GPU NUMA)"
)
_TITLES = {"CPU", "NUMA", "GPU", "Affinity", "ID"}
"""Words of the columns that follow the devices: CPU Affinity, NUMA Affinity, GPU NUMA ID."""
_NAME = re.compile(r"[A-Za-z][\w.:-]*\d[a-z]?")
_MOST_BREAKS = 6
_WRAPPED = "lines that were wrapped are put together"

Problem = tuple[str, str, str, int]
"""Field, what was found, what is allowed, line."""


@dataclass
class TableLines:
    """One table: its devices, and cells by device.

    `numa`: NUMA domain by device, None where its line does not say. `places`: lines of rows.
    """

    line: int
    devices: tuple[str, ...]
    rows: dict[str, list[str]] = field(default_factory=dict)
    numa: dict[str, str | None] = field(default_factory=dict)
    cpus: dict[str, str] = field(default_factory=dict)
    """CPU affinity, where its line says both that and a NUMA domain."""
    places: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)


def is_cell(text: str) -> bool:
    """Whether a text is a cell of a matrix of paths."""
    return _CELL.fullmatch(text) is not None


def is_gpu(name: str) -> bool:
    """Whether a device is a GPU."""
    return re.fullmatch(r"GPU\d+", name) is not None


def tables_of(lines: Sequence[str]) -> Iterator[TableLines]:
    """Yield the tables of a text."""
    at = 0
    while at < len(lines):
        tokens = _split_glued(lines[at]).split()
        if tokens[:1] != ["GPU0"] or (len(tokens) > 1 and _starts_cells(tokens[1])):
            at += 1
            continue
        end = at + 1
        while end < len(lines) and _goes_on(lines[end], lines[at]):
            end += 1
        devices, titles = _devices(lines[at:end])
        if not devices:
            at += 1
            continue
        table = TableLines(at + 1, devices)
        table.notes += applying(
            (
                any(_split_glued(line) != line for line in lines[at:end]),
                "names without a space between them in the header are two devices",
            ),
            (end > at + 1, _WRAPPED),
        )
        at = _read_rows(table, titles, lines, end)
        yield table


def _starts_cells(text: str) -> bool:
    return is_cell(text) or text in STATUS_CELLS


def _is_row(tokens: Sequence[str]) -> bool:
    """Whether a line begins with a device and a cell."""
    return (
        len(tokens) > 1
        and _NAME.fullmatch(tokens[0]) is not None
        and not is_cell(tokens[0])
        and _starts_cells(tokens[1])
    )


def _split_glued(line: str) -> str:
    return _GLUED.sub(r"\1 ", line)


def _goes_on(line: str, header: str) -> bool:
    """Whether a line goes on a header: no row, and nothing but names and titles."""
    tokens = _split_glued(line).split()
    names = all(re.fullmatch(r"[A-Za-z0-9_.:-]{1,20}", token) for token in tokens)
    return bool(tokens) and names and not _is_row(tokens) and len(header) >= 40


def _joined(parts: Sequence[str]) -> Iterator[str]:
    """All ways to put lines together, with a space at each break or without."""
    breaks = min(len(parts) - 1, _MOST_BREAKS)
    for joints in product((" ", ""), repeat=breaks):
        text = parts[0].rstrip()
        for at, part in enumerate(parts[1:]):
            text += (joints[at] if at < breaks else " ") + part.strip()
        yield text


def _devices(parts: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Names of a header, and how many columns follow them; () if they are no names."""
    for text in _joined(parts):
        tokens = _split_glued(text).split()
        end = next(
            (at for at, token in enumerate(tokens) if token in _TITLES or "Affin" in token),
            len(tokens),
        )
        names, titles = tuple(tokens[:end]), "".join(tokens[end:])
        gpus = [name for name in names if is_gpu(name)]
        whole = all(_NAME.fullmatch(name) for name in names) and names[: len(gpus)] == tuple(gpus)
        numbered = [int(name[3:]) for name in gpus] == sorted({int(name[3:]) for name in gpus})
        complete = re.fullmatch(r"(?:CPUAffinity)?(?:NUMAAffinity)?(?:GPUNUMAID)?", titles)
        if whole and numbered and len(set(names)) == len(names) and complete is not None:
            return names, len(re.findall(r"Affinity|ID", titles))
    return (), 0


# ---------------------------------------------------------------- rows


def _read_rows(table: TableLines, titles: int, lines: Sequence[str], start: int) -> int:
    """Read the rows behind a header; returns the line behind the last."""
    parts: list[str] = []
    name, place, at = "", 0, start
    for at in range(start, len(lines) + 1):
        line = lines[at] if at < len(lines) else ""
        tokens = line.split()
        is_row = _is_row(tokens)
        if parts and (is_row or not tokens or not _is_rest(tokens)):
            _add_row(table, titles, name, parts, place)
            parts = []
        if tokens[:1] == ["GPU0"] and not is_row:
            return at
        if is_row:
            name, place, parts = tokens[0], at + 1, [line.strip()[len(tokens[0]) :]]
        elif parts:
            parts.append(line)
    return at


def _is_rest(tokens: Sequence[str]) -> bool:
    """Whether a line is the rest of a row: cells, pieces of them, and lists of CPUs."""
    return all(re.fullmatch(r"[A-Z]{1,4}\d{0,3}|[\d,-]+|N/?A?|/?A|[Xx]", token) for token in tokens)


def _add_row(table: TableLines, titles: int, name: str, parts: Sequence[str], place: int) -> None:
    cells, tail, pieces = _cells_of(parts, len(table.devices), titles)
    if name not in table.devices:
        if sum(_PATH.fullmatch(cell) is not None for cell in cells) > 1:
            allowed = "a device of the header, from which a name is missing"
            table.faults.append(("row", name, allowed, place))
        return
    if name in table.rows:
        if table.rows[name] != cells and not any(cell in STATUS_CELLS for cell in cells):
            allowed = f"one row of it (line {table.places[name]})"
            table.faults.append((f"row of {name}", "another row", allowed, place))
        return
    table.notes += applying((pieces > 1 and _WRAPPED not in table.notes, _WRAPPED))
    table.rows[name], table.places[name] = cells, place
    near = [text for text in tail[:2] if re.fullmatch(r"[\d,-]+", text)]
    table.numa[name] = near[-1] if near else None  # its own column, or the CPUs near it
    if len(near) == 2:
        table.cpus[name] = near[0]


def _cells_of(parts: Sequence[str], devices: int, titles: int) -> tuple[list[str], list[str], int]:
    """Cells and what follows them, and how many lines they came from.

    Lines behind a row that is whole (a sentence of a page) are no part of it.
    """
    ways: list[tuple[list[str], list[str], int]] = []
    for pieces in range(1, len(parts) + 1):
        for text in _joined(parts[:pieces]):
            tokens = text.split()
            cells, tail = tokens[:devices], tokens[devices:]
            whole = len(cells) == devices and all(map(is_cell, cells))
            if whole and all(map(_AFFINITY.fullmatch, tail)):
                ways.append((cells, tail, pieces))
                if cells != ways[0][0]:
                    return tokens, [], 1  # two ways to read it: a fault of the row
    if ways:
        return min(ways, key=lambda way: abs(len(way[1]) - titles))
    tokens = " ".join(part.strip() for part in parts).split()
    end = next((at for at, text in enumerate(tokens) if re.match(r"\d", text)), len(tokens))
    return tokens[:end], [], 1


_AFFINITY = re.compile(r"[\d,-]+|N/A", re.IGNORECASE)
