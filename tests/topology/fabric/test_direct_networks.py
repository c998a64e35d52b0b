"""Direct networks against the formulas of the literature and NetworkX's own generators."""

from __future__ import annotations

import math
from functools import partial

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.fabric.direct_networks import direct_network, even_box

flattened_butterfly = partial(direct_network, "flattened-butterfly")
hypercube = partial(direct_network, "hypercube")
mesh = partial(direct_network, "mesh")
torus = partial(direct_network, "torus")

SIDES = st.lists(st.integers(2, 5), min_size=1, max_size=3)


def routers_of(graph: nx.Graph) -> nx.Graph:
    return graph.subgraph(name for name in graph if isinstance(name, str))


def middle_cut(graph: nx.Graph, dims: tuple[int, ...]) -> int:
    """Links between the halves of the longest dimension, by maximum flow between them."""
    routers = nx.Graph(routers_of(graph))
    nx.set_edge_attributes(routers, 1, "capacity")
    axis = max(range(len(dims)), key=dims.__getitem__)
    for name, place in nx.get_node_attributes(routers, "place").items():
        half = "low" if place[axis] < dims[axis] // 2 else "high"
        routers.add_edge(half, name)
    return nx.minimum_cut_value(routers, "low", "high")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(dims=SIDES)
def test_grids_are_those_of_networkx(dims: list[int]) -> None:
    hosts, backwards = math.prod(dims), tuple(reversed(dims))
    ring = routers_of(torus(hosts, (0,), dims=dims))
    line = routers_of(mesh(hosts, (0,), dims=dims))
    assert nx.is_isomorphic(ring, nx.grid_graph(backwards, periodic=True))
    assert nx.is_isomorphic(line, nx.grid_graph(backwards))
    assert nx.diameter(ring) == sum(side // 2 for side in dims)
    assert nx.diameter(line) == sum(side - 1 for side in dims)


@settings(max_examples=25, deadline=None)
@given(dims=SIDES)
def test_a_hop_of_a_flattened_butterfly_changes_one_coordinate_to_any_other(
    dims: list[int],
) -> None:
    """Kim, Dally and Abts 2007: k - 1 links in each dimension, diameter their number."""
    routers = routers_of(flattened_butterfly(math.prod(dims), (0,), dims=dims))
    assert {degree for _, degree in routers.degree} == {sum(side - 1 for side in dims)}
    assert nx.diameter(routers) == len(dims)
    for a, b in routers.edges:
        ends = routers.nodes[a]["place"], routers.nodes[b]["place"]
        assert sum(x != y for x, y in zip(*ends, strict=True)) == 1


@pytest.mark.parametrize("dimensions", range(1, 6))
def test_hypercube_is_that_of_networkx(dimensions: int) -> None:
    """Saad and Schultz 1988: 2**n nodes, n 2**(n - 1) links, diameter n."""
    routers = routers_of(hypercube(2**dimensions, (0,)))
    assert len(routers) == 2**dimensions
    assert routers.number_of_edges() == dimensions * 2 ** (dimensions - 1)
    assert nx.diameter(routers) == dimensions
    assert nx.is_isomorphic(routers, nx.hypercube_graph(dimensions))


@pytest.mark.parametrize(
    ("graph", "dims", "links"),
    [
        (torus(64, (0,), dims=(8, 8)), (8, 8), 2 * 8),  # 2 k**(n - 1), Dally 1990
        (torus(64, (0,), dims=(4, 4, 4)), (4, 4, 4), 2 * 16),
        (mesh(64, (0,), dims=(8, 8)), (8, 8), 8),  # k**(n - 1)
        (mesh(64, (0,), dims=(4, 4, 4)), (4, 4, 4), 16),
        (hypercube(32, (0,)), (2,) * 5, 16),  # half of the routers
        (flattened_butterfly(64, (0,), dims=(8, 8)), (8, 8), 8 * 16),  # k * (k / 2)**2
    ],
)
def test_bisection_is_that_of_the_literature(
    graph: nx.Graph, dims: tuple[int, ...], links: int
) -> None:
    assert middle_cut(graph, dims) == links


def test_the_smallest_cut_of_a_torus_isolates_a_router() -> None:
    routers = routers_of(torus(27, (0,), dims=(3, 3, 3)))
    assert len(nx.minimum_edge_cut(routers)) == 6


@given(hosts=st.integers(1, 500), each=st.integers(1, 8), dimensions=st.integers(1, 3))
def test_an_even_box_is_the_smallest(hosts: int, each: int, dimensions: int) -> None:
    dims = even_box(hosts, each, dimensions)
    assert len(dims) == dimensions
    assert max(dims) - min(dims) <= 1
    assert math.prod(dims) * each >= hosts
    if max(dims) > 2:
        smaller = [*sorted(dims)[:-1], max(dims) - 1]
        assert math.prod(smaller) * each < hosts


@pytest.mark.parametrize("generator", [torus, mesh, flattened_butterfly])
def test_hosts_fill_routers_in_order(generator) -> None:
    graph = generator(10, (0, 1), dims=(2, 3), hosts_per_router=2)
    assert [next(iter(graph[host])) for host in range(10)] == [
        f"router{a}.{b}" for a, b in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] for _ in range(2)
    ]
    assert {graph.edges[host, next(iter(graph[host]))]["nics"] for host in range(10)} == {(0, 1)}
    assert graph.number_of_nodes() == 10 + 6


def test_more_hosts_than_routers_hold_are_refused() -> None:
    with pytest.raises(InputError, match="13 NICs; allowed: at most 12: 2 at each of 6 routers"):
        torus(13, (0,), dims=(2, 3), hosts_per_router=2)


def test_cables_between_neighbours_are_as_many_as_asked() -> None:
    graph = torus(8, (0,), dims=(2, 4), trunk_cables=3)
    assert {data["cables"] for *_, data in routers_of(graph).edges(data=True)} == {3}
