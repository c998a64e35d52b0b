"""Times of a collective by size: a page with charts, with CSV and JSON beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.files import csv_text
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
from perfmodel.report.common.figures import axis_layout, log_axis, log_ticks, new_figure
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, WORK

if TYPE_CHECKING:
    import plotly.graph_objects as go


Row = dict[str, Any]
"""A row of `perfmodel.studies.run.collective.collective_rows`."""

_LABELS = 6
_BAND = "rgba(0, 114, 178, 0.16)"


def draw_busbw(rows: Sequence[Row]) -> go.Figure:
    """Draw bus bandwidth by size, with its interval; one colour for each algorithm and protocol."""
    figure, rows = new_figure(400), by_size(rows)
    scale, unit = (1e9, "GB/s") if max(row["busbw_Bps"] for row in rows) >= 2e9 else (1e6, "MB/s")
    _add_band(figure, rows, [_busbw_ends(row, scale) for row in rows])
    _add_lines(figure, rows, [row["busbw_Bps"] / scale for row in rows])
    figure.update_xaxes(**_size_axis(rows))
    figure.update_yaxes(**axis_layout(f"bus bandwidth ({unit})", rangemode="tozero"))
    return figure


def draw_times(rows: Sequence[Row]) -> go.Figure:
    """Draw time by size on logarithmic axes, with its interval."""
    figure, rows = new_figure(400), by_size(rows)
    ends = [row["interval_s"] or (row["time_s"], row["time_s"]) for row in rows]
    _add_band(figure, rows, ends)
    _add_lines(figure, rows, [row["time_s"] for row in rows])
    low, high = min(end[0] for end in ends) / 1.2, max(end[1] for end in ends) * 1.2
    ticks = log_ticks(low, high, _LABELS + 1)
    figure.update_xaxes(**_size_axis(rows))
    figure.update_yaxes(
        **log_axis("time", (low, high), ticks, lambda t: quantities.whole(quantities.duration(t)))
    )
    return figure


def by_size(rows: Sequence[Row]) -> list[Row]:
    """Sort rows for lines and axes; in Python sizes come in any order."""
    return sorted(rows, key=lambda row: row["nbytes"])


def choice(row: Row) -> str:
    """Name algorithm and protocol of a row."""
    return " ".join(str(row[key]) for key in ("algorithm", "protocol") if row[key])


def _busbw_ends(row: Row, scale: float) -> tuple[float, float]:
    """Bus bandwidth at both ends of the time's interval, low end first."""
    busbw, time_s = row["busbw_Bps"] / scale, row["time_s"]
    if row["interval_s"] is None or not time_s:
        return busbw, busbw
    quick_s, slow_s = row["interval_s"]
    return busbw * time_s / slow_s, busbw * time_s / quick_s


def _add_band(figure: go.Figure, rows: Sequence[Row], ends: Sequence[Sequence[float]]) -> None:
    if all(row["interval_s"] is None for row in rows):
        return
    sizes = [row["nbytes"] for row in rows]
    figure.add_scatter(
        x=[*sizes, *reversed(sizes)],
        y=[*(end[1] for end in ends), *(end[0] for end in reversed(ends))],
        fill="toself",
        fillcolor=_BAND,
        mode="lines",
        line={"color": _BAND, "width": 0},
        name="80 % interval",
        hoverinfo="skip",
    )


def _add_lines(figure: go.Figure, rows: Sequence[Row], heights: Sequence[float]) -> None:
    """One grey line through all sizes, and marks in the colour of what the library chose."""
    sizes = [row["nbytes"] for row in rows]
    figure.add_scatter(
        x=sizes,
        y=heights,
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        line={"color": WORK["host"], "width": 1.5},
    )
    for at, name in enumerate(dict.fromkeys(map(choice, rows))):
        own = [number for number, row in enumerate(rows) if choice(row) == name]
        figure.add_scatter(
            x=[sizes[number] for number in own],
            y=[heights[number] for number in own],
            mode="markers",
            name=name,
            marker={"color": CYCLE[at % len(CYCLE)], "size": 8},
            hoverinfo="text",
            hovertext=[_hover(rows[number]) for number in own],
        )


def _hover(row: Row) -> str:
    ends = row["interval_s"]
    interval = "" if ends is None else f" ({' to '.join(map(quantities.duration, ends))})"
    return (
        f"<b>{quantities.size(row['nbytes'])}</b>, {choice(row)}"
        f"<br>{quantities.duration(row['time_s'])}{interval}"
        f"<br>algbw {quantities.rate(row['algbw_Bps'])}, busbw {quantities.rate(row['busbw_Bps'])}"
    )


def _size_axis(rows: Sequence[Row]) -> dict[str, Any]:
    """Describe a logarithmic axis of sizes, labelled at powers of two."""
    low, high = rows[0]["nbytes"], rows[-1]["nbytes"]
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, -(-(last - first) // (_LABELS - 1)))
    ticks = [2.0**power for power in range(first, last + 1, step)] or [low]
    room = (high / low) ** 0.03 or 1.0
    return log_axis(
        "size",
        (low / max(room, 1.1), high * max(room, 1.1)),
        ticks,
        lambda nbytes: quantities.whole(quantities.size(nbytes)),
    )


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
                quantities.span_or("not measured", row["interval_s"], quantities.duration),
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
