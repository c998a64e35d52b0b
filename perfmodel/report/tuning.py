"""Tuned buckets as one self-contained HTML page, with the data behind it.

Figures of tuned buckets: what each cap costs, and when the buckets travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from perfmodel.report import tuning_text
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTION,
    Bullets,
    Code,
    Figure,
    Paragraph,
    Section,
    Tile,
    Tiles,
    grounds,
    header,
    section,
    spelled,
    tabulate,
)
from perfmodel.report.common.figures import (
    Drawing,
    add_note,
    axis_layout,
    bars,
    lines,
    log_axis,
    log_ticks,
    new_figure,
    time_unit,
    title_row,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import INK, QUIET_INK, WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.common.words import words_section
from perfmodel.report.tuning_text import (
    caps,
    compromise_json,
    curve_csv,
    fine,
    shared_snippet,
    tuned_json,
    wide_spans,
)
from perfmodel.studies.tune.caps import number
from perfmodel.studies.tune.model import Choice, CurvePoint, MinimaxCap, TuneResult


def write_compromise(compromise: MinimaxCap, folder: Path) -> Path:
    """Write ``tune.html`` with all scenarios, ``tune.json``, and a curve for each scenario.

    Returns and raises as `write_report_files`.
    """
    document = compromise_json(compromise)
    return write_report_files(
        folder,
        {
            "tune.html": compromise_html(compromise),
            "tune.json": document,
            SPREADSHEET: spreadsheet(document),
            **{f"curve-{at}.csv": curve_csv(tuned) for at, tuned in enumerate(compromise.each)},
        },
    )


def tuned_html(tuned: TuneResult) -> str:
    """Build the page of one scenario as one string."""
    gpus, (answer, limit) = quantities.gpus(tuned.gpus), tuning_text.answer(tuned)
    setting = f"{tuned.workload} with DistributedDataParallel on {gpus} of {tuned.machine}"
    return render_html(
        f"Buckets of {setting}",
        [
            header(setting, answer, [PREDICTION], [tuned.scenario.question], [limit]),
            _tiles(tuned),
            section(
                "What to use",
                "",
                Bullets(tuning_text.advice(tuned)),
                tuning_text.settings_table(tuned),
                Paragraph(tuning_text.first_step(tuned), "hint"),
            ),
            words_section(tuning_text.recommended_words(tuned)),
            _curve(tuned),
            section(
                "When the buckets travel",
                "One settled step: when each bucket is complete, and when it is reduced.",
                Figure(draw_buckets(tuned), "buckets", "All-reduces of each setting in one step"),
            ),
            _horovod(tuned),
            grounds(tuned.assumptions, spelled(tuned.provenance)),
        ],
    )


def compromise_html(compromise: MinimaxCap) -> str:
    """Build the page of several scenarios as one string."""
    titles = [f"{each.scenario.name}, {quantities.gpus(each.gpus)}" for each in compromise.each]
    return render_html(
        "One bucket cap for several scenarios",
        [
            header(
                f"{len(compromise.each)} scenarios",
                tuning_text.shared_headline(compromise),
                [PREDICTION],
            ),
            section(
                "One cap for all",
                "Regrets: how much longer a step is than with the best cap of that scenario alone.",
                tuning_text.scenarios_table(compromise),
                Code(shared_snippet(compromise)),
            ),
            *(
                section(
                    title,
                    tuning_text.headline(tuned),
                    Figure(draw_curve(tuned), f"curve-{at}", f"Step time against the cap: {title}"),
                )
                for at, (title, tuned) in enumerate(zip(titles, compromise.each, strict=True))
            ),
        ],
    )


def _tiles(tuned: TuneResult) -> Tiles:
    def gain(step_s: float) -> str:
        change = tuning_text.change(step_s / tuned.default.step_time_s - 1.0)
        return "as with the default" if change == "same" else f"{change} against the default"

    best_s, uniform, bound_s = tuned.best_list.step_time_s, tuned.best_uniform, tuned.lower_bound_s
    tiles = [
        Tile("Best list", tuning_text.fine(best_s), gain(best_s)),
        Tile(
            f"Best cap: {number(uniform.bucket_cap_mb or 0.0)} MiB",
            tuning_text.fine(uniform.step_time_s),
            gain(uniform.step_time_s),
        ),
        Tile(
            "PyTorch's default",
            tuning_text.fine(tuned.default.step_time_s),
            "1 MiB first, then 25 MiB",
        ),
    ]
    bound = (
        []
        if bound_s is None
        else [
            Tile(
                "Lower bound",
                tuning_text.fine(bound_s),
                f"the list is {quantities.percent(best_s / bound_s - 1.0)} above it",
            )
        ]
    )
    return Tiles([*tiles, *bound])


def _curve(tuned: TuneResult) -> Section:
    within = quantities.percent(tuned.plateau.within)
    lead = (
        f"Each of the {len(tuned.curve)} steps of the line is one partition into buckets. Shaded: "
        f"caps within {within} of the best one on the likely machine."
    )
    if tuned.robust is not None:
        lead += (
            f" Green bar: caps that stay within {within} of the safest one, "
            f"{number(tuned.robust.bucket_cap_mb)} MiB, however quick or slow communication is "
            f"within its {quantities.INTERVAL}."
        )
    return section(
        "What each cap costs",
        lead,
        Figure(draw_curve(tuned), "curve", "Step time against the bucket cap"),
        Figure(draw_exposed(tuned), "exposed", "Exposed communication against the bucket cap"),
    )


def _horovod(tuned: TuneResult) -> Section | None:
    if tuned.horovod is None:
        return None
    return section(
        "Horovod",
        tuning_text.horovod_line(tuned.horovod),
        tabulate(
            tuned.horovod.curve,
            (
                (
                    ">fusion threshold",
                    lambda fusion: (
                        f"{number(fusion.threshold_mb)} MiB" if fusion.threshold_mb else "off"
                    ),
                ),
                (">step", lambda fusion: quantities.duration(fusion.step_time_s)),
                (">exposed", lambda fusion: quantities.duration(fusion.exposed_comm_s)),
                (">all-reduces", lambda fusion: f"{fusion.all_reduces}"),
            ),
        ),
        Bullets(tuned.horovod.assumptions),
    )


LEAST_MB = 0.05
"""Caps below are not drawn: hardly a bucket holds more than one gradient there."""
_ROW_PIXELS = 62
_LABELLED_BAR_SHARE = 0.112
"""Share of a step that a bucket's bar must have for its size to be written on it."""


