"""Read YAML by libyaml, twenty times as fast, where that is sure to give what ruamel gives.

PyYAML brings libyaml's scanner; what a plain word means is decided here, by YAML 1.2. A document
with anything beyond plain mappings, lists and scalars is left to ruamel, and so is a faulty one, so
that there is one wording of faults.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_LEFT = re.compile(
    r"(?:^|[\s\[{,:])[&*!]\S|^%|<<|[\t\r\x85\u2028\u2029\ufeff]|[|>][-+0-9]*\s*$", re.MULTILINE
)
"""Anchors, aliases, tags, directives, merge keys, odd line ends and blocks of text, or what looks
like them."""

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_REAL = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_ODD = re.compile(
    r"[-+]?(?:0[box][0-9a-f_]+|(?=[0-9._])[0-9_]*\.?[0-9_]*(?:e[-+]?[0-9]*)?|\.inf|\.nan)"
    r"|[0-9]{4}-[0-9].*|=",
    re.IGNORECASE | re.DOTALL,
)
"""Numbers of other spellings, dates, and words that look like them."""

_WORDS = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}


class LeftToRuamel(Exception):
    """A document that only ruamel reads for certain."""


class LinedMapping(dict[Any, Any]):
    """A mapping that knows its lines as ruamel's do: ``lc.data[key][0]`` is one, from 0."""

    __slots__ = ("lc",)
    lc: SimpleNamespace


class LinedList(list[Any]):
    """A list that knows its lines: ``lc.data[index][0]``."""

    __slots__ = ("lc",)
    lc: SimpleNamespace


def parse_quickly(text: str) -> Any:
    """Parse one YAML 1.2 document.

    Parameters
    ----------
    text : str
        Of a file that ships: libyaml follows nesting of any depth until the stack ends.

    Raises
    ------
    LeftToRuamel
        There is no libyaml, the document is faulty or empty, or it holds something beyond plain
        mappings, lists and scalars.
    """
    if _LEFT.search(text):
        raise LeftToRuamel
    try:
        yaml = import_module("yaml")  # imported here: most commands read nothing large
        node = yaml.compose(text, Loader=yaml.CBaseLoader)
    except (ImportError, AttributeError):
        raise LeftToRuamel from None
    except yaml.YAMLError:
        raise LeftToRuamel from None
    if node is None:
        raise LeftToRuamel
    return _value(node)


def _value(node: Any) -> Any:
    if node.id == "scalar":
        return node.value if node.style in {"'", '"'} else _scalar(node.value)
    if node.id == "sequence":
        items = LinedList(_value(child) for child in node.value)
        items.lc = _lines((at, child) for at, child in enumerate(node.value))
        return items
    mapping = LinedMapping()
    marks = []
    for key_node, child in node.value:
        key = _value(key_node)
        if not isinstance(key, str | int) or key in mapping:
            raise LeftToRuamel
        mapping[key] = _value(child)
        marks.append((key, key_node))
    mapping.lc = _lines(marks)
    return mapping


def _lines(nodes: Any) -> SimpleNamespace:
    return SimpleNamespace(data={key: (node.start_mark.line,) for key, node in nodes})


def _scalar(text: str) -> Any:
    """What a plain word means in YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if _ODD.fullmatch(text):
        raise LeftToRuamel
    return text
