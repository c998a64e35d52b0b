"""Read YAML and JSON by libyaml, 15 times as fast as ruamel, where both give the same result.

PyYAML contains libyaml's scanner; plain scalars are converted here by the rules of YAML 1.2. ruamel
reads all documents with anything beyond plain mappings, lists and scalars, and faulty ones, so that
faults have one wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from perfmodel.files.bounds import DEEPEST

_UNSUPPORTED = re.compile(
    r"(?:^|[\s\[{,:])[&*!]\S|^%|<<|[\t\r\x85\u2028\u2029\ufeff]|[|>][-+0-9]*\s*$", re.MULTILINE
)
"""Anchors, aliases, tags, directives, merge keys, unusual line ends and blocks of text, or text
that resembles them."""

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_REAL = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[box][0-9a-f_]+|(?=[0-9._])[0-9_]*\.?[0-9_]*(?:e[-+]?[0-9]*)?|\.inf|\.nan)"
    r"|[0-9]{4}-[0-9].*|=",
    re.IGNORECASE | re.DOTALL,
)
"""Numbers in other notations, dates, and text that resembles them."""

_CONSTANTS = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}


class UnsupportedYaml(Exception):
    """A document that ruamel must read."""


class Lines:
    """Line of each entry of a mapping or a list: ``data[key][0]``, from 0."""

    __slots__ = ("data",)

    def __init__(self, data: dict[Any, tuple[int]]) -> None:
        self.data = data


class LinedMapping(dict[Any, Any]):
    """A mapping with ruamel's line numbers: ``lc.data[key][0]``, from 0."""

    __slots__ = ("lc",)
    lc: Lines


class LinedList(list[Any]):
    """A list with ruamel's line numbers: ``lc.data[index][0]``, from 0."""

    __slots__ = ("lc",)
    lc: Lines


def parse_with_libyaml(text: str, *, trusted: bool) -> Any:
    """Parse one YAML 1.2 document.

    `trusted`: whether the text ships or is short. Composing follows nesting until the stack ends;
        of others the levels are counted first, from events, which need no stack.

    Raises
    ------
    UnsupportedYaml
        There is no libyaml, the document is faulty, empty or too deep, or it holds something
        beyond plain mappings, lists and scalars.
    """
    if _UNSUPPORTED.search(text):
        raise UnsupportedYaml
    try:
        yaml = import_module("yaml")  # imported here: many commands read no file
        if not trusted:
            _check_levels(yaml.parse(text, Loader=yaml.CBaseLoader))
        node = yaml.compose(text, Loader=yaml.CBaseLoader)
    except (ImportError, AttributeError, UnicodeError):  # UnicodeError: half of a pair of codes
        raise UnsupportedYaml from None
    except yaml.YAMLError:
        raise UnsupportedYaml from None
    if node is None:
        raise UnsupportedYaml
    try:
        return _convert_node(node)
    except ValueError:  # more digits than Python converts
        raise UnsupportedYaml from None


def _check_levels(events: Iterable[Any]) -> None:
    """Raise `UnsupportedYaml` at the first level that no document may have."""
    level = 0
    for event in events:
        name = type(event).__name__
        if name in {"MappingStartEvent", "SequenceStartEvent"}:
            level += 1
            if level > DEEPEST:
                raise UnsupportedYaml
        elif name in {"MappingEndEvent", "SequenceEndEvent"}:
            level -= 1


def _convert_node(node: Any) -> Any:
    if node.id == "scalar":
        return node.value if node.style in {"'", '"'} else _parse_scalar(node.value)
    if node.id == "sequence":
        items = LinedList(map(_convert_node, node.value))
        items.lc = Lines({at: (child.start_mark.line,) for at, child in enumerate(node.value)})
        return items
    mapping, lines = LinedMapping(), {}
    for key_node, child in node.value:
        key = _convert_node(key_node)
        if type(key) not in {str, int} or key in mapping:
            raise UnsupportedYaml
        mapping[key] = _convert_node(child)
        lines[key] = (key_node.start_mark.line,)
    mapping.lc = Lines(lines)
    return mapping


def _parse_scalar(text: str) -> Any:
    """Convert a plain scalar by the rules of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0].isalpha():  # neither a number nor a date, most values are words
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if _AMBIGUOUS.fullmatch(text):
        raise UnsupportedYaml
    return text
