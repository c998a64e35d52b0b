"""Fabrics: bisection by theory (max-flow), structure, the block order of arcs, refusals."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.topology.model import Topology
from perfmodel.topology.own_graph import topology_of
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check, load_node
from perfmodel.topology.templates.spec import FabricSpec

TEMPLATES = {name: load_node(name) for name in ("ethernet-10g", "l40s-x8", "dgx1-v100", "aws-p4d")}


def max_flow_Bps(topology: Topology, hosts: set[int]) -> float:
    """Most that these hosts can send to all others, over the fabric alone."""
    simple = nx.DiGraph()
    for index in range(topology.hosts * topology.host_arcs, len(topology.arcs)):
        src, dst = topology.arcs.names[index]
        before = simple.get_edge_data(src, dst, {"capacity": 0.0})["capacity"]
        simple.add_edge(src, dst, capacity=before + float(topology.arcs.bandwidth_Bps[index]))
    for name, data in topology.graph.nodes(data=True):
        if data["kind"] == "nic":
            ends = ("source", name) if data["node"] in hosts else (name, "sink")
            simple.add_edge(*ends, capacity=1e15)
    return float(nx.maximum_flow_value(simple, "source", "sink"))


def nic_rate_Bps(topology: Topology) -> float:
    return float(topology.arcs.bandwidth_Bps[topology.hosts * topology.host_arcs])


def most_ports_used(topology: Topology) -> int:
    graph = topology.graph
    return max(graph.out_degree(n) for n, d in graph.nodes(data=True) if d["kind"] == "switch")


def test_fat_tree_has_full_bisection() -> None:
    """Al-Fares et al. 2008: k = 4 holds 16 ports on 20 switches, 8 across the middle."""
    topology = build_topology("ethernet-10g", hosts=16, fabric=FabricSpec(kind="fat-tree", k=4))
    switches = [n for n, d in topology.graph.nodes(data=True) if d["kind"] == "switch"]
    assert len(switches) == 20
    assert most_ports_used(topology) == 4
    assert max_flow_Bps(topology, set(range(8))) == pytest.approx(8 * nic_rate_Bps(topology))
    odd = set(range(1, 16, 2))
    assert max_flow_Bps(topology, odd) == pytest.approx(8 * nic_rate_Bps(topology))


@pytest.mark.parametrize("routing", ["ecmp", "adaptive"])
@pytest.mark.parametrize(("k", "ratio"), [(4, 1), (4, 2), (8, 2), (8, 4)])
def test_tapered_fat_tree_has_its_share_of_bisection(k: int, ratio: int, routing: str) -> None:
    """A cut between edge switches has 1 / ratio of the rate of its hosts, inside a pod and out."""
    fabric = FabricSpec(kind="fat-tree", k=k, oversubscription=ratio, routing=routing)
    half = k // 2
    topology = build_topology("ethernet-10g", hosts=2 * half**2, fabric=fabric)
    rate = nic_rate_Bps(topology)
    edge, pod, alternate = set(range(half)), set(range(half**2)), set(range(0, 2 * half**2, half))
    assert max_flow_Bps(topology, edge) == pytest.approx(half * rate / ratio)
    assert max_flow_Bps(topology, pod) == pytest.approx(half**2 * rate / ratio)
    assert max_flow_Bps(topology, alternate) == pytest.approx(2 * half * rate), "one a switch"


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("one-switch", {"oversubscription": 4.0}, "oversubscription"),
        ("one-switch", {"radix": 8}, "radix"),
        ("one-switch", {"routing": "adaptive"}, "routing"),
        ("fat-tree", {"hosts_per_leaf": 2}, "hosts_per_leaf"),
        ("fat-tree", {"leaf_ports": 2}, "leaf_ports"),
        ("fat-tree", {"radix": 8, "k": 8}, "k"),
        ("leaf-spine", {"k": 8}, "k"),
        ("leaf-spine", {"leaf_ports": 2, "hosts_per_leaf": 2}, "leaf_ports"),
        ("leaf-spine", {"dims": [2, 2]}, "dims"),
        ("torus", {"oversubscription": 1.0}, "oversubscription"),
        ("torus", {"dimensions": 2}, "dimensions"),
        ("hypercube", {"dims": [2, 2]}, "dims"),
        ("dragonfly", {"trunk_cables": 2}, "trunk_cables"),
        ("rail-only", {"hosts_per_leaf": 2}, "hosts_per_leaf"),
    ],
)
def test_what_a_shape_does_not_have_is_refused(
    kind: str, fields: dict[str, object], named: str
) -> None:
    with pytest.raises(InputError) as caught:
        validate_document(FabricSpec, {"kind": kind, **fields})
    assert [fault.field for fault in caught.value.faults] == [named]


def test_one_switch_is_not_oversubscribed() -> None:
    assert FabricSpec(kind="one-switch", oversubscription=1, routing="ecmp").oversubscription == 1


def test_ports_of_a_fat_tree_are_those_asked_for() -> None:
    trees = [
        build_topology("ethernet-10g", hosts=16, fabric=FabricSpec(kind="fat-tree", **ports))
        for ports in ({"k": 8}, {"radix": 8}, {"radix": 9})
    ]
    assert len({topology.arcs.names for topology in trees}) == 1
    assert sum(name.startswith("fabric/edge") for name in trees[0].devices) == 16 // 4


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_leaf_spine_is_oversubscribed_as_asked(ratio: int) -> None:
    fabric = FabricSpec(kind="leaf-spine", oversubscription=ratio, hosts_per_leaf=8)
    topology = build_topology("ethernet-10g", hosts=16, fabric=fabric)
    rate = nic_rate_Bps(topology)
    assert max_flow_Bps(topology, set(range(8))) == pytest.approx(8 * rate / ratio)
    assert max_flow_Bps(topology, {0}) == pytest.approx(rate), "one host is never held back"


def test_leaf_ports_follow_from_radix_and_ratio() -> None:
    """A leaf of 40 ports at 4 : 1 has 32 ports for hosts and 8 uplinks."""
    fabric = FabricSpec(kind="leaf-spine", oversubscription=4, radix=40)
    topology = build_topology("ethernet-10g", hosts=64, fabric=fabric)
    leaf = "fabric/leaf0"
    down = sum(topology.graph.nodes[n]["kind"] == "nic" for _, n in topology.graph.out_edges(leaf))
    assert (down, topology.graph.out_degree(leaf) - down) == (32, 8)


def test_parallel_cables_are_parallel_arcs() -> None:
    topology = build_topology(
        "ethernet-10g", hosts=8, fabric=FabricSpec(kind="leaf-spine", hosts_per_leaf=4)
    )
    cables = topology.graph.get_edge_data("fabric/leaf0", "fabric/spine0")
    assert len(cables) == 4
    assert {data["lanes"] for data in cables.values()} == {1}


def test_uplink_bandwidth_can_be_set() -> None:
    fabric = FabricSpec(kind="leaf-spine", hosts_per_leaf=2, uplink_bandwidth="40 Gbit/s")
    topology = build_topology("ethernet-10g", hosts=4, fabric=fabric)
    rates = sorted(set(topology.arcs.bandwidth_Bps[4 * topology.host_arcs :]))
    assert rates[1] == pytest.approx(4 * rates[0])


def test_one_switch_never_blocks() -> None:
    topology = build_topology("aws-p4d", hosts=6, fabric="one-switch")
    assert max_flow_Bps(topology, {0, 1, 2}) == pytest.approx(12 * nic_rate_Bps(topology))


def test_rails_share_a_leaf_per_group_of_hosts() -> None:
    fabric = FabricSpec(kind="rail-optimised", hosts_per_leaf=2)
    topology = build_topology("dgx1-v100", hosts=4, fabric=fabric)
    leaf: dict[str, str] = {}
    for name, data in topology.graph.nodes(data=True):
        if data["kind"] == "nic":
            (leaf[name],) = (n for n in topology.graph.successors(name) if n.startswith("fabric/"))
    assert len(set(leaf.values())) == 2 * 4
    assert leaf["n0/nic2"] == leaf["n1/nic2"] != leaf["n2/nic2"] == leaf["n3/nic2"]
    assert leaf["n0/nic0"] != leaf["n0/nic1"]
    router = Router(topology)
    assert len(router.route("n0/nic2", "n1/nic2")) == 2, "same rail, same group: one leaf"
    assert len(router.route("n0/nic2", "n1/nic3")) == 4, "other rail: over a spine"
    assert len(router.route("n0/nic2", "n3/nic2")) == 4, "other group: over a spine"


def test_nvl72_has_four_rails() -> None:
    topology = build_topology("gb200-nvl72", hosts=2, fabric="rail-optimised")
    leaves = {n for n in topology.graph if n.startswith("fabric/leaf")}
    per_leaf = Counter(
        sum(topology.graph.nodes[n]["kind"] == "nic" for n in topology.graph.successors(leaf))
        for leaf in leaves
    )
    assert per_leaf == {18: 8}, "18 adapters of a rail per domain, one group per domain"


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    kind=st.sampled_from(("one-switch", "rail-optimised", "leaf-spine", "fat-tree")),
    hosts=st.integers(2, 9),
    radix=st.integers(4, 24).map(lambda n: 2 * n),
    ratio=st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0]),
    data=st.data(),
)
def test_any_fabric_joins_all_and_keeps_the_block_order(
    name: str, kind: str, hosts: int, radix: int, ratio: float, data: st.DataObject
) -> None:
    sized = {} if kind == "one-switch" else {"radix": radix, "oversubscription": ratio}
    fabric = FabricSpec(kind=kind, **sized)
    topology = build_topology(TEMPLATES[name], hosts=hosts, fabric=fabric)
    assert check(topology) == ()
    assert nx.is_strongly_connected(topology.graph)
    folded = any("modular spine" in text for text in topology.assumptions)
    assert folded or kind == "one-switch" or most_ports_used(topology) <= radix
    arcs, block = topology.arcs, topology.host_arcs
    again = topology_of(topology.graph)
    devices, read_back = again.devices, again.arcs
    assert dict(devices) == dict(topology.devices)
    assert arcs.names == read_back.names
    assert list(arcs.kinds) == list(read_back.kinds)
    np.testing.assert_array_equal(read_back.bandwidth_Bps, arcs.bandwidth_Bps)
    np.testing.assert_array_equal(read_back.latency_s, arcs.latency_s)
    for index, (src, dst) in enumerate(arcs.names[: hosts * block]):
        assert src.startswith(f"n{index // block}/")
        assert dst.startswith(f"n{index // block}/")
        assert arcs.names[index % block] == (_in_host_0(src), _in_host_0(dst))
    router = Router(topology)
    host = data.draw(st.integers(1, hosts - 1))
    src, dst = data.draw(
        st.tuples(*[st.sampled_from(topology.ranks[: topology.gpus_per_host])] * 2)
    )
    shifted = tuple(arc + host * block for arc in router.route(src, dst))
    assert (
        router.route(src.replace("n0", f"n{host}", 1), dst.replace("n0", f"n{host}", 1)) == shifted
    )


def _in_host_0(name: str) -> str:
    return "n0/" + name.partition("/")[2]


def test_gpus_per_host_takes_the_first_and_keeps_all_hardware() -> None:
    topology = build_topology("dgx-a100", hosts=2, fabric="one-switch", gpus_per_host=3)
    assert topology.ranks == tuple(f"n{h}/gpu{g}" for h in (0, 1) for g in (0, 1, 2))
    assert topology.gpus_per_host == 3
    assert "n1/gpu7" in topology.graph


def test_a_thousand_gpus_have_the_counts_of_a_superpod() -> None:
    """NVIDIA DGX SuperPOD (DGX A100): 20 hosts per scalable unit, 8 leaves each."""
    topology = build_topology("dgx-a100", hosts=128, fabric="rail-optimised")
    assert len(topology.ranks) == 1024
    assert sum(n.startswith("fabric/leaf") for n in topology.graph) == 7 * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hosts": 0}, "hosts: found 0"),
        ({"hosts": 2}, "fabric: found nothing for 2 hosts"),
        ({"gpus_per_host": 9}, "found 9; allowed: 1 to 8"),
        ({"gpus_per_host": 0}, "found 0; allowed: 1 to 8"),
        ({"hosts": 2, "fabric": "leaf-spin"}, "did you mean 'leaf-spine'"),
        ({"hosts": 2, "fabric": FabricSpec(kind="fat-tree", k=2)}, "16 NICs; allowed: at most 2"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_topology("dgx-a100", **arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_several_hosts_need_nics_and_all_faults_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        build_topology("rtx4090-x4", hosts=2, gpus_per_host=5)
    assert len(caught.value.faults) == 3
    assert "no NIC" in str(caught.value)


def test_folded_third_level_and_rounded_ratio_are_said() -> None:
    many = build_topology("dgx-a100", hosts=128, fabric=FabricSpec(kind="rail-optimised", radix=16))
    assert any("modular spine" in text for text in many.assumptions)
    rounded = FabricSpec(kind="leaf-spine", hosts_per_leaf=4, oversubscription=3)
    odd = build_topology("ethernet-10g", hosts=8, fabric=rounded)
    assert any("oversubscription 4 (asked: 3)" in text for text in odd.assumptions)
    assert odd.sources["fabric oversubscription"] == "given in the scenario"
