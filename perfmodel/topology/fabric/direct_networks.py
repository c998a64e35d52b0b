"""Direct networks, in which every router holds hosts: torus, mesh, hypercube, flattened butterfly.

Each is a Cartesian product of lines of routers: rings, paths or complete graphs. The generator
takes the number of hosts and the rail of each NIC of a host, and returns a NetworkX graph: hosts
are the integers 0, 1, ..., routers stand at a `place` of the grid, and all NICs of a host are
plugged into one router.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabric.clos import Rails, plugged

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
        "dimension-ordered", "valiant" or "ecmp".

    Raises
    ------
    InputError
        More hosts than the routers hold.
    """
    line, usual = GRIDS[kind]
    if dims is None and usual:
        dims = even_box(hosts, hosts_per_router, usual)
    routers = math.ceil(hosts / (hosts_per_router or 1))
    sides = dims or (2,) * (dimensions or max(1, (routers - 1).bit_length()))
    ports = hosts_per_router and hosts_per_router * len(rails)
    return plug_in(hosts, rails, _grid(line, sides, trunk_cables, routing), ports)


def even_box(hosts: int, hosts_per_router: int | None, dimensions: int) -> tuple[int, ...]:
    """Smallest box of sides that differ by one at most and hold all hosts, longer sides first."""
    routers = math.ceil(hosts / (hosts_per_router or 1))
    side = 2
    while (side + 1) ** dimensions <= routers:
        side += 1
    longer = next(
        n for n in range(dimensions + 1) if (side + 1) ** n * side ** (dimensions - n) >= routers
    )
    return (side + 1,) * longer + (side,) * (dimensions - longer)


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
    if hosts * nics > each * routers:
        most = f"at most {each * routers}: {each} at each of {routers} routers"
        raise InputError(Fault("fabric.hosts_per_router", f"{hosts * nics} NICs", most))
    leaf_of = [[(host * nics + nic) // each for nic in range(nics)] for host in range(hosts)]
    graph = plugged(hosts, leaf_of, map(str, network), **network.graph)
    graph.update(network)
    return graph
