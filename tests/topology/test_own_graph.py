"""Machines from graphs of one's own, and back: the same arrays, and every fault with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.files import list_shipped
from perfmodel.library.ring_search import local_rings
from perfmodel.topology.graph_files import read_topology, write_graph
from perfmodel.topology.model import Topology
from perfmodel.topology.own_graph import topology_of
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import (
    build_topology,
    template_names,
    with_usual_routing,
)

FABRICS = sorted(Path(name).name for name in list_shipped("topologies") if "fabrics/" in name)
GPU = {"kind": "gpu", "model": "a100-sxm4-80gb"}
NUMBERS = {"bandwidth": 25e9, "latency": 1e-6}
CABLE = {"bandwidth": "25 GB/s", "latency": "1 us"}


def through_json(topology: Topology) -> Topology:
    """The same machine after a journey through node-link JSON."""
    text = json.dumps(nx.node_link_data(topology.graph, edges="edges"))
    return topology_of(nx.node_link_graph(json.loads(text), edges="edges"))


@pytest.mark.parametrize("name", ["lanse", "Lanes", "lane", "latency_s", "bandwidth_Bps", "kinds"])
def test_attributes_of_edges_that_are_misspelt_are_refused(name: str) -> None:
    graph = nx.complete_graph(4)
    nx.set_node_attributes(graph, dict.fromkeys(graph, GPU))
    own = {"label": "a cable", "weight": 2, "id": "e1", "color": "red", "length": 3.0}
    nx.set_edge_attributes(graph, {edge: {**NUMBERS, **own} for edge in graph.edges})
    assert len(topology_of(graph).ranks) == 4
    graph.edges[0, 1][name] = 4
    with pytest.raises(InputError, match=rf"edges\..*\.{name}: found an unknown attribute"):
        topology_of(graph)


def assert_same(one: Topology, other: Topology) -> None:
    for name in (
        "name",
        "ranks",
        "gpu",
        "hosts",
        "host_arcs",
        "sources",
        "assumptions",
        "network",
        "fabric",
        "template",
        "gpu_p2p",
        "gpudirect_rdma",
        "staging_Bps",
        "reach",
        "channel_graphs",
        "sockets",
        "host_memory_bytes",
        "drives",
    ):
        assert getattr(one, name) == getattr(other, name), name
    assert dict(one.devices) == dict(other.devices)
    assert tuple(one.arcs.names) == tuple(other.arcs.names)
    assert list(one.arcs.kinds) == list(other.arcs.kinds)
    for name in ("bandwidth_Bps", "latency_s", "lanes"):
        assert np.array_equal(getattr(one.arcs, name), getattr(other.arcs, name)), name
    assert (one.tiers is None) == (other.tiers is None)
    if one.tiers is not None and other.tiers is not None:
        assert one.tiers.arcs == other.tiers.arcs
        assert np.array_equal(one.tiers.leaf_of, other.tiers.leaf_of)


@pytest.mark.parametrize("node", template_names())
def test_a_shipped_node_is_the_same_after_a_journey_through_json(node: str) -> None:
    alone = build_topology(node)
    assert_same(alone, through_json(alone))


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("node", ["dgx-a100", "v100-x8-25g", "azure-ndmi300x"])
def test_a_cluster_is_the_same_after_a_journey_through_json(node: str, fabric: str) -> None:
    cluster = build_topology(node, hosts=4, fabric=with_usual_routing(node, fabric))
    again = through_json(cluster)
    assert_same(cluster, again)
    assert_same(cluster, through_json(again))
    before = pm.collective(cluster, sizes=["1 MiB", "64 MiB"])
    assert list(pm.collective(again, sizes=["1 MiB", "64 MiB"])) == list(before)


@pytest.mark.slow
def test_run_and_tune_give_the_same_bits_on_the_graph(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    write_graph(build_topology("v100-x8-25g", hosts=2, fabric="one-switch"), file)
    assert_same(read_topology(file), build_topology("v100-x8-25g", hosts=2, fabric="one-switch"))
    named = {"node": "v100-x8-25g", "nodes": 2, "fabric": "one-switch"}
    small = {"compute.gpu_spread": 0.0, "scale": None}
    for ask in (pm.run, pm.tune):
        one = ask("bert-large-v100-25g", {**small, "cluster": named})
        other = ask("bert-large-v100-25g", {**small, "cluster": {"graph": str(file)}})
        if ask is pm.run:
            assert one.main.step_time_s == other.main.step_time_s
            assert one.main.interval_s == other.main.interval_s
        else:
            assert one.best_list == other.best_list


def test_graphml_is_read(tmp_path: Path) -> None:
    ring = nx.cycle_graph(4)
    nx.set_node_attributes(ring, dict.fromkeys(ring, GPU))
    nx.set_edge_attributes(ring, dict.fromkeys(ring.edges, NUMBERS))
    nx.write_graphml(ring, tmp_path / "ring.graphml")
    assert_same(read_topology(tmp_path / "ring.graphml"), topology_of(ring, "ring"))


def two_nodes(**changes: Any) -> nx.Graph:
    """Two nodes of two GPUs and a NIC each, joined by a switch."""
    graph = nx.Graph()
    for node in ("left", "right"):
        for number in range(2):
            graph.add_node((node, number), **GPU, node=node)
            graph.add_edge((node, number), (node, "nic"), **CABLE, kind="pcie")
        graph.add_edge((node, 0), (node, 1), bandwidth=50e9, latency=5e-7)
        graph.nodes[node, "nic"].update(kind="nic", node=node)
        graph.add_edge((node, "nic"), "switch", **CABLE)
    graph.nodes["switch"].update(kind="switch")
    for name, own in changes.items():
        graph.nodes[name, 0].update(own)
    return graph


def test_alike_nodes_are_nodes_and_others_are_one_machine() -> None:
    cluster = topology_of(two_nodes())
    assert (cluster.hosts, cluster.gpus_per_host, cluster.network) == (2, 2, "infiniband")
    assert cluster.ranks == ("n0/gpu0", "n0/gpu1", "n1/gpu0", "n1/gpu1")
    assert not any("one machine" in note for note in cluster.assumptions)
    graph = two_nodes()
    graph.add_edge(("left", 0), ("right", 0), **CABLE)
    crossed = topology_of(graph)
    assert crossed.hosts == 1
    assert "one machine whose devices all forward" in crossed.assumptions[0]
    for machine in (cluster, crossed):
        for library in ("nccl", "plain", "gloo"):
            assert pm.collective(machine, library=library, sizes=[1 << 20])[0]["time_s"] > 0


def test_parallel_nvlinks_are_one_of_several_lanes() -> None:
    """A GPU stripes what it sends over them, whatever their kind says; other cables are two."""

    def pair(links: int, **numbers: Any) -> nx.MultiGraph:
        graph = nx.MultiGraph()
        graph.add_nodes_from(range(2), kind="gpu", model="a100-sxm4-80gb")
        for _ in range(links):
            graph.add_edge(0, 1, latency=1e-6, **numbers)
        return graph

    both, bonded = (
        topology_of(each).arcs
        for each in (pair(2, bandwidth=5e10), pair(1, bandwidth=1e11, lanes=2))
    )
    assert both.bandwidth_Bps.tolist() == bonded.bandwidth_Bps.tolist() == [1e11, 1e11]
    assert both.lanes.tolist() == bonded.lanes.tolist() == [2, 2]
    apart = topology_of(pair(2, bandwidth=5e10, kind="pcie")).arcs
    assert apart.bandwidth_Bps.tolist() == [5e10] * 4


def test_devices_forward_and_paths_are_the_shortest() -> None:
    torus = nx.grid_graph((4, 4), periodic=True)
    nx.set_node_attributes(torus, dict.fromkeys(torus, GPU))
    nx.set_edge_attributes(torus, dict.fromkeys(torus.edges, CABLE))
    machine = topology_of(torus)
    router = Router(machine)
    lengths = dict(nx.all_pairs_shortest_path_length(torus))
    names = list(torus)
    for src, name in zip(names, machine.ranks, strict=True):
        for dst, other in zip(names, machine.ranks, strict=True):
            assert len(router.route(name, other)) == lengths[src][dst]


@pytest.mark.slow
def test_a_large_mesh_has_a_ring_in_rank_order() -> None:
    """Rings over links are searched among few GPUs only: the search of a thousand never ended."""
    machine = topology_of(cycle(1100))
    assert local_rings(Router(machine), machine.ranks) == (tuple(range(1100)),)
    few = topology_of(cycle(4))
    assert len(local_rings(Router(few), few.ranks)) == 2, "both ways round"


def cycle(gpus: int) -> nx.Graph:
    ring = nx.cycle_graph(gpus)
    nx.set_node_attributes(ring, dict.fromkeys(ring, GPU))
    nx.set_edge_attributes(ring, dict.fromkeys(ring.edges, NUMBERS))
    return ring


def broken(node: dict[str, Any] | None = None, edge: dict[str, Any] | None = None) -> nx.Graph:
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, dict.fromkeys(graph, GPU))
    nx.set_edge_attributes(graph, dict.fromkeys(graph.edges, CABLE))
    graph.nodes[1].update(node or {})
    graph.edges[1, 2].update(edge or {})
    return graph


@pytest.mark.parametrize(
    ("graph", "field", "said"),
    [
        (broken(node={"kind": "toaster"}), "nodes.1.kind", "'toaster'"),
        (broken(node={"kind": None}), "nodes.1.kind", "one of 'cpu'"),
        (broken(node={"model": "a100"}), "nodes.1.model", "did you mean"),
        (broken(node={"model": None}), "nodes.1.model", "nothing"),
        (broken(node={"model": ["a100-sxm4-80gb"]}), "nodes.1.model", "['a100-sxm4-80gb']"),
        (broken(node={"model": "l4"}), "nodes.1.model", "as most GPUs of the graph have"),
        (broken(edge={"bandwidth": None}), "edges.1 -- 2.bandwidth", "'25 GB/s'"),
        (broken(edge={"bandwidth": 0}), "edges.1 -- 2.bandwidth", "a million or more"),
        (broken(edge={"bandwidth": 25}), "edges.1 -- 2.bandwidth", "such as '25 GB/s'"),
        (broken(edge={"latency": 1}), "edges.1 -- 2.latency", "such as '1.3 us'"),
        (broken(edge={"bandwidth": float("nan")}), "edges.1 -- 2.bandwidth", "finite"),
        (broken(edge={"bandwidth": "25 GB"}), "edges.1 -- 2.bandwidth", "unit"),
        (broken(edge={"latency": -1e-6}), "edges.1 -- 2.latency", "from zero"),
        (broken(edge={"latency": float("inf")}), "edges.1 -- 2.latency", "from zero"),
        (broken(edge={"kind": "isa"}), "edges.1 -- 2.kind", "one of"),
        (broken(edge={"lanes": 0}), "edges.1 -- 2.lanes", "0"),
        (
            nx.union(broken(), nx.relabel_nodes(broken(), {0: "x", 1: "y", 2: "z"})),
            "nodes.x",
            "no path from 0 to x",
        ),
        (nx.Graph(), "nodes", "0 GPUs"),
        (nx.Graph(broken(), routing="widest"), "graph.routing", "'shortest'"),
        (7, "topology", "a NetworkX graph"),
    ],
)
def test_a_fault_names_its_node_or_edge(graph: Any, field: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        topology_of(graph)
    assert said in {fault.field: str(fault) for fault in error.value.faults}[field]


def test_all_faults_are_said_at_once() -> None:
    graph = broken(node={"kind": "toaster"}, edge={"bandwidth": 0, "latency": "1 parsec"})
    graph.add_edge(0, 0, **CABLE)
    with pytest.raises(InputError) as error:
        pm.topology(graph)
    assert len(error.value.faults) == 4


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("torn.json", '{"nodes": [{"id": 1}], "edges": [', "torn.json:"),
        ("other.json", '{"a": 1}', "no nodes and no edges"),
        ("list.json", "[1, 2]", "no nodes"),
        ("facts.json", '{"graph": -1, "nodes": [], "edges": []}', "graph: found -1"),
        ("words.json", '{"nodes": [1], "edges": [2]}', "nodes or edges"),
        ("torn.graphml", "<graphml>", "not well formed"),
        ("bomb.graphml", '<!DOCTYPE a [<!ENTITY b "c">]><graphml/>', "a document type"),
        ("other.graphml", "<topology/>", "no GraphML"),
    ],
)
def test_a_file_without_a_graph_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        pm.topology(str(tmp_path / name))


def test_a_graph_stands_alone() -> None:
    with pytest.raises(InputError, match="nothing beside a graph"):
        pm.topology(broken(), nodes=2)
    cluster = {"graph": "mine.json", "nodes": 2}
    with pytest.raises(InputError, match="graph alone"):
        pm.run("resnet50-dgx-a100", {"cluster": cluster})
    with pytest.raises(InputError, match=r"cluster\.graph"):
        pm.run("resnet50-dgx-a100", cluster__node="mine.json")


# ---------------------------------------------------------------- fabrics of one's own


def test_a_function_joins_hosts() -> None:
    def pairs(hosts: int, nics: int) -> nx.Graph:
        """Two switches with a thin trunk; odd NICs on the second."""
        graph = nx.Graph()
        graph.add_edge("even", "odd", bandwidth="10 Gbit/s", cables=2)
        for host in range(hosts):
            graph.add_edge(host, "even", nics=tuple(range(0, nics, 2)))
            graph.add_edge(host, "odd", nics=tuple(range(1, nics, 2)))
        return graph

    cluster = pm.topology("dgx-a100", nodes=3, fabric=pairs)
    assert (cluster.hosts, cluster.fabric) == (3, "pairs")
    trunks = [
        d for a, b, d in cluster.graph.edges(data=True) if {a, b} <= {"fabric/even", "fabric/odd"}
    ]
    assert len(trunks) == 4
    port = build_topology("dgx-a100").node_graph.nodes["nic0"]["port_efficiency"]
    assert {d["bandwidth"] for d in trunks} == {1.25e9 * port}
    assert_same(cluster, through_json(cluster))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _hosts: nx.Graph(), "which cannot take"),
        (lambda _hosts, _nics: 5, "returned an int, 5"),
        (lambda _hosts, _nics: nx.path_graph(2), "no host 2"),
        (lambda hosts, _nics: nx.star_graph(["s", *range(hosts - 1)]), "no host 2"),
        (lambda hosts, _nics: _star(hosts, nics=(0, 0)), "NIC 0"),
        (lambda hosts, _nics: _star(hosts, nics=(0,)), "no cable at NIC 1"),
        (lambda hosts, _nics: _star(hosts, bandwidth="5 miles"), "unknown unit"),
    ],
)
def test_a_wrong_function_is_refused(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pm.topology("dgx-a100", nodes=3, fabric=make)


def _star(hosts: int, **edge: Any) -> nx.Graph:
    graph = nx.star_graph(["s", *range(hosts)])
    nx.set_edge_attributes(graph, dict.fromkeys(graph.edges, edge))
    return graph


# ---------------------------------------------------------------- any graph


@st.composite
def graphs(draw: st.DrawFn) -> nx.Graph:
    """Connected graphs of 2 to 16 GPUs and some switches, with unlike links."""
    gpus, switches = draw(st.integers(2, 16)), draw(st.integers(0, 5))
    count = gpus + switches
    graph = nx.random_labeled_tree(count, seed=draw(st.integers(0, 1000)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    graph.add_edges_from((a, b) for a, b in draw(st.lists(pairs, max_size=8)) if a != b)
    for node in graph:
        graph.nodes[node].update(GPU if node < gpus else {"kind": "switch"})
    for edge in graph.edges.values():
        edge.update(
            bandwidth=draw(st.floats(1e9, 1e11)), latency=draw(st.integers(0, 10_000)) * 1e-9
        )
    return graph


@pytest.mark.slow
@pytest.mark.hypothesis
@given(graphs(), st.sampled_from(["ring", "tree", "halving_doubling"]))
def test_no_time_beats_the_minimum_cut(graph: nx.Graph, algorithm: str) -> None:
    """Each side of a cut has to learn the sum of the other: S bytes cross it, each way."""
    nbytes = 1 << 20
    flows = nx.Graph()
    flows.add_edges_from((a, b, {"capacity": d["bandwidth"]}) for a, b, d in graph.edges(data=True))
    gpus = [n for n, d in graph.nodes(data=True) if d["kind"] == "gpu"]
    cut_Bps = min(nx.minimum_cut_value(flows, gpus[0], other) for other in gpus[1:])
    machine = pm.topology(graph)
    times = [
        pm.collective(
            machine, algorithm=algorithm, library="plain", sizes=[nbytes], fidelity=fidelity
        )[0]["time_s"]
        for fidelity in ("flow", "message", "reference")
    ]
    assert min(times) >= nbytes / cut_Bps * (1 - 1e-9)


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"machine": 5}, r"graph\.machine: found 5"),
        ({"machine": {"reach": 5}}, r"graph\.machine\.reach: found 5"),
        ({"fabric": 5}, r"graph\.fabric: found 5"),
        ({"gpus_per_node": "x"}, r"graph\.gpus_per_node: found 'x'"),
    ],
)
def test_facts_of_the_whole_have_their_types(facts: dict[str, object], named: str) -> None:
    graph = nx.cycle_graph(2)
    graph.graph.update(facts)
    for node in graph:
        graph.nodes[node].update(kind="gpu", model="a100-sxm4-80gb")
    graph.edges[0, 1].update(bandwidth="25 GB/s", latency="1 us")
    with pytest.raises(InputError, match=named):
        topology_of(graph)
