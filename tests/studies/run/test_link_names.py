"""Links are called what somebody buys."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.studies.run.steps.bottleneck import name_busiest, name_link
from perfmodel.topology import build_cluster


@pytest.mark.parametrize(
    ("node", "fabric", "link", "name"),
    [
        ("v100-x8-25g", "one-switch", ("n1/nic0", "fabric/switch0"), "host 1's NIC"),
        ("v100-x8-25g", "one-switch", ("fabric/switch0", "n0/nic0"), "host 0's NIC"),
        ("dgx-a100", "rail-optimised", ("n2/nic3", "fabric/leaf3"), "host 2's NIC 3"),
        (
            "dgx-a100",
            "rail-optimised",
            ("fabric/leaf1", "fabric/spine0"),
            "spine, up from leaf switch 1",
        ),
        (
            "dgx-a100",
            "rail-optimised",
            ("fabric/spine0", "fabric/leaf1"),
            "spine, down to leaf switch 1",
        ),
        (
            "dgx-a100",
            "fat-tree",
            ("fabric/agg0", "fabric/core0"),
            "core, up from aggregation switch 0",
        ),
        ("dgx-a100", "rail-optimised", ("n0/gpu5", "n0/nvs"), "NVLink of host 0's GPU 5"),
        ("v100-x8-25g", "one-switch", ("n0/gpu0", "n0/gpu3"), "NVLink of host 0's GPUs 0 and 3"),
        ("dgx-a100", "rail-optimised", ("n1/pcie2", "n1/cpu2"), "host 1's PCIe switch 2"),
        ("dgx-a100", "rail-optimised", ("n0/gpu2", "n0/pcie1"), "PCIe of host 0's GPU 2"),
        ("dgx-a100", "rail-optimised", ("n0/nic0", "n0/pcie0"), "PCIe of host 0's NIC 0"),
        ("dgx-a100", "rail-optimised", ("n0/cpu0", "n0/cpu1"), "the link between host 0's CPUs"),
        ("v100-x8-25g", "one-switch", ("n1/mem0", "n1/cpu0"), "host 1's memory"),
    ],
)
def test_a_link_is_called_what_somebody_buys(
    node: str, fabric: str, link: tuple[str, str], name: str
) -> None:
    topology = build_cluster(node, nodes=4, fabric=fabric)
    assert name_link(topology, topology.arcs.names.index(link)) == name


@pytest.mark.parametrize(
    ("node", "fabric", "busy", "name"),
    [
        (
            "v100-x8-25g",
            "one-switch",
            {(f"n{h}/nic0", "fabric/switch0"): 1.0 for h in range(4)},
            "each host's NIC",
        ),
        (
            "v100-x8-25g",
            "one-switch",
            {("n0/nic0", "fabric/switch0"): 1.0, ("fabric/switch0", "n1/nic0"): 0.95},
            "each host's NIC",
        ),  # the other hosts send nothing: they are not of this job
        (
            "v100-x8-25g",
            "one-switch",
            {("n0/nic0", "fabric/switch0"): 0.5, ("n1/nic0", "fabric/switch0"): 1.0},
            "host 1's NIC",
        ),
        (
            "dgx-a100",
            "fat-tree",
            {(f"n{h}/gpu{g}", f"n{h}/nvs"): 1.0 for h in range(4) for g in range(8)},
            "the GPUs' NVLink",
        ),
        (
            "dgx-a100",
            "rail-optimised",
            {(f"n{h}/nic{k}", f"fabric/leaf{k}"): 1.0 for h in range(4) for k in range(8)},
            "the hosts' NICs",
        ),
        (
            "dgx-a100",
            "rail-optimised",
            {(f"n{h}/nic3", "fabric/leaf3"): 1.0 - 0.02 * h for h in range(4)},
            "each host's NIC 3",
        ),
        (
            "dgx-a100",
            "rail-optimised",
            {("n2/gpu2", "n2/pcie1"): 1.0, ("n1/gpu2", "n1/pcie1"): 0.5},
            "PCIe of host 2's GPU 2",
        ),
        (
            "dgx-a100",
            "rail-optimised",
            {("fabric/leaf0", "fabric/spine0"): 1.0, ("fabric/leaf1", "fabric/spine0"): 1.0},
            "spine, up from leaf switch 0",
        ),
    ],
)
def test_hosts_that_are_as_busy_are_named_together(
    node: str, fabric: str, busy: dict[tuple[str, str], float], name: str
) -> None:
    topology = build_cluster(node, nodes=4, fabric=fabric)
    busy_s = np.zeros(len(topology.arcs))
    for link, time_s in busy.items():
        busy_s[topology.arcs.names.index(link)] = time_s
    assert name_busiest(topology, busy_s) == name
