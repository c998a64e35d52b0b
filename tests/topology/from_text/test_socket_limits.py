"""Limits of TCP that words imply: the cloud's flows, adapters that NCCL knows, pods."""

from __future__ import annotations

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.from_text.describe import find_host
from perfmodel.topology.from_text.match_template import read_host
from perfmodel.topology.model import Sockets
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec


def sockets(network: str, gpu: str = "T4", remarks: str = "") -> Sockets:
    host = find_host(read_host(gpu, gpus=4, intra="PCIe", network=network, remarks=remarks))
    return build_topology(host.node, hosts=2, fabric="one-switch", gpus_per_host=4).sockets


# Amazon EC2 User Guide, instance network bandwidth; payload is 1448 of 1538 bytes
@pytest.mark.parametrize(
    ("network", "Gbps", "adapter"),
    [
        ("50 Gbps EC2 network", 5, "aws"),
        ("EC2 network, cluster placement group, 50 Gbps", 10, "aws"),
        ("TCP 100 Gbit/s (AWS)", 5, "aws"),
        ("TCP 32 Gbit/s, GCP", None, "google"),
        ("TCP 10GbE", None, None),
        ("TCP 10GbE, seeded raws and tenants", None, None),
    ],
)
def test_a_cloud_limits_what_one_connection_carries(
    network: str, Gbps: float | None, adapter: str | None
) -> None:
    found = sockets(network)
    expected = None if Gbps is None else pytest.approx(Gbps * 1e9 / 8 * 1448 / 1538, rel=1e-3)
    assert (found.flow_Bps, found.adapter, found.pods) == (expected, adapter, False)


@pytest.mark.parametrize("words", ["PyTorch AdaptDL", "on Kubernetes", "EKS", "two pods"])
def test_pods_are_read(words: str) -> None:
    assert sockets("50 Gbps EC2 network", remarks=words).pods
    assert not sockets("50 Gbps EC2 network", remarks="PyTorch tripods").pods


def test_rdma_has_no_flows() -> None:
    assert sockets("InfiniBand HDR", "A100 PCIe") == Sockets()


@pytest.mark.parametrize("name", ["aws-g4dn-12xlarge", "aws-g5-48xlarge", "aws-p3dn", "aws-p4d"])
def test_instances_of_ec2_state_the_limit(name: str) -> None:
    topology = build_topology(load_node(name), hosts=2, fabric="one-switch")
    assert topology.sockets.adapter == "aws"
    assert topology.sockets.flow_Bps == pytest.approx(5e9 / 8, rel=0.1)
    assert any("flow" in name for name in topology.sources)


def test_a_flow_needs_its_source() -> None:
    link = {
        "kind": "ethernet",
        "network": "tcp",
        "bandwidth": "50 Gbit/s",
        "source": "a",
        "efficiency": 0.9,
        "latency": "20 us",
        "flow": "5 Gbit/s",
    }
    assert LinkSpec.model_validate(link | {"flow_source": "b"}).flow == pytest.approx(5e9 / 8)
    with pytest.raises(ValueError, match="flow_source"):
        LinkSpec.model_validate(link)


def test_a_source_that_no_file_has_is_refused() -> None:
    node = load_node("azure-ncv4")
    link = node.links["tcp"].model_copy(update={"flow": 1e9, "flow_source": "nowhere"})
    broken: NodeSpec = node.model_copy(update={"links": {**node.links, "tcp": link}})
    with pytest.raises(InputError, match="flow_source"):
        build_topology(broken)
