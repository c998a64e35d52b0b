"""Rows of a CSV, each with its file and line, and all faults of a file at once."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perfmodel.errors import Fault, failed
from perfmodel.files.read import read_text
from perfmodel.files.validate import attempt
from perfmodel.units import MOST_MEASURED_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """One row: stripped cells by column, the file and the line in which it ends.

    `surplus` counts the cells beyond the last column; less than zero if cells are missing.
    """

    cells: dict[str, str]
    file: str
    line: int
    surplus: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Column names, the line of the header (0 without one), and the rows below it."""

    columns: tuple[str, ...]
    line: int
    records: tuple[Record, ...]


def read_table(path: Path, faults: list[Fault]) -> list[Record]:
    """Read the complete rows of a CSV with a header; its faults are appended to `faults`."""
    return [record for record in read_csv(path, faults).records if not record.surplus]


def read_csv(path: Path, faults: list[Fault], *, hand_written: bool = False) -> Table:
    """Read a CSV with a header.

    `faults`: faults are appended: an unreadable or empty file, bad quotes, rows of another length.
    `hand_written`: skip lines that start with ``#`` and lines of empty cells, allow spaces after a
        comma, and read quotes leniently.
    """
    columns: tuple[str, ...] = ()
    header_line, records = 0, list[Record]()
    text = attempt(faults, partial(read_text, path))
    if text is None:
        return Table((), 0, ())
    reader = csv.reader(
        io.StringIO(text.removeprefix("\ufeff"), newline=""),
        strict=not hand_written,
        skipinitialspace=hand_written,
    )
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not row or (hand_written and (row[0].startswith("#") or not any(cells))):
                continue
            if not header_line:
                columns, header_line = tuple(cells), reader.line_num
                continue
            surplus = len(cells) - len(columns)
            records.append(
                Record(dict(zip(columns, cells, strict=False)), str(path), reader.line_num, surplus)
            )
            if surplus:
                count_text = "more cells than columns" if surplus > 0 else "too few cells"
                faults.append(
                    Fault("row", count_text, "as many cells as columns", str(path), reader.line_num)
                )
    except csv.Error as error:
        faults.append(Fault("file", str(error), "a CSV with a header", str(path), reader.line_num))
    else:
        faults += failed(
            (not header_line, "file", "nothing", "a CSV with a header"), file=str(path)
        )
    return Table(columns, header_line, tuple(records))


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads the cells of one row as text or numbers, and reports faulty ones."""

    record: Record
    faults: list[Fault]

    def fault(self, field: str, found: str, allowed: str) -> None:
        """Report what is wrong with a cell."""
        self.faults.append(Fault(field, found, allowed, self.record.file, self.record.line))

    def text(self, field: str) -> str:
        """Return a cell; empty without the column or for "nan", "n/a", "null" or "-"."""
        value = self.record.cells.get(field, "")
        return "" if value.lower() in {"nan", "n/a", "null", "-"} else value

    def number(self, field: str) -> float | None:
        """Return a number above zero; None if the cell is empty or wrong (then reported)."""
        value, allowed = self.text(field), "a number above zero, or nothing if it is not stated"
        if not value:
            return None
        try:
            if 0 < (number := float(value)) < math.inf:
                return number
        except ValueError:
            allowed = "a number, or nothing if it is not stated"
        self.fault(field, repr(value), allowed)
        return None

    def count(self, field: str) -> int | None:
        """Return a whole number above zero; None if the cell is empty or wrong (then reported)."""
        number = self.number(field)
        if number is not None and (number != int(number) or number > MOST_MEASURED_BYTES):
            allowed = f"a whole number, at most {MOST_MEASURED_BYTES:,}"
            self.fault(field, repr(self.text(field)), allowed)
            return None
        return None if number is None else int(number)
