"""A host in one line: "2 x rtx-4090, 10 GbE", "dgx-a100, 1 x 100 Gbit/s RoCE"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import validate_document
from perfmodel.scenario.sections.cluster import NodeSection

if TYPE_CHECKING:
    from perfmodel.topology.from_text.grammar import Phrase

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

    first, _, rest = text.partition(",")
    fields: dict[str, Any] = {}
    if _COUNTED.fullmatch(first):
        rest = text
    else:
        fields["extends"] = first.strip()
    faults: list[Fault] = []
    phrases = read_phrases(rest)
    for phrase, before in zip(phrases, (None, *phrases), strict=False):
        read = _read_phrase(phrase)
        if before and _is_card(before, phrase, rest):
            fields["gpus"] += " PCIe"
        if not read:
            faults.append(
                Fault(
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
    if _COUNTED.fullmatch(first) and "gpus" not in fields:
        fields["gpus"], faults = first.strip(), []  # of a GPU that is not known, which is said
    if faults:
        raise InputError(faults)
    return validate_document(NodeSection, fields)


def _is_card(gpus: Phrase, slot: Phrase, text: str) -> bool:
    """Whether a slot behind GPUs says their form, too: "A100 PCIe4 x16"."""
    follows = re.search(re.escape(gpus.text) + r"\s+" + re.escape(slot.text), text)
    subjects = (gpus.subject, slot.subject) == ("gpus", "pcie")
    return subjects and follows is not None and "name" in slot.words and "form" not in gpus.words


def _read_phrase(phrase: Phrase) -> dict[str, Any]:
    """Fields of a node that a phrase states; none where it has no meaning."""
    from perfmodel.topology.from_text.intra_text import read_intra, read_peer_access
    from perfmodel.topology.from_text.network_text import read_gpudirect

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
        alone = named is not None and named[0] == folded
        return switch if alone else {"nvlink": text, **switch}
    if phrase.subject == "sockets":
        domains = read_intra(text).domains
        counted = {} if domains is None else {"sockets": domains}
        return counted | ({"cpu": phrase.words["cpu"]} if "cpu" in phrase.words else {})
    return {}
