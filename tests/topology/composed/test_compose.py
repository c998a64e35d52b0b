"""Composed hosts: equal to the shipped ones where they say the same, and each field acts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import NodeSpec


def composed(**fields: object) -> NodeSpec:
    return load_node(validate_document(NodeSection, fields))


def links_of(topology: Topology) -> list[tuple[str, str, str, float, float]]:
    arcs = topology.built
    rows = zip(
        arcs.names, arcs.kinds, arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist(), strict=True
    )
    return sorted((*ends, kind, rate, wait) for ends, kind, rate, wait in rows)


def same_machine(a: NodeSpec, b: NodeSpec) -> bool:
    first, second = build_topology(a), build_topology(b)
    flags = [(t.gpu.name, t.gpu_p2p, t.gpudirect_rdma, t.network, t.ranks) for t in (first, second)]
    return links_of(first) == links_of(second) and flags[0] == flags[1]


def faults_of(**fields: object) -> dict[str, str]:
    with pytest.raises(InputError) as raised:
        composed(**fields)
    return {fault.field: fault.allowed for fault in raised.value.faults}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dgx-a100", {"extends": "dgx-a100", "nics": "8 x 200 Gbit/s InfiniBand"}),
        ("dgx-a100", {"gpus": "8 x a100", "nics": "8 x 200 Gbit/s InfiniBand"}),
        (
            "dgx-a100",
            {
                "extends": "dgx-h100",
                "gpu": "a100-sxm4-80gb",
                "pcie": "gen4 x16",
                "sockets": 2,
                "numa_domains": 4,
                "cpu": "epyc",
                "pcie_switches": 4,
                "nics": {"count": 8, "rate": "200 Gbit/s", "kind": "infiniband", "pcie": "gen4"},
            },
        ),
        ("rtx4090-x4", {"gpus": "4 x rtx-4090", "pcie": "gen4 x16", "p2p": "off"}),
        ("rtx4090-x4-p2p", {"gpus": "4 x rtx-4090", "p2p": "on"}),
        ("dgx-h100", {"gpus": "8 x h100", "nvlink": "NVLink4", "nvswitch": True}),
        ("gb200-nvl72", {"extends": "gb200-nvl72", "nics": {"rate": "400 Gbit/s"}}),
    ],
)
def test_the_same_words_give_the_shipped_node(name: str, fields: dict[str, object]) -> None:
    made = composed(**fields)
    shipped = load_node(name)
    if "pcie_switches" in fields:  # a tree of its own has memory, which dgx-a100 leaves out
        made = without_memory(made)
    assert same_machine(made, shipped)


def without_memory(node: NodeSpec) -> NodeSpec:
    return node.model_copy(
        update={
            "nodes": tuple(spec for spec in node.nodes if spec.kind != "memory"),
            "edges": tuple(edge for edge in node.edges if edge.link != "dram"),
        }
    )


def test_one_slower_nic_in_a_dgx() -> None:
    node = composed(extends="dgx-a100", nics={"count": 1, "rate": "100 Gbit/s", "kind": "roce"})
    topology = build_topology(node, hosts=2, fabric="one-switch")
    cables = [row for row in links_of(topology) if "fabric" in row[1] and row[0] == "n0/nic0"]
    assert topology.network == "roce"
    assert len([name for name in topology.devices if name.startswith("n0/nic")]) == 1
    assert cables[0][3] == pytest.approx(12.5e9 * 4096 / (4096 + 82), rel=1e-4)
    assert node.name == "dgx-a100-changed"


def test_a_lab_node_from_parts() -> None:
    node = composed(gpus="2 x rtx-4090", pcie="gen4 x8", nic="10 GbE")
    topology = build_topology(node)
    rates = {row[:2]: row[3] for row in links_of(topology)}
    assert rates["n0/gpu0", "n0/cpu0"] == pytest.approx(0.5 * 31.5e9 * 0.762)
    assert (topology.network, topology.gpu_p2p, topology.gpudirect_rdma) == ("tcp", False, False)
    assert any("GeForce" in line for line in topology.assumptions)


def test_nothing_is_assumed_of_what_is_stated() -> None:
    stated = composed(
        gpus="8 x h100",
        nvlink="off",
        cpu="genoa",
        sockets=2,
        pcie_switches=2,
        nics={"per_socket": 1, "rate": "200 Gbit/s", "kind": "infiniband"},
    )
    text = " ".join(stated.assumed)
    assert not any(part in text for part in ("CPUs", "NUMA", "PCIe switch", "NIC", "joined by"))
    usual = " ".join(composed(gpus="8 x h100", nvlink="off", nic="infiniband").assumed)
    assert all(part in usual for part in ("CPUs", "NUMA", "NICs of 400 Gbit/s"))


def test_words_mean_what_the_fields_mean() -> None:
    words = load_node("4 x rtx-3090, NVLink bridge, 25 GbE, two sockets")
    fields = composed(gpus="4 x rtx-3090", nvlink="bridge", nic="25 GbE", sockets=2)
    assert same_machine(words, fields)
    assert len([spec for spec in words.nodes if spec.kind == "cpu"]) == 1
    assert {edge.lanes for edge in words.edges if edge.link.startswith("nvlink")} == {4}


def test_a_slot_behind_the_gpus_says_their_form() -> None:
    words = load_node("4 x A100 PCIe4 x16")
    assert words.gpu == "a100-pcie-40gb"
    assert same_machine(words, composed(gpus="4 x A100 PCIe", pcie="gen4 x16"))


def test_another_gpu_brings_its_own_nvlinks() -> None:
    node = composed(extends="dgx-a100", gpu="h100")
    gpu = next(row for row in links_of(build_topology(node)) if row[2] == "nvlink")
    assert gpu[3] == pytest.approx(18 * 25e9 * 0.824)
    assert any("18 NVLinks" in note for note in node.assumed)
    assert "gpu" in faults_of(extends="dgx-a100", gpu="rtx-4090")


def port_of(node: NodeSpec) -> tuple[str, float]:
    link = node.links[next(spec.port for spec in node.nodes if spec.port)]
    return link.network_kind, link.bandwidth


@pytest.mark.parametrize(
    ("nics", "kind", "rate_Bps"),
    [
        ("100 Gbps", "infiniband", 12.5e9),
        ("100 GB/s RoCE", "roce", 100e9),
        ("100 Gb/s RoCE", "roce", 12.5e9),
        ("100 Mbit/s Ethernet", "tcp", 12.5e6),
        ("1.6 Tbit/s infiniband", "infiniband", 200e9),
        ({"text": "2 x 100 Gbit/s", "kind": "roce"}, "roce", 12.5e9),
    ],
)
def test_bits_bytes_and_the_kind_of_network(nics: object, kind: str, rate_Bps: float) -> None:
    assert port_of(composed(extends="dgx-a100", nics=nics)) == (kind, pytest.approx(rate_Bps))


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 8), ({"sockets": 1}, 2), ({"sockets": 2, "numa_domains": 8}, 4)],
)
def test_adapters_of_each_socket(fields: dict[str, object], count: int) -> None:
    node = composed(extends="dgx-a100", nics={"per_socket": 2}, **fields)
    topology = build_topology(node)
    assert [device.kind for device in topology.devices.values()].count("nic") == count


def test_a_packet_a_wait_and_who_reads_gpu_memory() -> None:
    """RoCE v2 has 82 bytes of heads around a payload; sockets copy from the host's memory."""
    slow = composed(extends="dgx-a100", nics={"kind": "roce", "mtu": 1024, "latency": "2 us"})
    port = slow.links[next(spec.port for spec in slow.nodes if spec.port)]
    assert (port.efficiency, port.latency) == (pytest.approx(1024 / 1106), 2e-6)
    assert slow.gpudirect_rdma
    assert not composed(extends="dgx-a100", nics={"kind": "tcp"}).gpudirect_rdma
    assert composed(extends="rtx4090-x4", gpu="a100 pcie", nic="25 Gbit/s RoCE").gpudirect_rdma


