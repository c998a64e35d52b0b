"""Tables of a user's own: their fields, and CSV files of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names, failed, raise_faults
from perfmodel.files.csv_rows import RowReader, read_csv
from perfmodel.files.spec import check_rows
from perfmodel.units import TIMES, parse_time
from perfmodel.workload.model import ITEM_BYTES

TRAINABLE = frozenset({"fp64", "fp32", "bf16", "fp16", "fp8"})
"""Data types that can have a gradient."""

MOST_ELEMENTS = 10**13
"""Elements of one tensor: ten times the parameters of the largest models."""

MOST_S = 1e6
"""Seconds of one layer."""

DTYPES: Mapping[str, str] = {
    **{name: name for name in ITEM_BYTES if name != "tf32"},
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "long": "int64",
    "int": "int32",
}
"""Accepted names, NumPy's and PyTorch's among them."""

_TRUTH: Mapping[str, bool] = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}


def parse_shape(value: object) -> tuple[int, ...]:
    """Read a shape: a list, or text such as "64x3x7x7", "(64, 3)" or "torch.Size([64])".

    Raises `ValueError`: what is allowed.

    Examples
    --------
    >>> parse_shape("64x3x7x7")
    (64, 3, 7, 7)
    """
    allowed = "whole numbers above zero, such as 64x3x7x7 or [64, 3, 7, 7]"
    if isinstance(value, list | tuple):
        sizes = list(value)
    else:
        text = str(value).strip().removeprefix("torch.Size(").strip("()[] ,")
        sizes = [
            int(word) if re.fullmatch(r"\d{1,18}", word) else word
            for word in (re.split(r"\s*[x*,]\s*|\s+", text) if text else [])
        ]
    is_empty = isinstance(value, str) and not value.strip()
    check_rows(
        (
            is_empty or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes),
            allowed,
        )
    )
    check_rows(
        (
            len(sizes) > 64 or math.prod(sizes) > MOST_ELEMENTS,
            f"{allowed}, at most {MOST_ELEMENTS:g} elements in all",
        )
    )
    return tuple(sizes)


def list_first(names: Sequence[str]) -> str:
    """Quote the first five names for a message.

    Examples
    --------
    >>> list_first("abcdef")
    "'a', 'b', 'c', 'd', 'e' ..."
    """
    return ", ".join(map(repr, names[:5])) + (" ..." if names[5:] else "")


def parse_numel(text: str) -> int:
    """Read a number of elements.

    Raises `ValueError`: what is allowed.
    """
    number = int(text) if re.fullmatch(r"\d{1,18}", text.strip()) else 0
    check_rows(
        (number < 1, "a whole number above zero"),
        (number > MOST_ELEMENTS, f"at most {MOST_ELEMENTS:,} elements"),
    )
    return number


def parse_dtype(value: object) -> str:
    """Read a data type: "fp32", "float32", "torch.bfloat16" ...

    Raises `ValueError`: what is allowed.
    """
    word = str(value).strip().removeprefix("torch.")
    if word not in DTYPES:
        raise ValueError(allowed_names(DTYPES, word))
    return DTYPES[word]


def parse_truth(text: str) -> bool:
    """Read true or false.

    Raises `ValueError`: what is allowed.
    """
    word = text.strip().lower()
    check_rows((word not in _TRUTH, "true or false"))
    return _TRUTH[word]


def parse_duration(text: str, unit: str | None) -> float:
    """Read a time of zero or more: with its unit, or a number in the column's unit; seconds.

    Raises `ValueError`: what is allowed.
    """
    if unit is None:
        value = parse_time(text.strip() or None)
    else:
        try:
            value = float(text) * TIMES[unit]
        except ValueError:
            raise ValueError(f"a number ({unit})") from None
    check_rows((not 0 <= value <= MOST_S, f"a time of zero or more, at most {MOST_S:g} s"))
    return value


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
        faults += failed(
            (not table.records, "file", "no rows", "a row per parameter"), file=str(path)
        )
    rows = [_parse_row(RowReader(record, faults)) for record in table.records]
    faults += _repeated_faults(rows, str(path))
    raise_faults(sorted(faults, key=lambda fault: fault.line or 0))
    return rows


def _parse_name(text: str) -> str:
    check_rows((not text, "a name"))
    return text


_TIMED = ("forward", "backward")
_COLUMNS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", _parse_name),
    "shape": ("shape", parse_shape),
    "numel": ("numel", parse_numel),
    "dtype": ("dtype", parse_dtype),
    "requires_grad": ("requires_grad", parse_truth),
    "layer": ("layer", str),
    **{name: (name, partial(parse_duration, unit=None)) for name in _TIMED},
    **{
        f"{name}_{unit}": (name, partial(parse_duration, unit=unit))
        for name in _TIMED
        for unit in TIMES
    },
}
"""By name: the field that a column states, and what reads its cells."""


def _header_faults(columns: Sequence[str], *, sized: bool) -> list[Fault]:
    fields = [_COLUMNS[name][0] if name in _COLUMNS else name for name in columns]
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    needed = {
        "'name'": {"name"},
        **({"'shape' or 'numel'": {"shape", "numel"}} if sized else {}),
        **({} if sized else {repr(name): {name} for name in _TIMED}),
    }
    missing = [text for text, names in needed.items() if not names & set(fields)]
    listed = ", ".join(map(repr, columns))
    return failed(
        *(
            (name not in _COLUMNS, "header", f"column {name!r}", allowed_names(_COLUMNS, name))
            for name in columns
        ),
        *((True, "header", f"column {name!r} twice", "each column once") for name in repeated),
        *((True, "header", listed, f"a column {text}") for text in missing),
    )


def _parse_row(reader: RowReader) -> ParameterRow:
    """Parse the cells of one row and report those that are wrong."""
    faults_before = len(reader.faults)
    values: dict[str, Any] = {}
    for column, text in reader.record.cells.items():
        field, parse = _COLUMNS[column]
        if not text and field != "name":
            continue
        try:
            values[field] = parse(text)
        except InputError as error:
            for fault in error.faults:
                reader.fault(column, fault.found, fault.allowed)
        except ValueError as error:
            reader.fault(column, repr(text), str(error))
    shape, numel = values.get("shape"), values.get("numel")
    if len(reader.faults) == faults_before and not reader.record.surplus:
        _check_size(reader, shape, numel)
    dtype, trained = values.get("dtype", "fp32"), values.get("requires_grad", True)
    if trained and dtype not in TRAINABLE:
        reader.fault("dtype", repr(dtype), "a floating-point type, or requires_grad false")
    return ParameterRow(
        reader.record.line,
        values.get("name", ""),
        (numel,) if shape is None and numel is not None else shape,
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


def _repeated_faults(rows: Sequence[ParameterRow], file: str) -> list[Fault]:
    first_lines = {row.name: row.line for row in reversed(rows)}
    return [
        Fault("name", repr(row.name), f"a name that line {line} does not use", file, row.line)
        for row in rows
        if row.name and (line := first_lines[row.name]) != row.line
    ]
