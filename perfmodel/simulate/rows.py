"""The message kernel's records in bulk: from columns to lists of objects or structured arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import starmap
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.simulate.records import RECORDS, State

LISTS = tuple(field.name for field in fields(State))
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype([(f.name, np.float64 if f.type == "float" else np.int64) for f in fields(kind)])
    for name, kind in RECORDS.items()
}
"""Of each list of records as a structured array."""


def rows(name: str, columns: Mapping[str, NDArray[Any]], size: int) -> NDArray[Any]:
    """Return `size` new entries of a list; fields without a column are as at first, or 0."""
    if name not in RECORDS:
        return columns[name].astype(np.int64)
    found = np.zeros(size, DTYPES[name])
    for field in fields(RECORDS[name]):
        values = columns.get(f"{name}.{field.name}")
        if values is not None:
            found[field.name] = values
        elif isinstance(field.default, (int, float)):
            found[field.name] = field.default
    return found


def as_list(name: str, table: NDArray[Any]) -> list[Any]:
    """Return a structured array as a list of objects; events as tuples, which a heap can order."""
    values: list[Any] = table.tolist()
    if name in RECORDS and name != "events":
        return list(starmap(RECORDS[name], values))
    return values


def as_array(name: str, values: list[Any]) -> NDArray[Any]:
    """Return a list of objects as a structured array."""
    if name not in RECORDS:
        return np.array(values, dtype=np.int64)
    if name == "events":
        return np.array(values, dtype=DTYPES[name])
    row = attrgetter(*(field.name for field in fields(RECORDS[name])))
    return np.array([row(value) for value in values], dtype=DTYPES[name])


def fill(name: str, target: Any, span: slice, values: NDArray[Any]) -> None:
    """Write some entries of one column, "edges.head" or "pending", into a list or an array."""
    field = name.partition(".")[2]
    if isinstance(target, np.ndarray):
        (target[field] if field else target)[span] = values
    elif not field:
        target[span] = values.tolist()
    else:
        for record, value in zip(target[span], values.tolist(), strict=True):
            setattr(record, field, value)
