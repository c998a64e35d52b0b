"""An imported host or fabric: its document, what was assumed, and its text as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from perfmodel.files import validate_document
from perfmodel.topology.templates.spec import FabricFile, NodeSpec

Kind = Literal["nccl-topology", "nccl-graph", "topo-matrix", "ibnetdiscover"]

_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*( [\w./+-]+)*")
_NOT_STRINGS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


@dataclass(frozen=True, slots=True)
class ImportedTopology:
    """A description that was read from a file of another tool.

    Parameters
    ----------
    kind : Kind or {"nvml"}
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

    kind: Kind | str
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
    lines = [f"# {_one_line(line)}".rstrip() for line in split]
    for key, value in document.items():
        lines += _field(key, value, "", (entry_comments or {}).get(key, {}))
    return "\n".join(lines) + "\n"


def _one_line(comment: str) -> str:
    """Return text of the file as one comment: no line break, no character that YAML refuses."""
    return "".join(char if char.isprintable() else " " for char in comment)


def _field(
    key: str, value: Any, indent: str, comments: Mapping[int, str] | None = None
) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield f"{indent}{_scalar(key)}:"
        for inner, item in value.items():
            yield from _field(str(inner), item, indent + "  ")
    elif isinstance(value, list | tuple) and value:
        yield f"{indent}{_scalar(key)}:"
        for at, item in enumerate(value):
            comment = (comments or {}).get(at)
            yield f"{indent}  - {_flow(item)}" + (f"  # {_one_line(comment)}" if comment else "")
    else:
        yield f"{indent}{_scalar(key)}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_scalar(str(key))}: {_flow(item)}" for key, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    quantity = re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)? [A-Za-z/]+", text)
    if quantity or (_PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS):
        return text
    return "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def _escaped(char: str) -> str:
    """A character as YAML takes it between double quotes."""
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
