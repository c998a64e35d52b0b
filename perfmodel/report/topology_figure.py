"""Picture of a machine: devices, links, and (where a step ran over them) how busy each link was.

Everything between two neighbouring devices is drawn as one cable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import count_ranks
from perfmodel.report.common.figures import Drawing, add_note, lines, new_figure
from perfmodel.report.common.palette import (
    LIMIT_INK,
    LINKS,
    NODES,
    QUIET_INK,
    UTILISATION,
    band_of,
)
from perfmodel.report.topology_layout import (
    LayerLabel,
    Place,
    alike,
    drawn_hosts,
    find_limiting,
    has_layers,
    layer_labels,
    link_name,
    positions,
    stack,
)
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.usage import LinkUse
from perfmodel.topology.model import Topology

_PHONE_PIXELS = 218
"""Width of the drawing on a phone: devices are made small enough not to overlap there."""
_SAG_SHARE_OF_LENGTH = 0.14
_CURVE_POINTS = 12


@dataclass(frozen=True, slots=True)
class Cable:
    """Everything between two neighbouring devices, both directions together.

    `bandwidth_Bps` is the sum of one direction; `utilisation` and `nbytes` are those of the
    busiest arc.
    `limits`: whether the step waits for it more than for anything else.
    """

    ends: tuple[str, str]
    kind: str
    bandwidth_Bps: float
    arcs: int
    utilisation: float
    nbytes: float
    limits: bool = False


def cables_between(
    topology: Topology, links: Iterable[LinkUse] | None, nodes: Iterable[str]
) -> Iterator[Cable]:
    """Join parallel and opposite arcs between each two of `nodes`."""
    drawn, built = dict.fromkeys(nodes), topology.built  # in order: pages are the same every time
    use = grouped((_cable_of(link.src, link.dst, link.kind), link) for link in links or ())
    rates_Bps = grouped(
        (
            _cable_of(src, dst, built.kinds[arc]),
            (src > dst, float(built.bandwidth_Bps[arc])),
        )
        for src in drawn
        for dst, arcs in topology.links[src].items()
        if dst in drawn
        for arc in arcs
    )
    for (low, high, kind), both_ways in rates_Bps.items():
        ways = grouped(both_ways).values()
        busiest = max(use.get((low, high, kind), ()), key=lambda u: u.utilisation, default=None)
        yield Cable(
            ends=(low, high),
            kind=kind,
            bandwidth_Bps=max(map(sum, ways)),
            arcs=max(map(len, ways)),
            utilisation=0.0 if busiest is None else busiest.utilisation,
            nbytes=0.0 if busiest is None else busiest.nbytes,
        )


def _cable_of(src: str, dst: str, kind: str) -> tuple[str, str, str]:
    """Both ends of an arc in alphabetical order, and its kind."""
    return min(src, dst), max(src, dst), kind


def path(cable: Cable, places: Mapping[str, Place]) -> list[Place]:
    """Points of the line to draw: straight, or sagging between devices of one row.

    Without the sag, links between devices of one row would lie on top of each other.
    """
    (x0, y0), (x1, y1) = (places[end] for end in cable.ends)
    if y0 != y1:
        return [(x0, y0), (x1, y1)]
    depth = min(0.9, _SAG_SHARE_OF_LENGTH * abs(x1 - x0))
    return [
        (x0 + t * (x1 - x0), y0 - 4 * depth * t * (1 - t))
        for t in (step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1))
    ]


def width(cable: Cable) -> float:
    """Line width in pixels: 1 at 1 GB/s, one more for each factor of 4, at most 5."""
    return float(min(5, max(1, 1 + round(math.log(max(cable.bandwidth_Bps, 1.0) / 1e9, 4)))))


def shrink(places: Mapping[str, Place], nodes: Iterable[str], diameter: float = 18.0) -> float:
    """Factor by which `nodes` of `diameter` pixels shrink to clear their rows on a phone."""
    heights, xs = {places[node][1] for node in nodes}, [x for x, _ in places.values()]
    span = max(xs, default=0.0) - min(xs, default=0.0)
    gaps = [
        farther - nearer
        for height in heights
        for nearer, farther in pairwise(sorted(x for x, y in places.values() if y == height))
    ]
    if span == 0 or not gaps:
        return 1.0
    return min(1.0, max(0.25, min(gaps) / span * _PHONE_PIXELS / diameter))


_LABEL_PIXELS = 130
"""Left of the drawing, for the names and rates of links; the rest of a phone is `_PHONE_PIXELS`."""
_LINE_PIXELS = 15
_LIMIT_PIXELS = 6
_LEAST_COLUMNS = 8.0
_ROW_PIXELS = 78
_ROWS_WITHOUT_LAYERS = 5
"""Height of a drawing of a graph of one's own, in rows."""

