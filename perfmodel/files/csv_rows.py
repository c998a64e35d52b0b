"""Cells of a CSV written by strangers, read with the line they stand in."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.files import read_text


@dataclass(frozen=True, slots=True)
class Record:
    """One row: stripped cells by column, the file and the line it stands in."""

    cells: dict[str, str]
    file: str
    line: int


def read_table(path: Path, faults: list[Fault]) -> list[Record]:
    """Read a CSV with a header; what is wrong with it goes to `faults`."""
    try:
        lines = read_text(path).removeprefix("\ufeff").splitlines()
    except InputError as error:
        faults.extend(error.faults)
        return []
    reader = csv.DictReader(lines, strict=True)
    records: list[Record] = []
    try:
        for cells in reader:
            if None in cells or any(value is None for value in cells.values()):
                found = "more cells than columns" if None in cells else "too few cells"
                faults.append(
                    Fault("row", found, "as many cells as columns", str(path), reader.line_num)
                )
                continue
            stripped = {name.strip(): value.strip() for name, value in cells.items()}
            records.append(Record(stripped, str(path), reader.line_num))
    except csv.Error as error:
        faults.append(Fault("file", str(error), "a CSV with a header", str(path), reader.line_num))
    if not records and not lines:
        faults.append(Fault("file", "nothing", "a CSV with a header", str(path)))
    return records


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads numbers out of one row and reports what is not one."""

    record: Record
    faults: list[Fault]

    def fault(self, field: str, found: str, allowed: str) -> None:
        """Say what is wrong with a cell."""
        self.faults.append(Fault(field, found, allowed, self.record.file, self.record.line))

    def text(self, field: str) -> str:
        """Return a cell; empty if there is no such column or it holds a word for nothing."""
        value = self.record.cells.get(field, "")
        return "" if value.lower() in {"nan", "n/a", "null", "-"} else value

    def number(self, field: str) -> float | None:
        """Return a number above zero; None if the cell is empty or wrong (then reported)."""
        value = self.text(field)
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            self.fault(field, repr(value), "a number, or nothing if it is not stated")
            return None
        if not math.isfinite(number) or number <= 0:
            self.fault(field, repr(value), "a number above zero, or nothing if it is not stated")
            return None
        return number

    def count(self, field: str) -> int | None:
        """Return a whole number above zero; None if the cell is empty or wrong (then reported)."""
        number = self.number(field)
        if number is not None and number != int(number):
            self.fault(field, repr(self.text(field)), "a whole number")
            return None
        return None if number is None else int(number)
