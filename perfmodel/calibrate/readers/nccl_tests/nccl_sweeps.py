"""From a table of nccl-tests to sweeps: its collective and ranks, and a check of its numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfmodel.calibrate.readers.infer_op import (
    Points,
    factor_of,
    op_of_file,
    ops_allowed,
    ranks_of_factor,
    ranks_of_parts,
)
from perfmodel.calibrate.readers.log_lines import Printed
from perfmodel.calibrate.readers.nccl_tests.nccl_rows import NO_TIME, Row, disagreement, parts_of
from perfmodel.calibrate.readers.nccl_tests.rank_list import (
    WITHOUT_MPI,
    ListedRank,
    Ranks,
    summary_of,
)
from perfmodel.calibrate.readers.sweep_records import Sweep, rows_of
from perfmodel.errors import Fault, InputError, allowed_names


@dataclass
class Context:
    """What lines between tables say; `op`: of the last executable that was named."""

    op: str | None = None
    version: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    tool: str = "nccl-tests"
    file: str = ""


@dataclass
class Table:
    """A table while it is read."""

    line: int
    columns: list[str] | None
    """None: its head is missing."""
    ranks: list[ListedRank]
    op: str | None
    unit_s: float
    """Of its times."""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    without_in_place: int = 0
    elided: bool = False
    """Dots stand for rows behind the last."""
    failure: str = ""
    """First line after the head that says that the test failed."""


def sweeps_of(table: Table, context: Context, op: str | None, ranks: int | None) -> list[Sweep]:
    """Sweeps of a table by type, reduction and placement.

    Raises `InputError`: nothing was timed, numbers that contradict each other, or collective or
    ranks that nothing says.
    """
    listed = summary_of(table.ranks, table.line)
    _check_rows(table, listed)
    chosen, count = _identify(table, context.file, op, ranks, listed)
    notes = [*table.notes, *listed.notes]
    if table.without_in_place:
        notes.append("rows end behind the times out of place: there are none in place")
    sweeps = []
    for (dtype, _), rows in _by_type(table.rows).items():
        for place in range(max(len(row.timings) for row in rows)):
            times, repeated = _times(rows, place, table)
            timed = rows_of(times)
            if not timed:
                continue
            own = [f"{repeated} sizes were timed several times: their medians"] * bool(repeated)
            sweeps.append(
                Sweep(
                    op=chosen,
                    ranks=count,
                    nodes=listed.nodes,
                    gpus_per_node=listed.each,
                    dtype=dtype,
                    in_place=place > 0,
                    rows=timed,
                    devices=listed.devices,
                    version=context.version,
                    one_process=listed.one_process,
                    env=dict(context.env),
                    tool=context.tool,
                    file=context.file,
                    line=table.line,
                    notes=tuple(dict.fromkeys((*notes, *own))),
                )
            )
    if not sweeps:
        raise InputError(Fault("table", "no row with a size and a time", "one", line=table.line))
    return sweeps


REPEATED = "pasted more than once: taken once"


def each_once(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Sweeps without those whose every time stands above already: a log that was pasted twice."""
    once: dict[tuple[object, ...], Sweep] = {}
    for sweep in sweeps:
        key = (sweep.op, sweep.ranks, sweep.dtype, sweep.in_place, sweep.rows)
        first = once.setdefault(key, sweep)
        if first is not sweep and REPEATED not in first.notes:
            once[key] = replace(first, notes=(*first.notes, REPEATED))
    return list(once.values())


