"""Schema of topology files: node templates, fabrics and the table of GPUs.

Three kinds of file live in ``topologies/``: ``kind: node`` describes one host, ``kind: fabric`` the
network between hosts, ``kind: gpus`` the accelerators. Every number stands beside its source: a
sentence, or a key of the file's ``sources`` map. A source that begins with "assumption" is shown
to whoever reads a prediction. The shapes are checked here; what a file means (does a link name a
node that exists?) is checked in `perfmodel.topology.templates.load`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from perfmodel.errors import allowed_names
from perfmodel.files import (
    Bandwidth,
    Bytes,
    FileModel,
    FlopRate,
    Latency,
    Parts,
    Power,
)
from perfmodel.files.spec import check_rows
from perfmodel.scenario.sections.cluster import FabricSection, NvmeSection
from perfmodel.topology.arcs import LinkKind
from perfmodel.topology.model import NetworkKind
from perfmodel.topology.templates.name_ranges import expand_pattern

CpuKind = Literal[
    "broadwell",
    "skylake",
    "icelake",
    "sapphire",
    "emerald",
    "epyc",
    "genoa",
    "grace",
    "power9",
]
HostNodeKind = Literal["gpu", "nvswitch", "pcie_switch", "cpu", "memory", "nic"]
FabricKind = Literal[
    "one-switch",
    "rail-optimised",
    "leaf-spine",
    "fat-tree",
    "rail-only",
    "dragonfly",
    "torus",
    "mesh",
    "hypercube",
    "flattened-butterfly",
    "listed",
]

HOST_NODE_KINDS: tuple[str, ...] = get_args(HostNodeKind)
LINK_KINDS: tuple[str, ...] = get_args(LinkKind)
NETWORK_KINDS: tuple[str, ...] = get_args(NetworkKind)

BY_NICS = "; the node's NICs say whether it is Ethernet or InfiniBand: see ethernet-10g"
"""What a message about a shape says after those that there are."""

FABRIC_KINDS: tuple[str, ...] = tuple(kind for kind in get_args(FabricKind) if kind != "listed")
"""Shapes that have a file of their own; a listed fabric names every cable itself."""

PORT_KINDS = ("ethernet", "infiniband")
"""Kinds of link that a NIC's port may be: those between nodes; all others lie inside them."""


def _named(names: tuple[str, ...], more: str = "") -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in names:
            raise ValueError(allowed_names(names, str(value)) + more)
        return value

    return BeforeValidator(check)


