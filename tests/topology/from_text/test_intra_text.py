"""What joins the GPUs of a host, as records say it: NVLink denied, PCIe generations, sockets."""

from __future__ import annotations

import itertools

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.from_text.describe import describe, find_host
from perfmodel.topology.from_text.match_template import match_template, read_host
from perfmodel.topology.from_text.network_text import read_intra, read_pcie
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology

DENIALS = (
    "NVLink evidently unused",
    "no NVLink",
    "without NVLink bridge",
    "NVLink not used",
    "NVLink3 apparently not in use",
    "NVLink disabled",
    "NVLink bridge not installed",
    "NVLink bridges on pairs, evidently unused",
    "PCIe4 x16 (NVLink absent)",
    "unused NVLink",
)


@pytest.mark.parametrize("text", DENIALS)
def test_nvlink_that_is_denied_is_none(text: str) -> None:
    intra = read_intra(text)
    assert not intra.nvlink
    assert intra.layout == "pcie"
    assert intra.stated


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("NVLink3 NVSwitch", "nvswitch"),
        ("NVLink4 NVSwitch, NVLink SHARP off", "nvswitch"),
        ("NVLink2 hybrid cube mesh, GPUDirect RDMA not used", "cube"),
        ("NVLink bridge, P2P disabled over PCIe", "bridge"),
        ("NVLink; NVLS disabled", None),
    ],
)
def test_what_else_is_denied_leaves_nvlink(text: str, layout: str | None) -> None:
    intra = read_intra(text)
    assert intra.nvlink
    assert intra.layout == layout


@pytest.mark.parametrize("gpu", ["A100-PCIE-80GB", "A100-SXM4-80GB", "RTX 3090", "V100-SXM2-16GB"])
@pytest.mark.parametrize("text", DENIALS)
def test_a_host_whose_nvlink_is_denied_has_no_such_link(gpu: str, text: str) -> None:
    host = read_host(gpu, gpus=4, intra=text, network=None)
    assert "nvlink" not in build_topology(find_host(host).node).arcs.kinds


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("PCIe4", 4),
        ("PCIe4 x16", 4),
        ("PCIe 3.0 x16", 3),
        ("PCIe gen 3", 3),
        ("PCIe-4", 4),
        ("PCIe x16 Gen5", 5),
        ("Gen4 PCIe", 4),
        ("PCI Express 4.0", 4),
        ("PCI-E 3.0", 3),
        ("4th gen PCIe", 4),
        ("PCIe x16 at 8 GT/s", 3),
        ("PCIe 16 GT/s", 4),
        ("PCIe v5", 5),
        ("H100 80GB PCIe Gen5", 5),
    ],
)
def test_generations_of_pcie(text: str, generation: int) -> None:
    assert read_pcie(text) == f"pcie{generation}"


@pytest.mark.parametrize(
    "text",
    ["PCIe", "PCIe x16", "NVLink3", "PCI x 2 GPUs", "A100-PCIE-40GB", "PCIe 4 x A100", "16 GT/s"],
)
def test_no_generation_of_pcie(text: str) -> None:
    assert read_pcie(text) is None


def test_a_stated_generation_is_the_rate_of_the_links() -> None:
    """16 lanes with 128b/130b: 15.75 GB/s at 8 GT/s, half of what an A100 could have."""
    rates = {
        text: build_topology(
            find_host(read_host("A100-PCIE-40GB", gpus=2, intra=text, network=None)).node
        ).graph["n0/gpu0"]["n0/cpu0"][0]["bandwidth"]
        for text in ("PCIe x16 Gen3", "PCIe x16 Gen4")
    }
    assert rates["PCIe x16 Gen3"] == pytest.approx(15.75e9 * 0.762)
    assert rates["PCIe x16 Gen4"] == pytest.approx(2 * rates["PCIe x16 Gen3"])


@pytest.mark.parametrize(
    ("text", "gpus", "path"),
    [
        ("PCIe3 x16", 2, "PHB"),
        ("PCIe3 x16, separate sockets", 2, "SYS"),
        ("PCIe3, GPUs under different CPUs", 2, "SYS"),
        ("PCIe4 x16, one GPU per socket", 2, "SYS"),
        ("PCIe4 x16, each GPU on its own NUMA node", 4, "SYS"),
        ("PCIe3 x16, dual Xeon", 4, "SYS"),
        ("PCIe4, 2x EPYC 7742", 4, "SYS"),
        ("PCIe3 x16, one socket", 4, "PHB"),
    ],
)
def test_sockets(text: str, gpus: int, path: str) -> None:
    """The path between the first GPU and the last, as nvidia-smi names it."""
    node = find_host(read_host("V100-PCIE-16GB", gpus=gpus, intra=text, network=None)).node
    topology = build_topology(node)
    assert Router(topology).path_type("n0/gpu0", topology.ranks[gpus - 1]) == path


def test_machines_that_have_to_be_named_are_never_taken_unnamed() -> None:
    """Whatever of GPUs, links and networks is stated, without a name it is no such machine."""
    only = set(hardware_parts().only_if_named)
    for gpu, gpus, intra, network in itertools.product(
        ("A100-PCIE-80GB", "A100 80GB", "T4"),
        (1, 2, 4),
        ("none", "PCIe4 x16", "PCIe, SYS", "PCIe3, P2P enabled", *DENIALS[:2]),
        (None, "TCP 80 Gbit/s", "AWS EFA 50 Gbit/s", "Ethernet"),
    ):
        try:
            host = read_host(gpu, gpus=gpus, intra=intra, network=network)
        except InputError:
            continue
        for as_is in (True, False):
            facts = match_template(host, as_is=as_is)
            assert facts is None or facts.name not in only, (gpu, gpus, intra, network)


def test_machines_that_have_to_be_named_are_taken_by_name() -> None:
    azure = read_host("A100-PCIE-80GB", gpus=4, intra="PCIe4 x16", network=None, remarks="NCv4")
    facts = match_template(azure, as_is=True)
    assert facts is not None
    assert facts.name == "azure-ncv4"


def test_a_count_written_onto_the_name() -> None:
    assert read_host("LambdaCloud 4xV100 16GB", gpus=4, intra="", network=None).gpu.memory_GB == 16


@pytest.mark.parametrize(
    ("gpus", "words", "links"),
    [(2, "NV2", 2), (2, "NVLink (2 links)", 2), (4, "NV2", 2), (4, "NV1", 1), (2, "NV6", 6)],
)
def test_nv_counts_the_links_of_a_pair(gpus: int, words: str, links: int) -> None:
    """`nvidia-smi topo -m`: "NV# = Connection traversing a bonded set of # NVLinks"."""
    node = describe("V100-SXM2-32GB", gpus=gpus, intra=words).node
    joined = [edge for edge in node.edges if node.links[edge.link].kind == "nvlink"]
    assert {edge.lanes for edge in joined} == {links}


@pytest.mark.parametrize(
    ("intra", "far"), [("PCIe3 switch, one socket", "PIX"), ("PCIe3, one socket", "PHB")]
)
def test_cards_behind_a_stated_switch_share_it(intra: str, far: str) -> None:
    """Skylake has lanes for three cards: four are in pairs, unless words put them on one switch."""
    node = describe("V100 PCIe", gpus=4, intra=intra, network=None).node
    router = Router(build_topology(node))
    assert router.path_type("n0/gpu0", "n0/gpu1") == "PIX"
    assert router.path_type("n0/gpu0", "n0/gpu3") == far
