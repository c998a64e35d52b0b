"""Pictures of a plan: time against cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import (
    Drawing,
    add_note,
    axis_layout,
    band,
    bars,
    error_bars,
    label_rows,
    lines,
    log_axis,
    log_ticks,
    new_figure,
)
from perfmodel.report.common.palette import CYCLE, INK, QUIET_INK
from perfmodel.report.plan_text import DAY_S, HOUR_S, amount_only, given_span, money, span
from perfmodel.studies.plan.model import PlanOption, PlanResult

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "hexagon")
"""One per candidate beside its colour."""

BAR_SHARE_OF_ROW = 0.65
"""Share of its row that a bar takes; where both ends lie on one side, one is half as thick."""

MOST_LABELLED_POINTS = 24
"""Points that still get their number of nodes beside them."""


def draw_time_against_cost(plan: PlanResult) -> Drawing:
    """Draw every option with its intervals; the front, deadline and budget as lines."""
    priced = [option for option in plan.usable if option.cost is not None]
    unit, unit_s = _unit(priced)
    front = plan.answers.pareto
    dotted = lines(
        "front: quickest for its cost",
        [option.wall_s / unit_s for option in front],
        [option.cost for option in front],
        {"color": QUIET_INK, "width": 1.5, "dash": "dot", "shape": "hv"},
    )
    traces = [dotted] if len(front) > 1 else []
    for at, name in enumerate(dict.fromkeys(option.candidate for option in plan.options)):
        own = [option for option in priced if option.candidate == name]
        labelled = len(priced) <= MOST_LABELLED_POINTS
        traces += [_trace(plan, own, at, unit_s, labelled=labelled)] if own else []
    logs = all(option.cost for option in priced)  # nothing has no logarithm
    low, high = _ends([_time_ends(option) for option in priced], plan.deadline_s)
    costs, title = _ends(list(map(_cost_ends, priced)), plan.budget), f"cost ({plan.currency})"
    figure = new_figure(
        460,
        traces,
        x=_log_axis(f"time to train ({unit})", low / unit_s, high / unit_s),
        y=_log_axis(title, *costs) if logs else axis_layout(title, rangemode="tozero"),
        margin={"t": 28},
    )
    _limits(figure, plan, unit_s, logs=logs)
    return figure


def _unit(options: Sequence[PlanOption]) -> tuple[str, float]:
    return (
        ("days", DAY_S)
        if any(option.wall_s >= 2 * DAY_S for option in options)
        else ("hours", HOUR_S)
    )


def _trace(
    plan: PlanResult, own: Sequence[PlanOption], at: int, unit_s: float, *, labelled: bool
) -> dict[str, Any]:
    """One candidate: its sizes joined by a thin line, each with its intervals."""
    colour = CYCLE[at % len(CYCLE)]
    x, y = [option.wall_s / unit_s for option in own], [option.cost or 0.0 for option in own]
    ends = {"color": colour, "thickness": 1, "width": 3}
    return lines(
        own[0].candidate,
        x,
        y,
        {"color": colour, "width": 1},
        mode="lines+markers+text" if labelled else "lines+markers",
        marker={"color": colour, "size": 10, "symbol": SYMBOLS[at % len(SYMBOLS)]},
        text=[f"{option.nodes:,}" for option in own],
        textposition="top right",
        textfont={"size": 12, "color": QUIET_INK},
        error_x=error_bars(x, [_time_ends(option, unit_s) for option in own]) | ends,
        error_y=error_bars(y, [_cost_ends(option) for option in own]) | ends,
        hovertext=[_hover(plan, option) for option in own],
    )


def _time_ends(option: PlanOption, unit_s: float = 1.0) -> tuple[float, float]:
    ends = None if option.training is None else option.training.wall_interval_s
    low, high = ends or (option.wall_s, option.wall_s)
    return low / unit_s, high / unit_s


def _cost_ends(option: PlanOption) -> tuple[float, float]:
    cost = option.cost or 0.0
    return (None if option.bill is None else option.bill.interval) or (cost, cost)


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


def _limits(figure: Drawing, plan: PlanResult, unit_s: float, *, logs: bool) -> None:
    """Draw deadline and budget; `logs` says that the cost axis is logarithmic."""
    line = {"color": INK, "width": 1, "dash": "dash"}
    side = {"yanchor": "bottom", "xanchor": "right"}
    if plan.deadline_s is not None:
        text, at = f"deadline {given_span(plan.deadline_s)}", plan.deadline_s / unit_s
        figure.add_vline(x=at, line=line)
        add_note(figure, text, x=math.log10(at), y=1, yref="paper", **side)
    if plan.budget is not None:
        text, height = f"budget {amount_only(plan.budget)}", plan.budget
        figure.add_hline(y=height, line=line)
        add_note(figure, text, x=1, xref="paper", y=math.log10(height) if logs else height, **side)


def _ends(ranges: Sequence[tuple[float, float]], limit: float | None) -> tuple[float, float]:
    """Room for all intervals and for a limit, with a margin."""
    numbers = [end for ends in (*ranges, (limit or 0.0,)) for end in ends if end > 0]
    low, high = min(numbers, default=1.0), max(numbers, default=1.0)
    room = (high / low) ** 0.06 * 1.08
    return low / room, high * room


def _log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    ticks = log_ticks(low, high)
    if len(ticks) < 4 and high < 10 * low:  # round values inside less than a decade
        step = 10.0 ** math.floor(math.log10((high - low) / 2))
        step *= next(more for more in (1, 2, 5, 10) if (high - low) / (more * step) <= 6)
        ticks = [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return log_axis(
        title, (low, high), ticks, lambda tick: f"{tick:,.4g}" if tick < 1e4 else f"{tick:,.0f}"
    )


# ---------------------------------------------------------------- throughput, sensitivity


def draw_throughput(plan: PlanResult) -> Drawing:
    """Draw samples per second by the number of GPUs, each candidate with its 80 % band."""
    in_order = sorted(plan.usable, key=lambda option: option.gpus or 0)
    gpus = list(dict.fromkeys(option.gpus or 1 for option in in_order))
    room = (gpus[-1] / gpus[0]) ** 0.04 * 1.05
    ends, ticks = (gpus[0] / room, gpus[-1] * room), gpus[:: -(-len(gpus) // 8)]
    return new_figure(
        400,
        [
            trace
            for at, name in enumerate(dict.fromkeys(option.candidate for option in plan.usable))
            for trace in _band([each for each in in_order if each.candidate == name], at)
        ],
        x=log_axis("GPUs", ends, ticks, "{:,}".format),
        y=axis_layout(f"{plan.samples.units}/s", rangemode="tozero"),
    )


def _band(own: Sequence[PlanOption], at: int) -> Iterator[dict[str, Any]]:
    """Describe one candidate's throughput and its interval."""
    colour, symbol = CYCLE[at % len(CYCLE)], SYMBOLS[at % len(SYMBOLS)]
    steps = [(option.gpus or 1, option.step) for option in own if option.step is not None]
    x, speeds = [gpus for gpus, _ in steps], [step.samples_per_s for _, step in steps]
    ends = [
        tuple(step.samples_per_s * step.step_time_s / end_s for end_s in reversed(step.interval_s))
        if step.interval_s
        else (step.samples_per_s, step.samples_per_s)
        for _, step in steps
    ]
    name = escape(own[0].candidate, quote=False)
    yield band(x, ends, colour, opacity=0.16, showlegend=False)
    yield lines(
        name,
        x,
        speeds,
        {"color": colour, "width": 2},
        mode="lines+markers",
        marker={"color": colour, "size": 8, "symbol": symbol},
        hovertext=[
            f"<b>{name}</b>, {quantities.gpus(gpus)}<br>{quantities.count(speed)}/s"
            f" ({quantities.count(low)} to {quantities.count(high)})"
            for gpus, speed, (low, high) in zip(x, speeds, ends, strict=True)
        ],
    )


