"""Where devices stand in the picture of a machine, and the labels of its layers of links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.palette import LINKS
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.usage import LinkEnds, LinkUse
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.spec import PORT_KINDS

_LAYERS = {"nvswitch": -1.0, "gpu": 0.0, "pcie_switch": 1.0, "memory": 1.0, "cpu": 2.0, "nic": 3.0}
"""Height of each kind; NVSwitches hang below the GPUs, so that no NVLink crosses PCIe."""


def positions(topology: Topology, hosts: Sequence[int] = (0,)) -> dict[str, tuple[float, float]]:
    """Lay out some hosts and the switches that they reach, in layers.

    `hosts`: numbers of those to draw; the others and what only they reach are left out.
    The layers from bottom to top: NVSwitches, GPUs, PCIe switches, CPUs, NICs, then the fabric
    level by level. One unit is the distance between neighbours of the widest layer. A graph of
    one's own has no layers: its devices stand as far apart as the links between them are many.
    """
    if not has_layers(topology):
        return _free_positions(topology)
    layers = grouped(
        ((device.host, _LAYERS[device.kind]), name)
        for name, device in topology.devices.items()
        if device.host in hosts
    )
    width = max(map(len, layers.values()))
    placed: dict[str, tuple[float, float]] = {}
    for (host, height), names in layers.items():
        placed |= _spread(names, width, height, list(hosts).index(host) * (width + 1))
    for level, names in enumerate(_fabric_levels(topology, placed), start=4):
        placed |= _spread(names, len(hosts) * (width + 1) - 1, float(level))
    return placed


def has_layers(topology: Topology) -> bool:
    """Whether a drawing has layers of devices; that of a graph of one's own has none."""
    return topology.hosts > 1 or topology.node_graph.graph.get("routing") != "shortest"


MOST_LAID_BY_DISTANCE = 100
"""Devices up to which distances in the drawing follow paths, which takes the cube of them."""

HEIGHT_OF_WIDTH = 0.35
"""Of a drawing without layers."""


def _free_positions(topology: Topology) -> dict[str, tuple[float, float]]:
    """Places of the devices of a graph of one's own, one unit apart in the mean."""
    import networkx as nx

    graph, side = nx.Graph(topology.graph), len(topology.graph) ** 0.5 / 2
    is_small = len(graph) <= MOST_LAID_BY_DISTANCE
    found = nx.kamada_kawai_layout(graph) if is_small else nx.spring_layout(graph, seed=0)
    return {
        name: (float(x) * side / HEIGHT_OF_WIDTH**0.5, float(y) * side * HEIGHT_OF_WIDTH**0.5)
        for name, (x, y) in found.items()
    }


def _spread(
    names: Sequence[str], width: int, height: float, begin: float = 0
) -> dict[str, tuple[float, float]]:
    """Place devices in the middles of equal parts of a line of `width` places."""
    return {
        name: (begin + (at + 0.5) * width / len(names) - 0.5, height)
        for at, name in enumerate(names)
    }


def _fabric_levels(
    topology: Topology, placed: dict[str, tuple[float, float]]
) -> Iterator[list[str]]:
    """Switches level by level, without those that serve NICs of which none is drawn."""
    devices, links = topology.devices, topology.links
    reached, level, drawn = set(placed), list(placed), set(placed)
    while level:
        above = dict.fromkeys(
            name
            for below in level
            for name in links[below]
            if devices[name].kind == "switch" and name not in reached
        )
        nics = {name: {n for n in links[name] if devices[n].kind == "nic"} for name in above}
        level = [name for name, own in nics.items() if not own or own & drawn]
        reached |= above.keys()
        if level:
            yield level


_ALIKE_UTILISATION_SHARE = 0.02
"""Share by which links may differ in how busy they are and still be the same bottleneck."""

Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LayerLabel:
    """Links of one kind between two rows of the picture, or within one.

    `height`: in the middle of the rows.
    `lines`: kind and rate.
    """

    height: float
    lines: tuple[str, ...]
    limits: bool


