"""The gain of each change as a bar with its interval."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfmodel.report.advice.text import costs, gain_interval, gain_text
from perfmodel.report.common.figures import axis_layout, new_figure, short_label
from perfmodel.report.common.palette import INK, WORK
from perfmodel.studies.advise.model import Advice, Touches, Trial

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_BARS = 14
_ROW_PIXELS = 34

_COLOURS: dict[Touches, tuple[str, str]] = {
    "nothing": (WORK["backward"], "training as it is"),
    "rounding": (WORK["forward"], "as it is but for rounding"),
    "training": (WORK["communication"], "training changes"),
    "hardware": (WORK["host"], "other hardware"),
}


def draw_gains(advice: Advice) -> go.Figure:
    """Draw the gain of changes alone and together, the largest on top, with 80 % intervals."""
    listed = sorted(
        [*advice.trials, *(t for t in advice.together if len(t.changes) > 1)],
        key=lambda trial: -trial.ratio,
    )[:MOST_BARS]
    figure = new_figure(90 + _ROW_PIXELS * max(1, len(listed)), bargap=0.35)
    for touches, (colour, name) in _COLOURS.items():
        places = [at for at, trial in enumerate(listed) if trial.touches == touches]
        if not places:
            continue
        chosen = [listed[at] for at in places]
        gains = [100 * (trial.ratio - 1.0) for trial in chosen]
        ends = [_ends(trial) for trial in chosen]
        figure.add_bar(
            x=gains,
            y=places,
            orientation="h",
            name=name,
            marker={"color": colour},
            error_x={
                "type": "data",
                "symmetric": False,
                "color": INK,
                "thickness": 1.2,
                "width": 4,
                "array": [high - gain for (_, high), gain in zip(ends, gains, strict=True)],
                "arrayminus": [gain - low for (low, _), gain in zip(ends, gains, strict=True)],
            },
            hoverinfo="text",
            hovertext=[_hover(trial) for trial in chosen],
        )
    labels = [_label(trial) for trial in listed]
    figure.update_xaxes(**axis_layout(f"{advice.samples.units}/s, change in %"))
    figure.update_yaxes(
        **axis_layout(
            autorange="reversed", tickvals=list(range(len(labels))), ticktext=labels, showgrid=False
        )
    )
    return figure


def _label(trial: Trial) -> str:
    """Name one change, or what several together touch, which tells proposals apart."""
    if len(trial.changes) == 1:
        return short_label(trial.text)
    return f"<b>{short_label(f'{len(trial.changes)} together: {_COLOURS[trial.touches][1]}')}</b>"


def _ends(trial: Trial) -> tuple[float, float]:
    low, high = (trial.gain.interval if trial.gain else None) or (trial.ratio, trial.ratio)
    return 100 * (low - 1.0), 100 * (high - 1.0)


def _hover(trial: Trial) -> str:
    text = f"{gain_text(trial.ratio)} (80 % interval {gain_interval(trial)})"
    return (
        f"<b>{escape(trial.text, quote=False)}</b><br>{text}<br>{escape(costs(trial), quote=False)}"
    )
