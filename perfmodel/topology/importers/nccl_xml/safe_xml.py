"""XML of unknown origin: no entities, no document types, limits on size and depth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from perfmodel.errors import Fault, InputError

DEEPEST = 64
MOST_ELEMENTS = 200_000
LARGEST_XML = 8 * 2**20
"""Characters: NCCL's file of a rack of 72 GPUs has half a million. In memory it is larger."""


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


class _Refused(Exception):
    pass


def parse_xml(text: str, file: str) -> tuple[Element, tuple[str, ...]]:
    """Parse a document; returns its root and its comments.

    Raises `InputError`: not well formed (as a truncated file is), a document type or entities
    (which can make a small file huge), too deep, or too many elements.
    """
    if len(text) > LARGEST_XML:
        raise InputError(
            Fault(
                "file",
                f"XML of {len(text) / 2**20:.0f} MiB",
                f"at most {LARGEST_XML // 2**20} MiB",
                file,
            )
        )
    reader = _Reader()
    # Named here, so that a document cannot name one that is unknown: `text` is decoded already.
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CommentHandler = reader.comments.append
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_entity
    parser.ExternalEntityRefHandler = _refuse_external
    reader.parser = parser
    try:
        parser.Parse(text.encode(), True)
    except _Refused as error:
        raise InputError(
            Fault(
                "file",
                str(error),
                "plain elements and attributes, as NCCL writes them",
                file,
                parser.CurrentLineNumber,
            )
        ) from None
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        cut = " (cut off?)" if reader.open else ""
        raise InputError(
            Fault(
                "file",
                f"XML that is not well formed: {reason}{cut}",
                "a whole document",
                file,
                error.lineno,
            )
        ) from None
    assert reader.root is not None
    return reader.root, tuple(reader.comments)


class _Reader:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.open: list[Element] = []
        self.comments: list[str] = []
        self.count = 0
        self.parser: Any = None

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MOST_ELEMENTS:
            raise _Refused(f"more than {MOST_ELEMENTS:,} elements")
        if len(self.open) >= DEEPEST:
            raise _Refused(f"elements nested deeper than {DEEPEST}")
        element = Element(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, _tag: str) -> None:
        self.open.pop()


def _refuse_doctype(*_: object) -> None:
    raise _Refused("a document type (<!DOCTYPE ...>)")


def _refuse_entity(*_: object) -> None:
    raise _Refused("an entity (<!ENTITY ...>)")


def _refuse_external(*_: object) -> int:
    raise _Refused("a reference to another file")