def rate_text(kind: str, rate_Bps: float) -> str:
    """Bytes per second, and bits as networks are sold by."""
    bits = f" ({float(f'{rate_Bps * 8e-9:.3g}'):,g} Gbit/s)" if kind in PORT_KINDS else ""
    return f"{quantities.rate(rate_Bps)}{bits}"


def find_limiting(point: SizeResult) -> list[LinkUse]:
    """Links that the bottleneck names by their ends; none if something else limits the step.

    Where the traffic of these is not listed, the like of them in a host whose traffic is.
    """
    links = point.links or ()
    limiting = set(map(_ends, point.limiting_links))
    named = [link for link in links if _ends(link) in limiting]
    if _all_named(point, named):
        return named
    # Traffic is listed of a few hosts; the link that is named has its like in the first of them.
    layers = {_layer_of(link): link for link in reversed(links)}
    like = set(map(_layer_of, point.limiting_links))
    return [link for layer, link in layers.items() if layer in like]


def _all_named(point: SizeResult, links: Sequence[LinkUse]) -> bool:
    """Whether links are those that the bottleneck names, and not others like them."""
    limiting = list(map(_ends, point.limiting_links))
    return len(limiting) == sum(_ends(link) in limiting for link in links)


def _ends(link: LinkUse | LinkEnds) -> tuple[str, str, str]:
    return link.src, link.dst, link.kind


def _layer_of(link: LinkUse | LinkEnds) -> tuple[str, str, str]:
    """Devices without their numbers, which are the same in all hosts, and the kind of link."""
    return re.sub(r"\d+", "", link.src), re.sub(r"\d+", "", link.dst), link.kind


def drawn_hosts(topology: Topology, limiting: Iterable[LinkUse]) -> tuple[int, ...]:
    """Hosts to draw: the first one, or those of the links that limit the step."""
    ends = {end for link in limiting for end in (link.src, link.dst) if end in topology.devices}
    return tuple(sorted({topology.devices[end].host for end in ends} - {-1})[:2]) or (0,)


def alike(
    topology: Topology, links: Iterable[LinkUse], limiting: Sequence[LinkUse]
) -> set[tuple[str, str, str]]:
    """Both ends and kind of the links that limit the step, and of those just as busy beside them.

    Those of one layer in different places: every NIC of a host whose first NIC is named.
    """
    layers = {_layer(topology, link): link.utilisation for link in limiting}
    return {
        (*sorted((link.src, link.dst)), link.kind)  # type: ignore[misc]
        for link in links
        if abs(link.utilisation - layers.get(_layer(topology, link), -1.0))
        <= _ALIKE_UTILISATION_SHARE * link.utilisation
    }


def _layer(topology: Topology, link: LinkUse) -> tuple[str, ...]:
    ends = [topology.devices.get(end) for end in (link.src, link.dst)]
    return (link.kind, *sorted(end.kind for end in ends if end is not None))


def layer_labels(
    topology: Topology,
    cables: Iterable[tuple[tuple[str, str], str, float, int]],
    places: Mapping[str, Place],
    limiting: set[tuple[str, str, str]],
) -> list[LayerLabel]:
    """Label every layer of links: how many, of which kind, their rates.

    `cables`: ends, kind, rate of one link and number of parallel ones, each.
    `limiting`: those that limit the step, as `alike` names them.
    """
    layers = grouped(
        (
            (
                sum(places[end][1] for end in ends) / 2,
                kind,
                _layer_name(kind, {topology.devices[end].kind for end in ends}),
            ),
            (rate_Bps, count, (*sorted(ends), kind) in limiting),
        )
        for ends, kind, rate_Bps, count in cables
    )
    return [
        LayerLabel(height, _layer_lines(kind, name, members), any(m[-1] for m in members))
        for (height, kind, name), members in sorted(layers.items())
    ]


