"""PCIe slots and NVLinks as fields of a composed host state them."""

from __future__ import annotations

import re

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.grammar import unread_words
from perfmodel.topology.from_text.intra_text import read_pcie


def read_slot(text: str, field: str) -> tuple[int, int]:
    """Generation and lanes of a slot; 16 lanes where none are stated.

    Raises `InputError`: no generation, or lanes that no slot has.

    Examples
    --------
    >>> read_slot("gen4 x8", "pcie"), read_slot("PCIe 5.0", "pcie")
    ((4, 8), (5, 16))
    """
    stated = text if re.search(r"pci", text, re.IGNORECASE) else f"PCIe {text}"
    generation, lanes = read_pcie(stated), re.search(r"x\s?(\d+)(?!\d)", text)
    count = int(lanes[1]) if lanes else 16
    if generation is None or unread_words(stated, "pcie") or count not in (1, 2, 4, 8, 16):
        raise InputError(Fault(field, repr(text), "a slot such as 'gen4 x16', of 1 to 16 lanes"))
    return int(generation.removeprefix("pcie")), count