def _is_pattern(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a name or a pattern such as 'gpu[0-7]'")  # noqa: TRY004  (for pydantic)
    expand_pattern(value)
    return value


NamePattern = Annotated[str, BeforeValidator(_is_pattern)]
"""A name, or several at once: ``gpu[0-7]``."""

Fraction = Annotated[float, Field(gt=0, le=1)]
Source = Annotated[str, Field(min_length=1)]

# ---------------------------------------------------------------- one host


class LinkSpec(FileModel):
    """One kind of cable: what it carries raw, and the fraction of it that payload gets."""

    kind: Annotated[LinkKind, _named(LINK_KINDS)]
    bandwidth: Bandwidth
    """Raw rate of one lane, one direction; bytes per second."""
    efficiency: Fraction
    latency: Latency
    source: Source
    efficiency_source: Source | None = None
    latency_source: Source | None = None
    network: Annotated[NetworkKind, _named(NETWORK_KINDS)] | None = None
    """For a NIC's port: what drives it (default: RDMA over what the kind of link says)."""
    flow: Bandwidth | None = None
    """For a NIC's port: most that the network lets one TCP connection carry."""
    flow_source: Source | None = None
    adapter: Literal["aws", "google"] | None = None
    """For a NIC's port: maker of the virtual adapter, by which NCCL counts its TCP connections."""

    @model_validator(mode="after")
    def _sourced(self) -> "LinkSpec":
        check_rows(
            (
                self.flow is not None and self.flow_source is None,
                "flow_source beside flow: where the limit of a connection is stated",
            )
        )
        return self

    @property
    def network_kind(self) -> NetworkKind:
        """Kind of network of a NIC's port: as stated, else RDMA as the kind of link says."""
        return self.network or ("infiniband" if self.kind == "infiniband" else "roce")


class DeviceSpec(FileModel):
    """Devices of one kind inside a host."""

    id: NamePattern
    kind: Annotated[HostNodeKind, _named(HOST_NODE_KINDS)]
    port: str | None = None
    """For a NIC: the link that leaves it."""
    rails: Parts | None = None
    """For NICs: number of rails they repeat over (default: each NIC is its own rail)."""


class EdgeSpec(FileModel):
    """Cables between devices; every edge works in both directions."""

    from_: NamePattern = Field(alias="from")
    to: NamePattern
    link: str
    lanes: Parts = 1
    pattern: Literal["each", "all"] = "each"
    """`each` joins them one by one, the shorter side in equal blocks; `all` joins every pair."""


class StagingSpec(FileModel):
    """Measured rate of a copy between two GPUs through host memory."""

    bandwidth: Bandwidth
    source: Source


class HostLaunchSpec(FileModel):
    """Host time to issue an operation alone on this machine's CPU, instead of the usual host's."""

    time: Latency
    source: Source


class HostMemorySpec(FileModel):
    """Memory of the host's CPUs, all together."""

    capacity: Bytes
    source: Source


class NvmeSpec(NvmeSection):
    """NVMe drives of the host, all together, with their source."""

    source: Source


class ChannelSpec(FileModel):
    """One channel of NCCL's through the host."""

    gpus: Annotated[tuple[str, ...], Field(min_length=1)]
    enter: str | None = None
    """NIC by which it comes in."""
    leave: str | None = None


class GraphSpec(FileModel):
    """Channels that NCCL said it uses on this host (``NCCL_GRAPH_DUMP_FILE``)."""

    pattern: Literal["ring", "tree", "nvls", "collnet_chain", "collnet_direct"]
    intra: Bandwidth
    """Speed of one channel inside the host."""
    inter: Bandwidth
    """Speed of one channel between hosts."""
    type_intra: str
    type_inter: str
    same_channels: bool = True
    source: Source
    channels: Annotated[tuple[ChannelSpec, ...], Field(min_length=1)]


class SocketsSpec(FileModel):
    """Limits of TCP: a traffic shaper's bucket, and cores that all processes share."""

    burst: Bytes | None = None
    """What passes at once after a pause (`burst` of a token bucket filter)."""
    frame: Bytes | None = None
    """Largest IP packet of the network (MTU), each of which takes work of a core."""
    cores: Parts | None = None
    """Of the one machine whose containers or network namespaces the hosts are."""
    core_speed: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """How fast they are, as measured: 1 where the library's call and messages take what its file
    says, less on a slower machine or beside other work."""
    pods: bool = False
    """Whether processes run in pods with interfaces of their own (Kubernetes): NCCL finds no
    adapter there, and a network that limits flows counts what is wrapped between two hosts once."""
    source: Source


class NodeSpec(FileModel):
    """Template of one host."""

    perfmodel: Literal[1]
    kind: Literal["node"]
    name: str | None = None
    description: str
    gpu: str
    cpu: CpuKind | None = None
    """Kind of its CPUs, as machines described in words have them."""
    power_limit: Power | None = None
    """Of each GPU, where its board may draw less than its data sheet says."""
    sources: dict[str, str] = Field(default_factory=dict)
    links: dict[str, LinkSpec]
    nodes: Annotated[tuple[DeviceSpec, ...], Field(min_length=1)]
    edges: tuple[EdgeSpec, ...] = ()
    gpu_p2p: bool = True
    gpudirect_rdma: bool = True
    staging: StagingSpec | None = None
    launch: HostLaunchSpec | None = None
    host_memory: HostMemorySpec | None = None
    nvme: NvmeSpec | None = None
    graphs: tuple[GraphSpec, ...] = ()
    sockets: SocketsSpec | None = None
    assumed: tuple[str, ...] = ()
    """What a description of the host left open, and how that was filled."""


def device_names(node: NodeSpec, kind: str) -> tuple[str, ...]:
    """Names of the devices of a kind, in the order of the file."""
    return tuple(
        name for device in node.nodes if device.kind == kind for name in expand_pattern(device.id)
    )


def nic_ports(node: NodeSpec) -> tuple[LinkSpec, ...]:
    """The link that leaves each NIC, in the order of the file."""
    return tuple(
        node.links[device.port or ""]
        for device in node.nodes
        if device.kind == "nic"
        for _ in expand_pattern(device.id)
    )


def pairs(edge: EdgeSpec) -> list[tuple[str, str]]:
    """Pairs of devices that an edge joins, each once.

    Raises `ValueError`: pattern `each` with sides whose lengths are no multiple of each other.
    """
    return join(expand_pattern(edge.from_), expand_pattern(edge.to), edge.pattern)


def join(sources: tuple[str, ...], targets: tuple[str, ...], pattern: str) -> list[tuple[str, str]]:
    """Pair two lists of names; see `EdgeSpec.pattern`."""
    if pattern == "all":
        unordered = dict.fromkeys((a, b) for a in sources for b in targets if a != b)
        return [(a, b) for a, b in unordered if (b, a) not in unordered or a < b]
    longer = max(len(sources), len(targets))
    check_rows(
        (
            longer % len(sources) or longer % len(targets),
            f"sides of equal length or a multiple, not {len(sources)} and {len(targets)}",
        )
    )
    return [
        (sources[i * len(sources) // longer], targets[i * len(targets) // longer])
        for i in range(longer)
    ]


# ---------------------------------------------------------------- the network between hosts


class ListedHost(FileModel):
    """One host of a listed fabric."""

    name: str
    leaves: Annotated[tuple[str, ...], Field(min_length=1)]
    """Switch of each of its NICs, in the order of the template's."""


class ListedTrunk(FileModel):
    """Cables between two switches of a listed fabric."""

    from_: str = Field(alias="from")
    to: str
    cables: Parts = 1
    bandwidth: Bandwidth | None = None
    """Raw rate of each (default: as the NICs' ports)."""


_EVERY_SHAPE = frozenset({"kind", "switch_latency", "cable_latency"})
_LEAVES = frozenset(
    {"radix", "oversubscription", "leaf_ports", "hosts_per_leaf", "uplink_bandwidth", "routing"}
)
_BOX = frozenset({"hosts_per_router", "trunk_cables", "uplink_bandwidth", "routing"})
_USES: Mapping[str, frozenset[str]] = {
    "one-switch": frozenset(),
    "rail-optimised": _LEAVES,
    "leaf-spine": _LEAVES,
    "fat-tree": frozenset({"radix", "oversubscription", "uplink_bandwidth", "k", "routing"}),
    "rail-only": frozenset({"radix", "uplink_bandwidth", "routing"}),
    "dragonfly": frozenset(
        {
            "radix",
            "uplink_bandwidth",
            "routing",
            "groups",
            "routers_per_group",
            "hosts_per_router",
            "global_cables",
            "global_latency",
        }
    ),
    "torus": _BOX | {"dims"},
    "mesh": _BOX | {"dims"},
    "hypercube": _BOX | {"dimensions"},
    "flattened-butterfly": _BOX | {"dims"},
    "listed": frozenset({"uplink_bandwidth", "hosts", "trunks"}),
}
"""Fields that each shape of fabric reads, besides those of every shape."""

_CLOS_ROUTINGS = ("ecmp", "rail", "adaptive")
_BOX_ROUTINGS = ("dimension-ordered", "valiant", "ecmp")
ROUTINGS_OF: Mapping[str, tuple[str, ...]] = {
    "rail-optimised": _CLOS_ROUTINGS,
    "leaf-spine": _CLOS_ROUTINGS,
    "fat-tree": _CLOS_ROUTINGS,
    "rail-only": _CLOS_ROUTINGS,
    "dragonfly": ("minimal", "valiant", "adaptive", "ecmp"),
    "torus": _BOX_ROUTINGS,
    "mesh": _BOX_ROUTINGS,
    "hypercube": _BOX_ROUTINGS,
    "flattened-butterfly": _BOX_ROUTINGS,
}
"""Routings that each shape of fabric has, where it has several; the first if nobody says."""

_NEVER_BLOCK = frozenset({"one-switch", "rail-only", "listed"})
_TRUE_ANYWAY: Mapping[str, Any] = {"oversubscription": 1.0, "routing": "ecmp"}
"""Values that hold for a shape that never blocks, though it lacks the field."""

_SAME: Mapping[str, str] = {"leaf_ports": "hosts_per_leaf", "k": "radix"}
"""Fields that settle what an earlier field would."""


class FabricSpec(FabricSection):
    """A network: its shape, and whatever differs from the defaults of the shape's file.

    Radix of a fat tree: `k` by another name. Hosts of one leaf (leaf-spine) or of one group of rail
    leaves (rail-optimised). Trunk cables: one by default; routers, groups and their cables: as few
    as hold all hosts; hosts of a dragonfly's router: as many as half of the ports that its group
    leaves to a router take.

    `ecmp`: a hash of each flow, so that flows may collide. `rail`: a port's place at its leaf, so
    that flows that keep to their rail never do. `adaptive`: every flow is spread over all paths, so
    that the switches above the leaves act as one. `dimension-ordered`: the first dimension first.
    `minimal`: over one cable between groups. `valiant`: over a random router, or group, of others.
    Default: the first that the shape has; adaptive on a dragonfly, and on InfiniBand for leaves,
    spines and fat trees, unless an event names a switch or a cable.
    """

    kind: Annotated[FabricKind, _named((*FABRIC_KINDS, "listed"), BY_NICS)]
    switch_latency: Latency | None = None
    """Time through one switch."""
    cable_latency: Latency | None = None
    """Time through one cable."""
    leaf_ports: Parts | None = None
    """Ports of a leaf that face hosts (default: what radix and oversubscription leave)."""
    uplink_bandwidth: Bandwidth | None = None
    """Raw rate of one cable between switches (default: as the NICs' ports)."""
    k: Annotated[Parts, Field(ge=2, multiple_of=2)] | None = None
    """Ports per switch of a fat tree (default: the smallest even number that holds all hosts)."""
    global_latency: Latency | None = None
    """Time through a cable between two groups of a dragonfly."""
    hosts: Annotated[tuple[ListedHost, ...], Field(min_length=1)] | None = None
    """Hosts of a listed fabric; the first are used."""
    trunks: tuple[ListedTrunk, ...] | None = None
    """Cables between switches of a listed fabric."""

    @field_validator("*")
    @classmethod
    def _check_effect(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a number that this shape has no use for, unless it says what is so anyway."""
        shape, field = info.data.get("kind"), info.field_name or ""
        if (
            shape is None
            or value is None
            or field in _EVERY_SHAPE | _USES[shape]
            or (shape in _NEVER_BLOCK and _TRUE_ANYWAY.get(field) == value)
        ):
            return value
        uses = sorted((_EVERY_SHAPE | _USES[shape]) - {"kind"})
        raise ValueError(f"nothing with kind: {shape}, which has {', '.join(uses)}")

    @field_validator("routing")
    @classmethod
    def _check_routing(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse a routing that this shape does not have."""
        routings = ROUTINGS_OF.get(info.data.get("kind", ""), (value or "",))
        if value is not None and value not in routings:
            raise ValueError(f"{allowed_names(routings, value)} with kind: {info.data['kind']}")
        return value

    @field_validator(*_SAME)
    @classmethod
    def _check_one_size(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse two numbers that say the same, one of which would be ignored."""
        other = _SAME[info.field_name or ""]  # validated before: fields are in their order
        check_rows(
            (
                value is not None and info.data.get(other) is not None,
                f"nothing beside '{other}', which says as much",
            )
        )
        return value


OPTIONS = frozenset(
    {
        "dims",
        "dimensions",
        "groups",
        "routers_per_group",
        "hosts_per_router",
        "trunk_cables",
        "global_cables",
        "global_latency",
    }
)
"""Fields that only the generators of single shapes read."""


class FabricFile(FileModel):
    """Defaults of one shape of fabric."""

    perfmodel: Literal[1]
    kind: Literal["fabric"]
    description: str
    fabric: FabricSpec
    sources: dict[str, Source]
    """Source of each number of `fabric`, by field."""


# ---------------------------------------------------------------- GPUs


class GpuLinks(FileModel):
    """NVLinks of one GPU, as its data sheet has them."""

    links: Parts
    bandwidth: Bandwidth
    """Of each, one direction."""


class GpuSpec(FileModel):
    """One model of GPU; see `perfmodel.topology.model.Gpu` for the meaning of the fields.

    The numbers of a data sheet are enough: what is left out is estimated from GPUs that were
    measured, said to be assumed, and widens intervals.
    """

    generation: str
    memory: Bytes
    memory_bandwidth: Bandwidth
    peak: Annotated[dict[str, FlopRate], Field(min_length=1)]
    matmul_efficiency: dict[str, Fraction] | None = None
    memory_efficiency: Fraction | None = None
    kernel_overhead: Latency | None = None
    launch: Latency | None = None
    streaming_multiprocessors: Parts | None = None
    overlap_slowdown: Annotated[float, Field(ge=1, le=1e6)] | None = None
    power: Power | None = None
    nvlink: GpuLinks | None = None
    """Links to other GPUs; None: those of the shipped GPUs of its name, or none."""
    form: Literal["board", "card"] | None = None
    """Whether it sits on a board with its peers or in a slot; a board if it has NVLinks."""
    pcie: Annotated[str, Field(pattern="^gen[1-6]$")] | None = None
    """Generation of its slot."""
    source: Source | None = None
    """Of all numbers that `sources` leaves out: the data sheet."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """Source of each number, by field."""

    @field_validator("nvlink")
    @classmethod
    def _check_total(cls, value: GpuLinks | None, info: ValidationInfo) -> GpuLinks | None:
        """Refuse links that are faster than the memory: the rate of all, taken for that of one."""
        memory_Bps = info.data.get("memory_bandwidth")
        if value is None or memory_Bps is None or value.links * value.bandwidth <= memory_Bps:
            return value
        total = f"{value.links} links of {value.bandwidth * 1e-9:g} GB/s"
        raise ValueError(f"less than its memory has; {total}: is that the rate of all together?")


class GpuTable(FileModel):
    """The table of GPUs."""

    perfmodel: Literal[1]
    kind: Literal["gpus", "accelerators"]
    description: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    gpus: dict[str, GpuSpec]


def resolve_source(text: str, sources: Mapping[str, str]) -> str:
    """Return the sentence of a source, which may be a key."""
    return sources.get(text, text)


def is_unknown_key(text: str, sources: Mapping[str, str]) -> bool:
    """Whether a source looks like a key (one word) but is none of the file's."""
    return text not in sources and not re.search(r"\s", text)
