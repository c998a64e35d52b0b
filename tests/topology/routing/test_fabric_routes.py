"""Flows over equally short paths: hashed, by rails, adaptive; against theory."""

from __future__ import annotations

import math
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check
from perfmodel.topology.templates.spec import ROUTINGS_OF, FabricSpec

UPLINKS = 8


def two_leaves(routing: str, ratio: float = 1.0) -> Topology:
    """Two leaves of 8 single-port hosts each, every uplink to a spine of its own."""
    fabric = FabricSpec(
        kind="leaf-spine", hosts_per_leaf=UPLINKS, radix=2, oversubscription=ratio, routing=routing
    )
    return build_topology("ethernet-10g", hosts=2 * UPLINKS, fabric=fabric)


def tree(routing: str) -> Topology:
    """A fat tree of k = 8, 4 of its pods in use: 16 ports each."""
    fabric = FabricSpec(kind="fat-tree", k=8, routing=routing)
    return build_topology("ethernet-10g", hosts=64, fabric=fabric)


def rates(topology: Topology, src: np.ndarray, dst: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Rate of each flow from port to port in units of a NIC's."""
    lengths, arcs = Router(topology).across(src, dst, flow)
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    capacity = topology.arcs.bandwidth_Bps
    return max_min_rates(capacity, pointers, arcs) / capacity[topology.first_cable]


def ways_between(topology: Topology, src: str, dst: str) -> set[tuple[int, ...]]:
    """All shortest ways, parallel cables told apart, by networkx."""
    cables: dict[tuple[str, str], list[int]] = {}
    for index in range(topology.first_cable, len(topology.arcs)):
        cables.setdefault(topology.arcs.names[index], []).append(index)
    found: set[tuple[int, ...]] = set()
    for nodes in nx.all_shortest_paths(nx.DiGraph(cables.keys()), src, dst):
        ways: list[tuple[int, ...]] = [()]
        for pair in pairwise(nodes):
            ways = [(*way, cable) for way in ways for cable in cables[pair]]
        found |= set(ways)
    return found


@pytest.mark.parametrize(
    ("topology", "dst"),
    [
        (two_leaves("ecmp"), 9),
        (two_leaves("ecmp"), 3),
        (tree("ecmp"), 2),
        (tree("ecmp"), 7),
        (tree("ecmp"), 40),
        (
            build_topology(
                "ethernet-10g", hosts=8, fabric=FabricSpec(kind="leaf-spine", hosts_per_leaf=4)
            ),
            6,
        ),
        (
            build_topology("ethernet-10g", hosts=8, fabric=FabricSpec(kind="rail-only", radix=4)),
            6,
        ),
    ],
)
def test_every_shortest_way_is_taken_by_some_flow_and_no_other(
    topology: Topology, dst: int
) -> None:
    ways = ways_between(topology, "n0/nic0", f"n{dst}/nic0")
    flows = np.arange(40 * len(ways))
    port = np.zeros(len(flows), dtype=np.int64)
    lengths, arcs = Router(topology).across(port, port + dst, flows)
    taken = {tuple(way) for way in arcs.reshape(len(flows), lengths[0]).tolist()}
    assert taken == ways


@pytest.mark.parametrize("flows", [2, 3, 4, 5])
def test_hashed_flows_collide_as_birthdays_do(flows: int) -> None:
    """P(no two of n flows on one of m uplinks) = m! / ((m - n)! m^n), within 4 standard errors."""
    topology, trials = two_leaves("ecmp"), 4000
    src = np.tile(np.arange(flows), trials)
    lengths, arcs = Router(topology).across(src, src + UPLINKS, np.repeat(np.arange(trials), flows))
    assert (lengths == 4).all()
    up = np.sort(arcs.reshape(trials, flows, 4)[:, :, 1], axis=1)
    alone = (np.diff(up, axis=1) > 0).all(axis=1).mean()
    expected = math.perm(UPLINKS, flows) / UPLINKS**flows
    assert abs(alone - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)


def test_colliding_flows_share_their_uplink() -> None:
    """Of two flows that the hash puts on one uplink each has half, and nobody else has less."""
    topology = two_leaves("ecmp")
    src = np.arange(UPLINKS)
    _, arcs = Router(topology).across(src, src + UPLINKS, src)
    ways = arcs.reshape(UPLINKS, 4)
    sharers = [max((ways[:, hop] == way[hop]).sum() for hop in (1, 2)) for way in ways]
    assert max(sharers) > 1
    found = rates(topology, src, src + UPLINKS, src)
    assert found.min() == pytest.approx(1 / max(sharers))


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(UPLINKS)))
def test_adaptive_routing_never_collides(order: list[int]) -> None:
    src = np.arange(UPLINKS)
    found = rates(two_leaves("adaptive"), src, UPLINKS + np.array(order), src)
    assert found == pytest.approx(np.ones(UPLINKS))


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(64)))
def test_adaptive_fat_tree_carries_any_permutation(order: list[int]) -> None:
    src = np.arange(64)
    dst = np.array(order)
    pairs = src != dst
    assert rates(ADAPTIVE_TREE, src[pairs], dst[pairs], src[pairs]) == pytest.approx(
        np.ones(pairs.sum())
    )


