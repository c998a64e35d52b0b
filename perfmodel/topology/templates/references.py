"""Faults of names in a node file: undefined, defined twice, or devices without a link.

Works on the raw document, so that these faults are reported together with those of its schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import Fault, allowed_names
from perfmodel.files import line_of, plain
from perfmodel.topology.templates.gpus import gpu_names
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import PORT_KINDS, is_unknown_key, join


def reference_faults(document: Any, file: str | None = None) -> list[Fault]:
    """Every undefined name in a node file, and every device without a link.

    `document`: the file as `perfmodel.files.read_yaml` returns it (then faults carry lines), or
    plain. `file`: path for the messages.
    """
    data = plain(document)
    if not isinstance(data, Mapping):
        return []
    findings = [
        *_device_findings(data),
        *_edge_findings(data),
        *_port_findings(data),
        *_link_findings(data),
        *_source_findings(data),
        *_gpu_findings(data),
        *_graph_findings(data),
    ]
    return [
        Fault(".".join(map(str, path)), problem, allowed, file, line_of(document, path))
        for path, problem, allowed in findings
    ]


_Finding = tuple[list[str | int], str, str]


def _entries(data: Mapping[str, Any], section: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    entries = data.get(section)
    for position, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, Mapping):
            yield position, entry


def _names(pattern: Any) -> tuple[str, ...]:
    """Names of a pattern; none where the pattern itself is a fault of shape."""
    try:
        return expand_pattern(pattern) if isinstance(pattern, str) else ()
    except ValueError:
        return ()


def _device_kinds(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: entry.get("kind")
        for _, entry in _entries(data, "nodes")
        for name in _names(entry.get("id"))
    }


def _links(data: Mapping[str, Any]) -> Mapping[str, Any]:
    links = data.get("links")
    return links if isinstance(links, Mapping) else {}


def _device_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    uses: Counter[str] = Counter()
    joined = {
        name
        for _, edge in _entries(data, "edges")
        for side in ("from", "to")
        for name in _names(edge.get(side))
    }
    alone = len(_device_kinds(data)) == 1
    for position, entry in _entries(data, "nodes"):
        names = _names(entry.get("id"))
        for name in names:
            uses[name] += 1
            if uses[name] == 2:
                yield ["nodes", position, "id"], f"{name!r} again", "a name that is used once"
        loose = [name for name in names if name not in joined]
        if loose and not alone:
            yield (
                ["nodes", position, "id"],
                f"{', '.join(loose)}, which no edge reaches",
                "an edge to every device",
            )
    if "gpu" not in _device_kinds(data).values():
        yield ["nodes"], "no GPU", "at least one node of kind 'gpu'"


def _edge_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    kinds, links = _device_kinds(data), _links(data)
    for position, edge in _entries(data, "edges"):
        sides = [_names(edge.get(side)) for side in ("from", "to")]
        for side, names in zip(("from", "to"), sides, strict=True):
            missing = [name for name in names if name not in kinds]
            if missing:
                yield (
                    ["edges", position, side],
                    f"{', '.join(map(repr, missing))}, which is no node",
                    allowed_names(kinds, missing[0]),
                )
        if isinstance(edge.get("link"), str) and edge["link"] not in links:
            yield (
                ["edges", position, "link"],
                repr(edge["link"]),
                allowed_names(links, edge["link"]),
            )
        yield from _pattern_findings(position, edge, sides)


def _pattern_findings(
    position: int, edge: Mapping[str, Any], sides: list[tuple[str, ...]]
) -> Iterator[_Finding]:
    if not all(sides):
        return
    try:
        joined = join(sides[0], sides[1], edge.get("pattern", "each"))
    except ValueError as error:
        yield ["edges", position], f"{edge['from']!r} to {edge['to']!r}", str(error)
        return
    loops = [a for a, b in joined if a == b]
    if loops:
        yield ["edges", position], f"{loops[0]!r} joined to itself", "two different devices"


def _port_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    links = _links(data)
    for position, entry in _entries(data, "nodes"):
        port = entry.get("port")
        path: list[str | int] = ["nodes", position, "port"]
        if entry.get("kind") == "nic":
            ports = [
                name
                for name, link in links.items()
                if isinstance(link, Mapping) and link.get("kind") in PORT_KINDS
            ]
            if port is None:
                yield path, "nothing", f"the link that leaves the NIC, {allowed_names(ports)}"
            elif port not in ports:
                yield (
                    path,
                    repr(port),
                    f"a link of kind ethernet or infiniband, {allowed_names(ports, str(port))}",
                )
        elif port is not None:
            yield path, repr(port), "no port: only a NIC has one"
        if entry.get("kind") != "nic" and entry.get("rails") is not None:
            yield (
                ["nodes", position, "rails"],
                repr(entry["rails"]),
                "no rails: only NICs have them",
            )


def _link_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    for name, link in _links(data).items():
        if not isinstance(link, Mapping) or link.get("kind") in PORT_KINDS:
            continue
        for key in ("network", "flow", "flow_source", "adapter"):
            if link.get(key) is not None:
                allowed = f"nothing: only a NIC's port, of kind ethernet or infiniband, has {key!r}"
                yield ["links", name, key], repr(link[key]), allowed


_SOURCED = ("staging", "launch", "host_memory", "nvme")
"""Sections of a template whose numbers have one source."""


def _source_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    keys = data.get("sources")
    keys = keys if isinstance(keys, Mapping) else {}
    sections = [(["links", name], link) for name, link in _links(data).items()]
    sections += [([name], data.get(name)) for name in _SOURCED]
    for path, section in sections:
        for field in ("source", "efficiency_source", "latency_source", "flow_source"):
            text = section.get(field) if isinstance(section, Mapping) else None
            if isinstance(text, str) and text and is_unknown_key(text, keys):
                yield (
                    [*path, field],
                    repr(text),
                    f"a sentence, or a key of `sources`: {allowed_names(keys, text)}",
                )


def _gpu_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    name = data.get("gpu")
    if isinstance(name, str) and name not in gpu_names():
        yield ["gpu"], repr(name), f"a GPU of the table, {allowed_names(gpu_names(), name)}"


def _graph_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    kinds = _device_kinds(data)
    for position, graph in _entries(data, "graphs"):
        for at, channel in _entries(graph, "channels"):
            named = [("gpu", name) for name in channel.get("gpus") or ()]
            named += [("nic", channel[end]) for end in ("enter", "leave") if channel.get(end)]
            for kind, name in named:
                if kinds.get(name) != kind:
                    allowed = allowed_names([n for n, k in kinds.items() if k == kind], str(name))
                    yield ["graphs", position, "channels", at], f"{name!r}, no {kind}", allowed
