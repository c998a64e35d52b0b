"""Routes over cables of direct networks and dragonflies: by name, at once, around faults."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.topology.fabric.direct_networks import direct_network, dragonfly
from perfmodel.topology.faults import find_arcs, remove_links
from perfmodel.topology.model import Topology
from perfmodel.topology.own_graph import topology_of
from perfmodel.topology.routing.router import Router
from perfmodel.topology.routing.switch_paths import switch_paths
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

torus = partial(direct_network, "torus")

SHAPES = [
    {"kind": "torus", "dims": (4, 3), "trunk_cables": 2},
    {"kind": "mesh", "dims": (3, 4), "routing": "valiant"},
    {"kind": "hypercube", "dimensions": 4},
    {"kind": "flattened-butterfly", "dims": (3, 4)},
    {"kind": "dragonfly", "radix": 7, "routers_per_group": 4, "routing": "minimal"},
    {"kind": "dragonfly", "radix": 7, "routers_per_group": 4, "groups": 6, "routing": "valiant"},
]


def built(shape: dict[str, object], hosts: int = 12, node: str = "dgx1-v100") -> Topology:
    return build_topology(node, hosts=hosts, fabric=FabricSpec.model_validate(shape))


def all_ports(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of ports of different hosts."""
    nics = len([name for name, d in topology.devices.items() if d.kind == "nic" and d.host == 0])
    ports = topology.hosts * nics
    src, dst = np.divmod(np.arange(ports**2), ports)
    apart = src // nics != dst // nics
    return src[apart], dst[apart]


