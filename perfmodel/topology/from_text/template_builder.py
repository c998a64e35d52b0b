"""Builder of node templates: from parts to a document, with the source of each number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, groupby
from typing import Any

from perfmodel.files import validate_document
from perfmodel.topology.from_text.parts import SharedPart, hardware_parts
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec, SocketsSpec

_LINK_ORDER = (
    "kind",
    "network",
    "bandwidth",
    "source",
    "efficiency",
    "efficiency_source",
    "latency",
    "latency_source",
)


@dataclass
class Draft:
    """Devices, edges and links of a node template, in the order in which they are added."""

    gpu: str
    """Name in the table of GPUs."""
    description: str
    name: str
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)
    """Comment of each edge that has one, by its position."""

    def link(self, name: str, document: Mapping[str, Any]) -> str:
        """Add a link unless it is there; return its name."""
        self.links.setdefault(name, {key: document[key] for key in _LINK_ORDER if key in document})
        return name

    def add_port(self, network: str, Bps: float, source: str) -> str:
        """Add the link that leaves a NIC; return its name, with a number for a second rate."""
        document = port(network, Bps, source, self.gpu)
        free = (
            name
            for name in numbered(network)
            if self.links.get(name, document)["bandwidth"] == document["bandwidth"]
        )
        return self.link(next(free), document)

    def add(self, pattern: str, kind: str, **more: Any) -> None:
        """Add devices."""
        self.nodes.append({"id": pattern, "kind": kind, **more})

    def add_nics(self, ports: Sequence[str]) -> None:
        """Add ``nic0``, ``nic1``, ...; those in a row with the same port as one pattern."""
        first = 0
        for name, row in groupby(ports):
            nics = len(list(row))
            self.add(pattern("nic", nics, first), "nic", port=name)
            first += nics

    def join(
        self, src: str, dst: str, link: str, comment: str = "", *, lanes: int = 0, **more: Any
    ) -> None:
        """Add an edge, with a comment on where it is from."""
        if comment:
            self.comments[len(self.edges)] = comment
        bonded = {"lanes": lanes} if lanes else {}
        self.edges.append({"from": src, "to": dst, "link": link, **bonded, **more})

    def add_pcie(self, generation: int, lanes: int, **more: Any) -> str:
        """Add a PCIe link; return its name, ``pcie4`` for 16 lanes, else such as ``pcie4-x8``."""
        stock = f"pcie{generation}"
        whole_Bps = hardware_parts().links[stock].bandwidth
        name = stock if lanes == 16 else f"{stock}-x{lanes}"
        return self.link(name, stock_link(stock, bandwidth=rate(whole_Bps * lanes / 16), **more))

    def add_host_memory(
        self, cpu: str, domains: Sequence[int], per_socket: int | None = None
    ) -> None:
        """Join the NUMA domains of a kind of CPU, and add the memory of each.

        `per_socket`: domains of a socket; default: as of two sockets.
        """
        self.extra["cpu"] = cpu
        cpus, memories = number_pattern("cpu", domains), number_pattern("mem", domains)
        if len(domains) > 1:
            name, link = between_cpus(cpu)
            self.join(cpus, cpus, self.link(name, link), pattern="all")
        self.link("dram", dram(cpu, per_socket or max(1, len(domains) // 2)))
        self.add(memories, "memory")
        self.join(memories, cpus, "dram")

    def document(self) -> dict[str, Any]:
        """Return the document, with the sources that its links name."""
        sources = hardware_parts().sources | self.sources
        named = {
            text
            for link in self.links.values()
            for key, text in link.items()
            if key.endswith("source")
        }
        return {
            "perfmodel": 1,
            "kind": "node",
            "name": self.name,
            "description": self.description,
            "gpu": self.gpu,
            "sources": {key: text for key, text in sources.items() if key in named},
            "links": self.links,
            "nodes": self.nodes,
            "edges": self.edges,
            **self.extra,
        }

    def node(self) -> NodeSpec:
        """Return the template, checked."""
        return validate_document(NodeSpec, self.document())


def numbered(name: str) -> Iterator[str]:
    """Return a name, and the same with the numbers from 2 on behind it."""
    return chain([name], (f"{name}-{number}" for number in count(2)))


def pattern(stem: str, devices: int, first: int = 0) -> str:
    """Return the pattern of several devices: ``gpu[0-7]``, or ``gpu0`` for one."""
    return f"{stem}{first}" if devices == 1 else f"{stem}[{first}-{first + devices - 1}]"


def number_pattern(stem: str, numbers: Sequence[int]) -> str:
    """Return the pattern of the devices with these numbers: ``cpu[0-3]``, or ``cpu[0,2]``."""
    if len(numbers) == 1:
        return f"{stem}{numbers[0]}"
    if list(numbers) == list(range(len(numbers))):
        return pattern(stem, len(numbers))
    return f"{stem}[{','.join(map(str, numbers))}]"


def rate(Bps: float) -> str:
    """Return a rate of bytes as a file says it, digits kept."""
    return f"{Bps / 1e9:.6g} GB/s"


def bits(Bps: float) -> str:
    """Return a rate of a network as a file says it."""
    return f"{Bps * 8e-9:.6g} Gbit/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.6g} us" if seconds else "0 s"


def link_fields(spec: LinkSpec | SharedPart, **more: Any) -> dict[str, Any]:
    """Return the fields of a link that a file would hold."""
    fields = spec.model_dump(exclude_none=True)
    fields["latency"] = _time(fields["latency"])
    if "bandwidth" in fields:
        fields["bandwidth"] = rate(fields["bandwidth"])
    return fields | more


def same_link(spec: LinkSpec) -> dict[str, Any]:
    """Return a link as a document that reads back to the same numbers, all digits kept."""
    fields = spec.model_dump(exclude_none=True)
    units = {"bandwidth": "B/s", "flow": "B/s", "latency": "s"}
    return fields | {key: f"{fields[key]!r} {unit}" for key, unit in units.items() if key in fields}


def stock_link(name: str, **more: Any) -> dict[str, Any]:
    """Return a link of the file of parts as a document, some fields replaced."""
    return link_fields(hardware_parts().links[name], **more)


def nvlink(name: str, *, switched: bool, **more: Any) -> dict[str, Any]:
    """Return an NVLink as a document: one lane, to a peer or to a switch."""
    switch = link_fields(hardware_parts().switched_nvlink) if switched else {}
    return stock_link(name, **switch, **more)


def between_cpus(name: str) -> tuple[str, dict[str, Any]]:
    """Return name and document of the link between NUMA domains of a kind of CPU."""
    cpu = hardware_parts().cpus[name]
    return "infinity-fabric" if cpu.amd else "upi", link_fields(
        hardware_parts().between, kind="upi", bandwidth=rate(cpu.between), source=cpu.between_source
    )


def dram(name: str, domains_per_socket: int) -> dict[str, Any]:
    """Return the memory bus of a NUMA domain as a document."""
    cpu = hardware_parts().cpus[name]
    return link_fields(
        hardware_parts().dram,
        kind="memory",
        bandwidth=rate(cpu.dram / domains_per_socket),
        source=cpu.dram_source,
    )


def port(network: str, Bps: float, source: str, gpu: str) -> dict[str, Any]:
    """Return what leaves a NIC as a document.

    `network`: kind of network. `Bps`: raw rate; bytes per second. `source`: where the rate comes
    from. `gpu`: name of the host's GPUs, beside which adapters are of their time.
    """
    ports, beside = hardware_parts().ports, hardware_parts().gpus.get(gpu)
    is_newer = beside is not None and beside.spelled in ports[network].newer_beside
    part = ports[f"newer-{network}" if is_newer else network]
    payload = part.slow_mtu if part.slow_mtu and Bps <= 5e9 else part.mtu
    return {
        "kind": part.kind,
        "network": part.network,
        "bandwidth": bits(Bps),
        "source": source,
        "efficiency": round(payload / (payload + part.header), 4),
        "efficiency_source": part.efficiency_source,
        "latency": _time(part.latency),
        "latency_source": part.latency_source,
    }


# ---------------------------------------------------------------- TCP


def with_ports(node: NodeSpec, fields: Mapping[str, Any]) -> NodeSpec:
    """Return the same node with other fields of the links that leave its NICs."""
    ports = {device.port for device in node.nodes if device.kind == "nic"}
    links = {
        name: link.model_copy(update=fields) if name in ports else link
        for name, link in node.links.items()
    }
    return node.model_copy(update={"links": links})


def with_socket_limits(node: NodeSpec, text: str) -> tuple[NodeSpec, list[str]]:
    """Set the limits of a TCP connection that a text in lower case implies; what was assumed."""
    parts, notes = hardware_parts(), []
    cloud = next((part for part in parts.clouds.values() if names_any(part.spelled, text)), None)
    if cloud is not None:
        flow_Bps = cloud.placed if "placement group" in text else cloud.flow
        node = with_ports(
            node, {"adapter": cloud.adapter, "flow": flow_Bps, "flow_source": cloud.flow_source}
        ).model_copy(update={"sources": {**parts.sources, **node.sources}})
        if flow_Bps is not None:
            carried = f"a TCP connection carries {flow_Bps * 8e-9:g} Gbit/s"
            notes.append(f"{carried}, as its cloud states")
    if names_any(parts.pods, text):
        sockets = node.sockets or SocketsSpec(source="as described")
        node = node.model_copy(update={"sockets": sockets.model_copy(update={"pods": True})})
        notes.append("processes run in pods: NCCL has one connection for each channel")
    return node, notes


def names_any(spellings: Iterable[str], text: str) -> bool:
    """Whether a text in lower case has one of some words."""
    words = "|".join(map(re.escape, spellings))
    return bool(words) and re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", text) is not None
