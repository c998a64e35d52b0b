"""Direct networks, in which every router holds hosts: grids and the dragonfly.

A torus, a mesh, a hypercube and a flattened butterfly are Cartesian products of lines of routers:
rings, paths or complete graphs. A dragonfly has groups of routers that are all joined to each
other, as are the groups. A generator takes the number of hosts and the rail of each NIC of a host,
and returns a NetworkX graph: hosts are the integers 0, 1, ..., and routers stand at a `place`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import combinations, count
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.topology.fabric.clos import Rails, one_switch, plugged

if TYPE_CHECKING:
    import networkx as nx

Dims = Sequence[int]

GRIDS: Mapping[str, tuple[str, int]] = {
    # Rings; the diameter is the sum of half the sides; k even, 2 k**(n - 1) links cross the middle
    # of a k-ary n-cube. Source: Dally, "Performance Analysis of k-ary n-cube Interconnection
    # Networks", IEEE Transactions on Computers 39(6), 1990.
    "torus": ("ring", 3),
    # A torus without the links that close its rings: the diameter is the sum of the sides less one.
    "mesh": ("path", 2),
    # Two routers along each of n dimensions: 2**n of them, n their diameter; 2**(n - 1) links cross
    # the middle. Source: Saad and Schultz, "Topological Properties of Hypercubes", IEEE
    # Transactions on Computers 37(7), 1988.
    "hypercube": ("path", 0),
    # Complete graphs, so that one hop crosses a dimension: a k-ary n-flat has n - 1 dimensions of k
    # routers, and k ports for hosts at each. Source: Kim, Dally and Abts, "Flattened Butterfly: A
    # Cost-Efficient Topology for High-Radix Networks", ISCA 2007.
    "flattened-butterfly": ("complete", 2),
}
"""Line of routers along each dimension, and usual number of dimensions; 0: as many as needed."""


def direct_network(
    kind: str,
    hosts: int,
    rails: Rails,
    *,
    dims: Dims | None = None,
    dimensions: int | None = None,
    hosts_per_router: int | None = None,
    trunk_cables: int = 1,
    routing: str = "dimension-ordered",
) -> nx.Graph[int | str]:
    """Lines of routers along each dimension.

    Parameters
    ----------
    kind : str
        One of `GRIDS`.
    hosts : int
    rails : tuple of int
        Rail of each NIC of a host.
    dims : sequence of int, optional
        Routers along each dimension; by default the smallest even box that holds all hosts.
    dimensions : int, optional
        Of a hypercube; by default the fewest that hold all hosts, one host to a router.
    hosts_per_router : int, optional
        By default as few as hold all hosts.
    trunk_cables : int
        Parallel cables between neighbours.
    routing : str
        "dimension-ordered", "valiant", "ecmp", or "adaptive" (see `SPREAD_OVER_AXES`).

    Raises
    ------
    InputError
        More hosts than the routers hold.
    """
    line, usual = GRIDS[kind]
    if dims is None and usual:
        spread = routing == "adaptive"
        dims = near_cube(hosts, usual) if spread else even_box(hosts, hosts_per_router, usual)
    sides = dims or (2,) * (
        dimensions or max(1, (math.ceil(hosts / (hosts_per_router or 1)) - 1).bit_length())
    )
    ports = hosts_per_router and hosts_per_router * len(rails)
    if routing == "adaptive":
        return _spread_over_axes(hosts, rails, line, sides)
    return plug_in(hosts, rails, _grid(line, sides, trunk_cables, routing), ports)


SPREAD_OVER_AXES = (
    "assumption: collectives run rings along all axes of the torus or mesh at once, both ways, and"
    " are as quick as the links of the axes that their ranks span; other messages do not meet"
)


def _spread_over_axes(hosts: int, rails: Rails, line: str, sides: Dims) -> nx.Graph[int | str]:
    """One switch for all, with the sides by which `library.lowering.axes` limits collectives."""
    refuse_if(
        hosts != math.prod(sides),
        "fabric.dims",
        f"{' x '.join(map(str, sides))} for {hosts:,} chips",
        "sides whose product is the number of chips",
    )
    graph = one_switch(hosts, rails)
    graph.graph |= {"dims": tuple(sides), "line": line, "assumptions": (SPREAD_OVER_AXES,)}
    return graph


def even_box(hosts: int, hosts_per_router: int | None, dimensions: int) -> tuple[int, ...]:
    """Smallest box of sides that differ by one at most and hold all hosts, longer sides first."""
    routers = math.ceil(hosts / (hosts_per_router or 1))
    side = next(side for side in count(2) if (side + 1) ** dimensions > routers)
    longer = next(
        n for n in range(dimensions + 1) if (side + 1) ** n * side ** (dimensions - n) >= routers
    )
    return (side + 1,) * longer + (side,) * (dimensions - longer)


def near_cube(hosts: int, dimensions: int) -> tuple[int, ...]:
    """Sides that are as even as their product, all hosts, allows, shorter sides first.

    Examples
    --------
    >>> near_cube(256, 3), near_cube(512, 3), near_cube(256, 2)
    ((4, 8, 8), (8, 8, 8), (16, 16))
    """
    sides: list[int] = []
    for left in range(dimensions, 0, -1):
        most = round(hosts ** (1 / left))
        sides.append(next(side for side in range(most, 0, -1) if hosts % side == 0))
        hosts //= sides[-1]
    return tuple(sides)


def _grid(line: str, dims: Dims, cables: int, routing: str) -> nx.Graph[int | str]:
    """Routers of a Cartesian product of lines, the last dimension fastest."""
    import networkx as nx

    lines = {"ring": nx.cycle_graph, "path": nx.path_graph, "complete": nx.complete_graph}
    origin: nx.Graph[Any] = nx.empty_graph([()])
    product = reduce(nx.cartesian_product, (lines[line](side) for side in dims), origin)
    flatten: Callable[[Any], tuple[int, ...]] = nx.utils.flatten
    places = {node: flatten(node) for node in product}
    names = {node: "router" + ".".join(map(str, place)) for node, place in places.items()}
    graph: nx.Graph[int | str] = nx.Graph(routing=routing, line=line, dims=tuple(dims))
    graph.add_nodes_from(
        (names[node], {"kind": "switch", "place": place}) for node, place in places.items()
    )
    graph.add_edges_from(((names[a], names[b]) for a, b in product.edges), cables=cables)
    return graph


def plug_in(
    hosts: int, rails: Rails, network: nx.Graph[int | str], ports: int | None
) -> nx.Graph[int | str]:
    """Plug hosts into the routers of a network in order: its switches that have a ``place``.

    `ports`: most NICs at a router. By default as few whole hosts as hold all.

    Raises `InputError`: more NICs than the routers have ports for.
    """
    routers = sum("place" in data for _, data in network.nodes(data=True))
    nics = len(rails)
    each = ports or math.ceil(hosts / routers) * nics
    each -= each % nics if nics <= each else 0  # whole hosts
    refuse_if(
        hosts * nics > each * routers,
        "fabric.hosts_per_router",
        f"{hosts * nics} NICs",
        f"at most {each * routers}: {each} at each of {routers} routers",
    )
    leaf_of = [[(host * nics + nic) // each for nic in range(nics)] for host in range(hosts)]
    graph = plugged(hosts, leaf_of, map(str, network), **network.graph)
    graph.update(network)
    return graph


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
    number = groups or math.ceil(hosts * nics / (routers_per_group * each))
    cables = _global_cables(free - each, routers_per_group, number, global_cables)
    if cables is None:
        needed = f"{number} groups of {routers_per_group} routers with {each} NICs each"
        needed += f" and {global_cables or 1} cables between groups" if number > 1 else ""
        raise InputError(Fault("fabric.radix", f"{radix} ports", f"enough for {needed}"))
    network: nx.Graph[int | str] = nx.Graph(routing=routing)
    members = [[f"group{g}/router{r}" for r in range(routers_per_group)] for g in range(number)]
    for group, names in enumerate(members):
        network.add_nodes_from(
            (name, {"kind": "switch", "group": group, "place": (group, router)})
            for router, name in enumerate(names)
        )
    join = _join_evenly if routing == "adaptive" else _join_each
    join(network, members, _global_trunks(members, cables), global_latency)
    if number > 1 and None in (groups, global_cables):
        note = f"assumption: {number} groups with {cables} cables between each two"
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
    network.add_edges_from((*ends, {"cables": each, **longer}) for ends, each in trunks.items())


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
