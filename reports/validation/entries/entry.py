"""Lines of the ledger: what a version predicted of a record before anybody had looked at it."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.files.csv_rows import read_table

FILE = Path(__file__).parents[1] / "first_predictions.csv"
DIGITS = 5
"""Significant digits of numbers in the file."""

Key = tuple[str, str, str]
"""Table, row and quantity, by which a prediction is known: it is made once."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A number of one record, predicted, beside the measured one.

    `kind`: "collective", "step", "kernel" or "memory".
    `group`: what the ledger counts together: "NVLink", "one GPU", "split" ...
    `table`: records of one source, which in the ledger weigh together as much as any other.
    `row`: which of the table's; `quantity`: which number of the row.
    `low`, `high`: 80 % interval; None where there is none.
    `band`: of sizes, of a collective: "latency", "buckets" or "bandwidth".
    """

    kind: str
    group: str
    table: str
    row: str
    quantity: str
    unit: str
    predicted: float
    low: float | None
    high: float | None
    measured: float
    band: str = ""

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return self.table, self.row, self.quantity


@dataclass(frozen=True, slots=True)
class Origin:
    """Who predicted: version, commit that last changed the model, and the day."""

    version: str
    commit: str
    entered: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the file."""

    origin: Origin
    prediction: Prediction


@dataclass(frozen=True)
class Candidate:
    """A record that may be predicted: the keys that it will have, and how; a text says why not.

    `work`: roughly how long it takes, to begin with the shortest.
    """

    keys: frozenset[Key]
    predict: Callable[[], Sequence[Prediction] | str]
    work: float = 0.0

    @property
    def table(self) -> str:
        """Table that the record stands in."""
        return next(iter(self.keys))[0]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records of a table that cannot be predicted, and why."""

    table: str
    reason: str
    rows: int = 1


@dataclass
class Collected:
    """What a reader found in a folder of records."""

    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def rows_of(path: Path) -> list[Mapping[str, str]]:
    """Cells of a table of records; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_ORIGIN = {each.name: each.name for each in fields(Origin)}
_PREDICTION = {each.name: each.name for each in fields(Prediction)} | {"group": "class"}
COLUMNS = (*_ORIGIN.values(), *_PREDICTION.values())
NUMBERS = ("predicted", "low", "high", "measured")


def read_entries(path: Path = FILE) -> list[Entry]:
    """Read the file; nothing where there is none.

    Raises `InputError`: every cell that is no number, with its line.
    """
    faults: list[Fault] = []
    entries = []
    for record in read_table(path, faults) if path.is_file() else ():
        cells = record.cells
        numbers = {}
        for name in NUMBERS:
            try:
                numbers[name] = float(cells[name]) if cells.get(name) else None
            except ValueError:
                faults.append(Fault(name, cells[name], "a number", record.file, record.line))
        faults += [
            Fault(name, "nothing", "a number", record.file, record.line)
            for name in ("predicted", "measured")
            if not numbers.get(name)
        ]
        origin, own = (
            {name: numbers.get(name, cells.get(column, "")) for name, column in columns.items()}
            for columns in (_ORIGIN, _PREDICTION)
        )
        entries.append(Entry(Origin(**origin), Prediction(**own)))  # type: ignore[arg-type]
    if faults:
        raise InputError(faults)
    return entries


def append_entries(entries: Iterable[Entry], path: Path = FILE) -> None:
    """Write lines behind those that are there, which stay as they are to the byte."""
    is_new = not path.exists() or not path.stat().st_size
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if is_new:
        writer.writerow(COLUMNS)
    for entry in entries:
        cells = (*astuple(entry.origin), *astuple(entry.prediction))
        writer.writerow([_as_text(cell) for cell in cells])
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def _as_text(cell: str | float | None) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if not math.isfinite(cell):
        raise ValueError(f"{cell} is no prediction")
    return f"{cell:.{DIGITS}g}"
