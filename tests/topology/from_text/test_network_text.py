"""Networks in any usual spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.from_text.describe import find_host
from perfmodel.topology.from_text.match_template import read_host
from perfmodel.topology.from_text.network_text import (
    read_gpudirect,
    read_intra,
    read_mtu,
    read_network,
)


@pytest.mark.parametrize(
    ("words", "kind", "Gbps"),
    [
        (None, None, None),
        ("none", None, None),
        ("InfiniBand HDR + SHARP", "infiniband", 200),
        ("IB EDR", "infiniband", 100),
        ("RoCE v2 25 GbE, GPUDirect disabled", "roce", 25),
        ("AWS EFA v2 (p5.48xlarge)", "efa", None),
        ("Ethernet GPUDirect-TCPXO (a3-mega)", "tcpxo", None),
        ("TCP 10GbE", "tcp", 10),
        ("Ethernet SR-IOV net1, sockets (NCCL_IB_DISABLE=1)", "tcp", None),
        ("InfiniBand HDR CX-6 across sockets (SYS)", "infiniband", 200),
        ("Omni-Path 4x100G", "omni-path", 100),
    ],
)
def test_network_in_any_spelling(words: str | None, kind: str | None, Gbps: float | None) -> None:
    found = read_network(words)
    assert found.kind == kind
    assert found.nic_Bps == (None if Gbps is None else pytest.approx(Gbps * 1e9 / 8))


NVLINKS = st.sampled_from(
    ["NVLink2 hybrid cube mesh", "NVLink3 NVSwitch (12x25 GB/s)", "12x25 GB/s NVLink", "PCIe4 x16"]
)


@given(
    links=NVLINKS,
    nics=st.integers(1, 16),
    Gbps=st.sampled_from([25, 50, 100, 200, 400]),
    rate=st.sampled_from(["{}x {} Gb ", "{} x {}Gb/s ", "{}x {} Gbit/s ", "{}x{}G "]),
    network=st.sampled_from(["InfiniBand per node", "EDR InfiniBand", "RoCE v2", "IB NICs"]),
    joint=st.sampled_from([", ", "; ", " + ", " and "]),
    first=st.booleans(),
    folded=st.booleans(),
    in_brackets=st.booleans(),
)
def test_a_count_and_a_rate_beside_a_network_are_its_nics(
    links: str,
    nics: int,
    Gbps: int,
    rate: str,
    network: str,
    joint: str,
    first: bool,
    folded: bool,
    in_brackets: bool,
) -> None:
    """PyTorch's table of DDP says "(NVLink2 ...), 4x 100 Gb InfiniBand per node"."""
    rate = rate.format(nics, Gbps)
    between = f"{network} ({rate})" if in_brackets else f"{rate}{network}"
    text = joint.join([links, between] if first else [between, links])
    text = text.lower() if folded else text
    found = read_network(text)
    assert (found.nics, found.nic_Bps) == (nics, pytest.approx(Gbps * 1e9 / 8))
    assert read_intra(text) == read_intra(links)


def test_the_host_of_pytorchs_table_of_ddp() -> None:
    text = "DGX-1 V100 (NVLink2 hybrid cube mesh), 4x 100 Gb InfiniBand per node"
    described = find_host(read_host("V100", gpus=8, intra=text, network=text))
    assert described.template == "dgx1-v100"


def test_sockets_of_cpus_are_no_network() -> None:
    assert read_network("InfiniBand HDR CX-6 across socket (SYS)").kind == "infiniband"
    assert read_network("Ethernet, sockets").kind == "tcp"


def test_variables_choose_the_kind() -> None:
    assert read_network("InfiniBand NDR", {"NCCL_NET": "Socket"}).kind == "tcp"
    assert read_network("RoCE", {"NCCL_IB_DISABLE": "1"}).kind == "tcp"
    assert read_network(None, {"NCCL_NET": "IB"}).kind == "infiniband"


def test_unknown_networks_are_refused_unless_one_is_usual() -> None:
    with pytest.raises(InputError, match="carrier pigeons"):
        read_network("carrier pigeons")
    assert read_network("carrier pigeons", usual="infiniband").kind == "infiniband"
    assert read_network(None, usual="infiniband").kind is None
    assert "slingshot" in read_network("Slingshot 11").assumptions[0]


def test_mtu_and_gpudirect() -> None:
    assert [read_mtu(text) for text in ("RDMA MTU 256", "mtu=4096", "RoCE")] == [256, 4096, None]
    texts = ("GDR forced", "no GPUDirect", "GPUDirect RDMA disabled", "GPUDirect-TCPXO")
    assert [read_gpudirect(text) for text in texts] == [True, False, False, None]


@pytest.mark.parametrize(
    ("text", "kind", "across"),
    [
        ("InfiniBand EDR, GPU and NIC on separate sockets", "infiniband", True),
        ("RoCE 100G, NIC on a different CPU", "roce", True),
        ("InfiniBand HDR CX-6 across socket (SYS)", "infiniband", True),
        ("InfiniBand HDR, NIC on the other NUMA node", "infiniband", True),
        ("InfiniBand HDR, one NIC per socket", "infiniband", False),
        ("InfiniBand HDR across all nodes", "infiniband", False),
        ("InfiniBand HDR, NIC in the same socket", "infiniband", False),
        ("Ethernet SR-IOV net1, sockets (NCCL_IB_DISABLE=1)", "tcp", False),
        ("NCCL NET/Socket over 25G", "tcp", False),
        ("plain sockets, 100 GbE", "tcp", False),
    ],
)
def test_sockets_of_cpus_are_not_those_of_tcp(text: str, kind: str, across: bool) -> None:
    network = read_network(text)
    assert (network.kind, network.across) == (kind, across)
