"""A topology for people: a summary in plain text, and a layout to draw it by.

Words beside the picture of a machine: what each layer of links is, its rate, the bottleneck.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.errors import TopologyError
from perfmodel.report.common import quantities
from perfmodel.report.common.document import has_processes, in_words_of
from perfmodel.report.common.palette import LINKS
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.usage import LinkEnds, LinkUse
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.units import format_bandwidth, format_bytes, format_time

_PLURALS = {
    "gpu": "GPUs",
    "nvswitch": "NVSwitches",
    "pcie_switch": "PCIe switches",
    "cpu": "CPUs (NUMA)",
    "memory": "host memories",
    "nic": "NICs",
    "switch": "network switches",
}

_LAYERS = {"nvswitch": -1.0, "gpu": 0.0, "pcie_switch": 1.0, "memory": 1.0, "cpu": 2.0, "nic": 3.0}
"""Height of each kind; NVSwitches hang below the GPUs, so that no NVLink crosses PCIe."""

_MOST_COLUMNS = 16


def summary(topology: Topology) -> list[str]:
    """Describe a topology in lines of plain text.

    Counts by kind, links with bandwidth per direction and latency, the path types of one host as
    ``nvidia-smi topo -m`` prints them, how many bytes per second leave a host, and how much the
    fabric is oversubscribed.
    """
    gpu, of_cpu = topology.gpu, has_processes(topology)
    hosts = "1 host" if topology.hosts == 1 else f"{topology.hosts} hosts"
    memory = f"{format_bytes(gpu.memory_bytes)} at {format_bandwidth(gpu.memory_Bps)}"
    counts = Counter[str](device.kind for device in topology.devices.values())
    words = {**_PLURALS, "gpu": "processes"} if of_cpu else _PLURALS
    return [
        f"{topology.name}: {len(topology.ranks)} ranks on {hosts}, {network_text(topology)}",
        f"{'Process' if of_cpu else 'GPU'} {gpu.name}: {memory}",
        "",
        *(f"{counts[kind]:>8}  {word}" for kind, word in words.items() if counts[kind]),
        "",
        f"{'links':>8}  {'kind':<11} {'per direction':>14} {'latency':>10}",
        *(
            f"{count:>8}  {kind:<11} {rate:>14} {latency:>10}"
            for count, kind, rate, latency in link_rows(topology)
        ),
        "",
        *_matrix_lines(topology),
        "",
        *rate_lines(topology),
    ]


def network_text(topology: Topology) -> str:
    """Name the network between hosts."""
    return "no network" if topology.fabric == "none" else f"network {topology.fabric}"


def path_matrix(topology: Topology) -> tuple[list[str], list[list[str]]]:
    """Path types of one host, as ``nvidia-smi topo -m`` prints them.

    Returns the names, GPUs and then NICs, and the path type from each to each: "X" on the diagonal,
    "-" where nothing connects them, "NV12" for 12 lanes of NVLink, switched or direct.
    """
    router = Router(topology)
    names = [
        name
        for kind in ("gpu", "nic")
        for name, device in topology.devices.items()
        if device.host == 0 and device.kind == kind
    ]
    rows = [["X" if a == b else _cell(topology, router, a, b) for b in names] for a in names]
    return [topology.devices[name].local for name in names], rows


def _cell(topology: Topology, router: Router, src: str, dst: str) -> str:
    try:
        kind, arcs = router.path_type(src, dst), router.route(src, dst)
    except TopologyError:
        return "-"
    if kind != "NVL":
        return kind
    return in_words_of(topology, f"NV{min(topology.arcs.lanes[arc] for arc in arcs)}")


def link_rows(topology: Topology) -> Iterator[tuple[str, str, str, str]]:
    """List links that are alike: how many, kind, rate per direction, latency."""
    arcs = topology.arcs
    rows = Counter(
        zip(arcs.kinds, arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist(), strict=True)
    )
    for (kind, rate_Bps, latency_s), count in sorted(rows.items()):
        name = in_words_of(topology, kind)
        yield f"{count / 2:g}", name, format_bandwidth(rate_Bps), format_time(latency_s)


def _matrix_lines(topology: Topology) -> Iterator[str]:
    names, rows = path_matrix(topology)
    width = max(len(name) for name in names) + 1
    yield " " * width + "".join(f"{name:>7}" for name in names[:_MOST_COLUMNS])
    for name, row in list(zip(names, rows, strict=True))[:_MOST_COLUMNS]:
        yield f"{name:<{width}}" + "".join(f"{cell:>7}" for cell in row[:_MOST_COLUMNS])
    if len(names) > _MOST_COLUMNS:
        yield f"... and {len(names) - _MOST_COLUMNS} more devices"


def rate_lines(topology: Topology) -> Iterator[str]:
    """Say how copies between GPUs are staged, what a host sends, and what leaf switches pass on."""
    devices, arcs, start = topology.devices, topology.arcs, topology.hosts * topology.host_arcs
    fabric = list(zip(arcs.names[start:], arcs.bandwidth_Bps[start:].tolist(), strict=True))
    leaves = {dst for (src, dst), _ in fabric if devices[src].kind == "nic"}
    out_Bps = sum(rate_Bps for (src, _), rate_Bps in fabric if devices[src].kind == "nic")
    up_Bps = sum(
        rate_Bps
        for (src, dst), rate_Bps in fabric
        if src in leaves and devices[dst].kind == "switch" and dst not in leaves
    )
    if not topology.gpu_p2p and not has_processes(topology):
        yield "GPUs may not copy to each other over PCIe: traffic is staged in host memory"
    if out_Bps:
        yield f"each host sends {format_bandwidth(out_Bps / topology.hosts)} into the fabric"
    if up_Bps and out_Bps / up_Bps > 1.0001:
        yield f"leaf switches are oversubscribed {out_Bps / up_Bps:.3g} : 1"
    elif up_Bps:
        yield "leaf switches pass on all that their hosts send"


# ---------------------------------------------------------------- layout


def positions(topology: Topology, hosts: Sequence[int] = (0,)) -> dict[str, tuple[float, float]]:
    """Lay out some hosts and the switches that they reach, in layers.

    `hosts`: numbers of those to draw; the others and what only they reach are left out.
    The layers from bottom to top: NVSwitches, GPUs, PCIe switches, CPUs, NICs, then the fabric
    level by level. One unit is the distance between neighbours of the widest layer. A graph of
    one's own has no layers: its devices stand as far apart as the links between them are many.
    """
    if not has_layers(topology):
        return _free_positions(topology)
    layers: dict[tuple[int, float], list[str]] = {}
    for name, device in topology.devices.items():
        if device.host in hosts:
            layers.setdefault((device.host, _LAYERS[device.kind]), []).append(name)
    width = max(map(len, layers.values()))
    placed: dict[str, tuple[float, float]] = {}
    for (host, height), names in layers.items():
        placed |= _spread(names, width, height, list(hosts).index(host) * (width + 1))
    total = len(hosts) * (width + 1) - 1
    for level, names in enumerate(_fabric_levels(topology, placed), start=4):
        placed |= _spread(names, total, float(level))
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

    graph = nx.Graph(topology.graph)
    is_small = len(graph) <= MOST_LAID_BY_DISTANCE
    found = nx.kamada_kawai_layout(graph) if is_small else nx.spring_layout(graph, seed=0)
    side = len(graph) ** 0.5 / 2
    return {
        name: (float(x) * side / HEIGHT_OF_WIDTH**0.5, float(y) * side * HEIGHT_OF_WIDTH**0.5)
        for name, (x, y) in found.items()
    }


def _spread(
    names: Sequence[str], width: int, height: float, begin: float = 0
) -> dict[str, tuple[float, float]]:
    """Place devices in the middles of equal parts of a line of `width` places."""
    part = [(at + 0.5) * width / len(names) - 0.5 for at in range(len(names))]
    return {name: (begin + x, height) for name, x in zip(names, part, strict=True)}


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


BETWEEN_HOSTS = frozenset({"ethernet", "infiniband"})

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
    bits = f" ({float(f'{rate_Bps * 8e-9:.3g}'):,g} Gbit/s)" if kind in BETWEEN_HOSTS else ""
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
    like = set(map(_layer_of, point.limiting_links))
    layers = {_layer_of(link): link for link in reversed(links)}
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


def limiting_device(point: SizeResult) -> str:
    """Kind of device that limits the step, where it is no link: GPUs that compute, or the host."""
    return {"compute": "gpu", "host": "cpu"}.get(point.limit, "")


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
    places = {_layer(topology, link): link.utilisation for link in limiting}
    return {
        (*sorted((link.src, link.dst)), link.kind)  # type: ignore[misc]
        for link in links
        if abs(link.utilisation - places.get(_layer(topology, link), -1.0))
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
    layers: dict[tuple[float, str, str], list[tuple[float, int, bool]]] = defaultdict(list)
    for ends, kind, rate_Bps, count in cables:
        height = sum(places[end][1] for end in ends) / 2
        name = _layer_name(kind, {topology.devices[end].kind for end in ends})
        layers[height, kind, name].append((rate_Bps, count, (*sorted(ends), kind) in limiting))
    return [
        LayerLabel(height, _layer_lines(kind, name, members), any(m[-1] for m in members))
        for (height, kind, name), members in sorted(layers.items())
    ]


def _layer_name(kind: str, ends: set[str]) -> str:
    """Kind of link as people say it; of PCIe with what it belongs to, as a host has several."""
    name = LINKS.get(kind, ("", kind))[1]
    owners = {"gpu": "GPUs", "nic": "NICs", "pcie_switch": "switches"} if kind == "pcie" else {}
    return next((f"{name} of {word}" for owner, word in owners.items() if owner in ends), name)


def _layer_lines(
    kind: str, name: str, members: Sequence[tuple[float, int, bool]]
) -> tuple[str, ...]:
    rates = sorted({float(f"{rate_Bps:.3g}") for rate_Bps, *_ in members})
    count = sum(number for _, number, _ in members)
    several = f"{count} \N{MULTIPLICATION SIGN} " if count > 1 else ""
    written = quantities.rate(rates[0])
    if len(rates) > 1:
        written = quantities.span(rates[0], rates[-1], quantities.rate)
    elif kind in BETWEEN_HOSTS:
        return f"{several}{name}", written, rate_text(kind, rates[0]).partition("(")[2].rstrip(")")
    return f"{several}{name}", written


def limit_sentence(topology: Topology, point: SizeResult) -> str:
    """Say what limits the step, and at which rate; nothing where that is not a link."""
    limiting, arcs = find_limiting(point), topology.arcs
    if not limiting and point.limit == "compute":
        return "The GPUs themselves are the bottleneck (compute), no link is"
    if not limiting:
        return f"Bottleneck: {point.bottleneck}"
    rates_Bps: dict[tuple[str, str, str], float] = {}
    for (src, dst), kind, rate_Bps in zip(arcs.names, arcs.kinds, arcs.bandwidth_Bps, strict=True):
        rates_Bps[src, dst, kind] = max(float(rate_Bps), rates_Bps.get((src, dst, kind), 0.0))
    each = "; ".join(
        f"{LINKS.get(link.kind, ('', link.kind))[1]} of "
        f"{rate_text(link.kind, rates_Bps[_ends(link)])}, "
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
    path = f" Path of the bottleneck: {quantities.link_path(point)}."
    return (
        f"Busiest link: {busiest.src} to {busiest.dst} ({busiest.kind}), "
        f"{quantities.percent(busiest.utilisation)} used over the whole step."
        f"{path if find_limiting(point) else ''}"
    )


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
