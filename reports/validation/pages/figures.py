"""Figures of a validation; readable on white and on black."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import axis_layout, log_axis, log_ticks, new_figure
from perfmodel.report.validation import MODE_NAMES, percent
from perfmodel.validate.forecast import Mode, SweepPrediction
from perfmodel.validate.scores import (
    LARGE,
    MODES,
    DataPoint,
    Score,
    even_weights,
    in_band,
    weighted_quantile,
)
from reports.validation.score.coverage import judged_mode

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from reports.validation.trainings.model import Case


MEASURED = "#7d8794"
COLOURS: Mapping[str, str] = {
    "left out": "#d55e00",
    "datasheet": "#1f8fd6",
    "transferred": "#009e73",
    "calibrated": "#56b4e9",
    "nccl tuner": "#cc79a7",
    "alpha-beta": "#e69f00",
}
"""Okabe and Ito's set, the blue a little lighter so that it is seen on black."""

_DASHES = {"nccl tuner": "dash", "alpha-beta": "dot"}
_WIDTHS = {"left out": 2.6, "datasheet": 2.6, "transferred": 2.6}
_LEAST = 0.003
"""Smallest error that is drawn on a logarithmic axis."""


def _line(mode: str) -> dict[str, object]:
    return {"color": COLOURS[mode], "width": _WIDTHS.get(mode, 1.8), "dash": _DASHES.get(mode)}


def _round_time(time_s: float) -> str:
    return quantities.whole(quantities.duration(time_s))


