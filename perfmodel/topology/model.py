"""Hardware as data: a graph of devices and directed links, and the GPUs' own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from perfmodel.topology.arcs import Adjacency, Arcs, LikeHosts
from perfmodel.topology.expanded_graph import expand
from perfmodel.topology.routing.clos import Tiers

if TYPE_CHECKING:
    import networkx as nx

NetworkKind = Literal[
    "none", "infiniband", "roce", "efa", "tcp", "tcpx", "tcpxo", "omni-path", "ici"
]
"""Network between hosts: RDMA over InfiniBand or Ethernet, AWS's EFA, sockets, Google's
GPUDirect-TCPX (and TCPXO), Omni-Path; "none" for a machine without NICs."""


FEW_LANES = 64
"""fp32 lanes of a multiprocessor from P100 to A100; later ones and GeForce have twice as many."""

FASTEST_CLOCK_HZ = 3e9
"""No GPU's boost clock reaches it (RTX 4090: 2.5 GHz)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU, from its datasheet and from published measurements.

    Parameters
    ----------
    name : str
    memory_bytes, memory_Bps : float
        Device memory and its bandwidth.
    peak_flops : mapping of str to float
        Dense peak per precision ("fp32", "tf32", "bf16", "fp16", "fp8"); operations per second.
    matmul_efficiency : mapping of str to float
        Fraction of that peak which large matrix products reach, per precision.
    memory_efficiency : float
        Fraction of `memory_Bps` that large element-wise kernels reach.
    kernel_overhead_s : float
        Device time that a kernel costs beyond its work (ramp-up and tail); seconds.
    launch_s : float
        Host time to issue one operation alone from eager PyTorch; seconds.
    streaming_multiprocessors : int
    overlap_slowdown : float
        Factor by which compute takes longer while a collective runs on the same GPU (1 = none).
    generation : str
        Such as "hopper" or "cdna3", by which numbers that no data sheet states are found.
    power_W : float, optional
        Most that the board draws, by its data sheet (TDP) or a limit; watts. None where no source
        is known.
    efficiency_assumed : bool
        Whether `matmul_efficiency` is an assumption, and not measured on this GPU or its like.
    estimated : tuple of str
        Fields that a data sheet left out and GPUs that were measured stand for.
    limited_rate : float
        What a power limit below the data sheet's leaves of the rate of matrix products; 1: all.
    limited_width : float
        Half width of the middle 80 % of its logarithm.
    """

    name: str
    memory_bytes: float
    memory_Bps: float
    peak_flops: Mapping[str, float]
    matmul_efficiency: Mapping[str, float]
    memory_efficiency: float
    kernel_overhead_s: float
    launch_s: float
    streaming_multiprocessors: int
    overlap_slowdown: float
    generation: str
    power_W: float | None = None
    efficiency_assumed: bool = False
    estimated: tuple[str, ...] = ()
    limited_rate: float = 1.0
    limited_width: float = 0.0

    @property
    def amd(self) -> bool:
        """Whether it is one of AMD's, which RCCL joins and NCCL does not."""
        return self.generation.startswith("cdna")

    @property
    def accelerator(self) -> bool:
        """Whether it is no GPU of NVIDIA or AMD, so that its maker's library joins it."""
        return self.generation in {"tpu", "trainium", "gaudi", "ascend", "dcu"}

    @property
    def clock_Hz(self) -> float:
        """Boost clock behind the data sheet's fp32 peak, two operations a lane and cycle.

        A multiprocessor has 64 lanes (P100 to A100), or 128 where 64 would need a clock that no GPU
        has (GeForce Ampere, Ada, Hopper, Blackwell); 0 where no peak is stated.
        """
        clock_Hz = self.peak_flops.get("fp32", 0.0) / (
            2 * (self.streaming_multiprocessors * FEW_LANES)
        )
        return clock_Hz if clock_Hz < FASTEST_CLOCK_HZ else clock_Hz / 2


def fp32_peak(peaks: Mapping[str, float]) -> float:
    """Peak in fp32; where a data sheet has none, a sixteenth of its largest (assumption)."""
    return peaks.get("fp32") or max(peaks.values()) / 16


