"""Rail-only fabrics: no cable between rails, full bisection in each; bytes change in hosts."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import TopologyError
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.topology.fabric.clos import rail_only
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec


def network_of(graph: nx.Graph) -> nx.Graph:
    return graph.subgraph(name for name in graph if isinstance(name, str))


@settings(max_examples=30, deadline=None)
@given(
    hosts=st.integers(1, 40),
    rails=st.integers(1, 4),
    each=st.integers(1, 2),
    radix=st.sampled_from([4, 8, 16, 64]),
    routing=st.sampled_from(["ecmp", "adaptive"]),
)
def test_a_rail_is_a_network_of_its_own_that_does_not_block(
    hosts: int, rails: int, each: int, radix: int, routing: str
) -> None:
    """One part per rail; what leaves its leaves is what their hosts send (Wang et al. 2023)."""
    graph = rail_only(hosts, tuple(range(rails)) * each, radix=radix, routing=routing)
    parts = list(nx.connected_components(network_of(graph)))
    assert len(parts) == rails
    for part in parts:
        nics = sum(len(d["nics"]) for *_, d in nx.edge_boundary(graph, part, data=True))
        assert nics == hosts * each
    for leaf in (name for name in graph if isinstance(name, str) and "leaf" in name):
        up = sum(
            d.get("cables", 1) * d.get("lanes", 1)
            for _, other, d in graph.edges(leaf, data=True)
            if isinstance(other, str)
        )
        down = sum(
            len(d["nics"]) for _, other, d in graph.edges(leaf, data=True) if isinstance(other, int)
        )
        assert up >= down or hosts * each <= radix


def test_switches_are_fewer_by_the_spines() -> None:
    """Up to a switch's ports of hosts, a rail is one switch: no spine at all."""
    assert len(network_of(rail_only(64, tuple(range(8)), radix=64))) == 8
    assert len(network_of(rail_only(65, (0,), radix=64))) == 3 + 2


# ---------------------------------------------------------------- over NVLink


CLUSTER = build_topology("dgx-h100", hosts=4, fabric="rail-only")
SPINES = build_topology("dgx-h100", hosts=4, fabric=FabricSpec(kind="rail-only", radix=3))
"""A leaf for each host on each rail, under spines."""


@pytest.mark.parametrize("cluster", [CLUSTER, SPINES])
@pytest.mark.parametrize("relayed", [False, True])
def test_bytes_change_rails_in_the_host_that_sends(relayed: bool, cluster: Topology) -> None:
    """NCCL's PXN: to the GPU of that rail over NVLink, and on by its NIC."""
    router = Router(cluster)
    src, dst = (axis.ravel() for axis in np.indices((32, 32)))
    src, dst = src[src // 8 != dst // 8], dst[src // 8 != dst // 8]
    edges = edges_between(cluster, router, src, dst, relayed=relayed)
    names, kinds = cluster.arcs.names, cluster.arcs.kinds
    for at, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        route = edges.arcs[edges.pointers[at] : edges.pointers[at + 1]].tolist()
        assert all(names[x][1] == names[y][0] for x, y in pairwise(route))
        cables = [arc for arc in route if arc >= cluster.first_cable]
        assert names[cables[0]][0] == f"n{a // 8}/nic{b % 8}"
        assert names[cables[-1]][1] == f"n{b // 8}/nic{b % 8}"
        passed = {kinds[arc] for arc in route if arc < cluster.first_cable}
        assert ("nvlink" in passed) == (a % 8 != b % 8)


def test_a_route_by_name_changes_rails_alike() -> None:
    router, names = Router(CLUSTER), CLUSTER.arcs.names
    route = router.route("n0/gpu1", "n3/gpu6")
    passed = [names[arc][0] for arc in route]
    assert [name for name in passed if "gpu" in name] == ["n0/gpu1", "n0/gpu6"]
    assert [name for name in passed if "nic" in name] == ["n0/nic6", "n3/nic6"]
    assert names[route[-1]][1] == "n3/gpu6"
    assert router.route("n0/cpu0", "n1/gpu5"), "the host's own bytes may leave by any NIC"


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_collectives_of_nccl_keep_to_their_rails(op: str) -> None:
    """So that without the spines they take as long as with them, which they do not use."""
    times = [
        pm.collective("dgx-h100", nodes=4, fabric=fabric, op=op, sizes="64 MiB")[0]["time_s"]
        for fabric in ("rail-only", "rail-optimised")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-6)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_rings_and_trees_close_over_any_number_of_hosts(algorithm: str, nodes: int) -> None:
    rows = pm.collective(
        "dgx-h100", nodes=nodes, fabric="rail-only", algorithm=algorithm, sizes="64 MiB"
    )
    joined = pm.collective(
        "dgx-h100", nodes=nodes, fabric="rail-optimised", algorithm=algorithm, sizes="64 MiB"
    )
    assert joined[0]["time_s"] <= rows[0]["time_s"] * (1 + 1e-9)


def test_without_pxn_all_to_all_is_refused() -> None:
    with pytest.raises(TopologyError, match="no cable leads from n0/nic0 to n1/nic1"):
        pm.collective(
            "dgx-h100",
            nodes=2,
            fabric="rail-only",
            op="all_to_all",
            sizes="1 MiB",
            env={"NCCL_PXN_DISABLE": "1"},
        )


def test_what_cannot_change_rails_is_refused() -> None:
    flat = build_topology("l40s-x8", hosts=2, fabric="rail-only")
    src, dst = np.array([0]), np.array([15])
    with pytest.raises(TopologyError, match="no cable leads from n0/nic0 to n1/nic1"):
        edges_between(flat, Router(flat), src, dst)
    with pytest.raises(TopologyError, match=r"PXN.*rails are joined inside hosts only"):
        Router(flat).route("n0/gpu0", "n1/gpu7")
    assert Router(flat).route("n0/gpu0", "n1/gpu0")
