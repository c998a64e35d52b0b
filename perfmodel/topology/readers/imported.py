"""What was read from somebody else's file: a document, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.files import validate
from perfmodel.topology.readers.detect import Kind
from perfmodel.topology.spec import FabricFile, NodeSpec
from perfmodel.topology.written import template_text


@dataclass(frozen=True, slots=True)
class Imported:
    """A description that was read from somebody else's file.

    Parameters
    ----------
    kind : Kind or {"nvml"}
        What was read.
    document : mapping
        A template of a node, or a fabric; see `perfmodel.topology.spec`.
    title : str
        One line: what it is and where it is from.
    notes : tuple of str
        What was assumed.
    beside : mapping
        Comments by section and position: where in the file an entry is from.
    """

    kind: Kind | str
    document: Mapping[str, Any]
    title: str
    notes: tuple[str, ...]
    beside: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    @property
    def is_fabric(self) -> bool:
        """Whether it is a network and not a host."""
        return bool(self.document["kind"] == "fabric")

    def node(self) -> NodeSpec:
        """Return the host's template."""
        return validate(NodeSpec, self.document)

    def fabric(self) -> FabricFile:
        """Return the network."""
        return validate(FabricFile, self.document)

    def text(self) -> str:
        """Return the YAML, with comments that say what was assumed."""
        comments = [self.title, *(f"Assumed: {note}." for note in self.notes)]
        return template_text(self.document, comments, self.beside)


def plain_name(path: str) -> str:
    """Return a file's name as a name of a machine."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-.") or "imported"
