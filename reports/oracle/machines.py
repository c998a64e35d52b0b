"""Small machines, of which theory can say what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from perfmodel.files import validate_document
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.topology.compilation import compile_topology
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.spec import NodeSpec

Numbers = Sequence[float] | NDArray[np.float64]


def with_credits(credits: int) -> CommLibrary:
    """Bare links, with this many sends of an edge under way."""
    plain = load_library("plain")
    simple = plain.protocols["simple"].model_copy(update={"credits": credits})
    return plain.model_copy(update={"protocols": {"simple": simple}})


def wires(bandwidth_Bps: Numbers, latency_s: float = 0.0) -> Topology:
    """Unconnected links, one arc each, for flows whose routes are given."""
    arcs = [
        (f"n0/gpu{2 * i}", f"n0/gpu{2 * i + 1}", float(bandwidth), latency_s)
        for i, bandwidth in enumerate(bandwidth_Bps)
    ]
    return drawn(arcs)


def crossbar(
    up_Bps: Numbers,
    latency_s: Numbers,
    *,
    down_Bps: Numbers | float = 1e15,
    trunk_Bps: float | None = None,
) -> Topology:
    """GPUs on a switch; with `trunk_Bps` all traffic crosses one link between two switches."""
    count = len(up_Bps)
    downs = [down_Bps] * count if isinstance(down_Bps, float) else list(down_Bps)
    after = "n0/nvs2" if trunk_Bps else "n0/nvs"
    arcs = [
        arc
        for i, (up, down, late) in enumerate(zip(up_Bps, downs, latency_s, strict=True))
        for arc in (
            (f"n0/gpu{i}", "n0/nvs", float(up), float(late)),
            (after, f"n0/gpu{i}", float(down), 0.0),
        )
    ]
    if trunk_Bps:
        arcs.append(("n0/nvs", "n0/nvs2", float(trunk_Bps), 0.0))
    return drawn(arcs)


def drawn(arcs: Sequence[tuple[str, str, float, float]]) -> Topology:
    """One host of NVLinks: (from, to, bytes per second, seconds) each."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name="drawn")
    for name in dict.fromkeys(end[3:] for arc in arcs for end in arc[:2]):
        own = {"model": "a100-sxm4-80gb"} if "gpu" in name else {}
        graph.add_node(name, kind="gpu" if "gpu" in name else "nvswitch", **own)
    graph.add_node("cpu0", kind="cpu")
    for src, dst, bandwidth, late in arcs:
        graph.add_edge(
            src[3:],
            dst[3:],
            index=graph.number_of_edges(),
            kind="nvlink",
            bandwidth=bandwidth,
            latency=late,
        )
    return replace(compile_topology(graph), sources={})


ROUND_NUMBERS = "assumption: round numbers for a comparison with other simulators"


def two_level_node(gpus: int = 8) -> NodeSpec:
    """GPUs on a 300 GB/s switch at 500 ns, each with a 25 GB/s NIC of its own at 1 us.

    The cluster on which SimGrid, ASTRA-sim, SimAI and Calculon were compared.
    """
    last = gpus - 1
    return _node(
        "two-level",
        links={
            "nvlink": _link("nvlink", "300 GB/s", "250 ns"),
            "pcie": _link("pcie", "25 GB/s", "0 s"),
            "port": _link("infiniband", "25 GB/s", "500 ns"),
        },
        nodes=[
            {"id": f"gpu[0-{last}]", "kind": "gpu"},
            {"id": "nvs", "kind": "nvswitch"},
            {"id": "cpu0", "kind": "cpu"},
            {"id": f"nic[0-{last}]", "kind": "nic", "port": "port"},
        ],
        edges=[
            {"from": f"gpu[0-{last}]", "to": "nvs", "link": "nvlink"},
            {"from": f"gpu[0-{last}]", "to": f"nic[0-{last}]", "link": "pcie"},
            {"from": f"gpu[0-{last}]", "to": "cpu0", "link": "pcie"},
        ],
    )


def one_gpu_node() -> NodeSpec:
    """One GPU with a port of 50 GB/s; 500 ns from GPU to GPU."""
    return _node(
        "one-gpu",
        links={
            "pcie": _link("pcie", "50 GB/s", "0 s"),
            "port": _link("infiniband", "50 GB/s", "250 ns"),
        },
        nodes=[
            {"id": "gpu0", "kind": "gpu"},
            {"id": "cpu0", "kind": "cpu"},
            {"id": "nic0", "kind": "nic", "port": "port"},
        ],
        edges=[
            {"from": "gpu0", "to": "nic0", "link": "pcie"},
            {"from": "gpu0", "to": "cpu0", "link": "pcie"},
        ],
    )


def _link(kind: str, bandwidth: str, latency: str) -> dict[str, Any]:
    numbers = {"bandwidth": bandwidth, "latency": latency, "efficiency": 1.0}
    return {"kind": kind, "source": ROUND_NUMBERS, **numbers}


def _node(name: str, **parts: Any) -> NodeSpec:
    head = {"perfmodel": 1, "kind": "node", "name": name, "description": ROUND_NUMBERS}
    return validate_document(NodeSpec, {**head, "gpu": "a100-sxm4-80gb", **parts})


def uneven(topology: Topology, rng: np.random.Generator) -> Topology:
    """The same links, each up to twice as fast or as slow, and as late, as it was."""
    arcs = topology.arcs
    speed, late = (2.0 ** rng.uniform(-1, 1, len(arcs)) for _ in range(2))
    return degrade_links(
        topology,
        dict(enumerate(arcs.bandwidth_Bps * speed)),
        dict(enumerate(arcs.latency_s * late)),
    )
