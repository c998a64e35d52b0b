"""Lines of a topology matrix as logical rows: glued names split, wrapped lines put together.

A terminal of 80 columns breaks a row anywhere, also inside of a cell; the header says how many
cells a row has, so that there is one way at most to put it together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

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
        if any(_split_glued(line) != line for line in lines[at:end]):
            table.notes.append("names without a space between them in the header are two devices")
        if end > at + 1:
            table.notes.append("lines that were wrapped are put together")
        at = _read_rows(table, titles, lines, end)
        yield table


def _starts_cells(text: str) -> bool:
    return is_cell(text) or text in STATUS_CELLS


def _split_glued(line: str) -> str:
    return _GLUED.sub(r"\1 ", line)


def _goes_on(line: str, header: str) -> bool:
    """Whether a line goes on a header: no row, and nothing but names and titles."""
    tokens = _split_glued(line).split()
    if not tokens or (len(tokens) > 1 and _NAME.fullmatch(tokens[0]) and _starts_cells(tokens[1])):
        return False
    return len(header) >= 40 and all(re.fullmatch(r"[A-Za-z0-9_.:-]{1,20}", t) for t in tokens)


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
        is_row = len(tokens) > 1 and _NAME.fullmatch(tokens[0]) and _starts_cells(tokens[1])
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
    if pieces > 1 and "lines that were wrapped are put together" not in table.notes:
        table.notes.append("lines that were wrapped are put together")
    table.rows[name], table.places[name] = cells, place
    table.numa[name] = _affinity(tail)


def _cells_of(parts: Sequence[str], devices: int, titles: int) -> tuple[list[str], list[str], int]:
    """Cells and what follows them, and how many lines they came from.

    Lines behind a row that is whole (a sentence of a page) are no part of it.
    """
    best: tuple[int, list[str], list[str], int] | None = None
    for pieces in range(1, len(parts) + 1):
        for text in _joined(parts[:pieces]):
            tokens = text.split()
            cells, tail = tokens[:devices], tokens[devices:]
            whole = len(cells) == devices and all(map(is_cell, cells))
            if not whole or not all(map(_AFFINITY.fullmatch, tail)):
                continue
            if best is not None and best[1] != cells:
                return tokens, [], 1  # two ways to read it: a fault of the row
            off = abs(len(tail) - titles)
            best = best if best is not None and best[0] <= off else (off, cells, tail, pieces)
    if best is not None:
        return best[1], best[2], best[3]
    tokens = " ".join(part.strip() for part in parts).split()
    end = next((at for at, text in enumerate(tokens) if re.match(r"\d", text)), len(tokens))
    return tokens[:end], [], 1


_AFFINITY = re.compile(r"[\d,-]+|N/A", re.IGNORECASE)


def _affinity(tail: Sequence[str]) -> str | None:
    """NUMA domain of a GPU: its own column, or the CPUs near it."""
    if len(tail) >= 2 and re.fullmatch(r"[\d,-]+", tail[1]):
        return tail[1]
    return tail[0] if tail and re.fullmatch(r"[\d,-]+", tail[0]) else None