ADAPTIVE_TREE = tree("adaptive")


@pytest.mark.parametrize("shift", range(1, 2 * UPLINKS))
def test_by_rails_shifts_never_collide(shift: int) -> None:
    """Ports of a leaf have an uplink each, so neighbours of any distance do not meet."""
    src = np.arange(2 * UPLINKS)
    dst = (src + shift) % len(src)
    assert rates(two_leaves("rail"), src, dst, src) == pytest.approx(np.ones(len(src)))


@pytest.mark.parametrize("shift", [4, 16, 20, 32])
def test_by_rails_a_fat_tree_carries_shifts_by_whole_leaves(shift: int) -> None:
    src = np.arange(64)
    assert rates(tree("rail"), src, (src + shift) % 64, src) == pytest.approx(np.ones(64))
    assert rates(tree("ecmp"), src, (src + shift) % 64, src).min() <= 0.5


@pytest.mark.parametrize("routing", ROUTINGS_OF["leaf-spine"])
@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_flows_over_one_uplink_take_as_long_as_they_are_many(routing: str, ratio: int) -> None:
    """At r : 1 all hosts of a leaf together have 1 / r of their rate."""
    src = np.arange(UPLINKS)
    found = rates(two_leaves(routing, ratio), src, src + UPLINKS, src)
    if routing == "ecmp":
        assert found.mean() <= 1 / ratio + 1e-12
        assert found.min() < 1 / ratio or ratio == UPLINKS
    else:
        assert found == pytest.approx(np.full(UPLINKS, 1 / ratio))


def test_bonded_links_say_how_many_cables_they_are() -> None:
    topology = tree("adaptive")
    arc = topology.graph["fabric/edge0"]["fabric/agg0"][0]
    assert arc["lanes"] == 4
    assert arc["bandwidth"] == pytest.approx(
        4 * topology.graph["n0/nic0"]["fabric/edge0"][0]["bandwidth"]
    )
    assert topology.graph["fabric/agg0"]["fabric/core0"][0]["lanes"] == 16
    assert any("adaptive routing" in said for said in topology.assumptions)
    assert not any("adaptive" in said for said in tree("ecmp").assumptions)


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize(
    ("kind", "routing"), [(kind, routing) for kind, each in ROUTINGS_OF.items() for routing in each]
)
def test_every_fabric_is_sound_under_every_routing(kind: str, routing: str, ratio: int) -> None:
    clos = kind in {"leaf-spine", "rail-optimised", "fat-tree"}
    sizes = {"radix": 8, "oversubscription": ratio} if clos else {}
    fabric = FabricSpec(kind=kind, routing=routing, **sizes)
    assert check(build_topology("dgx1-v100", hosts=5, fabric=fabric)) == ()


def test_a_routing_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"routing: found 'rail'; allowed: .* with kind: torus"):
        validate_document(FabricSpec, {"kind": "torus", "routing": "rail"})


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(InputError, match=r"routing.*did you mean 'adaptive'"):
        validate_document(FabricSpec, {"kind": "fat-tree", "routing": "adaptiv"})