def split(lengths: np.ndarray, arcs: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(arcs, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("shape", [*SHAPES, {**SHAPES[4], "routing": "adaptive"}])
def test_routes_lead_from_port_to_port_without_a_gap(shape: dict[str, object]) -> None:
    topology = built(shape)
    router, names = Router(topology), topology.arcs.names
    src, dst = all_ports(topology)
    lengths, arcs = router.across(src, dst, src)
    nics = len(src) and int(src.max() + 1) // topology.hosts
    for at, route in enumerate(split(lengths, arcs)):
        ends = [names[arc] for arc in route]
        assert ends[0][0] == router.nic_name(int(src[at]) // nics, int(src[at]) % nics)
        assert ends[-1][1] == router.nic_name(int(dst[at]) // nics, int(dst[at]) % nics)
        assert all(a[1] == b[0] for a, b in pairwise(ends))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(shape=st.sampled_from(SHAPES), flow=st.integers(0, 10**6), data=st.data())
def test_one_flow_is_routed_by_name_as_among_many(
    shape: dict[str, object], flow: int, data: st.DataObject
) -> None:
    topology = built(shape)
    router = Router(topology)
    src, dst = all_ports(topology)
    flows = np.full_like(src, flow)
    routes = split(*router.across(src, dst, flows))
    nics = int(src.max() + 1) // topology.hosts
    at = data.draw(st.integers(0, len(src) - 1))
    ends = [router.nic_name(*divmod(int(port), nics)) for port in (src[at], dst[at])]
    assert Router(topology).route(*ends, flow) == tuple(routes[at])


def test_parallel_cables_are_drawn_alike() -> None:
    topology = built(
        {"kind": "torus", "dims": (2, 2), "trunk_cables": 3}, hosts=4, node="ethernet-10g"
    )
    flows = np.arange(3000)
    _, arcs = Router(topology).across(np.zeros_like(flows), np.ones_like(flows), flows)
    used = Counter(arcs.reshape(len(flows), -1)[:, 1].tolist())
    assert len(used) == 3
    assert max(abs(count - 1000) for count in used.values()) < 4 * np.sqrt(3000 * 2 / 9)


def test_a_cable_is_drawn_apart_from_the_way_round() -> None:
    topology = built({"kind": "torus", "dims": (4,), "trunk_cables": 2}, 4, "ethernet-10g")
    flows = np.arange(200)
    _, arcs = Router(topology).across(np.zeros_like(flows), np.full_like(flows, 2), flows)
    assert len(set(arcs.reshape(len(flows), -1)[:, 1].tolist())) == 4, "two ways of two cables"


@pytest.mark.parametrize("shape", SHAPES)
def test_only_flows_of_a_lost_cable_move(shape: dict[str, object]) -> None:
    topology = built(shape)
    src, dst = all_ports(topology)
    before = split(*Router(topology).across(src, dst, src))
    trunk = next(arc for route in before for arc in route[1:-1])
    cable = find_arcs(topology, " -- ".join(topology.arcs.names[trunk]))
    broken = remove_links(topology, arcs=cable)
    after = split(*Router(broken).across(src, dst, src))
    for old, new in zip(before, after, strict=True):
        assert not broken.dead.intersection(new)
        assert old == new or broken.dead.intersection(old)


# ---------------------------------------------------------------- rates


def rates(topology: Topology, shift: int) -> np.ndarray:
    """Rates of flows from each host to the one so far after it, in units of a NIC's."""
    src = np.arange(topology.hosts)
    lengths, arcs = Router(topology).across(src, (src + shift) % topology.hosts, src)
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    capacity = topology.arcs.bandwidth_Bps
    return max_min_rates(capacity, pointers, arcs) / capacity[topology.first_cable]


def balanced(routing: str) -> Topology:
    """Kim's dragonfly with h = 2: 9 groups of 8 hosts, one cable between two groups."""
    shape = {
        "kind": "dragonfly",
        "radix": 7,
        "routers_per_group": 4,
        "groups": 9,
        "hosts_per_router": 2,
        "global_cables": 1,
        "routing": routing,
    }
    return built(shape, hosts=72, node="ethernet-10g")


def test_groups_that_send_to_their_next_are_as_fast_as_kim_says() -> None:
    """Minimal: 1 / (a h). Valiant: half at best, less as flows collide. Adaptive: never less."""
    minimal, valiant, adaptive = (
        rates(balanced(routing), 8) for routing in ("minimal", "valiant", "adaptive")
    )
    assert minimal == pytest.approx(np.full(72, 1 / 8))
    assert minimal.mean() < valiant.mean() < 0.5 + 1e-9
    assert adaptive.min() >= valiant.mean()


@pytest.mark.parametrize("shift", [1, 2, 3, 8, 9, 36])
def test_adaptive_is_never_slower_than_minimal(shift: int) -> None:
    assert (rates(balanced("adaptive"), shift) >= rates(balanced("minimal"), shift) - 1e-9).all()


@pytest.mark.parametrize(("side", "shift"), [(8, 1), (8, 3), (9, 4)])
def test_shifts_along_a_ring_share_as_many_hops(side: int, shift: int) -> None:
    """Every flow crosses `shift` links of one direction, so each link carries as many."""
    topology = built({"kind": "torus", "dims": (side,)}, hosts=side, node="ethernet-10g")
    assert rates(topology, shift) == pytest.approx(np.full(side, 1 / shift))


def test_even_traffic_fills_a_torus_to_its_bisection() -> None:
    """k-ary n-cube, k odd: all to all crosses each ring link (k**2 - 1) / 8 times k**(n - 1)."""
    k, n = 5, 2
    topology = built({"kind": "torus", "dims": (k,) * n}, hosts=k**n, node="ethernet-10g")
    src, dst = all_ports(topology)
    _, arcs = Router(topology).across(src, dst, src)
    first = topology.first_cable + 2 * k**n
    loads = np.bincount(arcs, minlength=len(topology.arcs))[first:]
    assert (loads == (k**2 - 1) // 8 * k ** (n - 1)).all()


# ---------------------------------------------------------------- as graphs


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_flows_go_the_same_ways_in_the_graph_of_a_cluster(shape: dict[str, object]) -> None:
    """A topology, its graph as JSON, and the topology of that."""
    topology = built(shape)
    written = json.dumps(nx.node_link_data(topology.graph, edges="edges"))
    again = topology_of(nx.node_link_graph(json.loads(written), edges="edges"))
    src, dst = all_ports(topology)
    for before, after in zip(
        *(Router(t).across(src, dst, src) for t in (topology, again)), strict=True
    ):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("routing", "needed"),
    [("minimal", "'group'"), ("dimension-ordered", "'dims' and 'line'"), ("valiant", "'group'")],
)
def test_a_graph_that_lacks_what_its_routing_goes_by_is_refused(routing: str, needed: str) -> None:
    fabric = nx.Graph(routing=routing)
    fabric.add_node("leaf0", kind="switch")
    with pytest.raises(InputError, match=f"{routing}.*{needed}"):
        switch_paths(fabric)


def test_a_function_of_the_users_may_say_how_it_is_routed() -> None:
    """Our own generators, called as a user's function: groups and grids keep their routing."""

    def mine(hosts: int, nics: int) -> nx.Graph:
        return dragonfly(hosts, (0,) * nics, radix=7, routers_per_group=4, routing="valiant")

    def grid(hosts: int, nics: int) -> nx.Graph:
        return torus(hosts, (0,) * nics, dims=(3, 4))

    for make, kind in ((mine, SHAPES[5]), (grid, {"kind": "torus", "dims": (3, 4)})):
        ours, shipped = pm.topology("dgx1-v100", nodes=12, fabric=make), built(kind)
        src, dst = all_ports(ours)
        for one, two in zip(
            *(Router(t).across(src, dst, src) for t in (ours, shipped)), strict=True
        ):
            np.testing.assert_array_equal(one, two)
