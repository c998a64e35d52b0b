"""Sections ``cluster`` and ``library``: nodes, the network between them, and what runs on it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from perfmodel.collectives.catalog import NCCL_ALGO_NAMES
from perfmodel.files import Bandwidth, Bytes, FileModel, Latency, Nodes, Parts, Power, check_rows
from perfmodel.scenario.sections.base import (
    OR_NAME,
    Index,
    Name,
    Placement,
    Rules,
    Section,
    expand_name,
    expand_number,
    is_whole_number,
    refuse,
)
from perfmodel.units import MOST_PARTS

MOST_NICS = 1024
"""NICs of a host; as many names as one pattern of a template may stand for."""

_SWITCH_WORDS = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def _read_switch(value: Any) -> Any:
    word = _SWITCH_WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(word, bool):
        raise ValueError("on or off")  # noqa: TRY004  (for pydantic)
    return word


OnOff = Annotated[
    bool,
    BeforeValidator(_read_switch),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}),
]
"""``true`` and ``false``, or ``on`` and ``off``, which are words in YAML 1.2."""


def _read_gpus(value: Any) -> Any:
    is_count = is_whole_number(value) and 1 <= value <= MOST_PARTS
    is_words = isinstance(value, str) and value.strip()
    check_rows((not is_count and not is_words, "a number of GPUs, or as in '2 x rtx-4090'"))
    return value


Gpus = Annotated[
    int | str,
    BeforeValidator(_read_gpus),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]


def _read_words(value: Any) -> Any:
    if isinstance(value, bool):
        return "on" if value else "none"
    is_words = isinstance(value, str) and value.strip()
    check_rows((not is_words, "words such as 'none', 'bridge', 'NVLink4' or '12 x 25 GB/s'"))
    return value


LinkWords = Annotated[
    str,
    BeforeValidator(_read_words),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "boolean"}]}),
]


class NicSection(Section):
    """NICs of a host; what is left out stays as in the template, or as is usual."""

    text: Name | None = Field(default=None, description="in words: '2 x 100 Gbit/s RoCE', '10 GbE'")
    count: Parts | None = Field(default=None, le=MOST_NICS, description="NICs of the host")
    per_socket: Parts | None = Field(
        default=None, le=MOST_NICS // 8, description="NICs under each CPU, for `count`"
    )
    rate: Bandwidth | None = Field(default=None, description="of each NIC, one direction")
    kind: Name | None = Field(
        default=None, description="infiniband, roce, efa, tcp (Ethernet), tcpx, tcpxo or omni-path"
    )
    latency: Latency | None = Field(default=None, description="of each NIC")
    mtu: Parts | None = Field(default=None, description="payload bytes of a packet")
    pcie: Name | None = Field(default=None, description="slot of each: 'gen4 x8'")

    def _rules(self) -> Rules:
        return (
            (
                self.count is not None and self.per_socket is not None,
                "count or per_socket: each says how many there are",
            ),
        )


Nics = Annotated[NicSection, expand_name("text"), expand_number("count"), OR_NAME]


class NvmeSection(FileModel):
    """NVMe drives of a host, all together."""

    read: Bandwidth
    write: Bandwidth
    capacity: Bytes | None = Field(default=None, description="default: not checked")


class NodeSection(Section):
    """A host: a template that it `extends` and what differs, or `gpus` and what joins them."""

    extends: Name | None = Field(default=None, description="a node template by name or file")
    name: Name | None = Field(default=None, description="what reports call it")
    gpus: Gpus | None = Field(default=None, description="'2 x rtx-4090', or a number of GPUs")
    gpu: Name | None = Field(default=None, description="a GPU by name: 'h100 pcie'")
    power_limit: Power | None = Field(
        default=None, description="most that each GPU may draw, below its data sheet's: '500 W'"
    )
    nvlink: LinkWords | None = Field(
        default=None, description="'none', 'bridge', 'mesh', 'NVLink4', '12 x 25 GB/s'"
    )
    nvswitch: OnOff | None = Field(default=None, description="whether a switch joins the NVLinks")
    pcie: Name | None = Field(default=None, description="slots of the GPUs: 'gen4 x16'")
    pcie_switches: Annotated[int, Field(strict=True, ge=0, le=1024)] | None = Field(
        default=None, description="PCIe switches between GPUs and CPUs; 0: none"
    )
    cpu: Name | None = Field(default=None, description="kind of CPU: 'genoa', 'sapphire'")
    sockets: Annotated[int, Field(strict=True, ge=1, le=16)] | None = Field(
        default=None, description="CPUs"
    )
    numa_domains: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None, description="of all sockets together; default: one each"
    )
    p2p: OnOff | None = Field(
        default=None, description="whether GPUs copy to each other over PCIe (NVLink always may)"
    )
    gpudirect: OnOff | None = Field(
        default=None, description="whether NICs read and write GPU memory"
    )
    host_memory: Bytes | None = Field(
        default=None, description="memory of the CPUs, that what is offloaded has to fit into"
    )
    nvme: NvmeSection | None = Field(
        default=None, description="NVMe drives for ZeRO-Infinity: their rates, and capacity"
    )
    nics: Nics | None = None
    nic: Nics | None = Field(default=None, description="as `nics`, one unless `count` says more")

    def _rules(self) -> Rules:
        return (
            (
                self.extends is None and self.gpus is None,
                "extends: a template, or gpus such as '2 x rtx-4090'",
            ),
            (
                self.nics is not None and self.nic is not None,
                "nic or nics: both say what the NICs are",
            ),
            (
                (self.numa_domains or 0) % (self.sockets or 1),
                f"numa_domains that are a multiple of the {self.sockets} sockets",
            ),
            (
                self.nvswitch and self.nvlink in ("none", "off", "bridge", "mesh"),
                f"nvswitch: off beside nvlink: {self.nvlink}",
            ),
        )

    def __str__(self) -> str:
        """Return what it is in few words: its name, its template, or its GPUs."""
        return self.name or (f"{self.extends}, changed" if self.extends else f"{self.gpus}")


def _form_of(value: Any) -> Literal["NodeSection", "name"]:
    return "NodeSection" if isinstance(value, dict | NodeSection) else "name"


Node = Annotated[
    Annotated[NodeSection, Tag("NodeSection")] | Annotated[Name, Tag("name")],
    Discriminator(_form_of),
]
"""A template by name or file, or a host put together."""


class NodeFile(NodeSection):
    """A file of a host that is put together: the fields of `cluster.node` of a scenario."""

    perfmodel: Literal[1]
    kind: Literal["node"]
    description: str = ""


Word = Annotated[
    str,
    BeforeValidator(
        lambda v: str(int(v)) if isinstance(v, bool | int) else v, json_schema_input_type=str | int
    ),
]
"""Text; a whole number may stand without quotes."""


_ONE_PROCESS = (
    "'per-gpu', as DistributedDataParallel has them; one process that drives a host is "
    "`perfmodel collective --one-process`, or strategy.kind: data_parallel"
)


Channels = Annotated[Parts, Field(le=1024)]
"""Parallel rings or trees; NCCL has 64 at most (MAXCHANNELS)."""


if TYPE_CHECKING:
    AlgorithmName = str
else:
    AlgorithmName = Literal[("auto", *NCCL_ALGO_NAMES)]


class LibrarySection(FileModel):
    """The communication library, and what of its own choices to override."""

    name: Literal["nccl", "plain", "gloo", "mpi", "rings"] = "nccl"
    algorithm: AlgorithmName = Field(
        default="auto", description="of NCCL, as NCCL_ALGO would say; others have their own"
    )
    protocol: Literal["auto", "simple", "ll", "ll128"] = "auto"
    channels: Channels | None = Field(
        default=None, description="default: what the library would choose"
    )
    credits: Parts | None = Field(
        default=None,
        description="chunks in flight per edge; 1 makes each step wait for its latency",
    )
    version: Name | None = Field(
        default=None, description="of NCCL, such as '2.26.2'; default: the newest that is known"
    )
    env: dict[str, Word] = Field(
        default_factory=dict,
        description="NCCL's environment variables, such as NCCL_PROTO: Simple",
    )
    processes: Annotated[
        Literal["per-gpu"],
        BeforeValidator(refuse(lambda value: value == "per-host", _ONE_PROCESS)),
    ] = Field(
        default="per-gpu", description="one for each GPU, as DistributedDataParallel has them"
    )
    workers: Parts | None = Field(
        default=None, description="collectives in progress at once; default: the library's"
    )
    host_step: Latency | None = Field(
        default=None,
        description="what a step costs a process on a CPU beyond layers, collectives and the "
        "memory of gradients; default: the library's",
    )


Side = Annotated[Parts, Field(ge=2)]
"""Routers along one dimension."""


class FabricSection(FileModel):
    """The network between nodes: a kind, and what differs from that kind's defaults."""

    kind: Name = Field(description="see `perfmodel topology list`")
    radix: Annotated[Parts, Field(ge=2)] | None = Field(
        default=None, description="ports of one switch"
    )
    oversubscription: Annotated[float, Field(strict=True, ge=1, le=1e6)] | None = Field(
        default=None, description="bandwidth into a leaf switch over bandwidth out of it"
    )
    hosts_per_leaf: Parts | None = None
    routing: (
        Literal["ecmp", "rail", "adaptive", "dimension-ordered", "minimal", "valiant"] | None
    ) = Field(
        default=None,
        description="how flows choose among ways; default: the fabric's, else adaptive for leaves "
        "and spines on InfiniBand and on a dragonfly",
    )
    dims: Annotated[tuple[Side, ...], Field(min_length=1, max_length=6)] | None = Field(
        default=None, description="routers along each dimension of a torus, mesh or butterfly"
    )
    dimensions: Annotated[Parts, Field(le=16)] | None = Field(
        default=None, description="of a hypercube"
    )
    groups: Parts | None = Field(default=None, description="groups of a dragonfly")
    routers_per_group: Parts | None = None
    hosts_per_router: Parts | None = None
    trunk_cables: Parts | None = Field(
        default=None, description="parallel cables between two neighbouring routers"
    )
    global_cables: Parts | None = Field(
        default=None, description="cables between each two groups of a dragonfly"
    )


