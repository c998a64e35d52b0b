"""Tuned buckets as one self-contained HTML page, with the data behind it.

Figures of tuned buckets: what each cap costs, and when the buckets travel.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Bullets,
    Code,
    Definitions,
    Figure,
    Folded,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    header,
    section,
)
from perfmodel.report.common.figures import (
    axis_layout,
    log_axis,
    log_ticks,
    new_figure,
    time_unit,
    title_row,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import INK, QUIET_INK, WORK
from perfmodel.report.tuning import text
from perfmodel.report.tuning.text import (
    caps,
    compromise_json,
    curve_csv,
    fine,
    shared_snippet,
    tuned_json,
    wide_spans,
)
from perfmodel.studies.tune.caps import number
from perfmodel.studies.tune.model import Choice, CurvePoint, TuneResult
from perfmodel.studies.tune.recommendation import MinimaxCap

if TYPE_CHECKING:
    import plotly.graph_objects as go

PREDICTED = "A prediction by simulation, not a measurement."


FILES = ("tune.html", "tune.json", "curve.csv")
"""Files that `write_tuned` writes."""


def write_tuned(tuned: TuneResult, folder: Path) -> Path:
    """Write ``tune.html``, ``tune.json`` (as ``--json`` prints it) and ``curve.csv``.

    Returns and raises as `write_report_files`.
    """
    files = {
        "tune.html": tuned_html(tuned),
        "tune.json": tuned_json(tuned),
        "curve.csv": curve_csv(tuned),
    }
    return write_report_files(folder, files)


def write_compromise(compromise: MinimaxCap, folder: Path) -> Path:
    """Write ``tune.html`` with all scenarios, ``tune.json``, and a curve for each scenario.

    Returns and raises as `write_report_files`.
    """
    curves = {f"curve-{at}.csv": curve_csv(tuned) for at, tuned in enumerate(compromise.each)}
    pages = {"tune.html": compromise_html(compromise), "tune.json": compromise_json(compromise)}
    return write_report_files(folder, pages | curves)


def tuned_html(tuned: TuneResult) -> str:
    """Build the page of one scenario as one string."""
    job = f"{tuned.workload} with DistributedDataParallel on"
    setting = f"{job} {quantities.gpus(tuned.gpus)} of {tuned.machine}"
    answer, limit = text.answer(tuned)
    return render_html(
        f"Buckets of {setting}",
        [
            header(setting, answer, [PREDICTED], [tuned.scenario.question], [limit]),
            _tiles(tuned),
            _paste(tuned),
            _curve(tuned),
            _buckets(tuned),
            _horovod(tuned),
            _grounds(tuned),
        ],
    )


def compromise_html(compromise: MinimaxCap) -> str:
    """Build the page of several scenarios as one string."""
    lead = "Regrets: how much longer a step is than with the best cap of that scenario alone."
    code = Code(shared_snippet(compromise))
    sections = [section("One cap for all", lead, text.scenarios_table(compromise), code)]
    for at, tuned in enumerate(compromise.each):
        title = f"{tuned.scenario.name}, {quantities.gpus(tuned.gpus)}"
        description = f"Step time against the cap: {title}"
        figure = Figure(draw_curve(tuned), f"curve-{at}", description)
        sections.append(section(title, text.headline(tuned), figure))
    setting, headline = f"{len(compromise.each)} scenarios", text.shared_headline(compromise)
    blocks = [header(setting, headline, [PREDICTED]), *sections]
    return render_html("One bucket cap for several scenarios", blocks)


def _tiles(tuned: TuneResult) -> Tiles:
    best_s, uniform = tuned.best_list.step_time_s, tuned.best_uniform
    cap = number(uniform.bucket_cap_mb or 0.0)
    default_s = text.fine(tuned.default.step_time_s)
    tiles = [
        Tile("Best list", text.fine(best_s), _gain(tuned, best_s)),
        Tile(
            f"Best cap: {cap} MiB",
            text.fine(uniform.step_time_s),
            _gain(tuned, uniform.step_time_s),
        ),
        Tile("PyTorch's default", default_s, "1 MiB first, then 25 MiB"),
    ]
    if tuned.lower_bound_s is not None:
        above = quantities.percent(best_s / tuned.lower_bound_s - 1.0)
        bound = text.fine(tuned.lower_bound_s)
        tiles.append(Tile("Lower bound", bound, f"the list is {above} above it"))
    return Tiles(tiles)


def _gain(tuned: TuneResult, step_s: float) -> str:
    change = text.change(step_s / tuned.default.step_time_s - 1.0)
    return "as with the default" if change == "same" else f"{change} against the default"


def _paste(tuned: TuneResult) -> Section:
    lines = [f"{code}  # {note}" if note else code for code, note in text.to_paste(tuned)]
    return section(
        "What to use",
        "",
        Bullets(text.advice(tuned)),
        Code("\n".join(lines)),
        text.settings_table(tuned),
        Paragraph(text.first_step(tuned), "hint"),
    )


def _curve(tuned: TuneResult) -> Section:
    within = quantities.percent(tuned.plateau.within)
    lead = (
        f"Each of the {len(tuned.curve)} steps of the line is one partition into buckets. Shaded: "
        f"caps within {within} of the best one on the likely network."
    )
    if tuned.robust is not None:
        lead += (
            f" Green bar: caps that stay within {within} of the safest one, "
            f"{number(tuned.robust.bucket_cap_mb)} MiB, however quick or slow the network is "
            f"within its {text.INTERVAL}."
        )
    exposed = "Exposed communication against the bucket cap"
    return section(
        "What each cap costs",
        lead,
        Figure(draw_curve(tuned), "curve", "Step time against the bucket cap"),
        Figure(draw_exposed(tuned), "exposed", exposed),
    )


def _buckets(tuned: TuneResult) -> Section:
    lead = "One settled step: when each bucket is complete, and when it is reduced."
    figure = Figure(draw_buckets(tuned), "buckets", "All-reduces of each setting in one step")
    return section("When the buckets travel", lead, figure)


def _horovod(tuned: TuneResult) -> Section | None:
    horovod = tuned.horovod
    if horovod is None:
        return None
    rows = [
        (
            "off" if fusion.threshold_mb == 0 else f"{number(fusion.threshold_mb)} MiB",
            quantities.duration(fusion.step_time_s),
            quantities.duration(fusion.exposed_comm_s),
            f"{fusion.all_reduces}",
        )
        for fusion in horovod.curve
    ]
    titles = (">fusion threshold", ">step", ">exposed", ">all-reduces")
    table, assumptions = Table(titles, rows), Bullets(horovod.assumptions)
    return section("Horovod", text.horovod_line(horovod), table, assumptions)


def _grounds(tuned: TuneResult) -> Section:
    facts = {name.replace("_", " "): value for name, value in tuned.provenance.items()}
    provenance = Folded("Provenance", [Definitions(facts)])
    return section("What this rests on", "", Bullets(tuned.assumptions), provenance)


LEAST_MB = 0.05
"""Caps below are not drawn: hardly a bucket holds more than one gradient there."""
_ROW_PIXELS = 62
_ROOM = 0.07
"""Share of a step that a bucket's bar must have for its size to be written on it."""
_PLATEAU = WORK["optimizer"]


