"""Links are called what somebody buys."""

from __future__ import annotations

import pytest

from perfmodel.studies.run.steps.bottlenecks.link_names import name_link
from perfmodel.topology import build_cluster


@pytest.mark.parametrize(
    ("node", "fabric", "link", "name"),
    [
        ("v100-x8-25g", "one-switch", ("n1/nic0", "fabric/switch0"), "host 1's NIC"),
        ("v100-x8-25g", "one-switch", ("fabric/switch0", "n0/nic0"), "host 0's NIC"),
        ("dgx-a100", "rail-optimised", ("n2/nic3", "fabric/leaf3"), "host 2's NIC 3"),
        ("dgx-a100", "rail-optimised", ("fabric/leaf1", "fabric/spine0"),
         "spine, up from leaf switch 1"),
        ("dgx-a100", "rail-optimised", ("fabric/spine0", "fabric/leaf1"),
         "spine, down to leaf switch 1"),
        ("dgx-a100", "fat-tree", ("fabric/agg0", "fabric/core0"),
         "core, up from aggregation switch 0"),
        ("dgx-a100", "rail-optimised", ("n0/gpu5", "n0/nvs"), "NVLink of host 0's GPU 5"),
        ("v100-x8-25g", "one-switch", ("n0/gpu0", "n0/gpu3"), "NVLink of host 0's GPUs 0 and 3"),
        ("dgx-a100", "rail-optimised", ("n1/pcie2", "n1/cpu2"), "host 1's PCIe switch 2"),
        ("dgx-a100", "rail-optimised", ("n0/gpu2", "n0/pcie1"), "PCIe of host 0's GPU 2"),
        ("dgx-a100", "rail-optimised", ("n0/nic0", "n0/pcie0"), "PCIe of host 0's NIC 0"),
        ("dgx-a100", "rail-optimised", ("n0/cpu0", "n0/cpu1"), "the link between host 0's CPUs"),
        ("v100-x8-25g", "one-switch", ("n1/mem0", "n1/cpu0"), "host 1's memory"),
    ],
)  # fmt: skip
def test_a_link_is_called_what_somebody_buys(
    node: str, fabric: str, link: tuple[str, str], name: str
) -> None:
    topology = build_cluster(node, nodes=4, fabric=fabric)
    assert name_link(topology, topology.arcs.names.index(link)) == name
