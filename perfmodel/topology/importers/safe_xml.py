"""XML of unknown origin: no entities, no document types, limits on size and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NoReturn
from xml.parsers import expat

from perfmodel.errors import Fault, InputError, refuse_if

DEEPEST, MOST_ELEMENTS = 64, 200_000
LARGEST_XML = 8 * 2**20
"""Characters: NCCL's file of a rack of 72 GPUs has half a million. In memory it is larger."""

_REFUSED: Mapping[str, str] = {
    "StartDoctypeDeclHandler": "a document type (<!DOCTYPE ...>)",
    "EntityDeclHandler": "an entity (<!ENTITY ...>)",
    "ExternalEntityRefHandler": "a reference to another file",
}


@dataclass
class Element:
    """One element."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Children of one kind."""
        return [child for child in self.children if child.tag == tag]

    def get(self, name: str) -> str | None:
        """An attribute, without spaces around it; None where it is missing or empty."""
        return self.attributes.get(name, "").strip() or None

    def number(self, name: str) -> float | None:
        """An attribute as a number; None where there is none, or one that is not finite."""
        try:
            value = float(self.get(name) or "nan")
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def parse_xml(text: str, file: str) -> tuple[Element, tuple[str, ...]]:
    """Parse a document; returns its root and its comments.

    Raises `InputError`: not well formed (as a truncated file is), a document type or entities
    (which can make a small file huge), too deep, or too many elements.
    """
    refuse_if(
        len(text) > LARGEST_XML,
        "file",
        f"XML of {len(text) / 2**20:.0f} MiB",
        f"at most {LARGEST_XML // 2**20} MiB",
        file,
    )
    document, comments, elements = Element("", {}, 0), list[str](), count(1)
    begun = [document]
    # Named here, so that a document cannot name one that is unknown: `text` is decoded already.
    parser = expat.ParserCreate("utf-8")

    def refuse(what: str, *_: object) -> NoReturn:
        allowed = "plain elements and attributes, as NCCL writes them"
        raise InputError(Fault("file", what, allowed, file, parser.CurrentLineNumber))

    def start(tag: str, attributes: dict[str, str]) -> None:
        if next(elements) > MOST_ELEMENTS:
            refuse(f"more than {MOST_ELEMENTS:,} elements")
        if len(begun) > DEEPEST:
            refuse(f"elements nested deeper than {DEEPEST}")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        begun[-1].children.append(element)
        begun.append(element)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: begun.pop()
    parser.CommentHandler = comments.append
    for handler, what in _REFUSED.items():
        setattr(parser, handler, partial(refuse, what))
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        cut = " (cut off?)" if begun[1:] else ""
        raise InputError(
            Fault(
                "file",
                f"XML that is not well formed: {expat.ErrorString(error.code)}{cut}",
                "a whole document",
                file,
                error.lineno,
            )
        ) from None
    return document.children[0], tuple(comments)
