"""What hosts are made of: links, ports, CPUs, GPUs' connectors, and machines that have a template.

The numbers stand in ``parts.yaml`` beside this file, each with its source.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perfmodel.files import Bandwidth, FileModel, Seconds, shipped
from perfmodel.files.spec import ShippedTable
from perfmodel.topology.arcs import LinkKind
from perfmodel.topology.model import NetworkKind
from perfmodel.topology.templates.spec import LinkSpec, Source
from perfmodel.units import parse_bandwidth

Layout = Literal["nvswitch", "cube", "mesh", "bridge", "pcie"]
"""How GPUs of a host are joined: by a switch, a hybrid cube mesh, all to all, in pairs, or not."""


class PortPart(FileModel):
    """What leaves a NIC, whatever its rate."""

    kind: LinkKind
    network: NetworkKind
    mtu: int
    """Payload of a packet; bytes."""
    slow_mtu: int | None = None
    """The same up to 40 Gbit/s, where jumbo frames are unusual."""
    header: int
    """What a packet takes on the wire beside its payload; bytes."""
    efficiency_source: Source
    latency: Seconds
    latency_source: Source
    newer_beside: tuple[str, ...] = ()
    """GPUs, as they are spelled, whose hosts have newer adapters of the kind."""


class CloudPart(FileModel):
    """What a provider's network does to a single TCP connection."""

    spelled: tuple[str, ...]
    adapter: Literal["aws", "google"]
    flow: Bandwidth | None = None
    placed: Bandwidth | None = None
    """The same inside a cluster placement group."""
    flow_source: Source | None = None


class CpuPart(FileModel):
    """One generation of CPUs."""

    vendor: str
    families: tuple[int, ...] = ()
    from_model: int
    between: Bandwidth
    between_source: Source
    dram: Bandwidth
    dram_source: Source
    pcie: str
    slots: int | None = None

    @property
    def amd(self) -> bool:
        """Whether its inter-socket link is called Infinity Fabric."""
        return self.vendor == "AuthenticAMD"


class GpuConnector(FileModel):
    """How one model of GPU is written and what it is plugged into."""

    spelled: str
    form: Literal["sxm", "sxm2", "sxm3", "sxm4", "sxm5", "oam", "pcie", "nvl", "superchip"]
    memory: int
    sm: int
    nvlink: str | None = None
    lanes: int = 0
    lane_Bps: float | None = None
    """Rate of each of its NVLinks, one direction, where it is not that of `nvlink`."""
    pcie: str
    cpu: str
    c2c: str | None = None
    geforce: bool = False
    devices: tuple[str, ...] = ()

    @property
    def on_board(self) -> bool:
        """Whether it sits on a board with its peers, and not in a slot."""
        return self.form.startswith("sxm") or self.form in {"oam", "superchip"}

    @property
    def amd(self) -> bool:
        """Whether it is one of AMD's, whose GPUs xGMI joins all to all."""
        return (self.nvlink or "").startswith("xgmi")


class SharedPart(FileModel):
    """Fields of a link that all links of a kind share."""

    efficiency: Annotated[float, Field(gt=0, le=1)] | None = None
    efficiency_source: Source | None = None
    latency: Seconds
    latency_source: Source


class Parts(ShippedTable):
    """The file of parts."""

    sources: dict[str, str]
    links: dict[str, LinkSpec]
    switched_nvlink: SharedPart
    ports: dict[str, PortPart]
    clouds: dict[str, CloudPart]
    pods: tuple[str, ...]
    """Words by which a text says that processes run in pods."""
    cpus: dict[str, CpuPart]
    dram: SharedPart
    between: SharedPart
    gpus: dict[str, GpuConnector]
    machines: dict[str, tuple[str, ...]]
    """Names that providers give to the machine of a template."""
    only_if_named: tuple[str, ...]
    """Templates that are taken only where the text names their machine."""
    usual_nics: dict[str, dict[str, str]]
    adapters: dict[str, str]
    """Rate of each ConnectX, by its number."""
    infiniband: dict[str, Bandwidth]
    """Data that a port of each generation carries; bytes per second."""
    unmodelled: dict[str, tuple[str, ...]]
    """Hardware that no text stands for, by what is said of it, and how its names begin."""


hardware_parts = shipped(Parts, __file__, "parts.yaml")
"""Reads the parts that ship with perfmodel."""


def cpu_named(vendor: str, family: int, model: int) -> str | None:
    """Name of the generation of a CPU, by what /proc/cpuinfo says; None if it is unknown."""
    fitting = [
        name
        for name, cpu in hardware_parts().cpus.items()
        if cpu.vendor == vendor and model >= cpu.from_model
        if not cpu.families or family in cpu.families
    ]
    return fitting[-1] if fitting else None


def usual_nics(network: str, spelled: str) -> tuple[int, float]:
    """NICs of the machine that is usual for a family of GPU: how many, and bytes per second."""
    of_kind = hardware_parts().usual_nics[network]
    count, _, rate = of_kind.get(spelled, of_kind["other"]).partition(" x ")
    return int(count), parse_bandwidth(rate)


def reads_gpus(part: GpuConnector, network: str) -> bool:
    """Whether NICs read GPU memory, if the path allows it.

    Source of the rules: sockets copy (NCCL's net_socket); NVIDIA's GPUDirect RDMA documentation
    excludes GeForce; AWS offers GPUDirect over EFA from P4d on.
    """
    fit_for_efa = part.sm >= 80 and part.on_board
    return not part.geforce and network != "tcp" and (network != "efa" or fit_for_efa)