def draw_curve(tuned: TuneResult) -> go.Figure:
    """Draw step time against the cap, with what to compare it with."""
    points = _drawn(tuned)
    unit, scale = time_unit(max(point.step_time_s for point in points))
    figure = new_figure(380)
    _shade(figure, tuned)
    _steps(figure, points, [p.step_time_s / scale for p in points], "one cap for all", INK)
    levels = [("best list", tuned.best_list.step_time_s, {"color": WORK["optimizer"]})]
    if tuned.lower_bound_s is not None:
        dashed = {"color": QUIET_INK, "dash": "dash"}
        levels.append(("no buckets are below", tuned.lower_bound_s, dashed))
    for name, value_s, line in levels:
        figure.add_scatter(
            x=list(_ends(points)),
            y=[value_s / scale] * 2,
            mode="lines",
            line={"width": 2} | line,
            name=name,
            hoverinfo="name",
        )
    _dot(
        figure,
        25.0,
        tuned.default.step_time_s / scale,
        "PyTorch's default",
        "diamond",
        WORK["exposed communication"],
    )
    best = tuned.best_uniform
    _dot(
        figure,
        best.bucket_cap_mb or 0.0,
        best.step_time_s / scale,
        "best cap for all",
        "circle",
        WORK["backward"],
    )
    _caps_axis(figure, points)
    top = _upper(tuned, points) / scale
    bound_s = tuned.best_list.step_time_s if tuned.lower_bound_s is None else tuned.lower_bound_s
    bottom = min(bound_s, best.step_time_s) / scale
    pad = 0.06 * (top - bottom) or 0.01 * top
    figure.update_yaxes(**axis_layout(f"step time ({unit})", range=[bottom - pad, top + pad]))
    return figure


