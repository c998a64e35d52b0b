"""Nodes of any kind by name, path or words: templates, and hosts that are put together.

A host in words is one line: "2 x rtx-4090, 10 GbE", "dgx-a100, 1 x 100 Gbit/s RoCE".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, changed_faults, failed, raise_faults, refuse_if
from perfmodel.files import is_file, path_of, plain, read_yaml, validate_document
from perfmodel.files.validate import faults_in
from perfmodel.scenario.sections.cluster import NodeFile, NodeSection
from perfmodel.topology.templates.load import check_template, find_template
from perfmodel.topology.templates.spec import NodeSpec

if TYPE_CHECKING:
    from perfmodel.topology.from_text.grammar import Phrase

GRAPH_SUFFIXES = (".json", ".graphml")
"""Endings of files that hold graphs (`perfmodel.topology.expanded_graph`)."""


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
        with changed_faults(
            lambda each: (
                each
                if each.file
                else Fault(field, f"{machine!r}: {each.field} {each.found}", each.allowed)
            )
        ):
            return _load(section, field, chain).model_copy(update={"name": machine})
    refuse_if(
        machine.lower().endswith(GRAPH_SUFFIXES),
        field,
        repr(machine),
        "a node; a graph is a whole machine: `cluster.graph`, or `perfmodel.topology`",
    )
    path = find_template(machine, field)
    document = read_yaml(path)
    if not is_composed(document):
        return check_template(document, path)
    refuse_if(path.resolve() in chain, field, repr(machine), "a node that does not extend itself")
    return _load_file(document, path, (*chain, path.resolve()))


def _load_file(document: Any, path: Path, chain: tuple[Path, ...]) -> NodeSpec:
    file = validate_document(NodeFile, document, str(path))
    section = file.model_copy(update={"extends": beside(file.extends, path)})
    with faults_in(document, path):
        node = _load(section, "extends", chain)
    return node.model_copy(update={"name": file.name or path.stem})


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


_COUNTED = re.compile(r"\s*\d{1,4}\s*x\s*\S.*", re.IGNORECASE)
MOST_CHARACTERS = 400


def is_host_in_words(text: str) -> bool:
    """Whether a text describes a host, and is no name: a number of GPUs, or parts after commas."""
    return len(text) <= MOST_CHARACTERS and bool(_COUNTED.fullmatch(text) or "," in text)


def read_words(text: str, field: str) -> NodeSection:
    """Read a host in one line: GPUs or a template, then what joins them and its NICs.

    `field`: the field that has the text, for messages. Raises `InputError`: words without meaning,
    or two phrases of one kind; every fault.
    """
    from perfmodel.topology.from_text.grammar import read_phrases

    first, _, behind = text.partition(",")
    counted = _COUNTED.fullmatch(first)
    fields: dict[str, Any] = {} if counted else {"extends": first.strip()}
    rest = text if counted else behind
    faults: list[Fault] = []
    phrases = read_phrases(rest)
    for phrase, before in zip(phrases, (None, *phrases), strict=False):
        read = _read_phrase(phrase)
        if before and _is_card(before, phrase, rest):
            fields["gpus"] += " PCIe"
        faults += failed(
            (
                not read,
                field,
                f"{phrase.text!r} in {text!r}",
                (
                    "NICs ('10 GbE', '2 x 100 Gbit/s RoCE'), 'NVLink bridge', 'PCIe gen4 x16', "
                    "'500 W' for each GPU, 'no P2P' or 'two sockets'"
                ),
            )
        )
        for key in sorted(fields.keys() & read.keys()):
            once = "one kind of GPU in a node" if key == "gpus" else "each once"
            faults.append(Fault(field, f"{phrase.text!r}, beside another {key}", once))
        fields |= read
    if counted and "gpus" not in fields:
        fields["gpus"], faults = first.strip(), []  # of a GPU that is not known, which is said
    raise_faults(faults)
    return validate_document(NodeSection, fields)


def _is_card(gpus: Phrase, slot: Phrase, text: str) -> bool:
    """Whether a slot behind GPUs says their form, too: "A100 PCIe4 x16"."""
    follows = re.search(re.escape(gpus.text) + r"\s+" + re.escape(slot.text), text)
    subjects = (gpus.subject, slot.subject) == ("gpus", "pcie")
    return subjects and follows is not None and "name" in slot.words and "form" not in gpus.words


def _read_phrase(phrase: Phrase) -> dict[str, Any]:
    """Fields of a node that a phrase states; none where it has no meaning."""
    from perfmodel.topology.from_text.network_text import (
        read_gpudirect,
        read_intra,
        read_peer_access,
    )

    text, folded = phrase.text, phrase.text.lower()
    if phrase.subject in {"gpus", "nic", "pcie", "power_limit"}:
        return {phrase.subject: text}
    if phrase.subject == "p2p":
        return {"p2p": True if folded == "p2p" else read_peer_access(text)}
    if phrase.subject == "gpudirect":
        return {"gpudirect": read_gpudirect(text)}
    if phrase.subject == "nvlink":
        named = re.search(r"(\b(?:no|without)\s+)?nv[\s-]?switch", folded)
        switch = {} if named is None else {"nvswitch": named[1] is None}
        return switch if (named is not None and named[0] == folded) else {"nvlink": text, **switch}
    if phrase.subject == "sockets":
        domains = read_intra(text).domains
        counted = {} if domains is None else {"sockets": domains}
        return counted | ({"cpu": phrase.words["cpu"].lower()} if "cpu" in phrase.words else {})
    return {}
