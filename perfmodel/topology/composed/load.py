"""Nodes of any kind by name, path or words: templates, and hosts that are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import is_file, line_of, path_of, plain, read_yaml, validate_document
from perfmodel.scenario.sections.cluster import NodeFile, NodeSection
from perfmodel.topology.composed.host_line import is_host_in_words, read_words
from perfmodel.topology.templates.load import check_template, find_template
from perfmodel.topology.templates.spec import NodeSpec

GRAPH_SUFFIXES = (".json", ".graphml")
"""Endings of files that hold graphs (`perfmodel.topology.graph_files`)."""


def load_node(machine: str | NodeSection) -> NodeSpec:
    """Read a node by name, by path or in words, or put one together.

    Parameters
    ----------
    machine : str or NodeSection
        "dgx-a100", "my-node.yaml", "2 x rtx-4090, 10 GbE", or fields of a composed host.

    Raises
    ------
    InputError
        No such node, or everything that is wrong in it, with lines.
    """
    return _load(machine, "topology", ())


def _load(machine: str | NodeSection, field: str, chain: tuple[Path, ...]) -> NodeSpec:
    if isinstance(machine, NodeSection):
        from perfmodel.topology.composed.compose import compose  # half of a topology's start-up

        base = None if machine.extends is None else _load(machine.extends, "extends", chain)
        return compose(machine, base)
    if is_host_in_words(machine) and not is_file(path_of(machine)):
        section = read_words(machine, field)
        try:
            return _load(section, field, chain).model_copy(update={"name": machine})
        except InputError as error:
            raise InputError(
                _in_one_line(fault, field, machine) for fault in error.faults
            ) from None
    if machine.lower().endswith(GRAPH_SUFFIXES):
        raise InputError(
            Fault(
                field,
                repr(machine),
                "a node; a graph is a whole machine: `cluster.graph`, or `perfmodel.topology`",
            )
        )
    path = find_template(machine, field)
    document = read_yaml(path)
    if not is_composed(document):
        return check_template(document, path)
    if path.resolve() in chain:
        raise InputError(Fault(field, repr(machine), "a node that does not extend itself"))
    return _load_file(document, path, (*chain, path.resolve()))


def _load_file(document: Any, path: Path, chain: tuple[Path, ...]) -> NodeSpec:
    file = validate_document(NodeFile, document, str(path))
    section = file.model_copy(update={"extends": beside(file.extends, path)})
    try:
        node = _load(section, "extends", chain)
    except InputError as error:
        raise InputError(
            fault
            if fault.file
            else replace(fault, file=str(path), line=line_of(document, fault.field.split(".")))
            for fault in error.faults
        ) from None
    return node.model_copy(update={"name": file.name or path.stem})


def _in_one_line(fault: Fault, field: str, text: str) -> Fault:
    """A fault of a host in words: its field is the text."""
    if fault.file:
        return fault
    return Fault(field, f"{text!r}: {fault.field} {fault.found}", fault.allowed)


def beside(name: str | None, file: Path) -> str | None:
    """Return the path of a node that stands in the folder of a file, else its name as written."""
    if name is None:
        return None
    candidate = file.parent / path_of(name)
    return str(candidate) if is_file(candidate) else name


def is_composed(document: Any) -> bool:
    """Whether a file puts a host together, and does not list its devices."""
    composed = isinstance(document, Mapping) and ("extends" in document or "gpus" in document)
    return composed and document.get("kind") == "node" and "nodes" not in document


def node_files(machine: str | NodeSection) -> Iterator[Path]:
    """Files that a node is read from: its own, and those that it extends.

    Those that do not exist are left out: whoever loads the node says so.
    """
    name, files = machine.extends if isinstance(machine, NodeSection) else machine, list[Path]()
    while name is not None:
        if is_host_in_words(name) and not is_file(path_of(name)):
            name = name.partition(",")[0].strip()
        try:
            path = find_template(name)
            document = plain(read_yaml(path))
        except InputError:
            return
        if path in files:
            return
        files.append(path)
        yield path
        name = beside(document.get("extends"), path) if is_composed(document) else None
