"""Routes: valid, best first, deterministic, spread; path types as NCCL names them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import TopologyError
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, template_names
from perfmodel.topology.templates.spec import FabricSpec


def devices_on(topology: Topology, arcs: tuple[int, ...]) -> list[str]:
    """Devices along a route; fails unless each arc begins where the one before ended."""
    names = topology.arcs.names
    for before, after in pairwise(arcs):
        assert names[before][1] == names[after][0]
    return [names[arcs[0]][0], *(names[arc][1] for arc in arcs)] if arcs else []


def brute_force(topology: Topology, src: str, dst: str) -> tuple[float, int]:
    """Bandwidth and hops of the best NVLink-only way over at most one GPU, by trying all."""
    graph = topology.graph
    ways = []
    for mid in [None, *topology.ranks]:
        stops = [src, dst] if mid is None else [src, mid, dst]
        if len(set(stops)) == len(stops) and all(graph.has_edge(*p) for p in pairwise(stops)):
            rate = min(graph[a][b][0]["bandwidth"] for a, b in pairwise(stops))
            kinds = {graph[a][b][0]["kind"] for a, b in pairwise(stops)}
            if kinds == {"nvlink"}:
                ways.append((len(stops) > 2, -rate, len(stops) - 1))
    _, rate, hops = min(ways)
    return -rate, hops


@pytest.mark.parametrize("name", template_names())
def test_routes_in_a_host_are_valid_and_pass_no_nic_and_no_gpu_but_by_nvlink(name: str) -> None:
    topology = build_topology(name)
    router = Router(topology)
    kinds = {n: d["kind"] for n, d in topology.graph.nodes(data=True)}
    some = topology.ranks[:8]
    nics = [n for n, kind in kinds.items() if kind == "nic"][:8]
    for src in [*some, *nics]:
        for dst in [*some, *nics]:
            if src == dst:
                assert router.route(src, dst) == ()
                assert router.path_type(src, dst) == "LOC"
                continue
            try:
                route = router.route(src, dst)
            except TopologyError:
                assert name in ("gb200-nvl72", "gb300-nvl72"), (
                    "only there do NICs of other trays stay out of reach"
                )
                continue
            way = devices_on(topology, route)
            assert (way[0], way[-1]) == (src, dst)
            between = [kinds[n] for n in way[1:-1]]
            assert "nic" not in between
            assert between.count("gpu") <= 1
            if "gpu" in between:
                assert {topology.arcs.kinds[a] for a in route} == {"nvlink"}
                assert router.path_type(src, dst) == "NVB"


def test_hybrid_cube_mesh_relays_over_the_widest_way() -> None:
    topology = build_topology("dgx1-v100")
    router = Router(topology)
    for src in topology.ranks:
        for dst in topology.ranks:
            if src != dst:
                route = router.route(src, dst)
                rate = min(topology.arcs.bandwidth_Bps[a] for a in route)
                assert (rate, len(route)) == brute_force(topology, src, dst)


@pytest.mark.parametrize(
    ("name", "src", "dst", "kind"),
    [
        ("dgx-a100", "gpu0", "gpu7", "NVL"),
        ("dgx-a100", "gpu0", "nic1", "PIX"),
        ("dgx-a100", "gpu0", "nic2", "SYS"),
        ("dgx-a100", "gpu0", "cpu0", "PHB"),
        ("dgx-h100", "gpu0", "nic0", "PIX"),
        ("dgx-h100", "gpu0", "nic1", "PHB"),
        ("dgx-h100", "gpu0", "nic7", "SYS"),
        ("v100-x8-25g", "gpu2", "nic0", "PIX"),
        ("v100-x8-25g", "gpu0", "nic0", "PHB"),
        ("v100-x8-25g", "gpu7", "nic0", "SYS"),
        ("ethernet-100g", "gpu0", "nic0", "PHB"),
        ("rtx4090-x4", "gpu0", "gpu3", "PHB"),
        ("rtx4090-x8", "gpu0", "gpu1", "SYS"),
        ("l40s-x8", "gpu0", "gpu3", "PIX"),
        ("l40s-x8", "gpu0", "gpu4", "SYS"),
    ],
)
def test_path_types(name: str, src: str, dst: str, kind: str) -> None:
    router = Router(build_topology(name))
    assert router.path_type(f"n0/{src}", f"n0/{dst}") == kind
    assert router.path_type(f"n0/{dst}", f"n0/{src}") == kind


def test_two_bridges_are_pxb() -> None:
    from perfmodel.topology.routing.shortest_paths import HostArc, best_paths

    kinds = {"g": "gpu", "p": "pcie_switch", "q": "pcie_switch", "n": "nic"}
    arcs = {
        "g": [HostArc(0, "p", "pcie", 1.0)],
        "p": [HostArc(1, "q", "pcie", 1.0)],
        "q": [HostArc(2, "n", "pcie", 1.0)],
    }
    assert best_paths("g", kinds, arcs)["n"].type == "PXB"
    assert best_paths("g", kinds, arcs)["q"].type == "PXB"
    assert best_paths("g", kinds, arcs)["p"].type == "PIX"


def test_no_way_leads_through_a_nic() -> None:
    from perfmodel.topology.routing.shortest_paths import HostArc, best_paths

    kinds = {"a": "gpu", "n": "nic", "b": "gpu"}
    arcs = {"a": [HostArc(0, "n", "pcie", 1.0)], "n": [HostArc(1, "b", "pcie", 1.0)]}
    assert set(best_paths("a", kinds, arcs)) == {"a", "n"}


def test_type_beats_bandwidth_and_bandwidth_beats_hops() -> None:
    from perfmodel.topology.routing.shortest_paths import HostArc, best_paths

    kinds = {"a": "gpu", "b": "gpu", "c": "cpu", "p": "pcie_switch", "q": "pcie_switch"}
    arcs = {
        "a": [
            HostArc(0, "c", "pcie", 99.0),
            HostArc(1, "p", "pcie", 5.0),
            HostArc(4, "q", "pcie", 6.0),
        ],
        "c": [HostArc(2, "b", "pcie", 99.0)],
        "p": [HostArc(3, "b", "pcie", 5.0)],
        "q": [HostArc(5, "b", "pcie", 6.0)],
    }
    assert best_paths("a", kinds, arcs)["b"].arcs == (4, 5)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("dgx-a100", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("dgx1-v100", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("dgx2-v100", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]),
        ("aws-p4d", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("gcp-a3-mega", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("v100-x8-25g", [0] * 8),
    ],
)
def test_nearest_nics_use_all(name: str, nearest: list[int]) -> None:
    topology = build_topology(name)
    router = Router(topology)
    assert [router.nearest_nics(g)[0] for g in topology.ranks] == [f"n0/nic{i}" for i in nearest]
    count = len(set(router.nearest_nics("n0/gpu0")))
    assert count == sum(d["kind"] == "nic" for _, d in topology.graph.nodes(data=True))


def test_nearest_devices_are_those_of_the_same_host() -> None:
    router = Router(build_topology("dgx-a100", hosts=3, fabric="rail-optimised"))
    assert router.nearest_nics("n2/gpu5")[:2] == ("n2/nic5", "n2/nic4")
    assert router.nearest_cpu("n2/gpu5") == "n2/cpu2"
    assert router.nearest_cpu("n1/nic7") == "n1/cpu3"


def test_gpu_to_gpu_between_hosts_goes_by_their_nearest_nics() -> None:
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    router = Router(topology)
    way = devices_on(topology, router.route("n0/gpu3", "n1/gpu3"))
    assert way == [
        "n0/gpu3",
        "n0/pcie1",
        "n0/nic3",
        "fabric/leaf3",
        "n1/nic3",
        "n1/pcie1",
        "n1/gpu3",
    ]
    assert router.path_type("n0/gpu3", "n1/gpu3") == "NET"


CLUSTERS = {
    "leaf-spine": build_topology(
        "ethernet-10g", hosts=32, fabric=FabricSpec(kind="leaf-spine", hosts_per_leaf=8)
    ),
    "fat-tree": build_topology("ethernet-10g", hosts=54, fabric=FabricSpec(kind="fat-tree", k=6)),
    "rail-optimised": build_topology(
        "dgx1-v100", hosts=8, fabric=FabricSpec(kind="rail-optimised", hosts_per_leaf=2)
    ),
}


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(kind=st.sampled_from(sorted(CLUSTERS)), data=st.data(), flow=st.integers(0, 1 << 40))
def test_fabric_routes_are_shortest_valid_and_repeatable(
    kind: str, data: st.DataObject, flow: int
) -> None:
    import networkx as nx

    topology = CLUSTERS[kind]
    start = topology.hosts * topology.host_arcs
    nics = sorted(
        {n for pair in topology.arcs.names[start:] for n in pair if not n.startswith("f")}
    )
    src, dst = data.draw(st.lists(st.sampled_from(nics), min_size=2, max_size=2, unique=True))
    if src.partition("/")[0] == dst.partition("/")[0]:
        return
    route = Router(topology).route(src, dst, flow)
    way = devices_on(topology, route)
    assert (way[0], way[-1]) == (src, dst)
    assert all(name.startswith("fabric/") for name in way[1:-1])
    fabric = nx.DiGraph(topology.arcs.names[start:])
    assert len(route) == nx.shortest_path_length(fabric, src, dst)
    assert Router(topology).route(src, dst, flow) == route


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["leaf-spine", "fat-tree"])
def test_flows_spread_evenly_over_all_equal_ways(kind: str) -> None:
    """Every uplink of the leaf is used; counts within 5 standard deviations of equal shares."""
    topology = CLUSTERS[kind]
    router = Router(topology)
    last = f"n{topology.hosts - 1}/nic0"
    flows = 3000
    for hop in range(1, len(router.route("n0/nic0", last)) // 2):
        used = Counter(router.route("n0/nic0", last, flow)[hop] for flow in range(flows))
        src = {topology.arcs.names[arc][0] for arc in used}
        up = [
            i
            for i in range(topology.hosts * topology.host_arcs, len(topology.arcs))
            if topology.arcs.names[i][0] in src and _rises(*topology.arcs.names[i])
        ]
        assert set(used) == set(up)
        share = flows / len(up)
        assert all(abs(n - share) < 5 * (share * (1 - 1 / len(up))) ** 0.5 for n in used.values())


def _rises(src: str, dst: str) -> bool:
    return _level(dst) > _level(src)


def _level(name: str) -> int:
    order = ("n", "fabric/leaf", "fabric/edge", "fabric/agg", "fabric/spine", "fabric/core")
    return max(i for i, head in enumerate(order) if name.startswith(head))


@pytest.mark.slow
def test_ways_do_not_depend_on_the_process() -> None:
    code = (
        "from perfmodel.topology.templates.build import build_topology;"
        "from perfmodel.topology.routing.router import Router;"
        "r = Router(build_topology('dgx1-v100', hosts=8, fabric='leaf-spine'));"
        "print([r.route('n0/nic0', f'n{h}/nic3', f) for h in range(1, 8) for f in range(8)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_latency_adds_up_along_the_way() -> None:
    """Two ports, a cable more than switches, 130 ns per switch; NCCL charges 2.7 us (LL)."""
    topology = build_topology("dgx-a100", hosts=2, fabric=FabricSpec(kind="rail-optimised"))
    router, latency_s = Router(topology), topology.arcs.latency_s
    one = sum(latency_s[arc] for arc in router.route("n0/nic0", "n1/nic0"))
    assert one == pytest.approx(2 * 0.3e-6 + 2 * 25e-9 + 130e-9)
    three = sum(latency_s[arc] for arc in router.route("n0/nic0", "n1/nic1"))
    assert three == pytest.approx(2 * 0.3e-6 + 4 * 25e-9 + 3 * 130e-9)
    whole = sum(latency_s[arc] for arc in router.route("n0/gpu0", "n1/gpu0"))
    assert whole == pytest.approx(2.7e-6, rel=0.05)


def test_switches_can_be_ends_of_a_route() -> None:
    topology = CLUSTERS["leaf-spine"]
    router = Router(topology)
    assert devices_on(topology, router.route("n0/nic0", "fabric/leaf0")) == [
        "n0/nic0",
        "fabric/leaf0",
    ]
    way = devices_on(topology, router.route("fabric/leaf0", "n31/nic0"))
    assert (way[0], way[-2], way[-1]) == ("fabric/leaf0", "fabric/leaf3", "n31/nic0")
    assert len(devices_on(topology, router.route("fabric/leaf0", "fabric/leaf3"))) == 3


def test_what_is_not_connected_is_said() -> None:
    router = Router(build_topology("gb200-nvl72"))
    with pytest.raises(TopologyError, match="nothing connects n0/gpu0 to n0/nic71"):
        router.route("n0/gpu0", "n0/nic71")
    with pytest.raises(TopologyError, match=r"no device 'n0/gpu72'.*did you mean 'n0/gpu7"):
        router.route("n0/gpu0", "n0/gpu72")
    with pytest.raises(TopologyError, match="no device 'n9/gpu0'"):
        Router(build_topology("ethernet-10g", hosts=2, fabric="one-switch")).path_type(
            "n0/gpu0", "n9/gpu0"
        )


def test_a_fabric_in_two_parts_is_said() -> None:
    """The search ends, although both parts are rings in which it could run for ever."""

    def two_rings(hosts: int, _nics: int) -> nx.Graph:
        rings = nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4))
        graph = nx.relabel_nodes(rings, {number: f"switch{number}" for number in rings})
        graph.add_edges_from((host, f"switch{host // 2 * 4 + host % 2}") for host in range(hosts))
        return graph

    router = Router(build_topology("dgx1-v100", hosts=4, fabric=two_rings))
    with pytest.raises(TopologyError, match="no cable leads from n0/nic0 to n3/nic0"):
        router.route("n0/gpu0", "n3/gpu0")
    assert router.route("n0/gpu0", "n1/gpu0")


def test_where_no_cable_joins_rails_bytes_leave_by_that_of_the_peer() -> None:
    def rails(hosts: int, nics: int) -> nx.Graph:
        graph = nx.Graph()
        for host in range(hosts):
            graph.add_edge(host, "even", nics=tuple(range(0, nics, 2)))
            graph.add_edge(host, "odd", nics=tuple(range(1, nics, 2)))
        return graph

    topology = build_topology("dgx-h100", hosts=2, fabric=rails)
    route = Router(topology).route("n0/gpu0", "n1/gpu1")
    passed = [topology.arcs.names[arc][1] for arc in route]
    assert {"n0/nic1", "fabric/odd", "n1/nic1"} < set(passed)


@pytest.mark.parametrize("fabric", ["fat-tree", "leaf-spine", "rail-optimised", "one-switch"])
@pytest.mark.parametrize("template", ["dgx-a100", "aws-p4d", "v100-x8-100g"])
def test_numbers_of_nics_by_their_cables_are_those_by_name(template: str, fabric: str) -> None:
    topology = build_topology(template, hosts=5, fabric=fabric)
    router, names = Router(topology), topology.arcs.names
    cables = np.arange(topology.first_cable, len(topology.arcs))
    for end in (0, 1):
        own = np.array([arc for arc in cables.tolist() if "/nic" in names[arc][end]])
        expected = [router.nic_number(names[arc][end]) for arc in own.tolist()]
        assert router.nic_numbers(own, end).tolist() == expected
        assert len(own) == 5 * len(set(expected))
