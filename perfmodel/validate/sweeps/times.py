"""Sizes and times of one recorded sweep, from the rows of its CSV."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.calibrate.readers.sweep_records import spikes
from perfmodel.files.csv_rows import Record, RowReader

_SIZES = ("size_bytes", "nbytes", "bytes", "size")
_TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_IN_PLACE = {"time_us_inplace": 1e-6, "time_us_in_place": 1e-6}
_LEGIBLE_GBPS = 0.1
"""A bandwidth printed with two decimals tells the time to a few per cent from here on."""
_UNIT_FACTOR = 2.0
"""Times further than this from what their bandwidth says are in another unit."""


@dataclass(frozen=True, slots=True)
class Row:
    """Time of one size, out of place where both were recorded.

    `in_place_s` is that in place, if it was recorded beside the other.
    """

    nbytes: int
    time_s: float
    in_place_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Times:
    """Rows by size, the number of ranks that they state, and notes on how they were read."""

    rows: tuple[Row, ...]
    nranks: int | None
    notes: tuple[str, ...]


def times_of(records: Sequence[Record], meta: RowReader) -> Times:
    """Read the rows of one sweep; faults go to those of `meta`."""
    rows: list[Row] = []
    notes: dict[str, None] = {}
    ranks: set[int] = set()
    doubtful: list[float] = []
    for record in records:
        reader = RowReader(record, meta.faults)
        nbytes = _size(reader, notes)
        time_s = None if nbytes is None else _time(reader, nbytes, notes)
        if nbytes is None or time_s is None:
            continue
        rows.append(Row(nbytes, time_s, _in_place(reader)))
        if (named := reader.count("nranks")) is not None:
            ranks.add(named)
        algbw = _printed(reader, "algbw_GBps")
        if algbw is not None and algbw >= _LEGIBLE_GBPS:
            doubtful.append(nbytes / time_s / 1e9 / algbw)
    _check_unit(doubtful, records, meta)
    rows.sort(key=lambda row: row.nbytes)
    return Times(tuple(rows), ranks.pop() if len(ranks) == 1 else None, tuple(notes))


def _printed(reader: RowReader, field: str) -> float | None:
    """Return a printed number above zero; small bandwidths are printed as 0.0."""
    try:
        value = float(reader.text(field))
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _size(reader: RowReader, notes: dict[str, None]) -> int | None:
    field = next((name for name in _SIZES if name in reader.record.cells), None)
    if field is None:
        reader.fault("size_bytes", "no such column", "sizes in bytes")
        return None
    if reader.text(field) in {"0", "0.0"}:  # nccl-tests lists sizes that round down to nothing
        notes["rows of zero bytes left out"] = None
        return None
    if not reader.text(field):
        reader.fault(field, "nothing", "a size in bytes")
        return None
    return reader.count(field)


def _time(reader: RowReader, nbytes: int, notes: dict[str, None]) -> float | None:
    """Time of a row: out of place, in place, or from the bandwidth; None if there is none."""
    for name, scale in (_TIMES | _IN_PLACE).items():
        if reader.text(name):
            value = reader.number(name)
            if value is None:
                return None
            if name in _IN_PLACE:
                notes["times in place where none out of place was recorded"] = None
            return value * scale
    algbw = _printed(reader, "algbw_GBps")
    if algbw is None:
        reader.fault("time_us", "nothing", "a time in microseconds, or algbw_GBps")
        return None
    notes["times derived from the printed bandwidth"] = None
    return nbytes / algbw / 1e9


def _in_place(reader: RowReader) -> float | None:
    """Time in place, if there is one; seconds."""
    for name, scale in _IN_PLACE.items():
        if (value := _printed(reader, name)) is not None:
            return value * scale
    return None


def without_spikes(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows for a fit: with the time in place where only that out of place is a spike."""
    in_place_s = {row.nbytes: row.in_place_s for row in rows if row.in_place_s is not None}
    instead_s = spikes({row.nbytes: row.time_s for row in rows}, in_place_s)
    return tuple(replace(row, time_s=instead_s.get(row.nbytes, row.time_s)) for row in rows)


def _check_unit(ratios: Sequence[float], records: Sequence[Record], meta: RowReader) -> None:
    """Refuse times that contradict the bandwidths beside them."""
    if not ratios:
        return
    typical = statistics.median(ratios)
    if 1 / _UNIT_FACTOR <= typical <= _UNIT_FACTOR:
        return
    nearest = {1e3: "milliseconds", 1e6: "seconds", 1e-3: "nanoseconds"}
    unit = next((u for f, u in nearest.items() if 0.5 <= typical / f <= 2), "another unit or size")
    actual = f"times that disagree with algbw_GBps by a factor of {typical:.3g} ({unit}?)"
    reader = RowReader(records[0], meta.faults)
    reader.fault("time_us", actual, "microseconds that give the bandwidth printed beside them")
