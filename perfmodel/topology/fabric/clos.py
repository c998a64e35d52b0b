"""Fabrics of switches in levels, as generators of NetworkX graphs: a switch, leaves, a fat tree.

Each takes the number of hosts and the rail of each NIC of a host, and returns a graph of hosts (the
numbers from 0) and switches. An edge of a host has the numbers of the NICs that it plugs in
(``nics``); an edge between switches has parallel ``cables``, of ``lanes`` bonded into each.
``graph.graph["tiers"]`` says how regular it is (`perfmodel.topology.routing.clos.Tiers`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from perfmodel.errors import refuse_if
from perfmodel.memo import applying

if TYPE_CHECKING:
    import networkx as nx

Rails = tuple[int, ...]
"""Rail of each NIC of one host; all hosts are alike."""

_ONE_LEAF = {"leaves": 1, "pod": 1}


def one_switch(hosts: int, rails: Rails) -> nx.Graph[int | str]:
    """All NICs on one switch."""
    return plugged(hosts, [[0] * len(rails)] * hosts, ["switch0"], tiers=_ONE_LEAF)


def rail_optimised(
    hosts: int,
    rails: Rails,
    *,
    down_ports: int,
    radix: int,
    oversubscription: float,
    hosts_per_leaf: int | None = None,
    adaptive: bool = False,
) -> nx.Graph[int | str]:
    """One leaf per rail for each group of hosts; spines above join the rails and the groups."""
    used = sorted(set(rails))
    cables = len(rails) // len(used)  # NICs of one host on one rail
    group = hosts_per_leaf or max(1, down_ports // cables)
    own = [used.index(rail) for rail in rails]
    leaf_of = [[host // group * len(used) + rail for rail in own] for host in range(hosts)]
    leaves = math.ceil(hosts / group) * len(used)
    return _with_spines(
        hosts, leaf_of, leaves, min(group, hosts) * cables, radix, oversubscription, adaptive
    )


def leaf_spine(
    hosts: int,
    rails: Rails,
    *,
    down_ports: int,
    radix: int,
    oversubscription: float,
    hosts_per_leaf: int | None = None,
    adaptive: bool = False,
) -> nx.Graph[int | str]:
    """Leaves hold whole hosts where a host fits; spines above join the leaves."""
    nics, per_leaf = len(rails), down_ports
    if hosts_per_leaf or nics <= per_leaf:
        per_leaf = nics * (hosts_per_leaf or per_leaf // nics)
    ports = hosts * nics
    leaf_of = [[(host * nics + nic) // per_leaf for nic in range(nics)] for host in range(hosts)]
    leaves, down = math.ceil(ports / per_leaf), min(per_leaf, ports)
    return _with_spines(hosts, leaf_of, leaves, down, radix, oversubscription, adaptive)


def fat_tree(
    hosts: int,
    rails: Rails,
    *,
    k: int | None,
    radix: int,
    oversubscription: float,
    adaptive: bool = False,
) -> nx.Graph[int | str]:
    """Three levels of equal switches (Al-Fares et al., SIGCOMM 2008): k**3 / 4 host ports.

    Only what the ports in use need is built: their edge switches, whole pods above them, and core
    switches if there are several pods. An oversubscribed tree is tapered at its edge: each edge
    switch has fewer uplinks by that factor, so that its pod has as many aggregation switches fewer.
    """
    ports = hosts * len(rails)
    size = k or next(even for even in count(2, 2) if even**3 // 4 >= ports)
    most = (k or radix - radix % 2) ** 3 // 4
    refuse_if(
        ports > size**3 // 4 or size > max(radix, k or 0),
        "fabric.radix",
        f"{ports} NICs",
        f"at most {most} in a fat tree of such switches",
    )
    half = size // 2
    edges = math.ceil(ports / half)
    numbers = range(len(rails))
    leaf_of = [[(host * len(rails) + nic) // half for nic in numbers] for host in range(hosts)]
    names = [f"edge{edge}" for edge in range(edges)]
    if edges == 1:
        return plugged(hosts, leaf_of, names, tiers=_ONE_LEAF)
    pods, up = math.ceil(edges / half), max(1, round(half / oversubscription))
    above, lanes = (1, up) if adaptive else (up, 1)  # switches of a pod, cables to each
    cores = (1 if adaptive else half) if pods > 1 else 0  # above each of those
    aggs = [f"agg{agg}" for agg in range(pods * above)]
    tops = [f"core{core}" for core in range(above * cores)]
    graph = plugged(
        hosts,
        leaf_of,
        names + aggs + tops,
        tiers={"leaves": edges, "pod": half, "above": above, "cables": 1, "cores": cores},
        assumptions=list(
            applying(
                _rounded_taper(half, up, oversubscription),
                (
                    adaptive,
                    _one_of_many(f"the {up} aggregation switches of a pod and all core switches"),
                ),
            )
        ),
    )
    graph.add_edges_from(
        (names[edge], aggs[edge // half * above + agg], {"lanes": lanes})
        for edge in range(edges)
        for agg in range(above)
    )
    graph.add_edges_from(
        (aggs[agg], tops[agg % above * cores + core], {"lanes": up * half if adaptive else 1})
        for agg in range(pods * above)
        for core in range(cores)
    )
    return graph


def _with_spines(
    hosts: int,
    leaf_of: Sequence[Sequence[int]],
    leaves: int,
    down: int,
    radix: int,
    oversubscription: float,
    adaptive: bool,
) -> nx.Graph[int | str]:
    """Join leaves of `down` used ports by the fewest spines that have ports enough."""
    names = [f"leaf{leaf}" for leaf in range(leaves)]
    if leaves == 1:
        return plugged(hosts, leaf_of, names, tiers=_ONE_LEAF)
    up = max(1, round(down / oversubscription))
    spines = _fewest_spines(leaves, up, radix)
    ports = leaves * up // spines
    third_level = (
        f"assumption: {spines} modular spine switches of {ports} ports each stand for the third "
        f"level that switches of {radix} ports would need"
    )
    notes = list(
        applying(
            (ports > radix, third_level),
            _rounded_taper(down, up, oversubscription),
            (adaptive and spines > 1, _one_of_many(f"{spines} spine switches")),
        )
    )
    above, cables, lanes = (1, 1, up) if adaptive else (spines, up // spines, 1)
    upper = [f"spine{spine}" for spine in range(above)]
    tiers = {"leaves": leaves, "pod": leaves, "above": above, "cables": cables}
    graph = plugged(hosts, leaf_of, names + upper, tiers=tiers, assumptions=notes)
    graph.add_edges_from(
        (leaf, spine, {"cables": cables, "lanes": lanes}) for leaf in names for spine in upper
    )
    return graph


def _fewest_spines(leaves: int, up: int, radix: int) -> int:
    """Spines of at most `radix` ports that `up` cables of each leaf are spread over evenly."""
    return next((n for n in range(1, up + 1) if up % n == 0 and leaves * up // n <= radix), up)


def rail_only(
    hosts: int, rails: Rails, *, radix: int = 64, routing: str = "ecmp"
) -> nx.Graph[int | str]:
    """One switch per rail, or leaves and spines that do not block where hosts need more ports.

    NICs of different rails do not reach each other: bytes change rails inside a host, over NVLink.
    Source: Wang, Ghobadi, Shakeri, Zhang and Hasani, "Rail-only: A Low-Cost High-Performance
    Network for Training LLMs with Trillion Parameters", arXiv:2307.12169.

    Parameters
    ----------
    hosts : int
    rails : tuple of int
        Rail of each NIC of a host.
    radix : int
        Ports of a switch.
    routing : str
        "ecmp", "rail", or "adaptive": all flows of a leaf share its uplinks evenly.
    """
    used = sorted(set(rails))
    nics = len(rails) // len(used)  # of one host on one rail
    group = hosts if hosts * nics <= radix else max(1, radix // 2 // nics)
    leaves = math.ceil(hosts / group)
    uplinks = group * nics if leaves > 1 else 0
    spines = _fewest_spines(leaves, uplinks, radix)
    names = [f"rail{rail}/leaf{leaf}" for rail in used for leaf in range(leaves)]
    own = [used.index(rail) * leaves for rail in rails]
    leaf_of = [[leaf + host // group for leaf in own] for host in range(hosts)]
    adaptive = routing == "adaptive"
    above, cables = (1, 1) if adaptive else (spines, uplinks // max(1, spines))
    levels = {"above": above, "cables": cables} if leaves > 1 else {}
    tiers = {"leaves": len(names), "pod": leaves, **levels}
    graph = plugged(hosts, leaf_of, names, routing=routing, tiers=tiers)
    trunks = [
        (name, f"{name.partition('/')[0]}/spine{spine}")
        for name in (names if leaves > 1 else ())
        for spine in range(above)
    ]
    graph.add_nodes_from((spine for _, spine in trunks), kind="switch")
    graph.add_edges_from(trunks, **({"lanes": uplinks} if adaptive else {"cables": cables}))
    return graph


def plugged(
    hosts: int, leaf_of: Sequence[Sequence[int]], switches: Iterable[str], **facts: Any
) -> nx.Graph[int | str]:
    """Return hosts and switches, each NIC plugged into its leaf.

    `leaf_of`: position among the switches of the leaf of each NIC, host by host. `facts`: of the
    graph as a whole.
    """
    import networkx as nx

    names = list(switches)
    graph: nx.Graph[int | str] = nx.Graph(**facts)
    graph.add_nodes_from(range(hosts), kind="host")
    graph.add_nodes_from(names, kind="switch")
    graph.add_edges_from(
        (host, names[leaf], {"nics": tuple(nic for nic, own in enumerate(leaves) if own == leaf)})
        for host, leaves in enumerate(leaf_of)
        for leaf in dict.fromkeys(leaves)
    )
    return graph


def _rounded_taper(down: int, up: int, oversubscription: float) -> tuple[bool, str]:
    """Return whether whole cables make another ratio, and what they make of it."""
    made = f"oversubscription {down / up:.3g} (asked: {oversubscription:g})"
    note = f"assumption: {up} uplinks for {down} host ports of a leaf, so {made}"
    return abs(down / up - oversubscription) > 1e-9, note


def _one_of_many(switches: str) -> str:
    """Say what adaptive routing makes of switches."""
    return (
        f"assumption: adaptive routing spreads every flow evenly over all ways, so {switches} act "
        "as one, and the cables from a switch to them as one link of their summed rate"
    )
