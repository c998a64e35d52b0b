"""Resources that several GPUs share, each against the number that theory gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from perfmodel.library.lowering.edge_routing import edges_between, edges_of_names, reroute_edges
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.topology.faults import find_arcs, remove_links
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, template_names
from perfmodel.topology.templates.spec import FabricSpec, NodeSpec

PCIE_Bps = 10e9


def node(cpus: int, dram: str, *, p2p: bool = False) -> NodeSpec:
    """Eight GPUs in pairs behind PCIe switches, on some CPUs with a memory each; no NVLink."""

    def link(kind: str, rate: str) -> dict[str, object]:
        return {"kind": kind, "bandwidth": rate, "efficiency": 1, "latency": "0 s", "source": "a b"}

    return NodeSpec.model_validate(
        {
            "perfmodel": 1,
            "kind": "node",
            "name": "box",
            "description": "test",
            "gpu": "l40s",
            "links": {
                "pcie": link("pcie", "10 GB/s"),
                "numa": link("upi", "1000 GB/s"),
                "dram": link("memory", dram),
                "port": link("ethernet", "5 GB/s"),
            },
            "nodes": [
                {"id": "gpu[0-7]", "kind": "gpu"},
                {"id": "sw[0-3]", "kind": "pcie_switch"},
                {"id": f"cpu[0-{cpus - 1}]", "kind": "cpu"},
                {"id": f"mem[0-{cpus - 1}]", "kind": "memory"},
                {"id": "nic0", "kind": "nic", "port": "port"},
            ],
            "edges": [
                {"from": "gpu[0-7]", "to": "sw[0-3]", "link": "pcie"},
                {"from": "sw[0-3]", "to": f"cpu[0-{cpus - 1}]", "link": "pcie"},
                {"from": f"mem[0-{cpus - 1}]", "to": f"cpu[0-{cpus - 1}]", "link": "dram"},
                {
                    "from": f"cpu[0-{cpus - 1}]",
                    "to": f"cpu[0-{cpus - 1}]",
                    "link": "numa",
                    "pattern": "all",
                },
                {"from": "nic0", "to": "cpu0", "link": "pcie"},
            ],
            "gpu_p2p": p2p,
            "gpudirect_rdma": False,
        }
    )


def rates_Bps(topology: Topology, src: list[int], dst: list[int]) -> np.ndarray:
    edges = edges_between(topology, Router(topology), np.array(src), np.array(dst))
    return max_min_rates(topology.arcs.bandwidth_Bps, edges.pointers, edges.arcs, edges.cap_Bps)


def test_gpus_behind_one_switch_share_its_uplink() -> None:
    """gpu0 and gpu1 share a switch; gpu2 has one to itself."""
    topology = build_topology(node(2, "1000 GB/s", p2p=True))
    actual = rates_Bps(topology, [0, 1, 2], [4, 6, 0])
    assert actual == pytest.approx([PCIE_Bps / 2, PCIE_Bps / 2, PCIE_Bps])


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_copies_staged_at_once_share_the_memory(copies: int) -> None:
    """k copies through one memory of rate M get M / k each, until PCIe is the limit."""
    topology = build_topology(node(1, "12 GB/s"))
    src, dst = [0, 2, 4, 6][:copies], [2, 4, 6, 0][:copies]
    expected = min(PCIE_Bps, 12e9 / copies)
    assert rates_Bps(topology, src, dst) == pytest.approx([expected] * copies)


def test_a_staged_copy_is_written_and_read() -> None:
    topology = build_topology(node(1, "12 GB/s"))
    edges = edges_between(topology, Router(topology), np.array([0]), np.array([7]))
    names = [topology.arcs.names[arc] for arc in edges.arcs.tolist()]
    assert names.count(("n0/cpu0", "n0/mem0")) == 1
    assert names.count(("n0/mem0", "n0/cpu0")) == 1
    assert edges.staged


def test_each_numa_domain_has_its_own_memory() -> None:
    one, two = (build_topology(node(cpus, "12 GB/s")) for cpus in (1, 2))
    ends = ([0, 4], [2, 6])
    assert rates_Bps(one, *ends) == pytest.approx([6e9, 6e9])
    assert rates_Bps(two, *ends) == pytest.approx([PCIE_Bps, PCIE_Bps])


def test_traffic_for_the_nic_is_staged_at_both_ends() -> None:
    """Out and in through one memory: written and read once each per host, so not halved."""
    topology = build_topology(node(1, "4 GB/s"), hosts=2, fabric="one-switch")
    assert rates_Bps(topology, [0], [8]) == pytest.approx([4e9])
    assert rates_Bps(topology, [0, 2], [8, 10]) == pytest.approx([2e9, 2e9])
    assert rates_Bps(topology, [0, 8], [8, 0]) == pytest.approx([2e9, 2e9])  # both cross both


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_gpus_that_share_a_nic_share_its_rate(gpus: int) -> None:
    topology = build_topology(node(1, "1000 GB/s"), hosts=2, fabric="one-switch")
    senders = list(range(gpus))
    actual = rates_Bps(topology, senders, [8 + gpu for gpu in senders])
    assert actual == pytest.approx([5e9 / gpus] * gpus)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_hosts_share_an_oversubscribed_spine(hosts: int) -> None:
    """k hosts of a leaf with one uplink for four ports: k flows take k times as long."""
    fabric = FabricSpec(kind="leaf-spine", hosts_per_leaf=4, oversubscription=4)
    topology = build_topology("ethernet-10g", hosts=8, fabric=fabric)
    alone = rates_Bps(topology, [0], [4])
    together = rates_Bps(topology, list(range(hosts)), [4 + host for host in range(hosts)])
    assert together == pytest.approx(alone[0] / hosts)


@pytest.mark.slow
@pytest.mark.parametrize("name", template_names())
def test_staged_copies_cross_a_memory_on_every_template(name: str) -> None:
    """Where a shipped machine stages traffic it says how fast its memory is."""
    alone = build_topology(name)
    if alone.gpu.accelerator:
        pytest.skip("rings of chips are not NCCL's")
    cluster = any(d["kind"] == "nic" for _, d in alone.graph.nodes(data=True))
    topology = build_topology(name, hosts=2, fabric="one-switch") if cluster else alone
    ranks = range(len(topology.ranks))
    edges = Machine(topology, load_library("nccl")).rings(ranks).edges
    if edges.staged:
        kinds = {topology.arcs.kinds[arc] for arc in edges.arcs.tolist()}
        assert "memory" in kinds


def test_by_rails_bytes_change_rails_inside_the_host() -> None:
    """NCCL's PXN: GPU 0 hands what is for rail 5 to GPU 5, over NVLink."""

    def way(routing: str) -> list[str]:
        fabric = FabricSpec(kind="rail-optimised", routing=routing)
        topology = build_topology("dgx-h100", hosts=2, fabric=fabric)
        edges = edges_between(topology, Router(topology), np.array([0]), np.array([13]))
        return [topology.arcs.names[arc][1] for arc in edges.arcs.tolist()]

    by_rail, hashed = way("rail"), way("ecmp")
    assert [n for n in by_rail if n.startswith("fabric")] == ["fabric/leaf5"]
    assert by_rail[:2] == ["n0/nvs", "n0/gpu5"]
    assert [n for n in hashed if n.startswith("fabric")] == [
        "fabric/leaf0",
        "fabric/spine0",
        "fabric/leaf5",
    ]


