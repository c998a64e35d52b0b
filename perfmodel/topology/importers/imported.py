"""An imported host or fabric: its document, what was assumed, and its text as YAML.

A node template of any origin is written as YAML that loads back to the same host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from perfmodel.files import flow_yaml, validate_document
from perfmodel.topology.templates.spec import PORT_KINDS, FabricFile, NodeSpec
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

Kind = Literal["nccl-topology", "nccl-graph", "topo-matrix", "ibnetdiscover"]


@dataclass(frozen=True, slots=True)
class ImportedTopology:
    """A description that was read from a file of another tool.

    Parameters
    ----------
    kind : Kind
        What was read.
    document : mapping
        A template of a node, or a fabric; see `perfmodel.topology.templates.spec`.
    title : str
        One line: what it is and where it is from.
    notes : tuple of str
        What was assumed.
    comments : mapping
        Comments by section and position: where in the file an entry is from.
    """

    kind: Kind
    document: Mapping[str, Any]
    title: str
    notes: tuple[str, ...]
    comments: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def is_fabric(self) -> bool:
        """Whether it is a network and not a host."""
        return bool(self.document["kind"] == "fabric")

    def node(self) -> NodeSpec:
        """Return the host's template."""
        return validate_document(NodeSpec, self.document)

    def fabric(self) -> FabricFile:
        """Return the network."""
        return validate_document(FabricFile, self.document)

    def text(self) -> str:
        """Return the YAML, with comments that say what was assumed."""
        comments = [self.title, *(f"Assumed: {note}." for note in self.notes)]
        return template_text(self.document, comments, self.comments)


def plain_name(path: str) -> str:
    """Return a file's name as a name of a machine."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-.") or "imported"


def natural_key(text: str) -> tuple[tuple[int, str], ...]:
    """Key that sorts names with numbers as people do: node2 before node10."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


# ---------------------------------------------------------------- YAML


def template_text(
    document: Mapping[str, Any],
    comments: Sequence[str] = (),
    entry_comments: Mapping[str, Mapping[int, str]] | None = None,
) -> str:
    """Write a document out.

    `document`: a template of a node or a fabric, made of mappings, lists and scalars. `comments`:
    lines for the head of the file. `entry_comments`: comments on entries of lists: section,
    position, text.
    """
    split = (line for comment in comments for line in comment.splitlines())
    lines = [
        *(f"# {_one_line(line)}".rstrip() for line in split),
        *(
            line
            for key, value in document.items()
            for line in _field(key, value, "", (entry_comments or {}).get(key, {}))
        ),
    ]
    return "\n".join(lines) + "\n"


def _one_line(comment: str) -> str:
    """Return text of the file as one comment: no line break, no character that YAML refuses."""
    return "".join(char if char.isprintable() else " " for char in comment)


def _field(
    key: str, value: Any, indent: str, comments: Mapping[int, str] | None = None
) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield f"{indent}{flow_yaml(key)}:"
        for inner, item in value.items():
            yield from _field(str(inner), item, indent + "  ")
    elif isinstance(value, list | tuple) and value:
        yield f"{indent}{flow_yaml(key)}:"
        for at, item in enumerate(value):
            comment = (comments or {}).get(at)
            behind = f"  # {_one_line(comment)}" if comment else ""
            yield f"{indent}  - {flow_yaml(item)}{behind}"
    else:
        yield f"{indent}{flow_yaml(key)}: {flow_yaml(value)}"


_UNITS = {
    "latency": (("us", 1e-6), parse_time),
    "time": (("us", 1e-6), parse_time),
    "burst": (("B", 1.0), parse_bytes),
    "frame": (("B", 1.0), parse_bytes),
    "capacity": (("GB", 1e9), parse_bytes),
}
_RATES = ("bandwidth", "flow", "intra", "inter", "read", "write")


def node_text(node: NodeSpec) -> str:
    """Write a node out as a file of `topologies/`, every device and link with its source."""
    return template_text(node_document(node), [node.description])


def node_document(node: NodeSpec) -> dict[str, Any]:
    """Return a node as the plain document of its file, numbers with their units."""
    fields = node.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    ordered = {"perfmodel": 1, "kind": "node", "name": fields.pop("name", None)}
    document = {key: value for key, value in (ordered | fields).items() if value is not None}
    return {key: _quantity(key, value, bits=False) for key, value in document.items()}


def _with_units(value: Any, *, bits: bool) -> Any:
    if isinstance(value, Mapping):
        bits = value.get("kind") in PORT_KINDS
        return {key: _quantity(key, each, bits=bits) for key, each in value.items()}
    is_list = isinstance(value, list | tuple)
    return [_with_units(each, bits=bits) for each in value] if is_list else value


def _quantity(key: str, value: Any, *, bits: bool) -> Any:
    if not isinstance(value, float):
        return _with_units(value, bits=bits)
    if key == "power_limit":
        return f"{value:g} W"
    if key in _RATES:
        unit = ("Gbit/s", 1.25e8) if bits or key == "flow" else ("GB/s", 1e9)
        return _write(value, unit, parse_bandwidth)
    if key in _UNITS:
        unit, parse = _UNITS[key]
        return _write(value, unit, parse)
    return value


def _write(value: float, unit: tuple[str, float], parse: Any) -> str:
    """Write a quantity with as few digits as read back to the same number."""
    name, scale = unit
    texts = (f"{value / scale:.{digits}g} {name}" for digits in (6, 9, 12, 15, 16, 17))
    base = {"us": "s", "GB/s": "B/s", "Gbit/s": "B/s", "B": "B", "GB": "B"}[name]
    return next((text for text in texts if parse(text) == value), f"{value!r} {base}")
