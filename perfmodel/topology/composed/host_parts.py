"""A template taken apart: its devices by kind, its edges, and what a change makes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.files import validate_document
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.from_text.template_builder import Draft
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import DeviceSpec, EdgeSpec, LinkSpec, NodeSpec, pairs


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
        return tuple(
            name
            for spec in self.node.nodes
            if spec.kind == kind
            for name in expand_pattern(spec.id)
        )

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
        sources = {**hardware_parts().sources, **self.node.sources}
        return self.with_node(links=links, edges=changed, sources=sources)

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
    fresh, number = name, 2
    while fresh in links and links[fresh] != spec:
        fresh, number = f"{name}-{number}", number + 1
    return fresh


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
