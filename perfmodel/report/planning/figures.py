"""Pictures of a plan: time against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import (
    axis_layout,
    error_bars,
    label_rows,
    log_axis,
    log_ticks,
    new_figure,
)
from perfmodel.report.common.palette import CYCLE, INK, QUIET_INK
from perfmodel.report.planning.text import DAY_S, HOUR_S, amount_only, given_span, money, span
from perfmodel.studies.plan.model import PlanOption, PlanResult

if TYPE_CHECKING:
    import plotly.graph_objects as go


SYMBOLS = ("circle", "square", "diamond", "triangle-up", "hexagon")
"""One per candidate beside its colour."""

BAR = 0.65
"""Share of its row that a bar takes; where both ends lie on one side, one is half as thick."""

LABELLED = 24
"""Points that still get their number of nodes beside them."""


def draw_time_against_cost(plan: PlanResult) -> go.Figure:
    """Draw every option with its intervals; the front, deadline and budget as lines."""
    priced = [option for option in plan.usable if option.cost is not None]
    unit, unit_s = _unit(priced)
    figure = new_figure(460)
    front = plan.answers.pareto
    if len(front) > 1:
        figure.add_scatter(
            x=[option.wall_s / unit_s for option in front],
            y=[option.cost for option in front],
            mode="lines",
            name="front: quickest for its cost",
            hoverinfo="skip",
            line={"color": QUIET_INK, "width": 1.5, "dash": "dot", "shape": "hv"},
        )
    for at, name in enumerate(dict.fromkeys(option.candidate for option in plan.options)):
        own = [option for option in priced if option.candidate == name]
        if own:
            figure.add_scatter(**_trace(plan, own, at, unit_s, labelled=len(priced) <= LABELLED))
    logs = all(option.cost for option in priced)  # nothing has no logarithm
    _limits(figure, plan, unit_s, logs=logs)
    low, high = _ends([_time_ends(option) for option in priced], plan.deadline_s)
    figure.update_xaxes(**_log_axis(f"time to train ({unit})", low / unit_s, high / unit_s))
    low, high = _ends([_cost_ends(option) for option in priced], plan.budget)
    title = f"cost ({plan.currency})"
    figure.update_yaxes(
        **(_log_axis(title, low, high) if logs else axis_layout(title, rangemode="tozero"))
    )
    return figure


def _unit(options: Sequence[PlanOption]) -> tuple[str, float]:
    longest_s = max(option.wall_s for option in options)
    return ("days", DAY_S) if longest_s >= 2 * DAY_S else ("hours", HOUR_S)


def _trace(
    plan: PlanResult, own: Sequence[PlanOption], at: int, unit_s: float, *, labelled: bool
) -> dict[str, Any]:
    """One candidate: its sizes joined by a thin line, each with its intervals."""
    colour = CYCLE[at % len(CYCLE)]
    x = [option.wall_s / unit_s for option in own]
    y = [option.cost or 0.0 for option in own]
    bars = {"color": colour, "thickness": 1, "width": 3}
    return {
        "x": x,
        "y": y,
        "mode": "lines+markers+text" if labelled else "lines+markers",
        "name": own[0].candidate,
        "line": {"color": colour, "width": 1},
        "marker": {"color": colour, "size": 10, "symbol": SYMBOLS[at % len(SYMBOLS)]},
        "text": [f"{option.nodes:,}" for option in own],
        "textposition": "top right",
        "textfont": {"size": 12, "color": QUIET_INK},
        "error_x": error_bars(x, [_time_ends(option, unit_s) for option in own]) | bars,
        "error_y": error_bars(y, [_cost_ends(option) for option in own]) | bars,
        "hovertext": [_hover(plan, option) for option in own],
        "hoverinfo": "text",
    }


def _time_ends(option: PlanOption, unit_s: float = 1.0) -> tuple[float, float]:
    ends = None if option.training is None else option.training.wall_interval_s
    low, high = ends or (option.wall_s, option.wall_s)
    return low / unit_s, high / unit_s


def _cost_ends(option: PlanOption) -> tuple[float, float]:
    cost = option.cost or 0.0
    ends = None if option.bill is None else option.bill.interval
    return ends or (cost, cost)


def _hover(plan: PlanResult, option: PlanOption) -> str:
    assert option.training is not None
    assert option.step is not None
    return (
        f"<b>{escape(option.candidate)}</b>, {quantities.nodes(option.nodes)}"
        f"<br>{quantities.gpus(option.gpus or 0)}, {span(option.wall_s)}"
        f"<br>{escape(money(option.cost or 0.0, plan.currency))}"
        f"<br>step {quantities.duration(option.step.step_time_s)}"
        f"<br>goodput {quantities.percent(option.training.goodput)}"
    )


def _limits(figure: go.Figure, plan: PlanResult, unit_s: float, *, logs: bool) -> None:
    """Draw deadline and budget; `logs` says that the cost axis is logarithmic."""
    line = {"color": INK, "width": 1, "dash": "dash"}
    font = {"size": 12, "color": QUIET_INK}
    if plan.deadline_s is not None:
        at = plan.deadline_s / unit_s
        figure.add_vline(x=at, line=line)
        figure.add_annotation(
            x=math.log10(at),
            y=1,
            yref="paper",
            yanchor="bottom",
            xanchor="right",
            font=font,
            showarrow=False,
            text=f"deadline {given_span(plan.deadline_s)}",
        )
    if plan.budget is not None:
        figure.add_hline(y=plan.budget, line=line)
        figure.add_annotation(
            x=1,
            xref="paper",
            y=math.log10(plan.budget) if logs else plan.budget,
            yanchor="bottom",
            xanchor="right",
            font=font,
            showarrow=False,
            text=f"budget {amount_only(plan.budget)}",
        )
    figure.update_layout(margin={"t": 28})


def _ends(ranges: Sequence[tuple[float, float]], limit: float | None) -> tuple[float, float]:
    """Room for all intervals and for a limit, with a margin."""
    numbers = [end for ends in ranges for end in ends if end > 0]
    numbers += [] if limit is None else [limit]
    low, high = min(numbers, default=1.0), max(numbers, default=1.0)
    room = (high / low) ** 0.06 * 1.08
    return low / room, high * room


def _log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    ticks = log_ticks(low, high)
    if len(ticks) < 4 and high < 10 * low:
        ticks = _between(low, high)
    return log_axis(
        title, (low, high), ticks, lambda tick: f"{tick:,.4g}" if tick < 1e4 else f"{tick:,.0f}"
    )


def _between(low: float, high: float) -> list[float]:
    """Round values inside less than a decade."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(more for more in (1, 2, 5, 10) if (high - low) / (more * step) <= 6)
    first = math.ceil(low / step)
    return [step * count for count in range(first, math.floor(high / step) + 1)]