@dataclass(frozen=True, slots=True)
class Reach:
    """Farthest paths that the library may use without the host's memory, where the user sets them.

    Parameters
    ----------
    peer, nic : str or None
        Farthest path type over which GPUs copy to each other, and over which a NIC reaches GPU
        memory; None for what is usual.
    memory : bool
        Whether GPUs that may not copy to each other go through the host's memory, or else by a NIC.
    relay : bool
        Whether a GPU may reach a NIC through another GPU.
    """

    peer: str | None = None
    nic: str | None = None
    memory: bool = True
    relay: bool = True


@dataclass(frozen=True, slots=True)
class ChannelPath:
    """One channel of NCCL's through a host: GPUs in order, and the NICs at its ends.

    Parameters
    ----------
    gpus : tuple of int
        Numbers of GPUs in their host, in order.
    nic_in, nic_out : int or None
        Numbers of NICs; None where the channel stays in the host.
    """

    gpus: tuple[int, ...]
    nic_in: int | None = None
    nic_out: int | None = None


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Channels that NCCL uses on this host by its own dump (``NCCL_GRAPH_DUMP_FILE``).

    Parameters
    ----------
    pattern : str
        "ring", "tree", "nvls", "collnet_chain" or "collnet_direct".
    paths : tuple of ChannelPath
    intra_Bps, inter_Bps : float
        Speed of one channel inside the host and between hosts; bytes per second.
    type_intra, type_inter : str
        Farthest path types used.
    same_channels : bool
        Whether all channels pass the GPUs in one order.
    """

    pattern: str
    paths: tuple[ChannelPath, ...]
    intra_Bps: float
    inter_Bps: float
    type_intra: str
    type_inter: str
    same_channels: bool


@dataclass(frozen=True, slots=True)
class Sockets:
    """Limits of TCP between the processes of a machine.

    Parameters
    ----------
    burst_bytes : float
        Bytes that pass the slowest link of a route at once after a pause: the token bucket of a
        traffic shaper.
    cores : int, optional
        Cores that the processes of all hosts share, where hosts are containers or network
        namespaces of one machine; None where every process has its own.
    core_speed : float
        Against the machine on which the library's numbers were measured.
    frame_bytes : float, optional
        Largest packet of the network.
    flow_Bps : float, optional
        Most that the network lets one connection carry, payload; None where it sets no limit.
    adapter : str, optional
        Maker of the virtual adapters, by which NCCL counts its connections.
    pods : bool
        Whether processes run in pods with interfaces of their own.
    """

    burst_bytes: float = 0.0
    cores: int | None = None
    core_speed: float = 1.0
    frame_bytes: float | None = None
    flow_Bps: float | None = None
    adapter: str | None = None
    pods: bool = False


@dataclass(frozen=True, slots=True)
class Drives:
    """NVMe drives of a host, all together.

    Parameters
    ----------
    read_Bps, write_Bps : float
    capacity_bytes : float, optional
        None where it is not stated.
    """

    read_Bps: float
    write_Bps: float
    capacity_bytes: float | None = None


@dataclass(frozen=True, repr=False)
class Topology:
    """A machine or a cluster: its graphs, and what is compiled from them.

    The source is a graph of graphs: `node_graph` is one node, of which there are `hosts` alike, and
    `fabric_graph` joins them. `graph` has every device and link of both; it is made when asked for,
    as a cluster has a million links. Parallel cables of a fabric are parallel arcs; bonded NVLinks
    are one arc.

    Parameters
    ----------
    name : str
    node_graph : networkx.MultiDiGraph
        Devices and links of one node (`perfmodel.topology.templates.build`).
    fabric_graph : networkx.Graph or None
        Hosts and switches (`perfmodel.topology.fabric.fabric_graph`); None for one node.
    devices : mapping of str to Device
    built : Arcs
        The directed links as the machine is described.
    ranks : tuple of str
        GPU nodes in rank order, host by host.
    gpu : Gpu
    hosts : int
    host_arcs : int
        Arcs of each host: host h owns indices h * host_arcs to (h + 1) * host_arcs - 1, in the same
        order in every host; the fabric's arcs follow. So a route inside one host is a route inside
        all of them.
    gpu_p2p : bool
        Whether GPUs of one host may copy to each other over PCIe (NVLink always may).
    gpudirect_rdma : bool
        Whether NICs read and write GPU memory (if the path between them is good enough) or
        traffic is staged in host memory.
    staging_Bps : float or None
        Rate of one copy through host memory between two GPUs, where it was measured.
    cpu : str or None
        Kind of the hosts' CPUs, as machines described in words have them; None: not stated.
    sources : mapping of str to str
        Where the numbers come from, for the report.
    template : str
        Name of the node template.
    fabric : str
        Name of the fabric ("none" for one host).
    dead : frozenset of int
        Arcs that have failed (see `perfmodel.topology.faults`).
    lost : tuple of str
        Names of the devices and links that failed, for messages.
    changed : Arcs or None
        The arcs with the rates that hold now, after a fault or a calibration; None where they are
        as built.
    healthy : Topology or None
        The machine before any change; None where there was none.
    network : str
        What drives the NICs (`NetworkKind`).
    tiers : Tiers or None
        Structure of a regular fabric; ignored where it does not fit the number of arcs.
    reach : Reach
        Limits that the user sets on paths.
    channel_graphs : tuple of ChannelGraph
        Channels that a dump of NCCL's names; empty where there is none.
    sockets : Sockets
        Limits of TCP.
    host_memory_bytes : float or None
        Memory of each host's CPUs; None where it is not stated.
    drives : Drives or None
        NVMe drives of each host; None where none are stated.
    """

    name: str
    node_graph: nx.MultiDiGraph[str]
    fabric_graph: nx.Graph[int | str] | None
    devices: LikeHosts
    built: Arcs
    ranks: tuple[str, ...]
    gpu: Gpu
    hosts: int
    host_arcs: int
    gpu_p2p: bool
    gpudirect_rdma: bool
    staging_Bps: float | None
    cpu: str | None
    sources: Mapping[str, str]
    template: str
    fabric: str
    assumptions: tuple[str, ...] = field(default=())
    dead: frozenset[int] = frozenset()
    lost: tuple[str, ...] = ()
    changed: Arcs | None = None
    healthy: Topology | None = None
    tiers: Tiers | None = None
    network: NetworkKind = "none"
    reach: Reach = Reach()
    channel_graphs: tuple[ChannelGraph, ...] = ()
    sockets: Sockets = Sockets()
    host_memory_bytes: float | None = None
    drives: Drives | None = None

    def __repr__(self) -> str:
        """One line: a cluster has up to a million devices."""
        fabric = "" if self.fabric == "none" else f", {self.fabric}"
        return f"<Topology {self.name}: {len(self.ranks)} {self.gpu.name}{fabric}>"

    @property
    def arcs(self) -> Arcs:
        """All directed links with the rates that hold now."""
        return self.built if self.changed is None else self.changed

    @cached_property
    def links(self) -> Mapping[str, Mapping[str, list[int]]]:
        """Numbers of the arcs from a device to each of its neighbours: ``links[src][dst]``."""
        return Adjacency(self.devices, self.built.names, self.hosts, self.host_arcs)

    @cached_property
    def links_into(self) -> Mapping[str, Mapping[str, list[int]]]:
        """Numbers of the arcs that enter a device: ``links_into[dst][src]``."""
        return Adjacency(self.devices, self.built.names, self.hosts, self.host_arcs, backwards=True)

    @cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """Every device and link of the machine as built: `perfmodel.topology.expanded_graph`."""
        return expand(
            self.node_graph, self.fabric_graph, self.devices, self.built, self.gpus_per_host
        )

    def with_arcs(self, arcs: Arcs) -> Topology:
        """Return the topology with other rates of its links, for timing alone.

        What a library reads of the machine when it starts stays as built.
        """
        return replace(self, changed=arcs)

    def graph_of(self, pattern: str, gpus: Sequence[int]) -> ChannelGraph | None:
        """Dumped channels of a pattern over just these GPUs of a host; None where there are none.

        Parameters
        ----------
        pattern : str
        gpus : sequence of int
            Numbers of GPUs in their host.
        """
        members = set(gpus)
        fitting = (
            graph
            for graph in self.channel_graphs
            if graph.pattern == pattern and all(set(path.gpus) == members for path in graph.paths)
        )
        return next(fitting, None)

    @property
    def first_cable(self) -> int:
        """Index of the fabric's first arc: those before it lie inside hosts."""
        return self.hosts * self.host_arcs

    @property
    def gpus_per_host(self) -> int:
        """GPUs in each host."""
        return len(self.ranks) // self.hosts