_LEAST_NUMBERED_SCALE = 0.8
"""Devices that had to shrink below this factor carry no numbers."""
_MOST_THICK_CABLES = 60
"""Cables of one colour beyond this number are drawn thinner and fainter."""


def draw_topology(
    topology: Topology,
    point: SizeResult | None = None,
    places: Mapping[str, Place] | None = None,
) -> Drawing:
    """Draw a topology; with `point`, coloured by how busy each link was during its step.

    `point`: a step. What limits it is drawn thick and named. Without it, colours tell kinds of
        links apart.
    `places`: where devices stand; devices that are not in it are not drawn. By default the layout
        of `perfmodel.report.topology_layout`, with one host only: that of the bottleneck.
    """
    limiting = [] if point is None else find_limiting(point)
    places = default_places(topology, limiting) if places is None else places
    links = None if point is None else point.links
    with_traffic, layered = links is not None, has_layers(topology)
    thick = alike(topology, links or (), limiting)
    cables = [
        replace(cable, limits=(*cable.ends, cable.kind) in thick)
        for cable in cables_between(topology, links, places.keys())
    ]
    groups = grouped((_look(cable, with_traffic=with_traffic), cable) for cable in cables)
    listed = (*((colour, name) for _, colour, name in UTILISATION), *LINKS.values())
    order = [(name, colour) for colour, name in listed]
    # where it is no link: GPUs that compute, or the host
    limits = "" if point is None else {"compute": "gpu", "host": "cpu"}.get(point.limit, "")
    rows = len({y for _, y in places.values()}) if layered else _ROWS_WITHOUT_LAYERS
    drawn = new_figure(
        120 + _ROW_PIXELS * rows,
        [
            *(
                trace
                for look in sorted(groups, key=lambda it: order.index(it) if it in order else 99)
                for trace in _cables(look, groups[look], places, with_traffic=with_traffic)
            ),
            *_devices(topology, places, limits),
        ],
        **_frame(places),
    )
    if layered:
        _name_hosts(drawn, topology, places)
        heights = {places[name][1] for name in places if topology.devices[name].kind == limits}
        said = (NODES[limits][3], "compute" if limits == "gpu" else "launches") if limits else ()
        _label_layers(
            drawn,
            topology,
            cables,
            places,
            thick,
            [LayerLabel(height, said, limits=True) for height in sorted(heights)],
        )
    return drawn


def default_places(topology: Topology, limiting: Iterable[LinkUse] = ()) -> dict[str, Place]:
    """Positions of the devices that are drawn: a host, the one that limits, and the fabric."""
    return positions(topology, drawn_hosts(topology, limiting))


def _label_layers(
    drawn: Drawing,
    topology: Topology,
    cables: Sequence[Cable],
    places: Mapping[str, Place],
    thick: set[tuple[str, str, str]],
    devices: Iterable[LayerLabel],
) -> None:
    """Write kind and rate of each layer of links beside it, left of the drawing."""
    parts = [(each.ends, each.kind, each.bandwidth_Bps / each.arcs, each.arcs) for each in cables]
    labels = [*layer_labels(topology, parts, places, thick), *devices]
    for height, label in stack(labels, _LINE_PIXELS / _ROW_PIXELS):
        text = "<br>".join(label.lines)
        add_note(
            drawn,
            f"<b>Bottleneck<br>{text}</b>" if label.limits else text,
            x=0,
            xref="paper",
            y=height,
            xanchor="right",
            yanchor="middle",
            xshift=-6,
            align="right",
            font={"size": 11, "color": LIMIT_INK if label.limits else QUIET_INK},
        )


def _look(cable: Cable, *, with_traffic: bool) -> tuple[str, str]:
    """Name in the legend and colour."""
    if cable.limits:
        return "bottleneck", LIMIT_INK
    if with_traffic:
        _, colour, name = UTILISATION[band_of(cable.utilisation)]
        return name, colour
    colour, name = LINKS.get(cable.kind, (QUIET_INK, cable.kind))
    return name, colour


def _cables(
    look: tuple[str, str],
    cables: Sequence[Cable],
    places: Mapping[str, Place],
    *,
    with_traffic: bool,
) -> Iterator[dict[str, Any]]:
    """Describe lines by their width, and invisible marks on them that carry the hover text."""
    (name, colour), crowded = look, len(cables) > _MOST_THICK_CABLES

    def pixels_of(cable: Cable) -> float:
        if cable.limits:
            return _LIMIT_PIXELS
        is_idle = with_traffic and cable.utilisation == 0
        return 1.0 if is_idle else min(width(cable), 1.5 if crowded else 5)

    by_width = grouped(
        (pixels_of(cable), place)
        for cable in cables
        for place in (*path(cable, places), (None, None))
    )
    for pixels, points in sorted(by_width.items()):
        yield lines(
            name,
            [x for x, _ in points],
            [y for _, y in points],
            {"color": colour, "width": pixels},
            opacity=0.75 if crowded else 1.0,
            showlegend=False,
        )
    spots = [(spot, cable) for cable in cables for spot in _spots(path(cable, places))]
    yield {
        "type": "scatter",
        "x": [x for (x, _), _ in spots],
        "y": [y for (_, y), _ in spots],
        "mode": "markers",
        "marker": {"size": 12, "color": colour, "opacity": 0},
        "hoverinfo": "text",
        "name": name,
        "hovertext": [_cable_hover(cable, with_traffic) for _, cable in spots],
    }


