"""A CSV of parameters or of layer times, all of its faults at once.

Columns: ``name`` (of a parameter, or of a layer in a file of times alone), ``shape`` or
``numel``, and optionally ``dtype``, ``requires_grad``, ``layer``, ``forward`` and ``backward``.
Times carry their unit in the cell ("1.2 ms") or in the column's name (``forward_us``).
Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files.csv_rows import RowReader, read_csv
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
_TIMED = {f"{name}_{unit}": (name, unit) for name in ("forward", "backward") for unit in TIMES}


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One row: a parameter, or the times of a layer.

    `line`: one-based, in the file.
    `shape`: None in a file of times alone.
    """

    line: int
    name: str
    shape: tuple[int, ...] | None
    dtype: str
    requires_grad: bool
    layer: str | None
    forward_s: float | None
    backward_s: float | None


def read_rows(path: Path, *, sized: bool) -> list[ParameterRow]:
    """Read a CSV.

    `sized`: whether each row needs a shape or a number of elements.
    Raises `InputError`: with every fault: file, line, column, found, allowed.
    """
    faults: list[Fault] = []
    table = read_csv(path, faults, hand_written=True)
    if table.line:
        header_faults = _header_faults(table.columns, sized=sized)
        if header_faults:
            raise InputError(header_faults).located(str(path), table.line)
        if not table.records:
            faults.append(Fault("file", "no rows", "a row per parameter", str(path)))
    rows = [_parse_row(RowReader(record, faults)) for record in table.records]
    _report_repeated(rows, str(path), faults)
    if faults:
        raise InputError(sorted(faults, key=lambda fault: fault.line or 0))
    return rows


def _header_faults(columns: Sequence[str], *, sized: bool) -> list[Fault]:
    allowed = [*_PLAIN, *_TIMED]
    faults = [
        Fault("header", f"column {name!r}", allowed_names(allowed, name))
        for name in columns
        if name not in allowed
    ]
    fields = [_TIMED[name][0] if name in _TIMED else name for name in columns]
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    faults += [Fault("header", f"column {name!r} twice", "each column once") for name in repeated]
    missing = [] if "name" in columns else ["'name'"]
    if sized and not {"shape", "numel"} & set(columns):
        missing.append("'shape' or 'numel'")
    if not sized:
        missing += [repr(name) for name in ("forward", "backward") if name not in fields]
    listed = ", ".join(map(repr, columns))
    faults += [Fault("header", listed, f"a column {name}") for name in missing]
    return faults


def _parse_row(reader: RowReader) -> ParameterRow:
    """Parse the cells of one row and report those that are wrong."""
    faults_before = len(reader.faults)
    values: dict[str, Any] = {}
    for column, text in reader.record.cells.items():
        field, parse = _find_parser(column)
        if not text and field != "name":
            continue
        try:
            values[field] = parse(text)
        except InputError as error:
            for fault in error.faults:
                reader.fault(column, fault.found, fault.allowed)
        except ValueError as error:
            reader.fault(column, repr(text), str(error))
    if len(reader.faults) == faults_before and not reader.record.surplus:
        _check_size(reader, values.get("shape"), values.get("numel"))
    dtype, trained = values.get("dtype", "fp32"), values.get("requires_grad", True)
    if trained and dtype not in TRAINABLE:
        reader.fault("dtype", repr(dtype), "a floating-point type, or requires_grad false")
    shape = values.get("shape")
    if shape is None and "numel" in values:
        shape = (values["numel"],)
    return ParameterRow(
        reader.record.line,
        values.get("name", ""),
        shape,
        dtype,
        trained,
        values.get("layer"),
        values.get("forward"),
        values.get("backward"),
    )


def _check_size(reader: RowReader, shape: tuple[int, ...] | None, numel: int | None) -> None:
    """Report a parameter without a size, or with a shape and a number of elements that differ."""
    product = math.prod(shape or ())
    if {"shape", "numel"} & set(reader.record.cells) and shape is None and numel is None:
        reader.fault("shape", "nothing", "a shape or a number of elements")
    elif shape is not None and numel is not None and product != numel:
        reader.fault("numel", str(numel), f"{product}, the product of the shape")


def _find_parser(column: str) -> tuple[str, Callable[[str], Any]]:
    field, unit = _TIMED.get(column, (column, None))
    parsers: dict[str, Callable[[str], Any]] = {
        "name": _parse_name,
        "layer": str,
        "shape": parse_shape,
        "numel": parse_numel,
        "dtype": parse_dtype,
        "requires_grad": parse_truth,
        "forward": lambda text: parse_duration(text, unit),
        "backward": lambda text: parse_duration(text, unit),
    }
    return field, parsers[field]


def _parse_name(text: str) -> str:
    if not text:
        raise ValueError("a name")
    return text


def _report_repeated(rows: Sequence[ParameterRow], file: str, faults: list[Fault]) -> None:
    first_lines: dict[str, int] = {}
    for row in rows:
        if row.name and row.name in first_lines:
            allowed = f"a name that line {first_lines[row.name]} does not use"
            faults.append(Fault("name", repr(row.name), allowed, file, row.line))
        first_lines.setdefault(row.name, row.line)
