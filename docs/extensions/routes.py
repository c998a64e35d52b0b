"""The devices that bytes pass on their way, as the library sends them: as boxes, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import perfmodel as pm
from perfmodel.library.transport import local_path, nic_path
from perfmodel.topology.routing.router import Router

BOX, GAP, ROW = 84, 62, 62
"""Width of a device, of the link between two, and height of a route; in units of the picture."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way of bytes: devices in order, and kind and rate of the link between each two."""

    title: str
    devices: tuple[str, ...]
    links: tuple[str, ...]
    staged: bool


def route_of(title: str, asked: Mapping[str, Any]) -> Route:
    """Find the way that NCCL takes: `machine`, `from` a GPU, `to` a GPU or a NIC."""
    topology = pm.topology(asked["machine"])
    router, src, dst = Router(topology), f"n0/{asked['from']}", f"n0/{asked['to']}"
    if topology.devices[dst].kind == "nic":
        path = nic_path(topology, router, src, dst, outward=True)
    else:
        path = local_path(topology, router, src, dst)
    ends = [topology.arcs.names[arc] for arc in path.arcs]
    links = [
        f"{topology.arcs.kinds[arc]} {topology.arcs.bandwidth_Bps[arc] / 1e9:.3g} GB/s"
        for arc in path.arcs
    ]
    devices = (each.removeprefix("n0/") for each in (ends[0][0], *(end for _, end in ends)))
    return Route(title, tuple(devices), tuple(links), path.staged)


def markdown_of(routes: Sequence[Route]) -> str:
    """Name the devices of each route."""
    return "\n".join(
        f"- {each.title}: {' → '.join(each.devices)}"
        + ("; bytes are written to host memory and read again" if each.staged else "")
        for each in routes
    )


def figure_of(routes: Sequence[Route]) -> str:
    """Draw routes below each other."""
    longest = max(len(route.devices) for route in routes)
    parts = []
    for number, route in enumerate(routes):
        y = number * (ROW + 24)
        parts.append(f'<text class="title" x="0" y="{y + 16}">{escape(route.title)}</text>')
        for place, device in enumerate(route.devices):
            parts.append(_box(device, place * (BOX + GAP), y + 26))
        for place, link in enumerate(route.links):
            parts.append(_link(link, place * (BOX + GAP) + BOX, y + 26))
    width, height = longest * (BOX + GAP) - GAP + 4, len(routes) * (ROW + 24)
    titles = escape(markdown_of(routes))
    return (
        f'<figure class="routes"><svg viewBox="-2 0 {width} {height}" role="img"'
        f' style="max-width:{width}px" aria-label="{titles}">{"".join(parts)}</svg></figure>\n'
    )


def _box(device: str, x: int, y: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="34" rx="4"/>'
        f'<text class="device" x="{x + BOX / 2:.0f}" y="{y + 22}">{escape(device)}</text>'
    )


def _link(link: str, x: int, y: int) -> str:
    kind, _, rate = link.partition(" ")
    return (
        f'<line x1="{x}" y1="{y + 17}" x2="{x + GAP}" y2="{y + 17}"/>'
        f'<path d="M{x + GAP - 7} {y + 12} l7 5 -7 5z"/>'
        f'<text class="link" x="{x + GAP / 2:.0f}" y="{y + 11}">{escape(kind)}</text>'
        f'<text class="link" x="{x + GAP / 2:.0f}" y="{y + 30}">{escape(rate)}</text>'
    )
