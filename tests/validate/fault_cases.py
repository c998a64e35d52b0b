"""Machines with a fault each, made apart from the suspects that a diagnosis simulates.

Faults stand on other hosts and devices, and are as deep as they happen to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.faults import arcs_of_device, degrade_links, find_arcs, remove_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology, with_usual_routing

Configured = tuple[Topology, LibrarySettings]
Fault = Callable[[Topology], Configured]


@dataclass(frozen=True)
class FaultCase:
    """`name`: of the suspect that is right."""

    machine: str
    hosts: int
    fabric: str | None
    name: str
    fault: Fault


def machine_of(name: str, hosts: int, fabric: str | None) -> Topology:
    joined = with_usual_routing(name, fabric) if hosts > 1 else None
    return build_topology(name, hosts=hosts, fabric=joined)


def slower(share: float, *devices: str, kinds: tuple[str, ...] = ()) -> Fault:
    def make(topology: Topology) -> Configured:
        arcs = topology.arcs
        touched = {
            arc
            for pattern in devices
            for name in topology.devices
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
            for arc in arcs_of_device(topology, name)
            if not kinds or arcs.kinds[arc] in kinds
        }
        return degrade_links(
            topology, {arc: share * arcs.bandwidth_Bps[arc] for arc in touched}
        ), LibrarySettings()

    return make


def lost(*devices: str) -> Fault:
    return lambda topology: (remove_links(topology, nodes=devices), LibrarySettings())


def cut(link: str) -> Fault:
    return lambda topology: (
        remove_links(topology, arcs=find_arcs(topology, link)),
        LibrarySettings(),
    )


def settings(**env: str) -> Fault:
    return lambda topology: (topology, LibrarySettings(env=env))


_IB = ("infiniband", "ethernet")
A100, H100 = ("dgx-a100", 2, "rail-optimised"), ("dgx-h100", 4, "rail-optimised")
AWS, V100 = ("aws-p4d", 2, "leaf-spine"), ("dgx1-v100", 1, None)
PCIE = ("a100-pcie-x8-nvlink", 1, None)
CASES = [
    FaultCase(*machine, name, fault)
    for machine, faults in (
        (
            A100,
            (
                ("nic_down", lost("n1/nic3")),
                ("nic_half", slower(0.5, "n1/nic2", kinds=_IB)),
                ("nic_pcie_half", slower(0.5, "n1/nic6", kinds=("pcie",))),
                ("gpu_pcie_half", slower(0.5, "n1/gpu5", kinds=("pcie",))),
                ("nvlink_half", slower(0.5, "n1/gpu2", kinds=("nvlink",))),
                ("slow_host", slower(0.6, "n1/*")),
                ("gpudirect_off", settings(NCCL_NET_GDR_LEVEL="LOC")),
                ("sockets", settings(NCCL_IB_DISABLE="1")),
                ("ll_alone", settings(NCCL_PROTO="LL")),
                ("simple_alone", settings(NCCL_PROTO="Simple")),
            ),
        ),
        (
            H100,
            (
                ("nic_down", lost("n2/nic5")),
                ("nic_half", slower(0.5, "n1/nic1", kinds=_IB)),
                ("nics_half", slower(0.5, "n0/nic*", "n1/nic*", "n2/nic*", "n3/nic*", kinds=_IB)),
                ("gpu_pcie_half", slower(0.5, "n1/gpu7", kinds=("pcie",))),
                ("slow_host", slower(0.4, "n2/*")),
                ("gpudirect_off", settings(NCCL_NET_GDR_LEVEL="LOC")),
                ("p2p_off", settings(NCCL_P2P_DISABLE="1")),
                ("ring_alone", settings(NCCL_ALGO="Ring")),
                ("tree_alone", settings(NCCL_ALGO="Tree")),
                ("ll128_alone", settings(NCCL_PROTO="LL128")),
            ),
        ),
        (
            AWS,
            (
                ("nic_down", lost("n1/nic1")),
                ("nic_half", slower(0.5, "n1/nic0", kinds=_IB)),
                ("nic_pcie_half", slower(0.5, "n1/nic2", kinds=("pcie",))),
                ("gpudirect_off", settings(NCCL_NET_GDR_LEVEL="LOC")),
                ("slow_host", slower(0.6, "n1/*")),
                ("ll_alone", settings(NCCL_PROTO="LL")),
                ("nics_half", slower(0.5, "n0/nic*", "n1/nic*", kinds=_IB)),
                ("p2p_off", settings(NCCL_P2P_DISABLE="1")),
            ),
        ),
        (
            V100,
            (
                ("nvlink_half", slower(0.5, "n0/gpu6", kinds=("nvlink",))),
                ("nvlink_down", cut("n0/gpu0 -- n0/gpu3")),
                ("p2p_off", settings(NCCL_P2P_DISABLE="1")),
                ("nvlink_half", slower(0.25, "n0/gpu2", kinds=("nvlink",))),
                ("simple_alone", settings(NCCL_PROTO="Simple")),
                ("ll_alone", settings(NCCL_PROTO="LL")),
            ),
        ),
        (
            PCIE,
            (
                ("gpu_pcie_half", slower(0.5, "n0/gpu5", kinds=("pcie",))),
                ("gpu_pcie_half", slower(0.25, "n0/gpu2", kinds=("pcie",))),
                ("p2p_off", settings(NCCL_P2P_DISABLE="1")),
                ("nvlink_down", cut("n0/gpu2 -- n0/gpu3")),
                ("simple_alone", settings(NCCL_PROTO="Simple")),
                ("ll_alone", settings(NCCL_PROTO="LL")),
            ),
        ),
    )
    for name, fault in faults
]
"""Forty faults of five machines."""