def draw_tornado(plan: PlanResult) -> Drawing:
    """Draw what each assumption makes of the best option's cost, or of its time without prices."""
    best = plan.best
    assert best is not None
    priced = [each for each in plan.sensitivities if each.cost is not None]
    unit, unit_s = _unit([best])
    in_money = bool(best.cost) and bool(priced)  # time says more of what is free
    shown = priced if in_money else plan.sensitivities
    base = (best.cost or 0.0) if in_money else best.wall_s / unit_s
    ends = [
        each.cost if in_money and each.cost else tuple(time_s / unit_s for time_s in each.wall_s)
        for each in shown
    ]
    thin = [not min(pair) <= base <= max(pair) for pair in ends]
    figure = new_figure(
        80 + 40 * len(shown),
        [
            bars(
                name,
                [pair[end] - base for pair in ends],
                list(range(len(shown))),
                colour,
                [
                    f"<b>{escape(each.what)}</b>: {escape(each.labels[end])}"
                    f"<br>{span(each.wall_s[end])}"
                    + (f"<br>{escape(money(each.cost[end], plan.currency))}" if each.cost else "")
                    for each in shown
                ],
                base=base,
                orientation="h",
                width=[BAR_SHARE_OF_ROW / (2 if end and each else 1) for each in thin],
            )
            for end, (name, colour) in enumerate((("worse", CYCLE[1]), ("better", CYCLE[2])))
        ],
        # five labels of money do not fit beside each other on a phone
        **label_rows(
            [f"{escape(each.what)} " for each in shown],
            f"cost ({plan.currency})" if in_money else f"time to train ({unit})",
            nticks=4,
        ),
        barmode="overlay",
    )
    figure.add_vline(x=base, line={"color": INK, "width": 1})
    return figure
