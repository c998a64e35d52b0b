"""A host in one line: "2 x rtx-4090, 10 GbE", "dgx-a100, 1 x 100 Gbit/s RoCE"."""

from __future__ import annotations

import re
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import validate_document
from perfmodel.scenario.sections.cluster import NodeSection

_COUNTED = re.compile(r"\s*\d{1,4}\s*x\s*\S.*", re.IGNORECASE)
_WATTS = re.compile(r"\d+(\.\d+)?\s*k?w")
MOST_CHARACTERS = 400


def is_host_in_words(text: str) -> bool:
    """Whether a text describes a host, and is no name: a number of GPUs, or parts after commas."""
    return len(text) <= MOST_CHARACTERS and bool(_COUNTED.fullmatch(text) or "," in text)


def read_words(text: str, field: str) -> NodeSection:
    """Read a host in one line: GPUs or a template, then what joins them, separated by commas.

    `field`: the field that has the text, for messages. Raises `InputError`: a part without meaning,
    or two of one kind; every fault.
    """
    first, *parts = (part.strip() for part in text.split(","))
    fields: dict[str, Any] = {"gpus" if _COUNTED.fullmatch(first) else "extends": first}
    faults: list[Fault] = []
    for part in parts:
        read = _read_part(part)
        if not read:
            allowed = (
                "NICs ('10 GbE', '2 x 100 Gbit/s RoCE'), 'NVLink bridge', 'PCIe gen4 x16', "
                "'500 W' for each GPU, 'no P2P' or 'two sockets'"
            )
            faults.append(Fault(field, repr(part), allowed))
        twice = sorted(fields.keys() & read.keys())
        faults += [Fault(field, f"{part!r}, beside another {key}", "each once") for key in twice]
        fields |= read
    if faults:
        raise InputError(faults)
    return validate_document(NodeSection, fields)


def _read_part(part: str) -> dict[str, Any]:
    from perfmodel.topology.from_text.intra_text import read_intra, read_peer_access
    from perfmodel.topology.from_text.network_text import names_network

    folded = part.lower()
    if _WATTS.fullmatch(folded):
        return {"power_limit": part}
    if "nv" in folded:
        named = re.search(r"(\b(?:no|without)\s+)?nv\s?switch", folded)
        switch = {} if named is None else {"nvswitch": named[1] is None}
        alone = named is not None and named[0] == folded
        return switch if alone else {"nvlink": part, **switch}
    if "p2p" in folded:
        allowed = True if folded == "p2p" else read_peer_access(part)
        return {} if allowed is None else {"p2p": allowed}
    if names_network(part) or re.match(r"\s*(\d+\s*x\s*)?\d+(\.\d+)?\s*g\w*", folded):
        return {"nic": part}
    if re.search(r"\bpci|\bgen\s?\d", folded):
        return {"pcie": part}
    domains = read_intra(part).domains
    return {"sockets": domains} if domains is not None else {}