def _by_type(rows: Sequence[Row]) -> Mapping[tuple[str, str], list[Row]]:
    """Rows by type and reduction: tests of all of them print them in one table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.dtype, row.redop), []).append(row)
    return groups


def _times(rows: Sequence[Row], place: int, table: Table) -> tuple[list[tuple[int, float]], int]:
    """Sizes and microseconds, of a size that was timed again the median; and how many were."""
    times: dict[int, list[float]] = {}
    for row in rows:
        timing = row.timings[place] if place < len(row.timings) else None
        if timing is not None and row.nbytes:
            times.setdefault(row.nbytes, []).append(timing.time.value * table.unit_s * 1e6)
    repeated = sum(len(set(values)) > 1 for values in times.values())
    return [(nbytes, statistics.median(values)) for nbytes, values in times.items()], repeated


# ---------------------------------------------------------------- checks


def _check_rows(table: Table, listed: Ranks) -> None:
    if not table.rows:
        problem, allowed = "a head without rows", "rows: the table is cut off"
        if table.failure:
            problem, allowed = f"no rows: {table.failure!r}", "a run that did not fail"
        raise InputError(Fault("table", problem, allowed, line=table.line))
    if not any(timing for row in table.rows for timing in row.timings):
        text = next((row.text for row in table.rows if row.text), None)
        problem = "no row that is whole" if text is None else f"{text[:40]!r} in all rows"
        allowed = "times (is this an example to fill in?)"
        raise InputError(Fault("time", problem, allowed, line=table.line))
    rows_of(
        (nbytes, time_us)
        for place in (0, 1)
        for nbytes, time_us in _times(table.rows, place, table)[0]
    )
    points = list(points_of(table.rows))
    measured = factor_of(points)
    alone = measured is None or measured[0] < 0.3
    if (listed.count == 1 and alone) or (measured is not None and measured[1] < 0.1):
        raise InputError(Fault("ranks", "1", WITHOUT_MPI, line=table.line))
    if listed.count == 1:
        problem = "1 in the list, where busbw is that of several"
        raise InputError(Fault("ranks", problem, "a list of all ranks (cut off?)", line=table.line))
    faults = [
        Fault("row", contradiction, "numbers that fit each other: it is garbled", line=row.line)
        for row in table.rows
        if (contradiction := disagreement(row, table.unit_s)) is not None
    ]
    faults += [
        Fault("time", repr(row.text[:40]), "a number, or N/A: it is garbled", line=row.line)
        for row in table.rows
        if row.text and NO_TIME.fullmatch(row.text) is None
    ]
    if faults:
        raise InputError(faults)
    if measured is None:
        raise InputError(_odd_row(table))
    if table.columns is None:
        _check_headless(table, points)
    _check_repeated(table)


MOST_APART = 3.0
"""Times between two times of one size in a table; those of different machines are farther apart."""


def _check_repeated(table: Table) -> None:
    """Rows of one size are of one run, or of runs like it: else two tables ran into each other."""
    for rows in _by_type(table.rows).values():
        times: dict[tuple[int, str | None], list[float]] = {}
        for row in rows:
            if row.timings and row.timings[0] is not None and row.nbytes >= 2**20:
                times.setdefault((row.nbytes, row.root), []).append(row.timings[0].time.value)
        for (nbytes, _), values in times.items():
            if min(values) > 0 and max(values) > MOST_APART * min(values):
                raise InputError(
                    Fault(
                        "table",
                        f"{nbytes:,} B in {min(values):g} and in {max(values):g}",
                        "one run in one table: is the head of a second missing?",
                        line=table.line,
                    )
                )


def _check_headless(table: Table, points: Points) -> None:
    """Rows without a head tell their columns by how they fit, and must be of one table."""
    problem = ""
    if not any(algbw.value >= 0.5 for algbw, _ in points):
        problem = "rows without a head, with too few digits to tell columns"
    elif any(_times(table.rows, place, table)[1] for place in (0, 1)):
        problem = "rows without a head, of one size several times: of several tables?"
    if problem:
        raise InputError(Fault("table", problem, "the head above them", line=table.line))


def _odd_row(table: Table) -> Fault:
    """The row whose bus bandwidth is another multiple than that of most."""
    lows, highs = [], []
    for row in table.rows:
        measured = factor_of(list(points_of([row]))) or (0.0, float("inf"))
        lows.append(measured[0])
        highs.append(measured[1])
    exact = [low for low, high in zip(lows, highs, strict=True) if high < 3.0]
    usual = statistics.median(exact) if exact else 1.0
    off = [max(low - usual, usual - high) for low, high in zip(lows, highs, strict=True)]
    row = table.rows[max(range(len(off)), key=off.__getitem__)]
    return Fault(
        "row",
        f"busbw that is another multiple of algbw ({row.nbytes:,} B) than in other rows",
        "numbers that fit each other: it is garbled",
        line=row.line,
    )


def points_of(rows: Sequence[Row]) -> Iterator[tuple[Printed, Printed]]:
    """Algorithm and bus bandwidth of all timed rows."""
    for row in rows:
        for timing in row.timings:
            if row.nbytes and timing is not None and timing.algbw and timing.busbw:
                yield timing.algbw, timing.busbw


# ---------------------------------------------------------------- collective and ranks


def _identify(
    table: Table, file: str, op: str | None, ranks: int | None, listed: Ranks
) -> tuple[str, int]:
    """Collective and number of ranks of a table; faults if anything contradicts them."""
    points: Points = list(points_of(table.rows))
    first = table.rows[0]
    count = listed.count or ranks
    named = op or table.op or op_of_file(Path(file).name)
    allowed = ops_allowed(points, count, _redop(table), first.root)
    name = named
    usual = allowed - {"send_recv"} or allowed  # sends print "sum" as well, and are named
    if name is None and len(usual) == 1:
        (name,) = usual
    if not allowed:
        raise InputError(_contradiction(table, points, count, listed))
    if name is None:
        actual, choices = "a table that does not say which", allowed_names(allowed) + " (--op)"
        raise InputError(Fault("collective", actual, choices, line=table.line))
    if name not in allowed:
        among = f" among {count} ranks" if count else ""
        actual = f"{name!r}, whose busbw would be another multiple of algbw{among}"
        raise InputError(Fault("collective", actual, allowed_names(allowed), line=table.line))
    parts = ranks_of_parts(name, (parts_of(row) for row in table.rows if row.nbytes))
    if count and parts and count != parts:
        actual = f"{count}, where sizes are those of {parts}"
        raise InputError(Fault("ranks", actual, "a list of all ranks (cut off?)", line=table.line))
    if not listed.certain and count not in {parts, ranks_of_factor(name, points)}:
        raise InputError(
            Fault(
                "ranks",
                f"{listed.count}, of which the list names some hosts alone",
                "a list of all ranks (cut off?)",
                line=table.line,
            )
        )
    count = count or parts or ranks_of_factor(name, points)
    if count is None:
        actual = "a table without its list of devices"
        raise InputError(
            Fault(
                "ranks", actual, "how many there were (--nodes, --gpus-per-node)", line=table.line
            )
        )
    if count < 2:
        raise InputError(Fault("ranks", str(count), WITHOUT_MPI, line=table.line))
    return name, count


def _redop(table: Table) -> str:
    """The reduction as printed, "none" where it has no column or is left empty."""
    return table.rows[0].redop if table.columns is None else table.rows[0].redop or "none"


def _contradiction(table: Table, points: Points, count: int | None, listed: Ranks) -> Fault:
    """Why no collective fits: the list of ranks, or the numbers themselves."""
    others = ops_allowed(points, None, _redop(table), table.rows[0].root)
    implied = {ranks for op in others if (ranks := ranks_of_factor(op, points))}
    among = f" among {count} ranks" if count else ""
    actual = f"busbw over algbw that no collective has{among}"
    if listed.count and len(implied) == 1:
        (other,) = implied
        return Fault(
            "ranks",
            f"{listed.count} in the list, and {actual}",
            f"{other}, by that multiple: is the list cut off?",
            line=table.line,
        )
    return Fault("table", actual, "a table that is not garbled", line=table.line)
