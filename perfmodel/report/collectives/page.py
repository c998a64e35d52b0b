"""Times of a collective as one self-contained HTML page, with CSV and JSON beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perfmodel.files import csv_text
from perfmodel.report.collectives.figures import Row, by_size, choice, draw_busbw, draw_times
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Bullets,
    Figure,
    Paragraph,
    Table,
    header,
    paragraphs,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files

FILES = ("collective.html", "collective.csv", "collective.json")
"""Files that `write_collective` writes."""

BUSBW = (
    "What the busiest link carries if the algorithm were a ring, as nccl-tests defines it: it can "
    "be compared with the link's bandwidth, whatever the number of ranks."
)
TIME = "Short messages take as long as the network's latency; long ones grow with their size."


def write_collective(title: str, rows: Sequence[Row], notes: Sequence[str], folder: Path) -> Path:
    """Write ``collective.html``, ``collective.csv`` and ``collective.json``.

    Returns and raises as `write_report_files`.
    """
    files = {
        "collective.html": collective_html(title, rows, notes),
        "collective.csv": _to_csv(rows),
        "collective.json": {"title": title, "rows": list(rows), "notes": list(notes)},
    }
    return write_report_files(folder, files)


def collective_html(title: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Build the page as one string.

    `title`: operation, machine and settings.
    """
    rows = by_size(rows)
    blocks: list[Block | None] = [header(title, headline(rows), [PREDICTED], [], sentences(rows))]
    if any(row["busbw_Bps"] for row in rows):
        busbw = Figure(draw_busbw(rows), "busbw", "Lines: bus bandwidth by size")
        times = Figure(draw_times(rows), "times", "Lines: time by size")
        blocks.append(section("Bus bandwidth", BUSBW, busbw))
        blocks.append(section("Time", TIME, times))
    blocks.append(section("All sizes", "", times_table(rows)))
    blocks.append(section("Notes", "", Bullets(notes)) if notes else None)
    return render_html(f"Collective: {title}", blocks)


def headline(rows: Sequence[Row]) -> str:
    """Say how quick the largest size is."""
    best = max(rows, key=lambda row: row["busbw_Bps"])
    if not best["busbw_Bps"]:
        return "One rank has nobody to talk to"
    rate, size = quantities.rate(best["busbw_Bps"]), _size(best["nbytes"])
    return f"{rate} bus bandwidth at {size}, {quantities.duration(best['time_s'])}"


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Say what short messages take, and from which size on half of the bandwidth is had."""
    best = max(row["busbw_Bps"] for row in rows)
    if not best:
        return
    first = rows[0]
    yield f"{_size(first['nbytes'])} takes {quantities.duration(first['time_s'])}."
    half = next(row for row in rows if row["busbw_Bps"] >= best / 2)
    if half is not first:
        yield f"Half of the highest bandwidth is reached at {_size(half['nbytes'])}."
    choices = list(dict.fromkeys(map(choice, rows)))
    if len(choices) > 1:
        starts = {name: next(r for r in rows if choice(r) == name)["nbytes"] for name in choices}
        parts = (f"{name} from {_size(nbytes)}" for name, nbytes in starts.items())
        yield f"The library chooses {', '.join(parts)}."


def collective_lines(title: str, rows: Sequence[Row], notes: Sequence[str]) -> list[Block]:
    """Arrange the times for a notebook."""
    head = Paragraph(f"{title}: {headline(rows)}", "headline")
    return [head, times_table(rows), *paragraphs(notes, "note")]


def times_table(rows: Sequence[Row]) -> Table:
    """List sizes with times and bandwidths, as nccl-tests prints them."""
    return Table(
        (">bytes", ">time", ">algbw", ">busbw", "algorithm", "protocol", ">80 % interval"),
        [
            (
                f"{row['nbytes']:,}",
                quantities.duration(row["time_s"]),
                quantities.rate(row["algbw_Bps"]),
                quantities.rate(row["busbw_Bps"]),
                str(row["algorithm"]),
                str(row["protocol"]),
                "not measured"
                if row["interval_s"] is None
                else quantities.span(
                    row["interval_s"][0], row["interval_s"][1], quantities.duration
                ),
            )
            for row in rows
        ],
    )


def _size(nbytes: float) -> str:
    return quantities.whole(quantities.size(nbytes))


def _to_csv(rows: Sequence[Row]) -> str:
    """Write the rows with an interval of two columns."""
    names = [name for name in rows[0] if name != "interval_s"]
    cells = ((*(row[name] for name in names), *(row["interval_s"] or ("", ""))) for row in rows)
    return csv_text([*names, "low_s", "high_s"], cells)