def nvlinks_of(node: NodeSpec) -> tuple[str, int]:
    """Name of the NVLink of the first GPU, and how many it has."""
    edges = [edge for edge in node.edges if node.links[edge.link].kind == "nvlink"]
    return edges[0].link, sum(
        edge.lanes for edge in edges if edge.from_.startswith(("gpu0", "gpu["))
    )


def test_how_many_nvlinks_is_no_generation() -> None:
    """'4 x 10 GB/s' was once NVLink 4."""
    assert nvlinks_of(composed(gpus="2 x rtx-3090", nvlink="4 x 10 GB/s")) == ("nvlink3-bridge", 4)
    assert nvlinks_of(composed(extends="dgx-a100", nvlink="6 x 25 GB/s")) == ("nvlink3", 6)


def test_without_nvswitch_is_without() -> None:
    assert not any(
        spec.kind == "nvswitch" for spec in load_node("2 x a100 pcie, no NVSwitch").nodes
    )
    with pytest.raises(InputError, match="P2P maybe"):
        load_node("2 x rtx-4090, P2P maybe")


def test_another_gpu_is_no_faster_than_its_slot_and_copies_as_it_may() -> None:
    rates = {
        row[:2]: row[3]
        for row in links_of(build_topology(composed(extends="dgx-h100", gpu="a100-sxm4-80gb")))
    }
    assert rates["n0/gpu0", "n0/pcie0"] == pytest.approx(31.5e9 * 0.762)
    cards = composed(extends="rtx4090-x4", gpu="a100-pcie-80gb")
    assert cards.gpu_p2p
    assert cards.gpudirect_rdma
    games = composed(extends="a100-pcie-x8-nvlink", gpu="rtx-4090", nvlink="none")
    assert (games.gpu_p2p, games.gpudirect_rdma) == (False, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"extends": "hgx-b300", "pcie_switches": 4},
        {"extends": "hgx-b300", "pcie": "gen6 x16"},
    ],
)
def test_links_to_cpus_are_no_newer_than_the_cpus(fields: dict[str, object]) -> None:
    """Emerald Rapids has PCIe 5.0, B300 6.0."""
    rates = {row[:2]: row[3] for row in links_of(build_topology(composed(**fields)))}
    assert rates["n0/gpu0", "n0/pcie0"] == pytest.approx(126e9 * 0.762)
    assert rates["n0/pcie0", "n0/cpu0"] == pytest.approx(63e9 * 0.762)