def draw_exposed(tuned: TuneResult) -> go.Figure:
    """Draw exposed communication against the cap."""
    points = _drawn(tuned)
    unit, scale = time_unit(max(point.exposed_comm_s for point in points))
    figure = new_figure(220)
    _shade(figure, tuned)
    values = [point.exposed_comm_s / scale for point in points]
    _steps(figure, points, values, "exposed communication", WORK["exposed communication"])
    _caps_axis(figure, points)
    figure.update_yaxes(**axis_layout(f"exposed ({unit})", rangemode="tozero"))
    return figure


def _drawn(tuned: TuneResult) -> list[CurvePoint]:
    return [p for p in tuned.curve if p.high_mb > LEAST_MB] or list(tuned.curve)


def _upper(tuned: TuneResult, points: list[CurvePoint]) -> float:
    """Top of the axis: small caps may cost so much more that the rest would look flat."""
    usual = [p.step_time_s for p in points if p.high_mb > 1.0] or [p.step_time_s for p in points]
    return max(*usual, tuned.default.step_time_s)


def _ends(points: list[CurvePoint]) -> tuple[float, float]:
    low = max(points[0].low_mb, LEAST_MB)
    return low, max(2 * low, 1.35 * points[-1].low_mb, 30.0)


def _steps(
    figure: go.Figure, points: list[CurvePoint], values: list[float], name: str, colour: str
) -> None:
    low, high = _ends(points)
    figure.add_scatter(
        x=[max(point.low_mb, low) for point in points] + [high],
        y=[*values, values[-1]],
        mode="lines",
        line={"color": colour, "width": 1.6, "shape": "hv"},
        name=name,
        hovertext=[
            f"{escape(number(p.bucket_cap_mb))} MiB, {p.buckets} buckets<br>"
            f"{fine(p.step_time_s)}, exposed {quantities.duration(p.exposed_comm_s)}"
            for p in (*points, points[-1])
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _dot(figure: go.Figure, x: float, y: float, name: str, symbol: str, colour: str) -> None:
    figure.add_scatter(
        x=[x],
        y=[y],
        mode="markers",
        name=name,
        hoverinfo="name",
        marker={
            "color": colour,
            "size": 12,
            "symbol": symbol,
            "line": {"color": "white", "width": 1},
        },
    )


def _shade(figure: go.Figure, tuned: TuneResult) -> None:
    """Shade caps that are as good as the best; mark those that are whatever is uncertain."""
    low, high = _ends(_drawn(tuned))
    for begin, end in wide_spans(tuned.plateau.spans_mb):
        if end > low:
            figure.add_vrect(
                x0=max(begin, low),
                x1=min(end, high),
                fillcolor=_PLATEAU,
                opacity=0.16,
                line_width=0,
            )
    for begin, end in wide_spans(tuned.robust.spans_mb) if tuned.robust else ():
        if end > low:
            figure.add_shape(
                type="rect",
                xref="x",
                yref="paper",
                x0=max(begin, low),
                x1=min(end, high),
                y0=0,
                y1=0.03,
                fillcolor=_PLATEAU,
                opacity=0.9,
                line_width=0,
            )


def _caps_axis(figure: go.Figure, points: list[CurvePoint]) -> None:
    ends = _ends(points)
    axis = log_axis("bucket_cap_mb (MiB)", ends, log_ticks(*ends), lambda tick: f"{tick:g}")
    figure.update_xaxes(**axis)


# ---------------------------------------------------------------- buckets in time


def draw_buckets(tuned: TuneResult) -> go.Figure:
    """Draw when the buckets of each setting are reduced, in one step."""
    rows = [
        ("PyTorch's default", tuned.default),
        (f"best cap for all: {caps(tuned.best_uniform)} MiB", tuned.best_uniform),
        (f"best list: {caps(tuned.best_list)}", tuned.best_list),
    ]
    longest_s = max(choice.step_time_s for _, choice in rows)
    unit, scale = time_unit(longest_s)
    figure = new_figure(90 + _ROW_PIXELS * len(rows), barmode="overlay", bargap=0.3)
    for place, (title, choice) in enumerate(reversed(rows)):
        _row(figure, place, title, choice, scale, last=place == len(rows) - 1)
    figure.update_xaxes(
        **axis_layout(f"time since the step began ({unit})", range=[0, 1.01 * longest_s / scale])
    )
    figure.update_yaxes(
        **axis_layout(showgrid=False, showticklabels=False, range=[-0.5, len(rows) - 0.3])
    )
    return figure


def _row(
    figure: go.Figure, place: int, title: str, choice: Choice, scale: float, *, last: bool
) -> None:
    step = choice.step_time_s / scale
    figure.add_bar(
        y=[place],
        x=[step],
        base=[0],
        orientation="h",
        width=0.36,
        name="step",
        marker={"color": WORK["idle"]},
        hoverinfo="text",
        showlegend=last,
        hovertext=[f"step {quantities.duration(choice.step_time_s)}"],
    )
    _add_buckets(figure, place, choice, scale, last=last)
    step_text = escape(f"{title}: {fine(choice.step_time_s)}", quote=False)
    title_row(figure, place + 0.2, step_text)
    for bucket in choice.buckets:
        length_s = bucket.end_s - bucket.start_s
        if length_s >= _ROOM * choice.step_time_s * 1.6:
            figure.add_annotation(
                x=(bucket.start_s + length_s / 2) / scale,
                y=place,
                showarrow=False,
                text=quantities.size(bucket.nbytes),
                font={"size": 12, "color": "#1b2430"},
            )


def _add_buckets(
    figure: go.Figure, place: int, choice: Choice, scale: float, *, last: bool
) -> None:
    """Draw when each bucket was ready, and when it was reduced."""
    spans = [(b.start_s / scale, (b.end_s - b.start_s) / scale) for b in choice.buckets]
    figure.add_bar(
        y=[place] * len(spans),
        x=[length for _, length in spans],
        base=[start for start, _ in spans],
        orientation="h",
        width=0.36,
        name="all-reduce of a bucket",
        showlegend=last,
        marker={"color": WORK["communication"], "line": {"color": "white", "width": 1}},
        hoverinfo="text",
        hovertext=[
            f"<b>bucket {at}</b>, {quantities.size(b.nbytes)}<br>"
            f"ready {quantities.duration(b.ready_s)}<br>"
            f"reduced in {quantities.duration(b.end_s - b.start_s)}"
            for at, b in enumerate(choice.buckets)
        ],
    )
    figure.add_scatter(
        x=[bucket.ready_s / scale for bucket in choice.buckets],
        y=[place - 0.27] * len(choice.buckets),
        mode="markers",
        name="bucket ready",
        showlegend=last,
        marker={"color": WORK["backward"], "size": 7, "symbol": "triangle-up"},
        hoverinfo="skip",
    )