Fabric = Annotated[FabricSection, expand_name("kind"), OR_NAME]
"""A network between nodes, or its kind alone."""


class MixedSection(FileModel):
    """Nodes of this job with another GPU; their links stay those of `cluster.node`."""

    nodes: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(
        description="nodes of this job, counted from 0"
    )
    gpu: Name = Field(description="a GPU of `topologies/gpus.yaml`, such as 'v100-sxm2-32gb'")


class ClusterSection(Section):
    """The hardware: a node template, how many of them, and the network between them."""

    node: Node = Field(
        description="a node template by name or file (see `perfmodel topology list`), in words "
        "such as '2 x rtx-4090, 10 GbE', or a host put together"
    )
    nodes: Nodes = Field(default=1, description="nodes of this job")
    gpus_per_node: Parts | None = Field(
        default=None, description="how many of a node's GPUs are used"
    )
    fabric: Fabric | None = None
    pool: Nodes | None = Field(
        default=None,
        description="nodes on the network, those of this job among them; default: what `nodes` "
        "and `jobs` need",
    )
    placement: Placement = "packed"
    mixed: tuple[MixedSection, ...] = ()
    graph: Name | None = Field(
        default=None,
        description="a NetworkX graph of the whole machine (node-link JSON or GraphML), in place "
        "of node, nodes and fabric",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_graph(cls, stated: Any) -> Any:
        """Let the graph stand for the node."""
        is_graph = isinstance(stated, Mapping) and stated.get("graph") is not None
        return {"node": stated["graph"], **stated} if is_graph else stated

    def _rules(self) -> Rules:
        own = {"graph"} if self.node != self.graph else {"graph", "node"}
        others = ", ".join(sorted(self.model_fields_set - own))
        return (
            (
                self.graph is not None and others,
                f"graph alone, which says all of the machine, without {others}",
            ),
        )
