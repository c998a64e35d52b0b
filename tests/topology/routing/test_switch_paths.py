"""Paths from router to router: along cables, in order, within the bounds of the literature."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.topology.fabric.direct_networks import direct_network, dragonfly
from perfmodel.topology.routing.clos import hashed
from perfmodel.topology.routing.switch_paths import switch_paths

flattened_butterfly = partial(direct_network, "flattened-butterfly")
hypercube = partial(direct_network, "hypercube")
mesh = partial(direct_network, "mesh")
torus = partial(direct_network, "torus")

GRIDS = {"torus": torus, "mesh": mesh, "flattened butterfly": flattened_butterfly}


def routers_of(graph: nx.Graph) -> list[str]:
    return [name for name in graph if isinstance(name, str)]


def paths_of(graph: nx.Graph, src: np.ndarray, dst: np.ndarray, flow: int = 0) -> list[list[str]]:
    """Routers that each flow passes, by name."""
    names, paths = routers_of(graph), switch_paths(graph)
    assert paths is not None
    stops = np.stack(paths(src, dst, hashed(src, dst, np.full_like(src, flow))), axis=1).tolist()
    return [[names[row[0]], *(names[b] for a, b in pairwise(row) if a != b)] for row in stops]


def all_pairs(graph: nx.Graph) -> tuple[np.ndarray, np.ndarray]:
    count = len(routers_of(graph))
    src, dst = np.divmod(np.arange(count**2), count)
    return src, dst


def assert_along_cables(graph: nx.Graph, paths: list[list[str]]) -> None:
    names = routers_of(graph)
    for at, path in enumerate(paths):
        assert [path[0], path[-1]] == [names[at // len(names)], names[at % len(names)]]
        assert all(graph.has_edge(a, b) for a, b in pairwise(path))


# ---------------------------------------------------------------- grids


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(GRIDS)),
    dims=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    flow=st.integers(0, 99),
)
def test_dimension_order_is_shortest_and_in_order(kind: str, dims: list[int], flow: int) -> None:
    graph = GRIDS[kind](math.prod(dims), (0,), dims=dims)
    paths = paths_of(graph, *all_pairs(graph), flow)
    assert_along_cables(graph, paths)
    routers = graph.subgraph(routers_of(graph))
    distance = dict(nx.all_pairs_shortest_path_length(routers))
    place = nx.get_node_attributes(graph, "place")
    for path in paths:
        assert len(path) - 1 == distance[path[0]][path[-1]]
        axes = [
            next(i for i in range(len(dims)) if place[a][i] != place[b][i])
            for a, b in pairwise(path)
        ]
        assert axes == sorted(axes)


@pytest.mark.parametrize(
    "graph",
    [mesh(12, (0,), dims=(3, 4)), hypercube(8, (0,)), flattened_butterfly(12, (0,), dims=(3, 4))],
)
def test_dimension_order_waits_in_no_circle(graph: nx.Graph) -> None:
    """Dally and Seitz 1987: no deadlock where channels do not wait for each other in a circle."""
    waits = nx.DiGraph()
    for path in paths_of(graph, *all_pairs(graph)):
        channels = list(pairwise(path))
        waits.add_edges_from(pairwise(channels))
    assert nx.is_directed_acyclic_graph(waits)


def test_half_round_a_ring_flows_go_both_ways() -> None:
    graph = torus(8, (0,), dims=(8,))
    flows = 400
    ways = Counter(
        paths_of(graph, np.array([0]), np.array([4]), flow)[0][1] for flow in range(flows)
    )
    assert set(ways) == {"router1", "router7"}
    assert abs(ways["router1"] - flows / 2) < 4 * math.sqrt(flows / 4)


def test_ways_round_two_rings_are_drawn_apart() -> None:
    graph = torus(16, (0,), dims=(4, 4))
    paths = [paths_of(graph, np.array([0]), np.array([10]), flow)[0] for flow in range(100)]
    assert len({(path[1], path[3]) for path in paths}) == 4


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(GRIDS)),
    dims=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    flow=st.integers(0, 99),
)
def test_valiant_on_a_grid_is_at_most_twice_the_diameter_long(
    kind: str, dims: list[int], flow: int
) -> None:
    graph = GRIDS[kind](math.prod(dims), (0,), dims=dims, routing="valiant")
    paths = paths_of(graph, *all_pairs(graph), flow)
    assert_along_cables(graph, paths)
    diameter = nx.diameter(graph.subgraph(routers_of(graph)))
    assert max(len(path) - 1 for path in paths) <= 2 * diameter
    assert all(len(path) == 1 for path in paths if path[0] == path[-1])


def busiest(paths: list[list[str]]) -> int:
    return max(Counter(pair for path in paths for pair in pairwise(path)).values())


def test_valiant_evens_out_what_is_bad_for_dimension_order() -> None:
    """Transpose on a 16 x 16 mesh: dimension order sends 15 flows over one link, Valiant fewer."""
    side = 16
    row, column = np.divmod(np.arange(side**2), side)
    src, dst = row * side + column, column * side + row
    ordered, random = (
        mesh(side**2, (0,), dims=(side, side), routing=routing)
        for routing in ("dimension-ordered", "valiant")
    )
    assert busiest(paths_of(ordered, src, dst)) == side - 1
    many = [path for flow in range(20) for path in paths_of(random, src, dst, flow)]
    assert busiest(many) / 20 < side - 1


# ---------------------------------------------------------------- dragonfly


def balanced(routing: str, h: int = 2) -> nx.Graph:
    hosts = h * 2 * h * (2 * h * h + 1)
    return dragonfly(
        hosts,
        (0,),
        radix=4 * h - 1,
        routers_per_group=2 * h,
        hosts_per_router=h,
        groups=2 * h * h + 1,
        global_cables=1,
        routing=routing,
    )


def crossings(graph: nx.Graph, path: list[str]) -> int:
    group = nx.get_node_attributes(graph, "group")
    return sum(group[a] != group[b] for a, b in pairwise(path))


@settings(max_examples=25, deadline=None)
@given(
    routers=st.integers(1, 4),
    groups=st.integers(1, 6),
    spare=st.integers(0, 6),
    flow=st.integers(0, 99),
    routing=st.sampled_from(["minimal", "valiant"]),
)
def test_paths_in_a_dragonfly_cross_as_few_global_cables_as_kim_has_them(
    routers: int, groups: int, spare: int, flow: int, routing: str
) -> None:
    """Minimal: local, global, local. Valiant: one more group between them, so five hops."""
    radix = max(2, routers - 1 + 1 - (1 - groups) // routers + spare)
    graph = dragonfly(
        routers * groups,
        (0,),
        radix=radix,
        routers_per_group=routers,
        groups=groups,
        hosts_per_router=1,
        routing=routing,
    )
    paths = paths_of(graph, *all_pairs(graph), flow)
    assert_along_cables(graph, paths)
    group = nx.get_node_attributes(graph, "group")
    for path in paths:
        far = group[path[0]] != group[path[-1]]
        by_others = routing == "valiant" and groups > 2
        assert crossings(graph, path) == far * (1 + by_others)
        assert len(path) - 1 <= (5 if by_others else 3)
        if by_others and far:
            assert len({group[router] for router in path}) == 3


def test_minimal_paths_of_a_balanced_dragonfly_are_nearly_shortest() -> None:
    """Where one cable joins two groups, over two global cables alone is there a shorter way."""
    graph = balanced("minimal")
    distance = dict(nx.all_pairs_shortest_path_length(graph.subgraph(routers_of(graph))))
    for path in paths_of(graph, *all_pairs(graph)):
        length = len(path) - 1
        assert length == distance[path[0]][path[-1]] or (
            length == 3 and distance[path[0]][path[-1]] == 2
        )


def test_parallel_global_cables_are_all_used_alike() -> None:
    graph = dragonfly(16, (0,), radix=6, routers_per_group=4, groups=2, hosts_per_router=2)
    flows = 4000
    src, dst = np.zeros(flows, dtype=np.int64), np.full(flows, 7)
    bits = hashed(src, dst, np.arange(flows))
    paths = switch_paths(graph)
    assert paths is not None
    leaves = paths(src, dst, bits)[1]
    assert np.abs(np.bincount(leaves, minlength=4) - flows / 4).max() < 4 * math.sqrt(
        flows * 3 / 16
    )


@pytest.mark.parametrize("h", [2, 3])
def test_groups_that_send_to_their_next_need_valiant(h: int) -> None:
    """Kim et al. 2008: all a h hosts of a group cross one cable, or each cable has about two."""
    size, groups = 2 * h, 2 * h * h + 1
    src = np.arange(size * groups)
    dst = (src + size) % (size * groups)
    minimal, valiant = (balanced(routing, h) for routing in ("minimal", "valiant"))
    assert h * busiest(paths_of(minimal, src, dst)) == size * h
    trials = 40
    many = [path for flow in range(trials * h) for path in paths_of(valiant, src, dst, flow)]
    group = nx.get_node_attributes(valiant, "group")
    loads = Counter((a, b) for path in many for a, b in pairwise(path) if group[a] != group[b])
    assert len(loads) == groups * (groups - 2), "every cable but that to the next group"
    assert np.mean(list(loads.values())) / trials == pytest.approx(2 * size * h / (size * h - 1))
    assert max(loads.values()) / trials < 3.5


def test_a_path_depends_on_no_other_flow() -> None:
    for graph in (balanced("valiant"), torus(64, (0,), dims=(4, 4, 4), routing="valiant")):
        src, dst = all_pairs(graph)
        together = paths_of(graph, src, dst)
        for at in range(0, len(src), 97):
            assert paths_of(graph, src[at : at + 1], dst[at : at + 1])[0] == together[at]


def test_hashed_fabrics_have_no_routing_of_their_own() -> None:
    assert switch_paths(torus(8, (0,), dims=(2, 4), routing="ecmp")) is None
    assert switch_paths(balanced("adaptive")) is None