def draw_curve(tuned: TuneResult) -> Drawing:
    """Draw step time against the cap, with what to compare it with."""
    points, best, bound_s = _drawn(tuned), tuned.best_uniform, tuned.lower_bound_s
    list_s, default_s = tuned.best_list.step_time_s, tuned.default.step_time_s
    unit, scale = time_unit(max(point.step_time_s for point in points))
    levels = [("best list", list_s, {"color": WORK["optimizer"]})]
    if bound_s is not None:
        levels.append(("no buckets are below", bound_s, {"color": QUIET_INK, "dash": "dash"}))
    dots = (
        (25.0, tuned.default, "PyTorch's default", "diamond", WORK["exposed communication"]),
        (best.bucket_cap_mb or 0.0, best, "best cap for all", "circle", WORK["backward"]),
    )
    # small caps may cost so much more that the rest would look flat
    usual = [p for p in points if p.high_mb > 1.0] or points
    top = max(*(p.step_time_s for p in usual), default_s) / scale
    bottom = min(list_s if bound_s is None else bound_s, best.step_time_s) / scale
    pad = 0.06 * (top - bottom) or 0.01 * top
    figure = new_figure(
        380,
        [
            _steps(points, [p.step_time_s / scale for p in points], "one cap for all", INK),
            *(
                lines(name, list(_ends(points)), [value_s / scale] * 2, {"width": 2} | line)
                | {"hoverinfo": "name"}
                for name, value_s, line in levels
            ),
            *(
                {
                    "type": "scatter",
                    "x": [cap],
                    "y": [choice.step_time_s / scale],
                    "mode": "markers",
                    "name": name,
                    "hoverinfo": "name",
                    "marker": {
                        "color": colour,
                        "size": 12,
                        "symbol": symbol,
                        "line": {"color": "white", "width": 1},
                    },
                }
                for cap, choice, name, symbol, colour in dots
            ),
        ],
        x=_caps_axis(points),
        y=axis_layout(f"step time ({unit})", range=[bottom - pad, top + pad]),
    )
    _shade(figure, tuned)
    return figure


def draw_exposed(tuned: TuneResult) -> Drawing:
    """Draw exposed communication against the cap."""
    points = _drawn(tuned)
    unit, scale = time_unit(max(point.exposed_comm_s for point in points))
    part = "exposed communication"
    figure = new_figure(
        220,
        [_steps(points, [each.exposed_comm_s / scale for each in points], part, WORK[part])],
        x=_caps_axis(points),
        y=axis_layout(f"exposed ({unit})", rangemode="tozero"),
    )
    _shade(figure, tuned)
    return figure


def _drawn(tuned: TuneResult) -> list[CurvePoint]:
    return [p for p in tuned.curve if p.high_mb > LEAST_MB] or list(tuned.curve)


def _ends(points: list[CurvePoint]) -> tuple[float, float]:
    low = max(points[0].low_mb, LEAST_MB)
    return low, max(2 * low, 1.35 * points[-1].low_mb, 30.0)


