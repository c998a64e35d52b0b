"""Times of a collective by size: a page with charts, with CSV and JSON beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfmodel.files import csv_text
from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Figure,
    Paragraph,
    Table,
    bullets_section,
    header,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import (
    Drawing,
    axis_layout,
    band,
    lines,
    log_axis,
    log_ticks,
    new_figure,
    size_axis,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet

Row = dict[str, Any]
"""A row of `perfmodel.studies.run.collective.collective_rows`."""

_MOST_AXIS_LABELS = 6
_BAND = "rgba(0, 114, 178, 0.16)"


def draw_busbw(rows: Sequence[Row]) -> Drawing:
    """Draw bus bandwidth by size, with its interval; one colour for each algorithm and protocol."""
    rows = by_size(rows)
    scale, unit = (1e9, "GB/s") if max(row["busbw_Bps"] for row in rows) >= 2e9 else (1e6, "MB/s")
    heights = [row["busbw_Bps"] / scale for row in rows]
    # the slow end of the time is the low end of the bandwidth
    ends = [
        [height * row["time_s"] / end_s if row["time_s"] else height for end_s in _ends(row)[::-1]]
        for height, row in zip(heights, rows, strict=True)
    ]
    return new_figure(
        400,
        [*_band(rows, ends), *_lines(rows, heights)],
        x=_size_axis(rows),
        y=axis_layout(f"bus bandwidth ({unit})", rangemode="tozero"),
    )


def draw_times(rows: Sequence[Row]) -> Drawing:
    """Draw time by size on logarithmic axes, with its interval."""
    rows = by_size(rows)
    ends = [_ends(row) for row in rows]
    low, high = min(end[0] for end in ends) / 1.2, max(end[1] for end in ends) * 1.2
    return new_figure(
        400,
        [*_band(rows, ends), *_lines(rows, [row["time_s"] for row in rows])],
        x=_size_axis(rows),
        y=log_axis(
            "time",
            (low, high),
            log_ticks(low, high, _MOST_AXIS_LABELS + 1),
            lambda time_s: quantities.whole(quantities.duration(time_s)),
        ),
    )


def _ends(row: Row) -> Sequence[float]:
    """Ends of the time; the time itself where it has no interval."""
    return row["interval_s"] or (row["time_s"], row["time_s"])


def _band(rows: Sequence[Row], ends: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    if all(row["interval_s"] is None for row in rows):
        return []
    return [band([row["nbytes"] for row in rows], ends, _BAND, name="80 % interval")]


def _lines(rows: Sequence[Row], heights: Sequence[float]) -> Iterator[dict[str, Any]]:
    """One grey line through all sizes, and marks in the colour of what the library chose."""
    sizes = [row["nbytes"] for row in rows]
    yield lines("", sizes, heights, {"color": WORK["host"], "width": 1.5}, showlegend=False)
    for at, name in enumerate(dict.fromkeys(map(choice, rows))):
        own = [number for number, row in enumerate(rows) if choice(row) == name]
        yield {
            "type": "scatter",
            "x": [sizes[number] for number in own],
            "y": [heights[number] for number in own],
            "mode": "markers",
            "name": name,
            "marker": {"color": CYCLE[at % len(CYCLE)], "size": 8},
            "hoverinfo": "text",
            "hovertext": [_hover(rows[number]) for number in own],
        }


def by_size(rows: Sequence[Row]) -> list[Row]:
    """Sort rows for lines and axes; in Python sizes come in any order."""
    return sorted(rows, key=lambda row: row["nbytes"])


def choice(row: Row) -> str:
    """Name algorithm and protocol of a row."""
    return " ".join(str(row[key]) for key in ("algorithm", "protocol") if row[key])


def _hover(row: Row) -> str:
    ends = " to ".join(map(quantities.duration, row["interval_s"] or ()))
    return (
        f"<b>{quantities.size(row['nbytes'])}</b>, {choice(row)}"
        f"<br>{quantities.duration(row['time_s'])}{f' ({ends})' if ends else ''}"
        f"<br>algbw {quantities.rate(row['algbw_Bps'])}, busbw {quantities.rate(row['busbw_Bps'])}"
    )


def _size_axis(rows: Sequence[Row]) -> dict[str, Any]:
    low, high = rows[0]["nbytes"], rows[-1]["nbytes"]
    room = max((high / low) ** 0.03, 1.1)
    return size_axis(
        (low / room, high * room),
        range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1),
    )


FILES = ("collective.html", "collective.csv", "collective.json", SPREADSHEET)
"""Files that `write_collective` writes."""

BUSBW = (
    "What the busiest link carries if the algorithm were a ring, as nccl-tests defines it: it can "
    "be compared with the link's bandwidth, whatever the number of ranks."
)
TIME = "Short messages take as long as the network's latency; long ones grow with their size."


def write_collective(title: str, rows: Sequence[Row], notes: Sequence[str], folder: Path) -> Path:
    """Write ``collective.html``, ``collective.csv``, ``collective.json`` and ``result.xlsx``.

    Returns and raises as `write_report_files`.
    """
    names = [name for name in rows[0] if name != "interval_s"]
    document = {"title": title, "rows": list(rows), "notes": list(notes)}
    return write_report_files(
        folder,
        {
            "collective.html": collective_html(title, rows, notes),
            "collective.csv": csv_text(
                [*names, "low_s", "high_s"],
                (
                    (*(row[name] for name in names), *(row["interval_s"] or ("", "")))
                    for row in rows
                ),
            ),
            "collective.json": document,
            SPREADSHEET: spreadsheet(document),
        },
    )


def collective_html(title: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Build the page as one string.

    `title`: operation, machine and settings.
    """
    rows, drawn = by_size(rows), []
    if any(row["busbw_Bps"] for row in rows):
        drawn = [
            section(title, lead, Figure(draw(rows), name, f"Lines: {title.lower()} by size"))
            for title, lead, draw, name in (
                ("Bus bandwidth", BUSBW, draw_busbw, "busbw"),
                ("Time", TIME, draw_times, "times"),
            )
        ]
    return render_html(
        f"Collective: {title}",
        [
            header(title, headline(rows), [PREDICTED], [], sentences(rows)),
            *drawn,
            section("All sizes", "", times_table(rows)),
            bullets_section("Notes", notes),
        ],
    )


