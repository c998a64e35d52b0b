"""A topology for people: a summary in plain text, and a layout to draw it by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfmodel.errors import TopologyError
from perfmodel.report.common.processes import has_processes, in_words_of
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
    columns = names[:_MOST_COLUMNS]
    width = max(len(name) for name in names) + 1
    yield " " * width + "".join(f"{name:>7}" for name in columns)
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