def _sizes_axis(smallest: int, largest: int, most: int = 6, **more: Any) -> dict[str, object]:
    """Logarithmic axis of sizes, labelled at powers of two."""
    low, high = math.floor(math.log2(smallest)), math.ceil(math.log2(max(largest, 2 * smallest)))
    step = max(1, -(-(high - low) // (most - 1)))
    ticks = [2**e for e in range(low, high + 1, step)]
    labels = [quantities.whole(quantities.size(tick)) for tick in ticks]
    span = [math.log10(2**low) - 0.1, math.log10(2**high) + 0.1]
    return axis_layout(type="log", tickvals=ticks, ticktext=labels, range=span, **more)


def draw_distribution(points: Sequence[DataPoint]) -> go.Figure:
    """Draw the share of points below an error, from 256 KiB on; a line per mode."""
    figure = new_figure(360)
    for mode in MODES:
        own = in_band([p for p in points if p.mode == mode and p.counted], LARGE)
        if not own:
            continue
        errors = np.maximum(np.abs([p.error for p in own]), _LEAST)
        weights = even_weights(own)
        shares = np.linspace(0.01, 0.99, 99)
        at = [weighted_quantile(errors, weights, share) for share in shares]
        figure.add_scatter(
            x=at,
            y=100 * shares,
            mode="lines",
            name=MODE_NAMES[mode],
            line=_line(mode),
            hovertext=[
                f"{MODE_NAMES[mode]}: {s:.0%} of sizes within {percent(e)}"
                for s, e in zip(shares, at, strict=True)
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(**_error_axis("absolute error", 0.005, 4))
    figure.update_yaxes(**axis_layout("share of sizes", range=[0, 100], ticksuffix=" %"))
    return figure


def draw_over_size(points: Sequence[DataPoint]) -> go.Figure:
    """Draw predicted over measured by size: medians, and where 80 % of the honest mode lie."""
    figure = new_figure(380)
    counted = [p for p in points if p.counted]
    honest = judged_mode(counted)
    for mode in MODES:
        bins: dict[int, list[DataPoint]] = {}
        for p in counted:
            if p.mode == mode:
                bins.setdefault(round(math.log2(p.nbytes) / 2) * 2, []).append(p)
        at = sorted(e for e, own in bins.items() if len({p.sweep for p in own}) >= 3)
        if not at:
            continue
        x = [2.0**e for e in at]
        quantiles = {share: [_ratio_at(bins[e], share) for e in at] for share in (0.1, 0.5, 0.9)}
        if mode == honest:
            figure.add_scatter(
                x=x + x[::-1],
                y=quantiles[0.9] + quantiles[0.1][::-1],
                mode="lines",
                fill="toself",
                fillcolor="rgba(31,143,214,0.16)",
                line={"width": 0},
                name=f"{MODE_NAMES[mode]}, 80 % of tables",
                hoverinfo="skip",
                marker={"color": "rgba(31,143,214,0.35)"},
            )
        figure.add_scatter(
            x=x,
            y=quantiles[0.5],
            mode="lines",
            name=f"{MODE_NAMES[mode]}, median",
            line=_line(mode),
            hoverinfo="text",
            hovertext=[
                f"{MODE_NAMES[mode]}, {quantities.size(s)}: median x {q:.2f}"
                for s, q in zip(x, quantiles[0.5], strict=True)
            ],
        )
    if counted:
        sizes = [p.nbytes for p in counted]
        figure.update_xaxes(**_sizes_axis(min(sizes), max(sizes), 5))
    figure.update_yaxes(**_ratio_axis("predicted / measured", 0.125, 8))
    figure.add_hline(y=1, line={"color": MEASURED, "width": 1})
    return figure


def _ratio_at(points: Sequence[DataPoint], share: float) -> float:
    ratios = np.array([p.predicted_s / p.measured_s for p in points])
    return weighted_quantile(ratios, even_weights(points), share)


def _ratio_axis(title: str, low: float, high: float, **more: Any) -> dict[str, object]:
    """Logarithmic axis of predicted over measured."""
    ticks = [t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8) if low <= t <= high]
    return log_axis(title, (low, high), ticks, lambda tick: f"{tick:g}", **more)


def _error_axis(title: str, low: float, high: float) -> dict[str, object]:
    """Logarithmic axis of errors."""
    ticks = [0.01, 0.03, 0.1, 0.3, 1, 3]
    return log_axis(title, (low, high), ticks, lambda tick: f"{100 * tick:g} %")


def draw_machines(scored: Mapping[str, Mapping[Mode, Mapping[str, Score]]]) -> go.Figure:
    """Draw the median error from 256 KiB on, a row per kind of machine and a mark per mode."""
    names = [n for n, modes in scored.items() if any(LARGE in own for own in modes.values())]
    names.sort(key=lambda n: _large(scored[n], "datasheet"), reverse=True)
    figure = new_figure(60 + 38 * max(len(names), 2))
    for mode in reversed(MODES):
        rows = [(n, scored[n][mode][LARGE]) for n in names if LARGE in scored[n].get(mode, {})]
        if not rows:
            continue
        figure.add_scatter(
            x=[max(score.median_abs_error, _LEAST) for _, score in rows],
            y=[name for name, _ in rows],
            mode="markers",
            name=MODE_NAMES[mode],
            marker={
                "color": COLOURS[mode],
                "size": 11 if mode in _WIDTHS else 8,
                "symbol": "circle" if mode in _WIDTHS else "diamond",
            },
            hovertext=[
                f"{name}<br>{MODE_NAMES[mode]}: median {percent(score.median_abs_error)}, "
                f"90th percentile {percent(score.p90_abs_error)}, {score.sweeps} sweeps"
                for name, score in rows
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(**_error_axis("median absolute error", 0.0025, 6))
    figure.update_yaxes(
        **axis_layout(
            categoryorder="array",
            categoryarray=names,
            showticklabels=False,
            range=[-0.6, len(names) - 0.3],
        )
    )
    _labels(figure, names, names)
    return figure


def _labels(figure: go.Figure, names: Sequence[str], rows: Sequence[Any]) -> None:
    """Write names above their rows: beside them they would take half of a narrow screen."""
    for name, row in zip(names, rows, strict=True):
        figure.add_annotation(
            text=name,
            x=0,
            xref="paper",
            xanchor="left",
            y=row,
            yanchor="bottom",
            yshift=5,
            showarrow=False,
            font={"size": 12},
        )


def _large(modes: Mapping[Mode, Mapping[str, Score]], mode: Mode) -> float:
    score = modes.get(mode, {}).get(LARGE)
    return 0.0 if score is None else score.median_abs_error


def draw_sweep(
    prediction: SweepPrediction, intervals: Sequence[tuple[float, float] | None]
) -> go.Figure:
    """Draw one sweep: times over size above, predicted over measured below."""
    figure = new_figure(300)
    sizes = [row.nbytes for row in prediction.sweep.rows]
    measured = [row.time_s for row in prediction.sweep.rows]
    figure.add_scatter(
        x=sizes,
        y=measured,
        mode="markers",
        name="measured",
        hoverinfo="text",
        marker={"color": MEASURED, "size": 5},
        hovertext=[
            f"{quantities.size(s)}: measured {quantities.duration(t)}"
            for s, t in zip(sizes, measured, strict=True)
        ],
    )
    _band(figure, sizes, measured, intervals)
    for mode in reversed(MODES):
        if mode in prediction.forecast.times:
            _mode_lines(figure, mode, sizes, measured, prediction.forecast.times[mode].time_s)
    low, high = _time_range(prediction)
    ticks = log_ticks(low, high, 4)
    figure.update_layout(
        yaxis=axis_layout(
            type="log",
            domain=[0.46, 1],
            range=[math.log10(low), math.log10(high)],
            tickvals=ticks,
            ticktext=[_round_time(t) for t in ticks],
        ),
        xaxis=_sizes_axis(min(sizes), max(sizes), 4, showticklabels=False, anchor="y"),
        xaxis2=_sizes_axis(min(sizes), max(sizes), 4, anchor="y2", matches="x"),
        yaxis2=_ratio_axis("", 0.25, 4, domain=[0, 0.38], anchor="x2"),
    )
    figure.add_shape(
        type="line",
        xref="x2 domain",
        yref="y2",
        x0=0,
        x1=1,
        y0=1,
        y1=1,
        line={"color": MEASURED, "width": 1},
    )
    return figure


def _time_range(prediction: SweepPrediction) -> tuple[float, float]:
    times = [row.time_s for row in prediction.sweep.rows] + list(
        prediction.forecast.times["datasheet"].time_s
    )
    return min(times) / 1.6, max(times) * 1.6


def _band(
    figure: go.Figure,
    sizes: Sequence[int],
    measured: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
) -> None:
    """Draw the 80 % interval of the datasheet prediction as a band of ratios."""
    intervals_known = [(s, m, i) for s, m, i in zip(sizes, measured, intervals, strict=True) if i]
    if not intervals_known:
        return
    x = [s for s, _, _ in intervals_known]
    low, high = [i[0] / m for _, m, i in intervals_known], [i[1] / m for _, m, i in intervals_known]
    figure.add_scatter(
        x=x + x[::-1],
        y=high + low[::-1],
        mode="lines",
        fill="toself",
        xaxis="x2",
        yaxis="y2",
        fillcolor="rgba(31,143,214,0.16)",
        line={"width": 0},
        hoverinfo="skip",
        name="80 % interval, datasheet",
        marker={"color": "rgba(31,143,214,0.35)"},
    )


def _mode_lines(
    figure: go.Figure,
    mode: Mode,
    sizes: Sequence[int],
    measured: Sequence[float],
    times: Sequence[float],
) -> None:
    lone = len(sizes) == 1
    drawn = "markers" if lone else "lines"
    text = [
        f"{quantities.size(s)}: {MODE_NAMES[mode]} {quantities.duration(t)} "
        f"({percent(t / m - 1)} off)"
        for s, t, m in zip(sizes, times, measured, strict=True)
    ]
    for y, more in (
        (list(times), {}),
        (
            [t / m for t, m in zip(times, measured, strict=True)],
            {"xaxis": "x2", "yaxis": "y2", "showlegend": False},
        ),
    ):
        figure.add_scatter(
            x=list(sizes),
            y=y,
            mode=drawn,
            name=MODE_NAMES[mode],
            line=_line(mode),
            marker={"color": COLOURS[mode], "size": 8},
            hovertext=text,
            hoverinfo="text",
            **more,
        )


def draw_trainings(rows: Mapping[str, Sequence[Case]]) -> go.Figure:
    """Draw predicted over published, a row of marks per title; the first at the top."""
    titles = [title for title, cases in reversed([*rows.items()]) if cases]
    figure = new_figure(90 + 64 * max(1, len(titles)))
    for number, title in enumerate(titles):
        ordered = sorted(rows[title], key=lambda case: case.error)
        heights = [number + 0.5 * (i % 7 - 3) / 7 for i in range(len(ordered))]
        figure.add_scatter(
            x=[1 + case.error for case in ordered],
            y=heights,
            mode="markers",
            name=title,
            showlegend=False,
            hoverinfo="text",
            marker={"color": COLOURS["datasheet"], "size": 6, "opacity": 0.7},
            hovertext=[
                f"{case.name}<br>published {quantities.count(case.published)} {case.unit}, "
                f"predicted {quantities.count(case.predicted)}"
                for case in ordered
            ],
        )
    ticks = [0.25, 0.5, 0.8, 1, 1.25, 2, 4]
    axis = log_axis("predicted / published", (0.25, 4), ticks, lambda tick: f"{tick:g}")
    figure.update_xaxes(**axis)
    figure.update_yaxes(
        **axis_layout(showticklabels=False, showgrid=False, range=[-0.5, len(titles) - 0.25])
    )
    for number, title in enumerate(titles):
        figure.add_annotation(
            text=title,
            x=0,
            xref="paper",
            xanchor="left",
            y=number + 0.24,
            yanchor="bottom",
            showarrow=False,
            font={"size": 12},
        )
    figure.add_vline(x=1, line={"color": MEASURED, "width": 1})
    return figure