def headline(rows: Sequence[Row]) -> str:
    """Say how quick the largest size is."""
    best = max(rows, key=lambda row: row["busbw_Bps"])
    if not best["busbw_Bps"]:
        return "One rank has nobody to talk to"
    return (
        f"{quantities.rate(best['busbw_Bps'])} bus bandwidth at {_size(best['nbytes'])}, "
        f"{quantities.duration(best['time_s'])}"
    )


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Say what short messages take, and from which size on half of the bandwidth is had."""
    first, best = rows[0], max(row["busbw_Bps"] for row in rows)
    if not best:
        return
    yield f"{_size(first['nbytes'])} takes {quantities.duration(first['time_s'])}."
    half = next(row for row in rows if row["busbw_Bps"] >= best / 2)
    if half is not first:
        yield f"Half of the highest bandwidth is reached at {_size(half['nbytes'])}."
    sizes = grouped((choice(row), row["nbytes"]) for row in rows)
    if len(sizes) > 1:
        parts = ", ".join(f"{name} from {_size(own[0])}" for name, own in sizes.items())
        yield f"The library chooses {parts}."


def collective_lines(title: str, rows: Sequence[Row], notes: Sequence[str]) -> list[Block]:
    """Arrange the times for a notebook."""
    return [
        Paragraph(f"{title}: {headline(rows)}", "headline"),
        times_table(rows),
        *paragraphs(notes, "note"),
    ]


def times_table(rows: Sequence[Row]) -> Table:
    """List sizes with times and bandwidths, as nccl-tests prints them."""
    return tabulate(
        rows,
        (
            (">bytes", lambda row: f"{row['nbytes']:,}"),
            (">time", lambda row: quantities.duration(row["time_s"])),
            (">algbw", lambda row: quantities.rate(row["algbw_Bps"])),
            (">busbw", lambda row: quantities.rate(row["busbw_Bps"])),
            ("algorithm", lambda row: str(row["algorithm"])),
            ("protocol", lambda row: str(row["protocol"])),
            (
                ">80 % interval",
                lambda row: quantities.span_or(
                    "not measured", row["interval_s"], quantities.duration
                ),
            ),
        ),
    )


def _size(nbytes: float) -> str:
    return quantities.whole(quantities.size(nbytes))
