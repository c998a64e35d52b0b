"""Dragonfly against Kim et al. (ISCA 2008), Slingshot's size, and what any routing can reach."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from perfmodel.errors import InputError
from perfmodel.topology.fabric.direct_networks import dragonfly

Demands = dict[tuple[int, int], float]


def canonical(h: int, groups: int | None = None, **options: object) -> nx.Graph:
    """Kim's balance: a = 2 p = 2 h routers in a group, a h + 1 groups, one cable between two."""
    count = groups or 2 * h * h + 1
    cables = {} if groups else {"global_cables": 1}
    return dragonfly(
        2 * h * h * count,
        (0,),
        radix=4 * h - 1,
        routers_per_group=2 * h,
        groups=count,
        hosts_per_router=h,
        **cables,
        **options,
    )


def routers_of(graph: nx.Graph) -> nx.Graph:
    return graph.subgraph(name for name in graph if isinstance(name, str))


def cables_between_groups(graph: nx.Graph) -> Counter[tuple[int, int]]:
    group = nx.get_node_attributes(graph, "group")
    cables: Counter[tuple[int, int]] = Counter()
    for a, b, data in routers_of(graph).edges(data=True):
        if group[a] != group[b]:
            cables[min(group[a], group[b]), max(group[a], group[b])] += data["cables"]
    return cables


@pytest.mark.parametrize("h", [1, 2, 3])
def test_the_balanced_dragonfly_is_that_of_kim(h: int) -> None:
    """N = a p (a h + 1) hosts, radix p + a + h - 1 all used, diameter 3."""
    graph = canonical(h)
    routers = routers_of(graph)
    groups = 2 * h * h + 1
    assert len(graph) - len(routers) == 2 * h * h * groups
    assert len(routers) == 2 * h * groups
    assert {degree for _, degree in routers.degree} == {2 * h - 1 + h}
    assert nx.diameter(routers) == min(3, h + 2)
    assert set(cables_between_groups(graph).values()) == {1}


def test_the_largest_slingshot_has_279040_ports() -> None:
    """De Sensi et al. 2020, section II-B: 545 groups of 32 switches with 16 endpoints each."""
    with pytest.raises(InputError, match="546 groups"):
        dragonfly(279_041, (0,))
    graph = dragonfly(32 * 16 * 4, (0,))
    assert cables_between_groups(graph)[0, 1] == 32 * 17 // 3
    assert {
        len([n for n in graph[f"group1/router{r}"] if isinstance(n, int)]) for r in range(32)
    } == {16}


def test_frontier_has_four_cables_between_groups() -> None:
    """128 hosts of 4 NICs on 32 switches of a group, 4 links between groups (OLCF user guide)."""
    graph = dragonfly(256, (0, 1, 2, 3), groups=8, hosts_per_router=4, global_cables=4)
    assert set(cables_between_groups(graph).values()) == {4}
    assert sum(isinstance(n, str) for n in graph) == 8 * 32
    rate_out = 4 * 73 / (128 * 4)
    assert rate_out == pytest.approx(0.57, abs=0.005)  # the taper that OLCF states


