"""A template taken apart, and its PCIe changed: slots, switches, CPUs and their memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.errors import Fault, InputError, allowed_names, failed, raise_faults, refuse_if
from perfmodel.files import validate_document
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.from_text.template_builder import (
    Draft,
    dram,
    number_pattern,
    numbered,
    same_link,
    stock_link,
)
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import (
    DeviceSpec,
    EdgeSpec,
    LinkSpec,
    NodeSpec,
    device_names,
    pairs,
)


def change_slots(host: PartedHost, slot: tuple[int, int], cpu: str | None) -> PartedHost:
    """Give the GPUs of a host other slots, and their switches links of that generation.

    Those to CPUs are of the generation of the CPUs where that is older. `slot`: generation and
    lanes. `cpu`: kind of CPU, as stated. Raises `InputError`: a generation that the GPU does not
    have, or a GPU without a slot.
    """
    generation, lanes = slot
    newest = int(host.part.pcie.removeprefix("pcie"))
    refuse_if(
        host.part.c2c is not None,
        "pcie",
        f"gen{generation}",
        "nothing: its GPUs are joined to their CPUs by NVLink-C2C",
    )
    refuse_if(
        generation > newest,
        "pcie",
        f"gen{generation}",
        f"at most gen{newest}, as {host.node.gpu} has",
    )
    host = _with_slot(host, _slots_of(host, "gpu"), generation, lanes)
    kind = hardware_parts().cpus.get(
        (cpu or "").lower(), hardware_parts().cpus[host.node.cpu or host.part.cpu]
    )
    uplinks = _slots_of(host, "pcie_switch")
    return _with_slot(host, uplinks, min(generation, int(kind.pcie.removeprefix("pcie"))), 16)


def _slots_of(host: PartedHost, kind: str) -> list[EdgeSpec]:
    """Edges of PCIe from the devices of a kind to switches and CPUs."""
    return [
        edge
        for name in host.names(kind)
        for _, edge in host.neighbours(name, _ABOVE)
        if host.node.links[edge.link].kind == "pcie"
    ]


def _with_slot(host: PartedHost, edges: list[EdgeSpec], generation: int, lanes: int) -> PartedHost:
    draft = Draft(host.node.gpu, "", "")
    name = draft.add_pcie(generation, lanes)
    spec = validate_document(LinkSpec, draft.links[name])
    changed = [
        edge
        for edge in edges
        if host.node.links[edge.link].bandwidth * edge.lanes != spec.bandwidth
    ]
    return host if not changed else host.relinked(name, spec, changed).with_node(staging=None)


def limit_slots(host: PartedHost) -> PartedHost:
    """Let GPUs that were put into newer slots be as slow as they are."""
    newest = int(host.part.pcie.removeprefix("pcie"))
    most_Bps = hardware_parts().links[host.part.pcie].bandwidth
    newer = [
        edge
        for edge in _slots_of(host, "gpu")
        if host.node.links[edge.link].bandwidth * edge.lanes > most_Bps
    ]
    if not newer:
        return host
    note = f"assumption: {host.node.gpu} at gen{newest}, the newest PCIe that it has"
    return _with_slot(host, newer, newest, 16).noting(note)


# ---------------------------------------------------------------- switches and CPUs


def change_tree(
    host: PartedHost,
    *,
    switches: int | None,
    domains: int | None,
    sockets: int | None,
    cpu: str | None,
) -> PartedHost:
    """Put GPUs and NICs under other switches and CPUs, evenly; None: as before.

    `domains`: NUMA domains of all sockets. `cpu`: kind of CPU.
    Raises `InputError`: a kind of CPU that is not known, or parts that the GPUs cannot be under.
    """
    kinds, c2c, gpus = hardware_parts().cpus, host.part.c2c, host.names("gpu")
    old_switches, old_domains = host.names("pcie_switch"), host.names("cpu")
    count = min(len(old_switches), len(gpus)) if switches is None else switches
    numa = domains or sockets or len(old_domains)
    gpu_links = {edge.link for gpu in gpus for _, edge in host.neighbours(gpu, _ABOVE)}
    raise_faults(
        failed(
            (
                cpu is not None and cpu.lower() not in kinds,
                "cpu",
                repr(cpu),
                allowed_names(kinds, cpu),
            ),
            (
                c2c is not None and bool(switches),
                "pcie_switches",
                str(switches),
                "0: its GPUs are joined to their CPUs by NVLink-C2C",
            ),
            (
                count > len(gpus),
                "pcie_switches",
                str(count),
                f"at most {len(gpus)}, one for each GPU",
            ),
            (not gpu_links, "sockets", f"{host.node.name}", "a host whose GPUs are under CPUs"),
        )
    )
    moved = numa != len(old_domains) and (numa != len(gpus) or numa > _MOST_OF_A_HOST)
    if c2c is not None and (moved or cpu not in {None, host.part.cpu}):
        allowed = "nothing: each CPU is on one module with its GPUs, by NVLink-C2C"
        field = "cpu" if cpu else "sockets" if sockets else "numa_domains"
        raise InputError(Fault(field, cpu or str(numa), allowed))
    per_socket = max(1, numa // (sockets or _usual_sockets(host, numa)))
    if count == len(old_switches) and numa == len(old_domains) and cpu is None:
        return host
    kind = cpu.lower() if cpu else host.node.cpu or host.part.cpu
    if cpu is None and host.node.cpu is None:
        host = host.noting(f"assumption: CPUs of the kind {kind}, usual with this GPU")
    nic_links = {
        nic: edge.link for nic in host.names("nic") for _, edge in host.neighbours(nic, _ABOVE)
    }
    bare = host.without((*old_switches, *old_domains, *host.names("memory"))).pruned()
    tree = _tree(host, bare, (count, numa, per_socket), kind, gpu_links, nic_links)
    return bare.plus(tree).with_node(cpu=kind)


_ABOVE = ("pcie_switch", "cpu")
_MOST_OF_A_HOST = 8
"""GPUs of one host; CPUs of a rack are not all joined."""


def _tree(
    host: PartedHost,
    bare: PartedHost,
    counts: tuple[int, int, int],
    kind: str,
    gpu_links: set[str],
    nic_links: dict[str, str],
) -> Draft:
    switches, domains, per_socket = counts
    draft = Draft(host.node.gpu, "", "")
    draft.links |= {
        name: same_link(host.node.links[name]) for name in (*gpu_links, *nic_links.values())
    }
    cpus = [f"cpu{at}" for at in range(domains)]
    draft.add(number_pattern("cpu", range(domains)), "cpu")
    places = cpus
    if switches:
        places = [f"pcie{at}" for at in range(switches)]
        draft.add(number_pattern("pcie", range(switches)), "pcie_switch")
        uplink_name = min(host.part.pcie, hardware_parts().cpus[kind].pcie)
        uplink = draft.link(uplink_name, stock_link(uplink_name))
        for place, cpu in zip(places, spread_evenly(switches, cpus), strict=True):
            draft.join(place, cpu, uplink)
    gpus, nics = bare.names("gpu"), bare.names("nic")
    slots = dict.fromkeys(gpus, min(gpu_links)) | {nic: nic_links[nic] for nic in nics}
    spread = (*spread_evenly(len(gpus), places), *spread_evenly(len(nics), places))
    for (device, slot), place in zip(slots.items(), spread, strict=True):
        draft.join(device, place, slot)
    draft.add_host_memory(kind, range(domains), per_socket)
    return draft


def _usual_sockets(host: PartedHost, domains: int) -> int:
    """Sockets that NUMA domains are of, where no field says: two, or one for each superchip."""
    return domains if host.part.c2c else min(2, domains)


def with_memory(host: PartedHost) -> PartedHost:
    """Give each CPU its memory where the template has none: copies go through it."""
    if host.names("memory") or not host.names("cpu"):
        return host
    kind, cpus = host.node.cpu or host.part.cpu, host.names("cpu")
    draft = Draft(host.node.gpu, "", "")
    draft.link("dram", dram(kind, len(cpus) // _usual_sockets(host, len(cpus))))
    for at, cpu in enumerate(cpus):
        draft.add(f"mem{at}", "memory")
        draft.join(f"mem{at}", cpu, "dram")
    return host.plus(draft).noting(
        f"assumption: memory of CPUs of the kind {kind}, through which copies go"
    )


@dataclass(frozen=True, slots=True)
class PartedHost:
    """A node template while fields of a composed host change it, one after the other.

    Parameters
    ----------
    node : NodeSpec
    part : GpuConnector
        How its GPU is plugged in.
    notes : tuple of str
        What no field states and how it was filled.
    """

    node: NodeSpec
    part: GpuConnector
    notes: tuple[str, ...] = field(default=())

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of the devices of a kind, in their order."""
        return device_names(self.node, kind)

    def edge_pairs(self) -> tuple[tuple[str, str, EdgeSpec], ...]:
        """Every edge, device by device."""
        return tuple((a, b, edge) for edge in self.node.edges for a, b in pairs(edge))

    def neighbours(self, name: str, kinds: Collection[str]) -> tuple[tuple[str, EdgeSpec], ...]:
        """Devices of some kinds that a device is joined to, with the edge."""
        of_kind = {each for kind in kinds for each in self.names(kind)}
        ends = ((b if a == name else a, edge) for a, b, edge in self.edge_pairs() if name in (a, b))
        return tuple((other, edge) for other, edge in ends if other in of_kind)

    def without(self, removed: Collection[str]) -> PartedHost:
        """Take devices and their edges out."""
        devices: list[DeviceSpec] = []
        for spec in self.node.nodes:
            names = expand_pattern(spec.id)
            rest = [name for name in names if name not in removed]
            single = [spec.model_copy(update={"id": name}) for name in rest]
            devices += [spec] if len(rest) == len(names) else single
        edges: list[EdgeSpec] = []
        for edge in self.node.edges:
            joined = pairs(edge)
            left = [(a, b) for a, b in joined if a not in removed and b not in removed]
            alone = [
                edge.model_copy(update={"from_": a, "to": b, "pattern": "each"}) for a, b in left
            ]
            edges += [edge] if len(left) == len(joined) else alone
        return self.with_node(nodes=tuple(devices), edges=tuple(edges))

    def without_edges(self, kinds: Collection[str]) -> PartedHost:
        """Take the edges out whose links are of some kinds."""
        links = self.node.links
        edges = tuple(edge for edge in self.node.edges if links[edge.link].kind not in kinds)
        return self.with_node(edges=edges)

    def plus(self, draft: Draft) -> PartedHost:
        """Add the devices, edges and links of a draft; a link of another rate gets a new name."""
        links, renamed = dict(self.node.links), dict[str, str]()
        for name, document in draft.links.items():
            spec = validate_document(LinkSpec, document)
            renamed[name] = free_name(links, name, spec)
            links[renamed[name]] = spec
        devices = [
            DeviceSpec.model_validate(
                device | ({"port": renamed[device["port"]]} if "port" in device else {})
            )
            for device in draft.nodes
        ]
        edges = [
            EdgeSpec.model_validate(edge | {"link": renamed[edge["link"]]}) for edge in draft.edges
        ]
        return self.with_node(
            links=links,
            nodes=(*self.node.nodes, *devices),
            edges=(*self.node.edges, *edges),
            sources={**hardware_parts().sources, **self.node.sources},
        )

    def relinked(self, name: str, spec: LinkSpec, edges: Iterable[EdgeSpec]) -> PartedHost:
        """Give some edges another link."""
        chosen = {id(edge) for edge in edges}
        links = dict(self.node.links)
        fresh = free_name(links, name, spec)
        links[fresh] = spec
        changed = tuple(
            edge.model_copy(update={"link": fresh}) if id(edge) in chosen else edge
            for edge in self.node.edges
        )
        return self.with_node(
            links=links, edges=changed, sources={**hardware_parts().sources, **self.node.sources}
        )

    def pruned(self) -> PartedHost:
        """Drop links and sources that nothing names any more."""
        return PartedHost(used_only(self.node), self.part, self.notes)

    def with_node(self, **fields: object) -> PartedHost:
        """Change fields of the template."""
        return PartedHost(self.node.model_copy(update=fields), self.part, self.notes)

    def noting(self, *notes: str) -> PartedHost:
        """Add what was assumed."""
        return PartedHost(self.node, self.part, (*self.notes, *notes))


def free_name(links: Mapping[str, LinkSpec], name: str, spec: LinkSpec) -> str:
    """Name for a link beside others: its own, or with a number where that is another link's."""
    return next(each for each in numbered(name) if links.get(each, spec) == spec)


def used_only(node: NodeSpec) -> NodeSpec:
    """The same node without links and sources that nothing names any more."""
    used = {edge.link for edge in node.edges} | {spec.port for spec in node.nodes}
    links = {name: link for name, link in node.links.items() if name in used}
    texts = {
        text
        for link in links.values()
        for key, text in link.model_dump().items()
        if key.endswith("source")
    }
    sections = (node.staging, node.launch, node.host_memory, node.nvme)
    texts |= {section.source for section in sections if section is not None}
    sources = {key: text for key, text in node.sources.items() if key in texts}
    return node.model_copy(update={"links": links, "sources": sources})


def spread_evenly(items: int, places: Sequence[str]) -> tuple[str, ...]:
    """Place of each of some items, neighbours together.

    Examples
    --------
    >>> spread_evenly(4, ["cpu0", "cpu1"])
    ('cpu0', 'cpu0', 'cpu1', 'cpu1')
    """
    return tuple(places[at * len(places) // items] for at in range(items))
