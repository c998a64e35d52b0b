"""Links of a topology prepared for drawing: one cable per neighbouring pair, and its shape."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.result import LinkUse
from perfmodel.topology.model import Topology

Place = tuple[float, float]

_PHONE_PIXELS = 330
"""Width of the drawing on a phone: devices are made small enough not to overlap there."""
_SAG = 0.14
_CURVE_POINTS = 12


@dataclass(frozen=True, slots=True)
class Cable:
    """Everything between two neighbouring devices, both directions together.

    `bandwidth_Bps` is the sum of one direction; `utilisation` and `nbytes` are those of the
    busiest arc.
    """

    ends: tuple[str, str]
    kind: str
    bandwidth_Bps: float
    arcs: int
    utilisation: float
    nbytes: float


def cables_between(
    topology: Topology, links: Iterable[LinkUse] | None, nodes: Iterable[str]
) -> list[Cable]:
    """Join parallel and opposite arcs between each two of `nodes`."""
    drawn = set(nodes)
    use: dict[tuple[str, str, str], LinkUse] = {}
    for link in links or ():
        key = (link.src, link.dst, link.kind)
        if key not in use or link.utilisation > use[key].utilisation:
            use[key] = link
    found: dict[tuple[str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for src, dst, data in topology.graph.edges(drawn, data=True):
        if dst in drawn:
            low, high = sorted((src, dst))
            found[low, high, data["kind"]].append((src, data["bandwidth_Bps"]))
    return [_cable(ends, arcs, use) for ends, arcs in found.items()]


def _cable(
    ends: tuple[str, str, str],
    arcs: Sequence[tuple[str, float]],
    use: Mapping[tuple[str, str, str], LinkUse],
) -> Cable:
    low, high, kind = ends
    directions = [[Bps for src, Bps in arcs if src == end] for end in (low, high)]
    busiest = max(
        (use[key] for key in ((low, high, kind), (high, low, kind)) if key in use),
        key=lambda link: link.utilisation,
        default=None,
    )
    return Cable(
        ends=(low, high),
        kind=kind,
        bandwidth_Bps=max(sum(direction) for direction in directions),
        arcs=max(len(direction) for direction in directions),
        utilisation=busiest.utilisation if busiest else 0.0,
        nbytes=busiest.nbytes if busiest else 0.0,
    )


def path(cable: Cable, places: Mapping[str, Place]) -> list[Place]:
    """Points of the line to draw: straight, or sagging between devices of one row.

    Without the sag, links between devices of one row would lie on top of each other.
    """
    (x0, y0), (x1, y1) = (places[end] for end in cable.ends)
    if y0 != y1:
        return [(x0, y0), (x1, y1)]
    depth = min(0.9, _SAG * abs(x1 - x0))
    steps = [step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)]
    return [(x0 + t * (x1 - x0), y0 - 4 * depth * t * (1 - t)) for t in steps]


def width(cable: Cable) -> float:
    """Line width in pixels: 1 at 1 GB/s, one more for each factor of 4, at most 5."""
    steps = math.log(max(cable.bandwidth_Bps, 1.0) / 1e9, 4)
    return float(min(5, max(1, 1 + round(steps))))


def shrink(places: Mapping[str, Place], nodes: Iterable[str], diameter: float = 18.0) -> float:
    """Factor by which `nodes` of `diameter` pixels shrink to clear their rows on a phone."""
    heights = {places[node][1] for node in nodes}
    xs = [x for x, _ in places.values()]
    span = max(xs, default=0.0) - min(xs, default=0.0)
    gaps = [
        right - left
        for height in heights
        for left, right in pairwise(sorted(x for x, y in places.values() if y == height))
    ]
    if span == 0 or not gaps:
        return 1.0
    return min(1.0, max(0.25, min(gaps) / span * _PHONE_PIXELS / diameter))
