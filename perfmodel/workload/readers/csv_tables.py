"""Rows of a CSV of parameters or layer times, every fault of the file at once.

Columns: ``name`` (of a parameter, or of a layer in a file of times alone), ``shape`` or
``numel``, and optionally ``dtype``, ``requires_grad``, ``layer``, ``forward`` and ``backward``.
Times carry their unit in the cell ("1.2 ms") or in the column's name (``forward_us``).
Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import read_text
from perfmodel.units import TIMES
from perfmodel.workload.readers.fields import (
    TRAINABLE,
    parse_dtype,
    parse_duration,
    parse_numel,
    parse_shape,
    parse_truth,
)

_PLAIN = ("name", "shape", "numel", "dtype", "requires_grad", "layer", "forward", "backward")
_TIMED = {f"{way}_{unit}": (way, unit) for way in ("forward", "backward") for unit in TIMES}


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a parameter, or a layer's times.

    Parameters
    ----------
    line : int
        One-based, in the file.
    name : str
    shape : tuple of int or None
        None in a file of times alone.
    dtype : str
    requires_grad : bool
    layer : str or None
    forward_s, backward_s : float or None
    """

    line: int
    name: str
    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool
    layer: str | None
    forward_s: float | None
    backward_s: float | None


def read_rows(path: Path, *, sized: bool) -> list[Row]:
    """Read a CSV.

    Parameters
    ----------
    path : Path
    sized : bool
        Whether each row needs a shape or a number of elements.

    Raises
    ------
    InputError
        With every fault: file, line, column, found, allowed.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError(Fault("file", "nothing", "a header and a row per parameter", str(path)))
    number, header = first
    faults = _header_faults(header, sized=sized)
    if faults:
        raise InputError(faults).located(str(path), number)
    rows, wrong = [], list[Fault]()
    for number, cells in lines:
        row, bad = _row(number, dict(zip(header, cells, strict=False)), len(cells) - len(header))
        wrong += bad
        rows.append(row)
    if not rows:
        wrong.append(Fault("file", "no rows", "a row per parameter"))
    wrong += _repeated(rows)
    if wrong:
        wrong.sort(key=lambda fault: fault.line or 0)
        raise InputError(wrong).located(str(path))
    return rows


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is neither empty nor a comment, with its number."""
    reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff")), skipinitialspace=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            fault = Fault("file", str(error), "CSV", str(path), reader.line_num)
            raise InputError(fault) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
            yield reader.line_num, [cell.strip() for cell in cells]


def _header_faults(header: list[str], *, sized: bool) -> list[Fault]:
    known = [*_PLAIN, *_TIMED]
    faults = [
        Fault("header", f"column {name!r}", allowed_names(known, name))
        for name in header
        if name not in known
    ]
    meaning = [_TIMED[name][0] if name in _TIMED else name for name in header]
    repeated = sorted({name for name in meaning if meaning.count(name) > 1})
    faults += [Fault("header", f"column {name!r} twice", "each column once") for name in repeated]
    missing = [] if "name" in header else ["'name'"]
    if sized and not {"shape", "numel"} & set(header):
        missing.append("'shape' or 'numel'")
    if not sized:
        missing += [repr(way) for way in ("forward", "backward") if way not in meaning]
    found = ", ".join(map(repr, header))
    faults += [Fault("header", found, f"a column {name}") for name in missing]
    return faults


def _row(line: int, cells: Mapping[str, str], surplus: int) -> tuple[Row, list[Fault]]:
    faults = []
    if surplus:
        what = "more cells" if surplus > 0 else "fewer cells"
        faults.append(Fault("row", f"{what} than columns", "a cell for each column", None, line))
    values: dict[str, Any] = {}
    for column, text in cells.items():
        field, parse = _parser(column)
        if not text and field != "name":
            continue
        try:
            values[field] = parse(text)
        except InputError as error:
            faults += [Fault(column, f.found, f.allowed, None, line) for f in error.faults]
        except ValueError as error:
            faults.append(Fault(column, repr(text), str(error), None, line))
    shape, dtype = values.get("shape"), values.get("dtype", "fp32")
    if not faults:
        faults += _disagreements(cells, shape, values.get("numel"), line)
    trained = values.get("requires_grad", True)
    if trained and dtype not in TRAINABLE:
        allowed = "a floating-point type, or requires_grad false"
        faults.append(Fault("dtype", repr(dtype), allowed, None, line))
    if shape is None and "numel" in values:
        shape = (values["numel"],)
    row = Row(
        line, values.get("name", ""), shape, dtype, trained, values.get("layer"),
        values.get("forward"), values.get("backward"),
    )  # fmt: skip
    return row, faults


def _disagreements(
    cells: Mapping[str, str], shape: tuple[int, ...] | None, numel: int | None, line: int
) -> list[Fault]:
    """Find a parameter without a size, or with two that differ."""
    product = math.prod(shape or ())
    if {"shape", "numel"} & set(cells) and shape is None and numel is None:
        return [Fault("shape", "nothing", "a shape or a number of elements", None, line)]
    if shape is not None and numel is not None and product != numel:
        allowed = f"{product}, the product of the shape"
        return [Fault("numel", str(numel), allowed, None, line)]
    return []


def _parser(column: str) -> tuple[str, Callable[[str], Any]]:
    field, unit = _TIMED.get(column, (column, None))
    parsers: dict[str, Callable[[str], Any]] = {
        "name": _named,
        "layer": str,
        "shape": parse_shape,
        "numel": parse_numel,
        "dtype": parse_dtype,
        "requires_grad": parse_truth,
        "forward": lambda text: parse_duration(text, unit),
        "backward": lambda text: parse_duration(text, unit),
    }
    return field, parsers[field]


def _named(text: str) -> str:
    if not text:
        raise ValueError("a name")
    return text


def _repeated(rows: list[Row]) -> list[Fault]:
    first: dict[str, int] = {}
    faults = []
    for row in rows:
        if row.name and row.name in first:
            allowed = f"a name that line {first[row.name]} does not use"
            faults.append(Fault("name", repr(row.name), allowed, None, row.line))
        first.setdefault(row.name, row.line)
    return faults