def _steps(points: list[CurvePoint], values: list[float], name: str, colour: str) -> dict[str, Any]:
    low, high = _ends(points)
    return lines(
        name,
        [max(point.low_mb, low) for point in points] + [high],
        [*values, values[-1]],
        {"color": colour, "width": 1.6, "shape": "hv"},
        hovertext=[
            f"{escape(number(p.bucket_cap_mb))} MiB, {p.buckets} buckets<br>"
            f"{fine(p.step_time_s)}, exposed {quantities.duration(p.exposed_comm_s)}"
            for p in (*points, points[-1])
        ],
        hoverinfo=None,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _shade(figure: Drawing, tuned: TuneResult) -> None:
    """Shade caps that are as good as the best; mark those that are whatever is uncertain."""
    low, high = _ends(_drawn(tuned))
    foot = {"type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 0.03}
    for spans, draw, look in (
        (tuned.plateau.spans_mb, figure.add_vrect, {"opacity": 0.16}),
        (tuned.robust.spans_mb if tuned.robust else (), figure.add_shape, {"opacity": 0.9, **foot}),
    ):
        for begin, end in wide_spans(spans):
            if end > low:
                draw(
                    x0=max(begin, low),
                    x1=min(end, high),
                    fillcolor=WORK["optimizer"],
                    line_width=0,
                    **look,
                )


def _caps_axis(points: list[CurvePoint]) -> dict[str, Any]:
    ends = _ends(points)
    return log_axis("bucket_cap_mb (MiB)", ends, log_ticks(*ends), lambda tick: f"{tick:g}")


# ---------------------------------------------------------------- buckets in time


def draw_buckets(tuned: TuneResult) -> Drawing:
    """Draw when the buckets of each setting are reduced, in one step."""
    rows = [
        (f"best list: {caps(tuned.best_list)}", tuned.best_list),
        (f"best cap for all: {caps(tuned.best_uniform)} MiB", tuned.best_uniform),
        ("PyTorch's default", tuned.default),
    ]
    longest_s = max(choice.step_time_s for _, choice in rows)
    unit, scale = time_unit(longest_s)
    figure = new_figure(
        90 + _ROW_PIXELS * len(rows),
        [
            trace | {"showlegend": place == len(rows) - 1}
            for place, (_, choice) in enumerate(rows)
            for trace in _bucket_bars(place, choice, scale)
        ],
        x=axis_layout(f"time since the step began ({unit})", range=[0, 1.01 * longest_s / scale]),
        y=axis_layout(showgrid=False, showticklabels=False, range=[-0.5, len(rows) - 0.3]),
        barmode="overlay",
        bargap=0.3,
    )
    for place, (title, choice) in enumerate(rows):
        title_row(figure, place + 0.2, escape(f"{title}: {fine(choice.step_time_s)}", quote=False))
        for bucket in choice.buckets:
            length_s = bucket.end_s - bucket.start_s
            if length_s >= _LABELLED_BAR_SHARE * choice.step_time_s:
                add_note(
                    figure,
                    quantities.size(bucket.nbytes),
                    x=(bucket.start_s + length_s / 2) / scale,
                    y=place,
                    font={"size": 12, "color": INK},
                )
    return figure


def _bucket_bars(place: int, choice: Choice, scale: float) -> Iterator[dict[str, Any]]:
    """Describe a step, and when each of its buckets was ready and was reduced."""
    flat, each, step_s = {"orientation": "h", "width": 0.36}, choice.buckets, choice.step_time_s
    said = [f"step {quantities.duration(step_s)}"]
    yield bars("step", [step_s / scale], [place], WORK["idle"], said, base=[0], **flat)
    yield bars(
        "all-reduce of a bucket",
        [(bucket.end_s - bucket.start_s) / scale for bucket in each],
        [place] * len(each),
        WORK["communication"],
        [
            f"<b>bucket {at}</b>, {quantities.size(b.nbytes)}<br>"
            f"ready {quantities.duration(b.ready_s)}<br>"
            f"reduced in {quantities.duration(b.end_s - b.start_s)}"
            for at, b in enumerate(each)
        ],
        base=[bucket.start_s / scale for bucket in each],
        marker={"color": WORK["communication"], "line": {"color": "white", "width": 1}},
        **flat,
    )
    yield {
        "type": "scatter",
        "x": [bucket.ready_s / scale for bucket in each],
        "y": [place - 0.27] * len(each),
        "mode": "markers",
        "name": "bucket ready",
        "marker": {"color": WORK["backward"], "size": 7, "symbol": "triangle-up"},
        "hoverinfo": "skip",
    }


FILES = {
    "tune.html": tuned_html,
    "tune.json": tuned_json,
    "curve.csv": curve_csv,
    SPREADSHEET: lambda answer: spreadsheet(tuned_json(answer)),
}
"""Files of one tuning, and what makes them; JSON is what ``--json`` prints."""
