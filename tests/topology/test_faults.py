"""Faults: same ranks and arcs, no route over failed links, links by name."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError, TopologyError
from perfmodel.topology.faults import degrade_links, find_arcs, find_devices, remove_links
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

RAILS = build_topology(
    "dgx-a100", hosts=4, fabric=FabricSpec(kind="rail-optimised", hosts_per_leaf=2)
)
LEAVES = build_topology(
    "ethernet-10g", hosts=12, fabric=FabricSpec(kind="leaf-spine", hosts_per_leaf=4, radix=6)
)
TREE = build_topology("ethernet-10g", hosts=24, fabric=FabricSpec(kind="fat-tree", k=6))


def ends_of(topology: object, arcs: tuple[int, ...]) -> list[tuple[str, str]]:
    return [topology.arcs.names[arc] for arc in arcs]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- names


def test_links_by_name() -> None:
    there, back = ("n0/nic0", "fabric/leaf0"), ("fabric/leaf0", "n0/nic0")
    assert ends_of(RAILS, find_arcs(RAILS, "n0/nic0 -> fabric/leaf0")) == [there]
    assert set(ends_of(RAILS, find_arcs(RAILS, "n0/nic0 -- fabric/leaf0"))) == {there, back}
    assert set(ends_of(RAILS, find_arcs(RAILS, "n0/nic0--fabric/leaf0"))) == {there, back}
    every = ends_of(RAILS, find_arcs(RAILS, "n1/nic3"))
    assert len(every) == 4  # to the PCIe switch and to the leaf, both ways
    assert all("n1/nic3" in pair for pair in every)


def test_globs_mean_all_that_match() -> None:
    up = find_arcs(RAILS, "n0/nic* -> fabric/*")
    assert ends_of(RAILS, up) == [(f"n0/nic{i}", f"fabric/leaf{i}") for i in range(8)]
    spine = [f"fabric/leaf{i}" for i in range(16)]
    assert {a for a, _ in ends_of(RAILS, find_arcs(RAILS, "fabric/leaf? -> fabric/spine0"))} == {
        name for name in spine if len(name) == len("fabric/leaf0")
    }


def test_ranges_mean_what_they_mean_in_node_templates() -> None:
    """Of twelve hosts, not a class of the characters 0, 1 and 1."""
    names = [f"n{host}/nic0" for host in range(12)]
    assert find_devices(LEAVES, "n[0-11]/nic0", "from") == names
    assert find_devices(LEAVES, "n[0,8-11:2]/nic*", "from") == [names[0], names[8], names[10]]
    with pytest.raises(InputError, match="from: found 'n12/nic0'"):
        find_devices(LEAVES, "n[0-12]/nic0", "from")
    with pytest.raises(InputError, match="from low to high"):
        find_devices(LEAVES, "n[5-1]/nic0", "from")


def test_one_of_several_cables_can_be_meant() -> None:
    topology = build_topology(
        "ethernet-10g", hosts=8, fabric=FabricSpec(kind="leaf-spine", hosts_per_leaf=4)
    )
    every = find_arcs(topology, "fabric/leaf0 -> fabric/spine0")
    assert len(every) == 4
    assert find_arcs(topology, "fabric/leaf0 -> fabric/spine0 #2") == (every[2],)
    with pytest.raises(InputError, match="numbered from #0"):
        find_arcs(topology, "fabric/leaf0 -> fabric/spine0 #4")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n1/nc3", "did you mean 'n1/nic3'"),
        ("n9/nic0 -- fabric/leaf0", "did you mean 'n0/nic0'"),
        ("fabric/lef0", "did you mean 'fabric/leaf0'"),
        ("n0/nic0 -> n0/gpu5", "a link from n0/nic0 to one of 'fabric/leaf0', 'n0/pcie0'"),
        ("m*", "a device: one of"),
    ],
)
def test_a_name_that_means_nothing_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"link: found") as caught:
        find_arcs(RAILS, text)
    assert told in str(caught.value)


# ---------------------------------------------------------------- slower links


def test_a_slow_link_keeps_its_place_and_its_traffic() -> None:
    arcs = find_arcs(RAILS, "n0/gpu0 -- n0/nvs")
    slow = degrade_links(RAILS, dict.fromkeys(arcs, 1e6), {arcs[0]: 1e-3})
    assert slow.built is RAILS.built
    assert slow.healthy is RAILS
    assert slow.arcs.names == RAILS.arcs.names
    assert slow.arcs.bandwidth_Bps[list(arcs)].tolist() == [1e6, 1e6]
    assert slow.arcs.latency_s[arcs[0]] == 1e-3
    others = np.setdiff1d(np.arange(len(RAILS.arcs)), arcs)
    assert (slow.arcs.bandwidth_Bps[others] == RAILS.arcs.bandwidth_Bps[others]).all()
    for pair in (("n0/gpu0", "n0/gpu1"), ("n2/gpu0", "n2/gpu1"), ("n0/gpu0", "n3/gpu0")):
        assert Router(slow).route(*pair) == Router(RAILS).route(*pair)


def test_changes_add_up() -> None:
    one, other = find_arcs(RAILS, "n0/nic0"), find_arcs(RAILS, "n1/nic1")
    both = degrade_links(
        remove_links(degrade_links(RAILS, {one[0]: 5.0}), arcs=other), {one[1]: 7.0}
    )
    assert both.healthy is RAILS
    assert both.dead == frozenset(other)
    assert both.arcs.bandwidth_Bps[[*one[:2], *other]].tolist() == [5.0, 7.0] + [0.0] * 4
    assert RAILS.arcs.bandwidth_Bps.min() > 7.0  # the old machine is untouched


def test_numbers_that_no_link_has_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        degrade_links(RAILS, {0: -1.0, 10**9: 1.0}, {1: float("inf")})
    assert len(caught.value.faults) == 3
    with pytest.raises(InputError, match=r"lose: found 'n1/nc3'.*did you mean 'n1/nic3'"):
        remove_links(RAILS, nodes=["n1/nc3"])


# ---------------------------------------------------------------- lost links


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(kind=st.sampled_from(["leaves", "tree"]), data=st.data())
def test_routes_avoid_what_is_lost_and_stay_shortest(kind: str, data: st.DataObject) -> None:
    """Compared with networkx on what is left; up-down routing takes no detours."""
    topology = {"leaves": LEAVES, "tree": TREE}[kind]
    trunks = [i for i, (a, b) in enumerate(topology.arcs.names) if a[0] == b[0] == "f"]
    gone = data.draw(st.sets(st.sampled_from(trunks), max_size=len(trunks) * 2 // 3))
    src, dst = data.draw(
        st.lists(st.integers(0, topology.hosts - 1), min_size=2, max_size=2, unique=True)
    )
    ends = f"n{src}/nic0", f"n{dst}/nic0"
    usual = Router(topology).route(*ends)
    left = nx.MultiDiGraph()
    left.add_edges_from(n for i, n in enumerate(topology.arcs.names) if i not in gone)
    changed = Router(remove_links(topology, arcs=gone))
    if nx.has_path(left, *ends) and nx.shortest_path_length(left, *ends) == len(usual):
        route = changed.route(*ends)
        assert gone.isdisjoint(route)
        assert len(route) == len(usual)
        names = ends_of(topology, route)
        assert (names[0][0], names[-1][1]) == ends
        assert all(before[1] == after[0] for before, after in pairwise(names))
        assert route == usual or not gone.isdisjoint(usual), "only flows of dead cables move"
    else:
        with pytest.raises(TopologyError, match=f"{ends[1]} is unreachable from {ends[0]} since"):
            changed.route(*ends)


def test_routes_do_not_depend_on_whether_they_are_searched_or_worked_out() -> None:
    """Without its structure the same fabric gives ways of the same lengths."""
    from dataclasses import replace

    for topology in (LEAVES, TREE, RAILS):
        by_search = Router(replace(topology, tiers=None))
        router = Router(topology)
        for dst in range(1, topology.hosts):
            pair = ("n0/nic0", f"n{dst}/nic0")
            assert len(router.route(*pair)) == len(by_search.route(*pair))


def test_inside_a_host_a_dead_link_is_led_around() -> None:
    mesh = build_topology("dgx1-v100", hosts=2, fabric="one-switch")
    gone = find_arcs(mesh, "n1/gpu0 -- n1/gpu3")
    router, usual = Router(remove_links(mesh, arcs=gone)), Router(mesh)
    assert usual.path_type("n1/gpu0", "n1/gpu3") == "NVL"
    assert router.path_type("n1/gpu0", "n1/gpu3") == "NVB"
    assert router.path_type("n0/gpu0", "n0/gpu3") == "NVL"
    assert gone
    assert set(gone).isdisjoint(router.route("n1/gpu0", "n1/gpu3"))


def test_another_nic_serves_where_one_is_lost() -> None:
    for lost in (
        remove_links(RAILS, nodes=["n1/nic3"]),
        remove_links(RAILS, arcs=find_arcs(RAILS, "n1/nic3 -> fabric/leaf3")),
    ):
        router = Router(lost)
        assert router.nearest_nics("n1/gpu3")[0] == "n1/nic2"
        assert router.nearest_nics("n0/gpu3")[0] == "n0/nic3"
        names = ends_of(RAILS, router.route("n0/gpu3", "n1/gpu3"))
        assert ("n1/nic2", "n1/pcie1") in names


@pytest.mark.parametrize(
    ("nodes", "pair", "told"),
    [
        (["n1/gpu3"], ("n1/gpu0", "n1/gpu3"), "n1/gpu3 is unreachable from n1/gpu0 since n1/gpu3"),
        (
            ["fabric/leaf0", *[f"n2/nic{i}" for i in range(8)]],
            ("n0/gpu2", "n2/gpu2"),
            (
                "n2/gpu2 is unreachable from n0/gpu2 since n2/nic0, "
                "n2/nic1, n2/nic2, n2/nic3 and 5 more"
            ),
        ),
    ],
)
def test_an_unreachable_peer_is_named_and_why(
    nodes: list[str], pair: tuple[str, str], told: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        Router(remove_links(RAILS, nodes=nodes)).route(*pair)
    assert told in str(caught.value)
