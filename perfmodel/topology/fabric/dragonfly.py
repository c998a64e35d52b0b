"""Dragonfly: groups of routers that are all joined to each other, as are the groups."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabric.clos import Rails
from perfmodel.topology.fabric.direct_networks import plug_in

if TYPE_CHECKING:
    import networkx as nx


def dragonfly(
    hosts: int,
    rails: Rails,
    *,
    radix: int = 64,
    routers_per_group: int = 32,
    groups: int | None = None,
    hosts_per_router: int | None = None,
    global_cables: int | None = None,
    global_latency: float | None = None,
    routing: str = "minimal",
) -> nx.Graph[int | str]:
    """Groups of routers, a cable between any two of a group, and cables between any two groups.

    A packet crosses at most one global cable, and at most one in each group, so the diameter is 3.
    Source: Kim, Dally, Scott and Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology",
    ISCA 2008. Global cables of a group go to its routers in turn.

    Parameters
    ----------
    hosts : int
    rails : tuple of int
        Rail of each NIC of a host.
    radix : int
        Ports of a router.
    routers_per_group : int
    groups : int, optional
        By default as few as hold all hosts.
    hosts_per_router : int, optional
        With all their NICs. By default half of the ports that the group leaves to a router are for
        NICs (Kim's balance, p = h); a host that has more is plugged into several routers.
    global_cables : int, optional
        Between each two groups; by default as many as the routers have ports for.
    global_latency : float, optional
        Of a global cable; by default that of the others.
    routing : str
        "minimal", "valiant", "ecmp" or "adaptive" (see `_join_evenly`).

    Raises
    ------
    InputError
        More hosts than the routers hold, or more cables than they have ports.
    """
    import networkx as nx

    nics = len(rails)
    free = radix - (routers_per_group - 1)
    each = hosts_per_router * nics if hosts_per_router else max(1, free // 2)
    each -= each % nics if nics <= each else 0  # whole hosts
    count = groups or math.ceil(hosts * nics / (routers_per_group * each))
    cables = _global_cables(free - each, routers_per_group, count, global_cables)
    if cables is None:
        needed = f"{count} groups of {routers_per_group} routers with {each} NICs each"
        needed += f" and {global_cables or 1} cables between groups" if count > 1 else ""
        raise InputError(Fault("fabric.radix", f"{radix} ports", f"enough for {needed}"))
    network: nx.Graph[int | str] = nx.Graph(routing=routing)
    members = [[f"group{g}/router{r}" for r in range(routers_per_group)] for g in range(count)]
    for group, names in enumerate(members):
        network.add_nodes_from(
            (name, {"kind": "switch", "group": group, "place": (group, router)})
            for router, name in enumerate(names)
        )
    join = _join_evenly if routing == "adaptive" else _join_each
    join(network, members, _global_trunks(members, cables), global_latency)
    if count > 1 and None in (groups, global_cables):
        note = f"assumption: {count} groups with {cables} cables between each two"
        network.graph["assumptions"] = (note, *network.graph.get("assumptions", ()))
    return plug_in(hosts, rails, network, each)


def _global_cables(ports: int, routers: int, groups: int, stated: int | None) -> int | None:
    """Cables between each two groups; None where `ports` of each router are too few for them."""
    if ports < 0 or groups == 1:
        return None if ports < 0 else 0
    most = routers * ports // (groups - 1)
    cables = stated or most
    return cables if 1 <= cables <= most else None


SPREAD_EVENLY = (
    "assumption: adaptive routing spreads every flow evenly over all cables that leave a router or"
    " a group, so the cables of each act as one link of their summed rate (in a balanced dragonfly"
    " at most twice what any routing reaches)"
)

Trunks = Counter[tuple[str, str]]
"""Cables between two routers of different groups."""


def _global_trunks(members: list[list[str]], cables: int) -> Trunks:
    """Cables between groups: those of a group, sorted by the distance of the other, go round."""
    trunks: Trunks = Counter()
    groups, routers = len(members), len(members[0])
    for a, b in combinations(range(groups), 2):
        first_a, first_b = ((b - a - 1) % groups * cables, (a - b - 1) % groups * cables)
        for cable in range(cables):
            ends = (first_a + cable) % routers, (first_b + cable) % routers
            trunks[members[a][ends[0]], members[b][ends[1]]] += 1
    return trunks


def _join_each(
    network: nx.Graph[int | str], members: list[list[str]], trunks: Trunks, latency_s: float | None
) -> None:
    """A link for each cable."""
    for names in members:
        network.add_edges_from(combinations(names, 2))
    longer = {} if latency_s is None else {"latency": latency_s}
    for (a, b), cables in trunks.items():
        network.add_edge(a, b, cables=cables, **longer)


def _join_evenly(
    network: nx.Graph[int | str], members: list[list[str]], trunks: Trunks, latency_s: float | None
) -> None:
    """The links between which adaptive routing spreads flows evenly, bonded: a tree of cuts.

    Slingshot sends each packet by the least loaded of up to four minimal and non-minimal paths
    (De Sensi et al., "An In-Depth Analysis of the Slingshot Interconnect", SC 2020, section II),
    so that flows share what leaves a router and what leaves a group, and no single cable. No
    routing carries more, and the best carries as much where traffic is even or one group sends to
    one other. Elsewhere packets cross two global cables, so the best carries at least half, where
    a = 2 p = 2 h (Kim et al. 2008: Valiant's routing has half the throughput for any pattern); with
    p > a NICs at a router it may be less. A path has four links; real ones have three to five.
    """
    own = Counter[str]()
    for ends, cables in trunks.items():
        own.update(dict.fromkeys(ends, cables))
    longer = {} if latency_s is None else {"latency": latency_s / 2}
    groups, routers = len(members), len(members[0])
    hubs = [f"group{group}" for group in range(groups)] if groups * routers > 1 else []
    network.add_nodes_from(hubs, kind="switch")
    for hub, names in zip(hubs, members, strict=False):
        network.add_edges_from((name, hub, {"lanes": routers - 1 + own[name]}) for name in names)
    if groups > 1:
        network.add_node("global", kind="switch")
    for hub, names in zip(hubs, members if groups > 1 else (), strict=False):
        network.add_edge(hub, "global", lanes=sum(own[name] for name in names), **longer)
    levels = {"above": 1, "cables": 1, "cores": int(groups > 1)} if hubs else {}
    network.graph["tiers"] = {"leaves": groups * routers, "pod": routers, **levels}
    network.graph["assumptions"] = (SPREAD_EVENLY,)