def link_name(kind: str) -> str:
    """Name a kind of link as people say it."""
    return LINKS.get(kind, ("", kind))[1]


def _layer_name(kind: str, ends: set[str]) -> str:
    """Kind of link as people say it; of PCIe with what it belongs to, as a host has several."""
    owners = {"gpu": " of GPUs", "nic": " of NICs", "pcie_switch": " of switches"}
    of = next((word for owner, word in owners.items() if owner in ends), "")
    return f"{link_name(kind)}{of if kind == 'pcie' else ''}"


def _layer_lines(
    kind: str, name: str, members: Sequence[tuple[float, int, bool]]
) -> tuple[str, ...]:
    rates = sorted({float(f"{rate_Bps:.3g}") for rate_Bps, *_ in members})
    count = sum(number for _, number, _ in members)
    title = f"{count} \N{MULTIPLICATION SIGN} {name}" if count > 1 else name
    if len(rates) > 1:
        return title, quantities.span(rates[0], rates[-1], quantities.rate)
    return title, *rate_text(kind, rates[0]).rstrip(")").split(" (")


def limit_sentence(topology: Topology, point: SizeResult) -> str:
    """Say what limits the step, and at which rate; nothing where that is not a link."""
    limiting, arcs = find_limiting(point), topology.arcs
    if not limiting and point.limit == "compute":
        return "The GPUs themselves are the bottleneck (compute), no link is"
    if not limiting:
        return f"Bottleneck: {point.bottleneck}"
    rates_Bps = grouped(
        ((src, dst, kind), float(rate_Bps))
        for (src, dst), kind, rate_Bps in zip(
            arcs.names, arcs.kinds, arcs.bandwidth_Bps, strict=True
        )
    )
    each = "; ".join(
        f"{link_name(link.kind)} of {rate_text(link.kind, max(rates_Bps[_ends(link)]))}, "
        f"{quantities.percent(link.utilisation)} used"
        for link in limiting
    )
    drawn = "drawn thick" if _all_named(point, limiting) else "links like it are drawn thick"
    return f"Bottleneck: {point.bottleneck}; {drawn} ({each} over the whole step)"


def busiest_link(point: SizeResult) -> str:
    """Say which link is busiest, by its ends, and the path of the bottleneck; in one line."""
    if not point.links:
        return ""
    busiest = max(point.links, key=lambda link: link.utilisation)
    text = (
        f"Busiest link: {busiest.src} to {busiest.dst} ({busiest.kind}), "
        f"{quantities.percent(busiest.utilisation)} used over the whole step."
    )
    path = f" Path of the bottleneck: {quantities.link_path(point)}."
    return f"{text}{path}" if find_limiting(point) else text


def stack(labels: Sequence[LayerLabel], line_height: float) -> list[tuple[float, LayerLabel]]:
    """Heights at which labels stand without touching each other, near to those of their links.

    Labels that would touch stand on each other, around the mean of their heights.
    """

    def size(pile: Iterable[LayerLabel]) -> float:
        """Height of labels, each with the space below it."""
        return line_height * sum(len(each.lines) + each.limits + 0.4 for each in pile)

    def middle(pile: Sequence[LayerLabel]) -> float:
        return sum(label.height for label in pile) / len(pile)

    def touch(lower: list[LayerLabel], upper: list[LayerLabel]) -> bool:
        return middle(upper) - middle(lower) < size(lower + upper) / 2

    piles: list[list[LayerLabel]] = []
    for label in sorted(labels, key=lambda label: label.height):
        piles.append([label])
        while len(piles) > 1 and touch(*piles[-2:]):
            piles[-2:] = [piles[-2] + piles[-1]]
    return [
        (middle(pile) - size(pile) / 2 + size(pile[:at]) + size([label]) / 2, label)
        for pile in piles
        for at, label in enumerate(pile)
    ]