@settings(max_examples=40, deadline=None)
@given(
    routers=st.integers(1, 5),
    groups=st.integers(1, 6),
    each=st.integers(1, 3),
    spare=st.integers(0, 9),
)
def test_cables_are_spread_evenly(routers: int, groups: int, each: int, spare: int) -> None:
    """Every two groups have as many, no router has more than its share or its ports."""
    least = -(-(groups - 1) // routers)
    radix = max(2, routers - 1 + each + least + spare)
    graph = dragonfly(
        groups * routers * each,
        (0,),
        radix=radix,
        routers_per_group=routers,
        groups=groups,
        hosts_per_router=each,
    )
    pairs = cables_between_groups(graph)
    assert set(pairs) == set(combinations(range(groups), 2))
    assert len(set(pairs.values())) <= 1
    ports = {
        router: sum(data.get("cables", 1) for *_, data in graph.edges(router, data=True))
        for router in routers_of(graph)
    }
    assert max(ports.values()) <= radix
    assert max(ports.values()) - min(ports.values()) <= 1
    assert nx.diameter(routers_of(graph)) <= 3


def test_what_ports_cannot_carry_is_refused() -> None:
    for options in ({"global_cables": 40}, {"groups": 20}, {"hosts_per_router": 5}):
        with pytest.raises(InputError, match=r"fabric.radix: found 7 ports; allowed: enough for"):
            dragonfly(64, (0,), radix=7, routers_per_group=4, **{"groups": 9, **options})


@pytest.mark.parametrize("routing", ["minimal", "adaptive"])
def test_more_hosts_than_routers_hold_are_refused(routing: str) -> None:
    """The links that adaptive routing bonds meet at switches that have no ports for hosts."""
    with pytest.raises(InputError, match="7 NICs; allowed: at most 6: 1 at each of 6 routers"):
        dragonfly(
            7, (0,), radix=10, routers_per_group=2, hosts_per_router=1, groups=3, routing=routing
        )


# ---------------------------------------------------------------- adaptive


def rate_of_tree(tree: nx.Graph, demands: Demands) -> float:
    """Factor by which all demands can grow until a link of a tree is full."""
    load: Counter[tuple[object, object]] = Counter()
    for (a, b), demand in demands.items():
        path = nx.shortest_path(tree, a, b)
        load.update(dict.fromkeys(pairwise(path), demand))
    return min(tree.edges[ends].get("lanes", 1) / total for ends, total in load.items())


def best_rate(graph: nx.Graph, demands: Demands) -> float:
    """The same with the best routing that there is: a concurrent multi-commodity flow."""
    arcs = [
        (a, b, data.get("cables", 1))
        for u, v, data in graph.edges(data=True)
        for a, b in ((u, v), (v, u))
    ]
    nodes = {name: at for at, name in enumerate(graph)}
    sources = sorted({a for a, _ in demands})
    width = len(sources) * len(arcs) + 1  # flow of each source on each arc, then the factor
    balance = np.zeros((len(sources) * len(nodes), width))
    for s, source in enumerate(sources):
        for at, (a, b, _) in enumerate(arcs):
            balance[s * len(nodes) + nodes[a], s * len(arcs) + at] += 1
            balance[s * len(nodes) + nodes[b], s * len(arcs) + at] -= 1
        for (a, b), demand in demands.items():
            if a == source:
                balance[s * len(nodes) + nodes[a], -1] -= demand
                balance[s * len(nodes) + nodes[b], -1] += demand
    load = np.tile(np.eye(len(arcs)), len(sources))
    found = linprog(
        np.append(np.zeros(width - 1), -1.0),
        A_ub=np.hstack([load, np.zeros((len(arcs), 1))]),
        b_ub=[cables for *_, cables in arcs],
        A_eq=balance,
        b_eq=np.zeros(len(balance)),
    )
    return -found.fun


BALANCED = {"radix": 7, "routers_per_group": 4, "hosts_per_router": 2}
"""Kim's balance: a = 2 p = 2 h."""


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(24)))
def test_adaptive_rates_are_at_most_twice_the_best_and_never_less(order: list[int]) -> None:
    """Any permutation of the hosts of three groups."""
    demands = {(a, b): 1.0 for a, b in enumerate(order) if a != b}
    if demands:
        best = best_rate(dragonfly(24, (0,), **BALANCED), demands)
        found = rate_of_tree(dragonfly(24, (0,), routing="adaptive", **BALANCED), demands)
        assert best - 1e-9 <= found <= 2 * best + 1e-9


@pytest.mark.parametrize("shift", [2, 8])
def test_routers_and_groups_that_all_send_to_their_next_are_within_the_bound(shift: int) -> None:
    demands = {(host, (host + shift) % 24): 1.0 for host in range(24)}
    best = best_rate(dragonfly(24, (0,), **BALANCED), demands)
    found = rate_of_tree(dragonfly(24, (0,), routing="adaptive", **BALANCED), demands)
    assert best - 1e-9 <= found <= 2 * best + 1e-9


def test_even_traffic_is_exact() -> None:
    demands = dict.fromkeys(permutations(range(16), 2), 1.0)
    best = best_rate(dragonfly(16, (0,), **BALANCED), demands)
    found = rate_of_tree(dragonfly(16, (0,), routing="adaptive", **BALANCED), demands)
    assert found == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("groups", [4, 5, 9])
def test_one_group_to_another_has_all_its_cables(groups: int) -> None:
    """Those that lead elsewhere, too: over all other groups."""
    each, tree = (
        dragonfly(8 * groups, (0,), routing=routing, groups=groups, **BALANCED)
        for routing in ("minimal", "adaptive")
    )
    pair = {(host, 8 + host): 1.0 for host in range(8)}
    assert rate_of_tree(tree, pair) == pytest.approx(best_rate(each, pair), rel=1e-6)


@pytest.mark.parametrize("h", [2, 3])
def test_all_groups_to_their_next_are_at_most_twice_too_fast(h: int) -> None:
    """Kim et al. 2008: minimal 1 / (a h), Valiant a half; the cut is what no routing beats."""
    groups = 2 * h * h + 1
    size = 2 * h * h
    hosts = size * groups
    demands = {(host, (host + size) % hosts): 1.0 for host in range(hosts)}
    found = rate_of_tree(canonical(h, routing="adaptive"), demands)
    assert 0.5 <= found <= 1.0


def test_a_path_has_the_latency_of_one_global_cable() -> None:
    graph, tree = (
        canonical(2, global_latency=1e-7, routing=routing) for routing in ("minimal", "adaptive")
    )
    for each, ends in ((graph, (0, 71)), (tree, (0, 71))):
        path = nx.shortest_path(each, *ends)
        delays = [each.edges[pair].get("latency", 0.0) for pair in pairwise(path)]
        assert sum(delays) == pytest.approx(1e-7)


def test_the_tree_has_the_cuts_of_the_network() -> None:
    graph, tree = canonical(2), canonical(2, routing="adaptive")
    for group in range(9):
        inside = {n for n, d in graph.nodes(data=True) if d.get("group") == group}
        leaving = sum(
            data["cables"] for *_, data in nx.edge_boundary(routers_of(graph), inside, data=True)
        )
        assert tree.edges[f"group{group}", "global"]["lanes"] == leaving
        for router in inside:
            ports = sum(d.get("cables", 1) for *_, d in routers_of(graph).edges(router, data=True))
            assert tree.edges[router, f"group{group}"]["lanes"] == ports
    assert len(tree.graph["assumptions"]) == 1
