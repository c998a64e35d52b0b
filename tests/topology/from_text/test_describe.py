"""Hosts from free text: what is put together, what is assumed, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.from_text.describe import Described, describe
from perfmodel.topology.from_text.network_text import read_intra, read_network
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check


def built(found: Described, hosts: int, gpus: int) -> Topology:
    nodes, each = found.spread(hosts, gpus)
    fabric = "one-switch" if nodes > 1 else None
    return build_topology(found.node, hosts=nodes, gpus_per_host=each, fabric=fabric)


@pytest.mark.parametrize("words", ["gtx 970", "not stated (8-GPU nodes)", "", "A1000"])
def test_unknown_gpu_is_refused_with_those_that_are_known(words: str) -> None:
    with pytest.raises(InputError, match=r"A100.*V100"):
        describe(words, gpus=8, intra="NVLink")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"intra": "NVLonk3"}, "intra", "NVLonk3"),
        ({"intra": "NVLink3 NVSwitch, 3.2 GHz"}, "intra", "3.2 GHz"),
        ({"intra": "NVLink3 NVSwitch, two TPUs"}, "intra", "two TPUs"),
        ({"intra": "NVLink3 NVSwitch, 4x 100GbE"}, "intra", "4x 100GbE"),
        ({"intra": "PCIe4 x16, PCIe5"}, "intra", "PCIe5"),
        ({"intra": "NVLink3 NVSwitch, NVLink off"}, "intra", "NVLink off"),
        ({"network": "InfiniBand HDR, 25 GbE"}, "network", "25 GbE"),
        ({"network": "RoCE 100G, Zen4"}, "network", "Zen4"),
        ({"gpu": "A100-SXM4-80GB at 300 W"}, "gpu", "300 W"),
    ],
)
def test_hardware_that_prose_names_and_nobody_reads_is_refused(
    fields: dict[str, str], field: str, words: str
) -> None:
    stated = {"gpu": "A100-SXM4-80GB", "intra": "none", "network": "InfiniBand HDR"} | fields
    with pytest.raises(InputError) as raised:
        describe(stated["gpu"], gpus=8, intra=stated["intra"], network=stated["network"])
    assert [(fault.field, fault.found) for fault in raised.value.faults] == [(field, repr(words))]


@pytest.mark.parametrize(
    ("intra", "network", "words"),
    [
        ("NVLink3 NVSwitch in each node, liquid cooled", "InfiniBand HDR", "'liquid cooled'"),
        ("NVLink3 NVSwitch", "InfiniBand HDR banana", "'banana'"),
        ("NVLink3 NVSwitch", "InfiniBand HDR, EDR", "'EDR'"),
        ("NVLink3 NVSwitch, banana", "HDR InfiniBand, banana", "'banana'"),
    ],
)
def test_other_words_of_prose_are_named_in_a_note(intra: str, network: str, words: str) -> None:
    notes = describe("A100-SXM4-80GB", gpus=8, intra=intra, network=network).assumptions
    assert f"passed over, being unknown or at odds with other words: {words}" in notes


def test_a_paragraph_of_which_every_word_acts_or_is_plain_has_no_such_note() -> None:
    text = "NVLink3 NVSwitch inside each node; 8x 200 Gb/s HDR InfiniBand between nodes, SHARP off."
    notes = describe("A100-SXM4-80GB", gpus=8, intra=text, network=text).assumptions
    assert not [note for note in notes if note.startswith("passed over")]


# ---------------------------------------------------------------- inside


# NCCL 2.30.7 src/graph/topo.h: usable GB/s per NVLink, times links per GPU (data sheets); NVLink 2
# without a switch: what nccl-tests reach on 8 V100 (konnase/konnase.github.io, busbw 129.1 GB/s).
@pytest.mark.parametrize(
    ("gpu", "gpus", "intra", "GBps"),
    [
        ("P100-SXM2-16GB", 8, "NVLink1 hybrid cube mesh", 4 * 18.0),
        ("V100-SXM2-32GB", 8, "NVLink2 hybrid cube mesh", 6 * 21.5),
        ("V100-SXM2-32GB", 4, "NVLink", 6 * 21.5),
        ("Tesla V100-SXM3-32GB", 16, "NVLink2 NVSwitch", 6 * 20.0),
        ("A100-SXM4-40GB", 8, "NVLink3 NVSwitch (12x25 GB/s)", 12 * 20.0),
        ("A100-SXM4-40GB", 4, "NVLink3", 12 * 20.0),
        ("H800", 8, "NVLink4 NVSwitch (8 links)", 8 * 20.6),
        ("H100", 8, "NVLink4 NVSwitch, 18 x 50 GB/s", 18 * 20.6),
        ("H800", 4, "NVSwitch, 8 x 50 GB/s", 8 * 20.6),  # both ways together
        ("H800", 4, "NVSwitch, 8 x 25 GB/s", 8 * 20.6),
        ("H100 PCIe", 2, "NVLink bridge", 12 * 20.6),
        ("RTX 3090", 2, "NVLink bridge", 4 * 12.0),
        ("A40", 4, "NVLink bridge", 4 * 12.0),
        ("RTX 2080 Ti", 2, "NVLink bridge", 2 * 21.5),
        ("B200", 8, "NVLink5 NVSwitch", 18 * 40.1),
        ("GH200", 4, "NVLink4", 18 * 20.6),
        ("T4", 4, "PCIe3 x16", 0.0),
        ("L40S", 2, "none", 0.0),
    ],
)
def test_usable_nvlink_of_a_gpu(gpu: str, gpus: int, intra: str, GBps: float) -> None:
    graph = build_topology(describe(gpu, gpus=gpus, intra=intra).node).graph
    arcs = graph.out_edges("n0/gpu0", data=True)
    found = sum(data["bandwidth"] for _, _, data in arcs if data["kind"] == "nvlink")
    assert found / 1e9 == pytest.approx(GBps, rel=2e-3)


def test_hardware_that_nobody_has_run_by_its_numbers() -> None:
    """36 links of 100 GB/s, and NICs of 1.6 Tbit/s: no product has them."""
    found = describe(
        "H100-SXM5-80GB",
        gpus=8,
        intra="NVSwitch, 36 x 100 GB/s",
        network="InfiniBand",
        nics=8,
        nic_Gbps=1600,
    )
    topology = built(found, 2, 8)
    assert found.template is None
    assert topology.graph["n0/gpu0"]["n0/nvs"][0]["bandwidth"] == pytest.approx(36 * 100e9 * 0.824)
    port = next(i for i, (a, b) in enumerate(topology.arcs.names) if a == "n0/nic0" and "fab" in b)
    assert topology.arcs.bandwidth_Bps[port] == pytest.approx(200e9 * 4096 / 4122, rel=1e-4)


def test_machines_with_a_template_get_it() -> None:
    p4d = describe("A100-SXM4-40GB", gpus=8, intra="NVSwitch", network="AWS EFA (p4d)", nics=4)
    assert p4d.template == "aws-p4d"
    p5 = describe("H100", gpus=8, intra="NVSwitch", network="AWS EFA", nics=32, nic_Gbps=100)
    assert p5.template == "aws-p5", "four devices beside a GPU are one adapter of the template"
    memory = describe("A100-SXM4-80GB", gpus=8, intra="NVSwitch", network="EFA (p4de)")
    assert (memory.template, memory.node.gpu) == ("aws-p4d", "a100-sxm4-80gb")
    slower = describe("A100-SXM4-80GB", gpus=8, intra="NVSwitch", network="InfiniBand HDR", nics=2)
    assert slower.template is None, "two NICs are not the eight of a DGX A100"
    assert describe("RTX 4090", gpus=4, intra="PCIe4, P2P enabled").template == "rtx4090-x4-p2p"
    plain = describe("A100-PCIE-80GB", gpus=4, intra="PCIe4 x16")
    assert plain.template is None, "an NC A100 v4 has a NUMA domain per GPU: only if it was named"


def test_fewer_gpus_than_the_machine_has() -> None:
    found = describe("V100-SXM2", gpus=3, intra="NVLink2 hybrid cube mesh")
    topology = built(found, 1, 3)
    assert len(topology.ranks) == 3
    assert len([n for n in topology.graph if "gpu" in n]) == 8
    assert any("first 3 of 8" in note for note in found.assumptions)


def count(found: Described, stem: str) -> int:
    return sum(name.startswith(f"n0/{stem}") for name in build_topology(found.node).graph)


def test_boards_are_whole_and_have_the_usual_switches() -> None:
    """DGX A100: two GPUs per PCIe switch; DGX H100: one GPU and one NIC (NVIDIA's user guides)."""
    assert count(describe("H800", gpus=4, intra="NVSwitch"), "gpu") == 8
    assert count(describe("A800", gpus=8, intra="NVSwitch", network="RoCE"), "pcie") == 4
    assert count(describe("H800", gpus=8, intra="NVSwitch", network="RoCE"), "pcie") == 8
    assert count(describe("H800", gpus=8, intra="NVSwitch", network="RoCE", nics=4), "pcie") == 4


def test_a_nic_across_sockets() -> None:
    words = "InfiniBand HDR CX-6 across socket (SYS), GDR forced"
    topology = build_topology(describe("A100-PCIE-40GB", gpus=1, intra="none", network=words).node)
    assert Router(topology).path_type("n0/gpu0", "n0/nic0") == "SYS"
    assert topology.gpudirect_rdma


def test_nvlink_racks_are_one_node() -> None:
    found = describe("GB200", gpus=4, intra="NVLink5", network="MNNVL two racks + RoCE")
    assert found.spread(32, 4) == (2, 64)
    assert found.spread(1, 4) == (1, 4)
    topology = built(found, 32, 4)
    assert (len(topology.ranks), topology.network) == (128, "roce")
    assert Router(topology).path_type("n0/gpu0", "n0/gpu63") == "NVL"


def test_pcie_by_words() -> None:
    def way(intra: str, gpus: int = 2) -> str:
        topology = build_topology(describe("RTX 2080 Ti", gpus=gpus, intra=intra).node)
        return Router(topology).path_type("n0/gpu0", topology.ranks[-1])

    assert way("PCIe3 x16 switch (PIX), P2P unavailable") == "PIX"
    assert way("PCIe3 x16 root complex") == "PHB"
    assert way("PCIe3 x16, two sockets", 4) == "SYS"
    assert way("PCIe3, SYS everywhere") == "SYS"
    assert not describe("RTX 4090", gpus=2, intra="PCIe4").node.gpu_p2p
    assert describe("RTX 4090", gpus=2, intra="PCIe4, P2P enabled").node.gpu_p2p
    assert not describe("L40S", gpus=2, intra="PCIe4, no P2P").node.gpu_p2p


@pytest.mark.parametrize(
    ("gpu", "gpus", "intra", "cpus", "switches"),
    [
        ("RTX 2080 Ti", 2, "PCIe", 1, 0),
        ("RTX 2080 Ti", 3, "PCIe", 1, 0),
        ("RTX 2080 Ti", 4, "PCIe", 2, 0),
        ("RTX 2080 Ti", 4, "PCIe inside node", 2, 0),
        ("RTX 2080 Ti", 4, "PCIe, one Xeon", 1, 2),
        ("RTX 2080 Ti", 4, "PCIe, one Xeon, NODE", 1, 0),
        ("RTX 2080 Ti", 4, "PCIe, one Xeon, inside node", 1, 2),
        ("RTX 2080 Ti", 8, "PCIe", 2, 4),
        ("A100 PCIe 80GB", 8, "PCIe", 2, 0),
        ("H100 PCIe", 4, "PCIe", 1, 0),
    ],
)
def test_cards_that_one_cpu_has_no_lanes_for_are_under_two_or_behind_switches(
    gpu: str, gpus: int, intra: str, cpus: int, switches: int
) -> None:
    """Sixteen lanes a card; a socket has 48 (Skylake), 80 (Sapphire Rapids) or 128 (EPYC)."""
    topology = built(describe(gpu, gpus=gpus, intra=intra), 1, gpus)
    assert topology.arcs.kinds.count("pcie") == 2 * (gpus + switches)
    assert sum(device.kind == "cpu" for device in topology.devices.values()) == cpus


def test_a_nic_has_lanes_of_its_own_beside_switches_of_cards() -> None:
    found = describe("RTX 2080 Ti", gpus=4, intra="PCIe, one Xeon", network="100 Gbit/s InfiniBand")
    topology = built(found, 2, 4)
    assert ("n0/cpu0", "n0/nic0") in topology.arcs.names


def test_what_does_not_go_together_is_refused_all_at_once() -> None:
    with pytest.raises(InputError, match="L4 has no NVLink"):
        describe("L4", gpus=2, intra="NVLink3 NVSwitch")
    with pytest.raises(InputError, match="2 to 8"):
        describe("V100-SXM2", gpus=9, intra="hybrid cube mesh")
    with pytest.raises(InputError) as caught:
        describe("gtx 970", gpus=0, intra="none", network="martian", nics=0, nic_Gbps=-1)
    assert {f.field for f in caught.value.faults} == {"gpus", "nics", "nic_Gbps", "gpu", "network"}


# ---------------------------------------------------------------- networks


def test_payload_share_follows_the_mtu() -> None:
    """RoCE v2 carries 82 bytes beside the payload of each packet; IEEE 802.3 and InfiniBand."""

    def share(words: str, Gbps: float) -> float:
        node = describe("V100-PCIE-16GB", gpus=1, intra="none", network=words, nic_Gbps=Gbps).node
        return next(node.links[d.port].efficiency for d in node.nodes if d.port)

    assert share("RoCE", 100) == pytest.approx(4096 / 4178, abs=1e-3)
    assert share("RoCE", 25) == pytest.approx(1024 / 1106, abs=1e-3)
    assert share("RoCE, RDMA MTU 256", 100) == pytest.approx(256 / 338, abs=1e-3)
    assert share("TCP", 10) == pytest.approx(1448 / 1538, abs=1e-3)


@pytest.mark.parametrize(
    ("gpu", "network", "reads"),
    [
        ("A100-PCIE-40GB", "InfiniBand", True),
        ("RTX 3090", "RoCE", False),
        ("T4", "AWS EFA", False),
        ("A100-SXM4-40GB", "AWS EFA", True),
        ("A100-SXM4-40GB", "TCP", False),
        ("V100-PCIE-16GB", "RoCE, GPUDirect disabled", False),
    ],
)
def test_who_reads_gpu_memory(gpu: str, network: str, reads: bool) -> None:
    assert describe(gpu, gpus=1, intra="none", network=network).node.gpudirect_rdma == reads


# ---------------------------------------------------------------- all of them


@settings(max_examples=60, deadline=None)
@given(
    gpu=st.sampled_from(sorted(hardware_parts().gpus)),
    gpus=st.integers(1, 8),
    intra=st.sampled_from(
        [
            "none",
            "PCIe",
            "NVLink",
            "NVSwitch",
            "NVLink bridge",
            "cube mesh",
            "PCIe switch, two sockets",
        ]
    ),
    network=st.sampled_from([None, "InfiniBand", "RoCE", "EFA", "TCP 25G", "TCPX", "OPA"]),
    nics=st.sampled_from([None, 1, 2, 3, 4, 8]),
)
def test_whatever_is_described_is_sound_or_refused(
    gpu: str, gpus: int, intra: str, network: str | None, nics: int | None
) -> None:
    try:
        found = describe(gpu, gpus=gpus, intra=intra, network=network, nics=nics)
    except InputError:
        event("refused")
        assume(read_intra(intra).layout in {None, "pcie"})  # these are never refused
        raise
    assert check(found.node) == ()
    assert found.assumptions
    topology = built(found, 2 if network else 1, gpus)
    assert len(topology.ranks) == (2 if network else 1) * gpus
    if network and found.template is None:
        assert topology.network == read_network(network).kind
        per_host = [n for n in topology.graph if n.startswith("n0/nic")]
        assert nics is None or len(per_host) == nics


@pytest.mark.parametrize("cpus", ["", ", Xeon Skylake", ", dual Xeon Skylake", ", dual EPYC"])
def test_two_cards_that_share_a_switch_share_it_whatever_the_cpus(cpus):
    node = describe("RTX 2080 Ti", gpus=2, intra=f"PCIe3 x16 switch (PIX){cpus}").node
    topology = build_topology(node)
    assert Router(topology).path_type(*topology.ranks) == "PIX"
