"""Node templates by name or path: files that list their devices and links.

Names in a file that are undefined or defined twice, and devices without a link, are found in the
raw document, so that these faults are reported together with those of its schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names, raise_faults
from perfmodel.files import (
    collect_faults,
    find_file,
    line_of,
    list_shipped,
    plain,
    read_yaml,
    validate_document,
)
from perfmodel.memo import applying
from perfmodel.topology.templates.gpus import gpu_names
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import PORT_KINDS, NodeSpec, is_unknown_key, join

_NOT_TEMPLATES = ("gpus", "accelerators", "fabrics/", "profiles/")


def template_names() -> tuple[str, ...]:
    """Names of the nodes that ship with perfmodel."""
    return tuple(name for name in list_shipped("topologies") if not name.startswith(_NOT_TEMPLATES))


def find_template(name_or_path: str, field: str = "topology") -> Path:
    """Find the file of a node.

    Raises `InputError`: nothing by that name, or a fabric or a profile; `field` is its field.
    """
    if name_or_path.startswith(_NOT_TEMPLATES):
        raise InputError(
            Fault(field, repr(name_or_path), f"a node template, {allowed_names(template_names())}")
        )
    try:
        return find_file(name_or_path, "topologies", field=field)
    except InputError as error:
        raise InputError(
            Fault(
                field,
                error.faults[0].found,
                f"a file's path or {allowed_names(template_names(), Path(name_or_path).stem)}",
            )
        ) from None


def check_template(document: Any, path: Path) -> NodeSpec:
    """Make a template of a document that was read from a file.

    Raises `InputError`: everything that is wrong in it, with lines.
    """
    faults: list[Fault] = []
    with collect_faults(faults):
        node = validate_document(NodeSpec, document, str(path))
    reported = {(fault.field, fault.line) for fault in faults}
    faults += [
        f for f in reference_faults(document, str(path)) if (f.field, f.line) not in reported
    ]
    raise_faults(faults)
    return node if node.name else node.model_copy(update={"name": path.stem})


def load_template(name: str) -> NodeSpec:
    """Read a node that lists its devices and links.

    Raises `InputError`: no such file, or everything that is wrong in it, with lines.
    """
    path = find_template(name)
    return check_template(read_yaml(path), path)


def is_template(name: str) -> bool:
    """Whether a shipped node lists its devices itself, and is not composed of others."""
    document = read_yaml(find_template(name))
    return isinstance(document, Mapping) and "nodes" in document


def reference_faults(document: Any, file: str | None = None) -> list[Fault]:
    """Every undefined name in a node file, and every device without a link.

    `document`: the file as `perfmodel.files.read_yaml` returns it (then faults carry lines), or
    plain. `file`: path for the messages.
    """
    data = plain(document)
    if not isinstance(data, Mapping):
        return []
    kinds = {
        name: entry.get("kind")
        for _, entry in _entries(data, "nodes")
        for name in _names(entry.get("id"))
    }
    links = data.get("links")
    links = links if isinstance(links, Mapping) else {}
    return [
        Fault(".".join(map(str, path)), problem, allowed, file, line_of(document, path))
        for path, problem, allowed in [
            *_device_findings(data, kinds),
            *_edge_findings(data, kinds, links),
            *_port_findings(data, links),
            *_link_findings(links),
            *_source_findings(data, links),
            *_gpu_findings(data),
            *_graph_findings(data, kinds),
        ]
    ]


_Finding = tuple[list[str | int], str, str]
"""Path of a field, what was found, what is allowed."""
_Kinds = Mapping[str, Any]
"""Kind of each device, as the file says it."""


def _entries(data: Mapping[str, Any], section: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    listed = data.get(section)
    entries = enumerate(listed if isinstance(listed, list) else [])
    return ((at, entry) for at, entry in entries if isinstance(entry, Mapping))


def _names(pattern: Any) -> tuple[str, ...]:
    """Names of a pattern; none where the pattern itself is a fault of shape."""
    try:
        return expand_pattern(pattern) if isinstance(pattern, str) else ()
    except ValueError:
        return ()


def _device_findings(data: Mapping[str, Any], kinds: _Kinds) -> Iterator[_Finding]:
    uses: Counter[str] = Counter()
    joined = {
        name
        for _, edge in _entries(data, "edges")
        for side in ("from", "to")
        for name in _names(edge.get(side))
    }
    for position, entry in _entries(data, "nodes"):
        path: list[str | int] = ["nodes", position, "id"]
        names = _names(entry.get("id"))
        for name in names:
            uses[name] += 1
            if uses[name] == 2:
                yield path, f"{name!r} again", "a name that is used once"
        loose = ", ".join(name for name in names if name not in joined)
        if loose and len(kinds) != 1:
            yield path, f"{loose}, which no edge reaches", "an edge to every device"
    if "gpu" not in kinds.values():
        yield ["nodes"], "no GPU", "at least one node of kind 'gpu'"


def _edge_findings(
    data: Mapping[str, Any], kinds: _Kinds, links: Mapping[str, Any]
) -> Iterator[_Finding]:
    for position, edge in _entries(data, "edges"):
        sides = {side: _names(edge.get(side)) for side in ("from", "to")}
        for side, names in sides.items():
            missing = [name for name in names if name not in kinds]
            if missing:
                problem = f"{', '.join(map(repr, missing))}, which is no node"
                yield ["edges", position, side], problem, allowed_names(kinds, missing[0])
        link = edge.get("link")
        if isinstance(link, str) and link not in links:
            yield ["edges", position, "link"], repr(link), allowed_names(links, link)
        if all(sides.values()):
            yield from _pattern_findings(position, edge, *sides.values())


def _pattern_findings(
    position: int, edge: Mapping[str, Any], sources: tuple[str, ...], targets: tuple[str, ...]
) -> Iterator[_Finding]:
    try:
        joined = join(sources, targets, edge.get("pattern", "each"))
    except ValueError as error:
        yield ["edges", position], f"{edge['from']!r} to {edge['to']!r}", str(error)
        return
    loop = next((a for a, b in joined if a == b), None)
    if loop is not None:
        yield ["edges", position], f"{loop!r} joined to itself", "two different devices"


def _port_findings(data: Mapping[str, Any], links: Mapping[str, Any]) -> Iterator[_Finding]:
    ports = [
        name
        for name, link in links.items()
        if isinstance(link, Mapping) and link.get("kind") in PORT_KINDS
    ]
    for position, entry in _entries(data, "nodes"):
        port, rails, is_nic = entry.get("port"), entry.get("rails"), entry.get("kind") == "nic"
        path: list[str | int] = ["nodes", position, "port"]
        names = allowed_names(ports, None if port is None else str(port))
        problems = applying(
            (is_nic and port is None, ("nothing", f"the link that leaves the NIC, {names}")),
            (
                is_nic and port not in (None, *ports),
                (repr(port), f"a link of kind ethernet or infiniband, {names}"),
            ),
            (not is_nic and port is not None, (repr(port), "no port: only a NIC has one")),
        )
        yield from ((path, *problem) for problem in problems)
        if not is_nic and rails is not None:
            yield ["nodes", position, "rails"], repr(rails), "no rails: only NICs have them"


def _link_findings(links: Mapping[str, Any]) -> Iterator[_Finding]:
    port = "a NIC's port, of kind ethernet or infiniband,"
    return (
        (["links", name, key], repr(link[key]), f"nothing: only {port} has {key!r}")
        for name, link in links.items()
        if isinstance(link, Mapping) and link.get("kind") not in PORT_KINDS
        for key in ("network", "flow", "flow_source", "adapter")
        if link.get(key) is not None
    )


_SOURCED = ("staging", "launch", "host_memory", "nvme")
"""Sections of a template whose numbers have one source."""


def _source_findings(data: Mapping[str, Any], links: Mapping[str, Any]) -> Iterator[_Finding]:
    keys = data.get("sources")
    keys = keys if isinstance(keys, Mapping) else {}
    sections = [
        *((["links", name], link) for name, link in links.items()),
        *(([name], data.get(name)) for name in _SOURCED),
    ]
    texts = (
        ([*path, field], section.get(field))
        for path, section in sections
        if isinstance(section, Mapping)
        for field in ("source", "efficiency_source", "latency_source", "flow_source")
    )
    return (
        ([*path], repr(text), f"a sentence, or a key of `sources`: {allowed_names(keys, text)}")
        for path, text in texts
        if isinstance(text, str) and text and is_unknown_key(text, keys)
    )


def _gpu_findings(data: Mapping[str, Any]) -> Iterator[_Finding]:
    name = data.get("gpu")
    if isinstance(name, str) and name not in gpu_names():
        yield ["gpu"], repr(name), f"a GPU of the table, {allowed_names(gpu_names(), name)}"


def _graph_findings(data: Mapping[str, Any], kinds: _Kinds) -> Iterator[_Finding]:
    for position, graph in _entries(data, "graphs"):
        for at, channel in _entries(graph, "channels"):
            for kind, name in (
                *(("gpu", name) for name in channel.get("gpus") or ()),
                *(("nic", channel[end]) for end in ("enter", "leave") if channel.get(end)),
            ):
                if kinds.get(name) != kind:
                    allowed = allowed_names([n for n, k in kinds.items() if k == kind], str(name))
                    yield ["graphs", position, "channels", at], f"{name!r}, no {kind}", allowed