def test_each_gh200_may_have_its_grace() -> None:
    kinds = [spec.id for spec in composed(gpus="4 x gh200", sockets=4).nodes if spec.kind == "cpu"]
    assert kinds == ["cpu[0-3]"]


def test_memory_of_two_sockets_is_shared_by_their_domains() -> None:
    """EPYC Rome has 204.8 GB/s a socket; dgx-a100 has two sockets of two NUMA domains."""
    whole = composed(extends="dgx-a100", p2p=False).links["dram"].bandwidth
    assert composed(extends="dgx-a100", pcie_switches=2).links["dram"].bandwidth == whole


FIELDS = {
    "gpus": st.integers(1, 8),
    "gpu": st.sampled_from(["a100-sxm4-40gb", "h100-sxm5-80gb", "a800-sxm4-80gb"]),
    "pcie": st.sampled_from(["gen3 x16", "gen4 x8", "gen4 x16"]),
    "sockets": st.sampled_from([1, 2, 4]),
    "pcie_switches": st.integers(0, 4),
    "cpu": st.sampled_from(["epyc", "genoa", "icelake"]),
    "p2p": st.booleans(),
    "nics": st.fixed_dictionaries(
        {
            "count": st.integers(1, 12),
            "rate": st.sampled_from(["10 Gbit/s", "100 Gbit/s", "400 Gbit/s"]),
            "kind": st.sampled_from(["infiniband", "roce", "tcp"]),
        }
    ),
}


@pytest.mark.slow
@settings(max_examples=30)
@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_every_field_acts(fields: dict[str, object]) -> None:
    """What is stated is what the host has, whatever else is stated beside it."""
    if fields.get("pcie_switches", 0) > fields.get("gpus", 8):  # type: ignore[operator]
        del fields["pcie_switches"]
    topology = build_topology(composed(extends="dgx-a100", **fields))
    base = build_topology(load_node("dgx-a100"))
    kinds = [device.kind for device in topology.devices.values()]
    rates = {row[:2]: row[3] for row in links_of(topology)}
    above_gpu = [ends for ends in rates if ends[0] == "n0/gpu0" and "nvs" not in ends[1]]
    assert len(topology.ranks) == fields.get("gpus", 8)
    assert topology.gpu.name == fields.get("gpu", base.gpu.name)
    if "pcie_switches" in fields:
        assert kinds.count("pcie_switch") == fields["pcie_switches"]
    assert kinds.count("cpu") == fields.get("sockets", 4)
    assert topology.gpu_p2p == fields.get("p2p", True)
    slot = {"gen3 x16": 15.75, "gen4 x8": 15.75}.get(str(fields.get("pcie")), 31.5)
    assert rates[above_gpu[0]] == pytest.approx(slot * 1e9 * 0.762)
    nics = fields.get("nics", {"count": 8, "kind": "infiniband"})
    assert kinds.count("nic") == nics["count"]  # type: ignore[index]
    assert topology.network == nics["kind"]  # type: ignore[index]
    if "cpu" in fields and kinds.count("cpu") > 1:
        between = {"epyc": 16e9, "genoa": 16e9, "icelake": 10e9}[str(fields["cpu"])]
        assert rates["n0/cpu0", "n0/cpu1"] == between


