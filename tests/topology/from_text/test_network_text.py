"""Networks in any usual spelling."""

from __future__ import annotations

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.from_text.network_text import read_gpudirect, read_mtu, read_network


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