def paired_switches() -> NodeSpec:
    """Two GPUs, joined to each other and to a switch each; the switches are joined too."""
    link = {
        "kind": "nvlink",
        "bandwidth": "10 GB/s",
        "efficiency": 1,
        "latency": "0 s",
        "source": "a b",
    }
    return NodeSpec.model_validate(
        {
            "perfmodel": 1,
            "kind": "node",
            "name": "box",
            "description": "test",
            "gpu": "a100-sxm4-40gb",
            "links": {"nvl": link},
            "nodes": [{"id": "gpu[0-1]", "kind": "gpu"}, {"id": "nvs[0-1]", "kind": "nvswitch"}],
            "edges": [
                {"from": "gpu0", "to": "nvs0", "link": "nvl"},
                {"from": "gpu1", "to": "nvs0", "link": "nvl"},
                {"from": "nvs0", "to": "nvs1", "link": "nvl"},
                {"from": "gpu1", "to": "nvs1", "link": "nvl"},
            ],
        }
    )


def test_edges_to_a_switch_end_where_they_did_when_a_link_between_is_lost() -> None:
    """Two links to the farther switch, of which the first or the second is lost: by the other."""
    topology = build_topology(paired_switches())
    pairs = [("n0/gpu0", "n0/nvs1"), ("n0/nvs1", "n0/gpu0"), ("n0/gpu1", "n0/nvs1")]
    edges = edges_of_names(topology, Router(topology), *map(list, zip(*pairs, strict=True)))
    lost = find_arcs(topology, "n0/nvs0 -- n0/nvs1")
    after = remove_links(topology, arcs=lost)
    rerouted = reroute_edges(after, Router(after), edges)
    names, changed = topology.arcs.names, 0
    for edge, (src, dst) in enumerate(pairs):
        before, arcs = (
            each.arcs[each.pointers[edge] : each.pointers[edge + 1]].tolist()
            for each in (edges, rerouted)
        )
        assert set(arcs).isdisjoint(lost)
        assert (names[arcs[0]][0], names[arcs[-1]][1]) == (src, dst)
        assert all(names[a][1] == names[b][0] for a, b in pairwise(arcs))
        changed += before != arcs
    assert changed == 2
    assert rerouted.src.tolist() == edges.src.tolist()
    assert rerouted.dst.tolist() == edges.dst.tolist()