def test_every_fault_is_named() -> None:
    first = faults_of(extends="dgx-a100", nics={"kind": "pigeon"}, pcie="gen9", gpu="h1000")
    assert set(first) == {"nics.kind", "pcie", "gpu"}
    later = faults_of(extends="dgx-a100", gpus=9, pcie="gen5", cpu="pentium", nvlink="9 x 25 GB/s")
    assert set(later) == {"gpus", "pcie", "cpu"}
    assert "at most 8" in later["gpus"]
    assert "at most gen4" in later["pcie"]
    assert "1 to 16 lanes" in faults_of(gpus="2 x a10", pcie="gen4 x7")["pcie"]


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, "extends: a template, or gpus"),
        ({"extends": "dgx-a100", "nic": "10 GbE", "nics": 2}, "nic or nics"),
        ({"extends": "dgx-a100", "nics": {"count": 1, "per_socket": 1}}, "count or per_socket"),
        ({"gpus": True}, "'2 x rtx-4090'"),
        ({"gpus": "4 x a100", "p2p": "maybe"}, "on or off"),
        ({"gpus": "8 x a100", "sockets": 2, "numa_domains": 3}, "a multiple of the 2 sockets"),
        ({"extends": "dgx-a100", "nvlink": "bridge", "nvswitch": "on"}, "nvswitch: off"),
        ({"gpus": 4}, "a number and a GPU"),
        ({"gpus": "0 x a100"}, "one or more"),
        ({"gpus": "2 x rtx-4090", "gpu": "rtx-3090"}, "as gpus says"),
        ({"gpus": "2 x rtx-4090", "nvlink": "bridge"}, "no NVLink"),
        ({"gpus": "2 x rtx-4090", "gpudirect": "on"}, "a NIC beside it"),
        ({"gpus": "8 x h100", "nic": "10 GbE", "gpudirect": "on"}, "off with NICs of kind tcp"),
        ({"extends": "dgx-a100", "gpus": 3, "nvlink": "14 links"}, "at most 12"),
        ({"gpus": "16 x a100", "nvlink": "mesh"}, "at most 13"),
        ({"extends": "gb200-nvl72", "pcie": "gen4"}, "NVLink-C2C"),
        ({"extends": "dgx-a100", "nic": {"text": "100 Gbit/s RoCE", "kind": "tcp"}}, "'roce'"),
        ({"extends": "dgx-a101"}, "did you mean 'dgx-a100'"),
        ({"extends": "dgx-a100", "nics": "0 x 100 Gbit/s RoCE"}, "one NIC or more"),
        ({"extends": "dgx-a100", "nics": {"kind": "HDR", "rate": "1 Gbps"}}, "200 Gbit/s, as nics"),
        ({"extends": "dgx-a100", "nvlink": "12 x 25 Gbit/s"}, "'12 x 25 GB/s'"),
        ({"extends": "dgx-a100", "nvlink": "300 GB/s"}, "'12 x 25 GB/s'"),
        ({"extends": "dgx-a100", "nvlink": "No NVLink", "nvswitch": "on"}, "off beside nvlink"),
        ({"extends": "dgx-a100", "gpu": "h100 pcie"}, "a board with NVSwitch"),
        ({"extends": "gb300-nvl72", "cpu": "genoa"}, "on one module"),
        ({"extends": "gb300-nvl72", "sockets": 2}, "on one module"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], allowed: str) -> None:
    with pytest.raises(InputError, match=r"found .*; allowed: ") as raised:
        composed(**fields)
    assert allowed in str(raised.value)
