"""Node templates by name or path: files that list their devices and links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import find_file, list_shipped, read_yaml, validate_document
from perfmodel.topology.templates.references import reference_faults
from perfmodel.topology.templates.spec import NodeSpec

_NOT_TEMPLATES = ("gpus", "fabrics/", "profiles/")


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
    try:
        node = validate_document(NodeSpec, document, str(path))
    except InputError as error:
        faults += error.faults
    reported = {(fault.field, fault.line) for fault in faults}
    faults += [
        f for f in reference_faults(document, str(path)) if (f.field, f.line) not in reported
    ]
    if faults:
        raise InputError(faults)
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
