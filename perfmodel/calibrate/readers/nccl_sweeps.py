"""From a table of nccl-tests to sweeps: its collective and ranks, and a check of its numbers.

The list of ranks above a table says how many there are, on which hosts and GPUs.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.calibrate.readers.nccl_rows import (
    ITEM_BYTES,
    NO_TIME,
    Points,
    Row,
    disagreement,
    factor_of,
    op_of_file,
    ops_allowed,
    ranks_of_factor,
    ranks_of_parts,
)
from perfmodel.calibrate.readers.sweep_records import (
    WITHOUT_MPI,
    ListedRank,
    Printed,
    Sweep,
    refuse,
    rows_of,
)
from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.memo import applying, grouped


def with_listed_ranks(told: Sweep, lines: Sequence[ListedRank], line: int) -> tuple[Sweep, bool]:
    """Return a sweep with what a list of ranks says, and whether that names all hosts.

    A list that names only some of its ranks is completed by its pattern.

    Raises
    ------
    InputError
        Several groups at once, processes that ran alone, or a list with holes that show no pattern.
    """
    ranks = list(dict.fromkeys(lines))
    if not ranks:
        return told, True
    groups = len({rank.group for rank in ranks})
    times = Counter(rank.rank for rank in ranks)
    again = next((number for number, listed in times.items() if listed > 1), None)
    refuse(
        line,
        (
            groups > 1,
            "table",
            f"{groups} groups of ranks that run at once (NCCL_TESTS_SPLIT)",
            "one group",
        ),
        (
            again == 0 and len(times) == 1,
            "ranks",
            f"{len(ranks)} lists of one rank each",
            WITHOUT_MPI,
        ),
        (
            again is not None,
            "ranks",
            f"rank {again} twice, on different devices",
            "each rank once",
        ),
    )
    count, hosts = max(times) + 1, {rank.host for rank in ranks}
    nodes = len(hosts)
    if len(ranks) < count:
        each = max(rank.device for rank in ranks) + 1
        nodes = count // each
        _check_pattern(ranks, count, each, line)
    processes = {(rank.host, rank.process) for rank in ranks if rank.process}
    listed = replace(
        told,
        ranks=count,
        nodes=nodes,
        devices=tuple(dict.fromkeys(rank.model for rank in ranks if rank.model)),
        one_process=len(processes) < len(ranks) if processes else None,
        notes=_notes(ranks, count),
    )
    return listed, nodes == len(hosts)


def _check_pattern(ranks: Sequence[ListedRank], count: int, each: int, line: int) -> None:
    """Refuse a list that leaves out others than the middle: first and last of each host."""
    pairs = {(rank.rank // each, rank.host) for rank in ranks}
    regular = (
        count % each == 0
        and all(rank.rank % each == rank.device for rank in ranks)
        and len(pairs) == len({host for _, host in pairs})
    )
    problem = f"{len(ranks)} of the ranks 0 to {count - 1}"
    refuse(line, (not regular, "ranks", problem, "a list of all of them (cut off?)"))


def _notes(ranks: Sequence[ListedRank], count: int) -> tuple[str, ...]:
    places = Counter((rank.host, rank.bus, rank.device) for rank in ranks)
    (host, bus, _), most = places.most_common(1)[0]
    listed = f"{len(ranks)} of {count} ranks are listed: the others are taken to be alike"
    shared = f"{most} ranks share one GPU ({host}, {bus}): these are no times of {count} GPUs"
    return tuple(applying((len(ranks) < count, listed), (most > 1, shared)))


@dataclass
class Table:
    """A table while it is read.

    `columns`: None where its head is missing. `op`: empty where no line above names it. `unit_s`:
    unit of its times. `elided`: dots stand for rows behind the last. `failure`: the first line
    after the head that says that the test failed.
    """

    line: int
    columns: list[str] | None
    ranks: list[ListedRank]
    op: str
    unit_s: float
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    without_in_place: int = 0
    elided: bool = False
    failure: str = ""


def sweeps_of(table: Table, told: Sweep, op: str | None, ranks: int | None) -> list[Sweep]:
    """Return the sweeps of a table by type, reduction and placement.

    `told`: what the lines around all tables say, without rows and without ranks.

    Raises `InputError`: nothing was timed, numbers that contradict each other, or collective or
    ranks that nothing says.
    """
    listed, certain = with_listed_ranks(told, table.ranks, table.line)
    _check_rows(table, listed.ranks)
    chosen, count = _identify(table, listed, certain, op, ranks)
    sweeps = []
    # tests of all types and reductions print them in one table
    groups = grouped(((row.dtype, row.redop), row) for row in table.rows)
    ends = "rows end behind the times out of place: there are none in place"
    for (dtype, _), rows in groups.items():
        for place in range(max(len(row.timings) for row in rows)):
            times, repeated = _times(rows, place, table)
            medians = f"{repeated} sizes were timed several times: their medians"
            own = [
                note
                for note, count_ in ((ends, table.without_in_place), (medians, repeated))
                if count_
            ]
            sweep = replace(
                listed,
                op=chosen,
                ranks=count,
                dtype=dtype,
                in_place=place > 0,
                rows=rows_of(times),
                line=table.line,
                notes=tuple(dict.fromkeys((*table.notes, *listed.notes, *own))),
            )
            sweeps += [sweep] if sweep.rows else []
    refuse(table.line, (not sweeps, "table", "no row with a size and a time", "one"))
    return sweeps


def _times(rows: Sequence[Row], place: int, table: Table) -> tuple[list[tuple[int, float]], int]:
    """Sizes and microseconds, of a size that was timed again the median; and how many were."""
    timed = ((row.nbytes, row.timings[place]) for row in rows if place < len(row.timings))
    times = grouped(
        (nbytes, timing.time.value * table.unit_s * 1e6)
        for nbytes, timing in timed
        if timing is not None and nbytes
    )
    repeated = sum(len(set(values)) > 1 for values in times.values())
    return [(nbytes, statistics.median(values)) for nbytes, values in times.items()], repeated


# ---------------------------------------------------------------- checks


def _check_rows(table: Table, listed: int) -> None:
    """Refuse rows whose numbers contradict each other; `listed`: ranks of the list, 0 without."""
    rows, failure = table.rows, table.failure
    text = next((row.text for row in rows if row.text), None)
    refuse(
        table.line,
        (
            not rows,
            "table",
            f"no rows: {failure!r}" if failure else "a head without rows",
            "a run that did not fail" if failure else "rows: the table is cut off",
        ),
        (
            not any(timing for row in rows for timing in row.timings),
            "time",
            "no row that is whole" if text is None else f"{text[:40]!r} in all rows",
            "times (is this an example to fill in?)",
        ),
    )
    rows_of(pair for place in (0, 1) for pair in _times(rows, place, table)[0])
    points = points_of(rows)
    measured = factor_of(points)
    low, high = measured or (0.0, 1.0)
    refuse(
        table.line,
        ((listed == 1 and low < 0.3) or high < 0.1, "ranks", "1", WITHOUT_MPI),
        (
            listed == 1,
            "ranks",
            "1 in the list, where busbw is that of several",
            "a list of all ranks (cut off?)",
        ),
    )
    faults = [
        Fault("row", contradiction, UNGARBLED, line=row.line)
        for row in rows
        if (contradiction := disagreement(row, table.unit_s)) is not None
    ]
    faults += [
        Fault("time", repr(row.text[:40]), "a number, or N/A: it is garbled", line=row.line)
        for row in rows
        if row.text and NO_TIME.fullmatch(row.text) is None
    ]
    if faults or measured is None:
        raise InputError(faults or _odd_row(table))
    if table.columns is None:
        _check_headless(table, points)
    _check_repeated(table)


UNGARBLED = "numbers that fit each other: it is garbled"

MOST_APART = 3.0
"""Times between two times of one size in a table; those of different machines are farther apart."""


def _check_repeated(table: Table) -> None:
    """Refuse rows of one size that are of unlike runs: two tables ran into each other."""
    times = grouped(
        ((row.dtype, row.redop, row.nbytes, row.root), row.timings[0].time.value)
        for row in table.rows
        if row.timings and row.timings[0] is not None and row.nbytes >= 2**20
    )
    allowed = "one run in one table: is the head of a second missing?"
    for (_, _, nbytes, _), values in times.items():
        least, most = min(values), max(values)
        problem = f"{nbytes:,} B in {least:g} and in {most:g}"
        refuse(table.line, (0 < MOST_APART * least < most, "table", problem, allowed))


def _check_headless(table: Table, points: Points) -> None:
    """Refuse rows without a head that do not tell their columns, or are of several tables."""
    refuse(
        table.line,
        (
            not any(algbw.value >= 0.5 for algbw, _ in points),
            "table",
            "rows without a head, with too few digits to tell columns",
            "the head above them",
        ),
        (
            any(_times(table.rows, place, table)[1] for place in (0, 1)),
            "table",
            "rows without a head, of one size several times: of several tables?",
            "the head above them",
        ),
    )


def _odd_row(table: Table) -> Fault:
    """Find the row whose bus bandwidth is another multiple than that of most."""
    ranges = [factor_of(points_of([row])) or (0.0, float("inf")) for row in table.rows]
    exact = [low for low, high in ranges if high < 3.0]
    usual = statistics.median(exact) if exact else 1.0
    off = [max(low - usual, usual - high) for low, high in ranges]
    row = table.rows[off.index(max(off))]
    return Fault(
        "row",
        f"busbw that is another multiple of algbw ({row.nbytes:,} B) than in other rows",
        UNGARBLED,
        line=row.line,
    )


def points_of(rows: Sequence[Row]) -> list[tuple[Printed, Printed]]:
    """Return algorithm and bus bandwidth of all timed rows."""
    return [
        (timing.algbw, timing.busbw)
        for row in rows
        for timing in row.timings
        if row.nbytes and timing is not None and timing.algbw and timing.busbw
    ]


# ---------------------------------------------------------------- collective and ranks


def _identify(
    table: Table, listed: Sweep, certain: bool, op: str | None, ranks: int | None
) -> tuple[str, int]:
    """Find collective and number of ranks of a table; faults if anything contradicts them."""
    points = points_of(table.rows)
    count = listed.ranks or ranks
    name = op or table.op or op_of_file(listed.file)
    allowed = ops_allowed(points, count, _redop(table), table.rows[0].root)
    usual = allowed - {"send_recv"} or allowed  # sends print "sum" as well, and are named
    if name is None and len(usual) == 1:
        (name,) = usual
    if not allowed:
        raise InputError(_contradiction(table, points, count, listed.ranks))
    if name is None or name not in allowed:
        among = f" among {count} ranks" if count else ""
        actual = (
            "a table that does not say which"
            if name is None
            else f"{name!r}, whose busbw would be another multiple of algbw{among}"
        )
        known = allowed_names(allowed) + ("" if name else " (--op)")
        raise InputError(Fault("collective", actual, known, line=table.line))
    counted = [(row.nbytes, row.count * ITEM_BYTES[row.dtype]) for row in table.rows if row.nbytes]
    parts = ranks_of_parts(name, (size // own if own else 1 for size, own in counted))
    implied = ranks_of_factor(name, points)
    total, cut_off = count or parts or implied or 0, "a list of all ranks (cut off?)"
    refuse(
        table.line,
        (
            count and parts and count != parts,
            "ranks",
            f"{count}, where sizes are those of {parts}",
            cut_off,
        ),
        (
            not certain and count not in {parts, implied},
            "ranks",
            f"{listed.ranks}, of which the list names some hosts alone",
            cut_off,
        ),
        (
            total == 0,
            "ranks",
            "a table without its list of devices",
            "how many there were (--nodes, --gpus-per-node)",
        ),
        (total < 2, "ranks", str(total), WITHOUT_MPI),
    )
    return name, total


def _redop(table: Table) -> str:
    """Return the reduction as printed, "none" where it has no column or is left empty."""
    return table.rows[0].redop or ("" if table.columns is None else "none")


def _contradiction(table: Table, points: Points, count: int | None, listed: int) -> Fault:
    """Say why no collective fits: the list of ranks, or the numbers themselves."""
    others = ops_allowed(points, None, _redop(table), table.rows[0].root)
    implied = {ranks for op in others if (ranks := ranks_of_factor(op, points))}
    among = f" among {count} ranks" if count else ""
    actual = f"busbw over algbw that no collective has{among}"
    if not listed or len(implied) != 1:
        return Fault("table", actual, "a table that is not garbled", line=table.line)
    allowed = f"{implied.pop()}, by that multiple: is the list cut off?"
    return Fault("ranks", f"{listed} in the list, and {actual}", allowed, line=table.line)
