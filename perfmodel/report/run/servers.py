"""Parameter servers: updates per second, staleness, how busy servers are, for page and terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Figure, Heading, Paragraph, Section, Table, section
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.palette import WORK
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.studies.run.result.usage import ServerUse, Staleness

if TYPE_CHECKING:
    import plotly.graph_objects as go

LISTED = 32
"""Servers that the page lists; result.json holds all."""


def lines(point: SizeResult) -> list[str]:
    """Sentences for the terminal; none without parameter servers."""
    use = point.server_use
    if use is None:
        return []
    return [_updates(use), _waiting(use), _staleness(use)]


def _updates(use: ServerUse) -> str:
    share = quantities.percent(use.updates_per_s / use.most_updates_per_s)
    ends = ""
    if use.updates_interval_per_s is not None:
        low, high = (quantities.count(end) for end in use.updates_interval_per_s)
        ends = f" (80 % interval {low} to {high})"
    return (
        f"{use.mode.capitalize()}: {quantities.count(use.updates_per_s)} updates/s of the "
        f"parameters{ends} from {use.workers:,} workers, {share} of what {use.bound_by} allows."
    )


def _waiting(use: ServerUse) -> str:
    busiest = quantities.percent(max(use.server_busy))
    count = len(use.servers)
    servers = "The server updates" if count == 1 else f"The busiest of {count:,} servers updates"
    speeds = ""
    if use.slowest_s > 1.01 * use.fastest_s:
        speeds = (
            f"; an iteration takes the fastest {quantities.duration(use.fastest_s)}, the slowest "
            f"{quantities.duration(use.slowest_s)}"
        )
    return (
        f"{servers} for {busiest} of the time, and holds {quantities.size(use.server_bytes)}; a "
        f"worker waits for {quantities.percent(use.worker_wait)} of its time{speeds}."
    )


def _staleness(use: ServerUse) -> str:
    stale = use.staleness
    if use.mode == "synchronous":
        return "No gradient is stale: each update has the gradients of all workers."
    ahead = ""
    if stale.most_ahead is not None:
        ahead = f" No worker was more than {stale.most_ahead} iterations ahead of the slowest."
    return (
        f"A gradient is {stale.mean:.1f} updates late on average (median {stale.p50}, 90 % up to "
        f"{stale.p90}, most {stale.most}).{ahead} What that costs in learning is not modelled."
    )


def servers_section(point: SizeResult) -> Section | None:
    """Build the section of the page; None without parameter servers."""
    use = point.server_use
    if use is None:
        return None
    rows = [
        (name, quantities.percent_column(busy))
        for name, busy in zip(use.servers[:LISTED], use.server_busy, strict=False)
    ]
    queue = (
        f"A push waits {quantities.duration(use.queue_wait_s)} in its server's queue on average."
    )
    more = len(use.servers) - LISTED
    if more > 0:
        queue += f" {more} more servers are in result.json."
    blocks = [
        Paragraph(_staleness(use)),
        *(_late(use.staleness) if use.mode != "synchronous" else []),
        Heading("How busy the servers are"),
        Table(("Server", ">Updates for"), rows),
        Paragraph(queue, "hint"),
    ]
    return section("Parameter servers", f"{_updates(use)} {_waiting(use)}", *blocks)


def _late(stale: Staleness) -> list[Heading | Figure]:
    caption = "Share of gradients by how many updates late they are"
    return [Heading("How late gradients are"), Figure(draw_staleness(stale), "staleness", caption)]


_MOST_LABELS = 6
"""Of the histogram: more would touch on a phone."""


def draw_staleness(stale: Staleness) -> go.Figure:
    """Draw the histogram of staleness."""
    names = [
        f"{first}" if first == last else f"{first} to {last}" for first, last, _ in stale.histogram
    ]
    shares = [share for *_, share in stale.histogram]
    figure = new_figure(260, bargap=0.15)
    figure.add_bar(
        x=names,
        y=[100 * share for share in shares],
        marker={"color": WORK["backward"]},
        hoverinfo="text",
        hovertext=[
            f"<b>{name} updates</b><br>{quantities.percent(share)} of gradients"
            for name, share in zip(names, shares, strict=True)
        ],
    )
    labelled = names[:: math.ceil(len(names) / _MOST_LABELS)]
    title = "updates by others since the parameters were read"
    figure.update_xaxes(axis_layout(title, type="category", tickvals=labelled, tickangle=0))
    figure.update_yaxes(axis_layout("gradients, %", rangemode="tozero"))
    return figure