def _spots(line: Sequence[Place]) -> list[Place]:
    """Points on a cable that carry its hover text, which plotly lines do not."""
    if len(line) > 2:
        return [line[len(line) // 4], line[len(line) // 2], line[-len(line) // 4]]
    (x0, y0), (x1, y1) = line
    return [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in (0.25, 0.5, 0.75)]


def _cable_hover(cable: Cable, with_traffic: bool) -> str:
    used, nbytes = quantities.percent(cable.utilisation), quantities.size(cable.nbytes)
    return (
        f"<b>{escape(' - '.join(cable.ends), quote=False)}</b><br>"
        f"{escape(link_name(cable.kind))}{f', {cable.arcs} links' if cable.arcs > 1 else ''}, "
        f"{quantities.rate(cable.bandwidth_Bps)}"
        f"{f'<br>{used} used, {nbytes} per step' if with_traffic else ''}"
    )


def _devices(
    topology: Topology, places: Mapping[str, Place], limits: str
) -> Iterator[dict[str, Any]]:
    """Describe the devices by kind, with the digits at the end of their names where they fit."""
    ranks = set(topology.ranks)
    for kind, (colour, symbol, diameter, name) in NODES.items():
        nodes = [node for node in places if topology.devices[node].kind == kind]
        if not nodes:
            continue
        factor = shrink(places, nodes)
        # a processor that has no rank limits nothing
        marked = [kind == limits and (kind != "gpu" or node in ranks) for node in nodes]
        digits = [re.search(r"\d{1,3}$", topology.devices[node].local or node) for node in nodes]
        yield {
            "type": "scatter",
            "x": [places[node][0] for node in nodes],
            "y": [places[node][1] for node in nodes],
            "mode": "markers+text" if factor >= _LEAST_NUMBERED_SCALE else "markers",
            "name": name,
            "marker": {
                "color": colour,
                "symbol": symbol,
                "size": factor * diameter,
                "line": {
                    "color": [LIMIT_INK if each else "white" for each in marked],
                    "width": [factor * (3.5 if each else 1.5) for each in marked],
                },
            },
            "text": [match.group() if match else "" for match in digits],
            "textposition": "middle center",
            "textfont": {"size": 10, "color": "white"},
            "hoverinfo": "text",
            "hovertext": [f"<b>{escape(node, quote=False)}</b><br>{name}" for node in nodes],
        }


def _name_hosts(drawn: Drawing, topology: Topology, places: Mapping[str, Place]) -> None:
    """Name each host below its lowest device, where no cable runs."""
    for host, xs in grouped(
        (topology.devices[node].host, x) for node, (x, _) in places.items()
    ).items():
        if host >= 0:
            middle, foot = (min(xs) + max(xs)) / 2, {"y": 0, "yref": "paper", "yshift": -4}
            add_note(drawn, f"host {host}", x=middle, yanchor="top", **foot)


def _frame(places: Mapping[str, Place]) -> dict[str, Any]:
    """Leave room around the devices, and do not stretch a narrow machine over the page."""
    bare = {"visible": False, "fixedrange": True, "automargin": False}
    xs = [x for x, _ in places.values()] or [0.0]
    middle, half = (min(xs) + max(xs)) / 2, max(_LEAST_COLUMNS, 1.06 * (max(xs) - min(xs))) / 2
    return {
        "x": bare | {"range": [middle - half, middle + half]},
        "y": bare,
        "margin": {"t": 8, "b": 30, "l": _LABEL_PIXELS},
    }


def topology_caption(topology: Topology, hosts: Sequence[int] = (0,)) -> str:
    """Say what is drawn and what is left out.

    `hosts`: numbers of those that are drawn.
    """
    drawn = "one host is" if len(hosts) == 1 else f"{len(hosts)} hosts are"
    some = f"; {drawn} drawn, the others are wired alike" if topology.hosts > len(hosts) else ""
    return (
        f"{topology.name}: {count_ranks(topology)} ({topology.gpu.name}) in "
        f"{'one host' if topology.hosts == 1 else f'{topology.hosts:,} hosts'}{some}"
    )