# ---------------------------------------------------------------- throughput, sensitivity


def draw_throughput(plan: PlanResult) -> go.Figure:
    """Draw samples per second by the number of GPUs, each candidate with its 80 % band."""
    figure = new_figure(400)
    gpus = sorted({option.gpus or 1 for option in plan.usable})
    for at, name in enumerate(dict.fromkeys(option.candidate for option in plan.usable)):
        own = sorted(
            (option for option in plan.usable if option.candidate == name),
            key=lambda option: option.gpus or 0,
        )
        _add_band(figure, own, CYCLE[at % len(CYCLE)], SYMBOLS[at % len(SYMBOLS)])
    room = (gpus[-1] / gpus[0]) ** 0.04 * 1.05
    figure.update_xaxes(
        **log_axis(
            "GPUs", (gpus[0] / room, gpus[-1] * room), gpus[:: -(-len(gpus) // 8)], "{:,}".format
        )
    )
    figure.update_yaxes(**axis_layout(f"{plan.samples.units}/s", rangemode="tozero"))
    return figure


def _add_band(figure: go.Figure, own: Sequence[PlanOption], colour: str, symbol: str) -> None:
    steps = [(option.gpus or 1, option.step) for option in own if option.step is not None]
    x = [gpus for gpus, _ in steps]
    ends = [
        tuple(step.samples_per_s * step.step_time_s / end_s for end_s in reversed(step.interval_s))
        if step.interval_s
        else (step.samples_per_s, step.samples_per_s)
        for _, step in steps
    ]
    figure.add_scatter(
        x=[*x, *reversed(x)],
        y=[*(end[1] for end in ends), *(end[0] for end in reversed(ends))],
        fill="toself",
        fillcolor=colour,
        opacity=0.16,
        mode="lines",
        hoverinfo="skip",
        line={"width": 0, "color": colour},
        showlegend=False,
    )
    figure.add_scatter(
        x=x,
        y=[step.samples_per_s for _, step in steps],
        mode="lines+markers",
        name=escape(own[0].candidate, quote=False),
        line={"color": colour, "width": 2},
        marker={"color": colour, "size": 8, "symbol": symbol},
        hoverinfo="text",
        hovertext=[
            f"<b>{escape(own[0].candidate, quote=False)}</b>, {quantities.gpus(gpus)}"
            f"<br>{quantities.count(step.samples_per_s)}/s"
            f" ({quantities.count(low)} to {quantities.count(high)})"
            for (gpus, step), (low, high) in zip(steps, ends, strict=True)
        ],
    )


def draw_tornado(plan: PlanResult) -> go.Figure:
    """Draw what each assumption makes of the best option's cost, or of its time without prices."""
    best = plan.best
    assert best is not None
    priced = [each for each in plan.sensitivities if each.cost is not None]
    unit, unit_s = _unit([best])
    in_money = bool(best.cost) and bool(priced)  # time says more of what is free
    shown_swings = priced if in_money else plan.sensitivities
    base = (best.cost or 0.0) if in_money else best.wall_s / unit_s
    figure = new_figure(80 + 40 * len(shown_swings), barmode="overlay")
    places = list(range(len(shown_swings)))
    ends = [
        each.cost if in_money and each.cost else tuple(time_s / unit_s for time_s in each.wall_s)
        for each in shown_swings
    ]
    opposite = [min(pair) <= base <= max(pair) for pair in ends]
    for end, (name, colour) in enumerate((("worse", CYCLE[1]), ("better", CYCLE[2]))):
        values = [pair[end] for pair in ends]
        figure.add_bar(
            x=[value - base for value in values],
            base=base,
            y=places,
            orientation="h",
            name=name,
            width=[BAR if end == 0 or apart else BAR / 2 for apart in opposite],
            marker={"color": colour},
            hoverinfo="text",
            hovertext=[
                f"<b>{escape(each.what)}</b>: {escape(each.labels[end])}"
                f"<br>{span(each.wall_s[end])}"
                + (f"<br>{escape(money(each.cost[end], plan.currency))}" if each.cost else "")
                for each in shown_swings
            ],
        )
    figure.add_vline(x=base, line={"color": INK, "width": 1})
    title = f"cost ({plan.currency})" if in_money else f"time to train ({unit})"
    # five labels of money do not fit beside each other on a phone
    label_rows(figure, [f"{escape(each.what)} " for each in shown_swings], title, nticks=4)
    return figure
