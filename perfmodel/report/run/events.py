"""What events and other jobs cost, and who waits for whom: a section, a figure and sentences."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.figures import axis_layout, new_figure, time_unit
from perfmodel.report.common.page import figure_html, figure_section, html_table
from perfmodel.report.common.palette import INK, WORK
from perfmodel.studies.run.result import DisturbanceCost, SizeResult, Wait

if TYPE_CHECKING:
    import plotly.graph_objects as go


LISTED = 60
"""Collectives that the page lists; result.json holds all."""

MOSTLY = 0.5
"""Share of the steps from which on one rank or class is said to be the one that is waited for."""

WORTH_SAYING = 1e-3
"""Share of the step that waiting must last to be told in a sentence."""

NOTHING = 1e-9
"""Share of the step below which a cost is the rounding of sums."""


def lead(point: SizeResult, what: DisturbanceCost) -> str:
    """Say what everything together costs."""
    share = quantities.percent(abs(what.costs_s) / what.undisturbed_s)
    change = "longer" if what.costs_s >= 0 else "shorter"
    takes = f"A step takes {quantities.duration(point.step_time_s)}"
    sentence = (
        f"{takes}; without any of this it would take {quantities.duration(what.undisturbed_s)}: "
        f"{share} {change}"
        if _told(what.costs_s, what)
        else f"{takes}, as long as without any of this"
    )
    count = len(what.steps_s)
    if count > 1:
        sentence += f". Mean of {count} steps"
    if what.mean_interval_s is not None:
        low, high = (quantities.duration(at) for at in what.mean_interval_s)
        sentence += f", 80{chr(160)}% interval of the mean {low} to {high}"
    return f"{sentence}."


def waiting(point: SizeResult, what: DisturbanceCost) -> str:
    """Say who is waited for longest; empty where nobody waits long enough to mention."""
    worst = max(what.waits, key=lambda wait: wait.waited_s, default=None)
    if worst is None or worst.waited_s < WORTH_SAYING * point.step_time_s:
        return ""
    whom = worst.last
    if worst.share < MOSTLY:
        often = quantities.percent(worst.share)
        whom = f"whoever is last, often another one ({worst.last} in {often} of steps)"
    return (
        f"The longest wait is before {worst.collective}: the others wait "
        f"{quantities.duration(worst.waited_s)} on average, for {whom}."
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences for the terminal; none where nothing happens."""
    what = point.disturbance
    if what is None:
        return []
    found = [lead(point, what)]
    found += [f"  {event.what}: {_cost(event.costs_s, what)}" for event in what.events]
    found += [
        f"  {job.name}, {quantities.gpus(job.gpus)}: a step takes {quantities.duration(job.step_time_s)}, "
        f"alone {quantities.duration(job.alone_s)}"
        for job in what.jobs
    ]
    return [*found, *([sentence] if (sentence := waiting(point, what)) else [])]


def _told(costs_s: float, what: DisturbanceCost) -> float:
    """A cost, or 0 where it is but rounding."""
    return 0.0 if abs(costs_s) < NOTHING * what.undisturbed_s else costs_s


def _cost(costs_s: float, what: DisturbanceCost) -> str:
    """Write a cost with its sign and as a share."""
    if not _told(costs_s, what):
        return "costs nothing"
    sign = "-" if costs_s < 0 else "+"
    share = quantities.percent(abs(costs_s) / what.undisturbed_s)
    return f"{sign}{quantities.duration(abs(costs_s))} a step ({sign}{share})"


def section(point: SizeResult) -> str:
    """Build the section of the page; empty where nothing happens."""
    what = point.disturbance
    if what is None:
        return ""
    parts = [_events(what)]
    if len(what.steps_s) > 1:
        drawn = figure_html(steps_figure(what), "steps", "Duration of each counted step")
        parts += ["<h3>Step by step</h3>", drawn]
    if what.jobs:
        parts += ["<h3>The other jobs</h3>", _jobs(what)]
    if what.waits:
        parts += ["<h3>Who waits for whom</h3>", _waits(point, what)]
    return figure_section("What happens around it, and what it costs", lead(point, what), *parts)


def _events(what: DisturbanceCost) -> str:
    count = len(what.steps_s)
    in_all = ("Over all steps",) if count > 1 else ()
    return html_table(
        ("Event", "Costs a step", "Share", "Step without it", *in_all),
        (
            (
                event.what,
                quantities.duration(costs_s),
                quantities.percent_column(costs_s / what.undisturbed_s),
                quantities.duration(event.without_s),
                *((quantities.duration(costs_s * count),) if in_all else ()),
            )
            for event in what.events
            for costs_s in [_told(event.costs_s, what)]
        ),
        words_at=(0,),
    )


def _jobs(what: DisturbanceCost) -> str:
    return html_table(
        ("Job", "GPUs", "Step", "Step alone", "Slower by"),
        (
            (
                job.name,
                f"{job.gpus:,}",
                quantities.duration(job.step_time_s),
                quantities.duration(job.alone_s),
                quantities.percent_column(job.step_time_s / job.alone_s - 1),
            )
            for job in what.jobs
        ),
        words_at=(0,),
    )


def _waits(point: SizeResult, what: DisturbanceCost) -> str:
    sentence = waiting(point, what) or "Nobody waits long for anybody."
    waited = [wait for wait in what.waits if wait.longest_s > 0]
    together = len(what.waits) - len(waited)
    if len(waited) > LISTED:
        sentence += f" The first {LISTED} are listed; result.json holds all of them."
    if together:
        sentence += f" Before {together} of {len(what.waits)} collectives nobody waits."
    rows = html_table(
        ("Collective", "Last to come", "In steps", "Others wait", "First waits at most"),
        (_wait_row(wait) for wait in waited[:LISTED]),
        words_at=(0, 1),
    )
    return f'<p class="lead">{escape(sentence)}</p>{rows if waited else ""}'


def _wait_row(wait: Wait) -> tuple[str, ...]:
    return (
        wait.collective,
        wait.last,
        quantities.percent(wait.share),
        quantities.duration(wait.waited_s),
        quantities.duration(wait.longest_s),
    )


def steps_figure(what: DisturbanceCost) -> go.Figure:
    """Duration of each counted step, beside that of an undisturbed one."""
    import plotly.graph_objects as go

    unit, scale = time_unit(max(what.steps_s))
    numbers = list(range(len(what.steps_s)))
    figure = new_figure(260, bargap=0.25)
    figure.add_trace(
        go.Bar(
            x=numbers,
            y=[step / scale for step in what.steps_s],
            name="step",
            marker={"color": WORK["backward"]},
            hovertext=[
                f"<b>step {at}</b><br>{quantities.duration(step)}"
                for at, step in enumerate(what.steps_s)
            ],
            hoverinfo="text",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=[-0.5, numbers[-1] + 0.5],
            y=[what.undisturbed_s / scale] * 2,
            name="undisturbed",
            mode="lines",
            line={"color": INK, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(axis_layout("step, counted from the settled state"))
    figure.update_yaxes(axis_layout(f"duration, {unit}", rangemode="tozero"))
    return figure
