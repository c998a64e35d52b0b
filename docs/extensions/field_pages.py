"""Pages of all fields of a file, from the JSON Schema that `perfmodel schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

LARGEST_COUNT = 2**31 - 1
"""Above that a maximum says what a computer holds, not what is meant."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the fields of a section are described.

    `page`: the name of its file without suffix.
    `path`: the section as a reader writes it, such as ``parallel.pipeline``.
    `name`: of its definition in the schema.
    """

    page: str
    path: str
    name: str

    @property
    def anchor(self) -> str:
        """Name of the target of links."""
        return "fields-" + re.sub(r"[^a-z0-9]+", "-", f"{self.page} {self.name}".lower()).strip("-")


def scenario_pages(schema: Schema) -> dict[str, str]:
    """Return Markdown by page: one for each section of a scenario, and those without fields."""
    places: dict[str, Place] = {}
    for name, node in schema["properties"].items():
        for path, definition in _sections(schema, node, name):
            places.setdefault(definition, Place(name, path, definition))
    pages = {}
    for name, node in schema["properties"].items():
        if own := [each for each, place in places.items() if place.page == name]:
            about = node.get("description") or _description(schema["$defs"][own[0]])
            pages[name] = _page(f"`{name}:`", about, own, places, schema)
    plain = {name: node for name, node in schema["properties"].items() if name not in pages}
    rows = _table(plain, schema.get("required", ()), places)
    pages["others"] = "\n".join(["# Fields without a section", "", *rows, ""])
    return pages


def topology_pages(schema: Schema) -> dict[str, str]:
    """Return Markdown by page: one for each kind of file that describes hardware."""
    files: dict[str, list[str]] = {}
    for name in _definitions(schema):
        files.setdefault(_kind(schema["$defs"][name]), []).append(name)
    places: dict[str, Place] = {}
    for kind, names in files.items():
        for number, name in enumerate(names):
            other = ", device by device" if number else ""
            places.setdefault(name, Place(kind, f"kind: {kind}{other}", name))
            for path, definition in _sections(schema, schema["$defs"][name], ""):
                places.setdefault(definition, Place(kind, path, definition))
    pages = {}
    for kind in files:
        own = [name for name, place in places.items() if place.page == kind]
        about = _description(schema["$defs"][own[0]])
        pages[kind] = _page(f"`kind: {kind}`", about, own, places, schema)
    return pages


def _definitions(node: Schema) -> Iterator[str]:
    """Names of the definitions that a part refers to itself, not by its fields."""
    if "$ref" in node:
        yield node["$ref"].rpartition("/")[2]
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _definitions(option)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), Mapping):
            yield from _definitions(node[inner])


def _sections(schema: Schema, node: Schema, path: str) -> Iterator[tuple[str, str]]:
    """Paths and names of the definitions below a part; each before what it contains."""
    for name in _definitions(node):
        definition = schema["$defs"][name]
        if "properties" not in definition:
            continue
        several = len({*_definitions(node)}) > 1
        kind = _kind(definition) if several else ""
        at = f"{path}, kind: {kind}" if kind else path
        yield at, name
        yield from _sections(schema, definition, path)
    for name, inner in node.get("properties", {}).items():
        yield from _sections(schema, inner, f"{path}.{name}".removeprefix("."))


def _kind(definition: Schema) -> str:
    """What `kind` says in a section; empty: it has none."""
    kind = definition.get("properties", {}).get("kind", {})
    return str(kind.get("const") or " or ".join(kind.get("enum", ())))


def _page(
    title: str, about: str, names: list[str], places: Mapping[str, Place], schema: Schema
) -> str:
    lines = [f"# {title}", "", about, ""]
    for name in names:
        definition = schema["$defs"][name]
        own = _description(definition)
        lines += [f"({places[name].anchor})=", f"## `{places[name].path}`", ""]
        lines += [own, ""] if own != about else []
        fields = definition["properties"]
        lines += [*_table(fields, definition.get("required", ()), places), ""]
    return "\n".join(lines)


def _table(fields: Schema, required: Any, places: Mapping[str, Place]) -> Iterator[str]:
    """Rows of Markdown, one for each field."""
    yield "| field | takes | default | is |"
    yield "|---|---|---|---|"
    for name, node in fields.items():
        default = "required" if name in required else _default(node)
        cells = [f"`{name}`", type_words(node, places), default, _description(node)]
        yield f"| {' | '.join(_cell(each) for each in cells)} |"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def _default(node: Schema) -> str:
    value = node.get("default")
    if value is None or value in ([], {}):
        return "" if "default" not in node or value is None else "none"
    if isinstance(value, Mapping):
        return "as listed there"
    words = value if isinstance(value, str) else json.dumps(value)
    return f"`{words}`"


def _description(node: Schema) -> str:
    """What a part says of itself, as Markdown."""
    text = re.sub(r"``(.+?)``", r"`\1`", str(node.get("description", "")))
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = plain
    return "".join(parts)


def type_words(node: Schema, places: Mapping[str, Place]) -> str:
    """Say in words what a field takes."""
    if "$ref" in node:
        return _link(node["$ref"].rpartition("/")[2], places)
    options = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    if options:
        words = [type_words(each, places) for each in options if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in node:
        return f"`{json.dumps(node['const']).strip(chr(34))}`"
    if "enum" in node:
        return ", ".join(f"`{each}`" for each in node["enum"])
    kinds = {"array": _list_words, "string": _text_words, "object": _mapping_words}
    kind = str(node.get("type", "anything"))
    if kind in kinds:
        return kinds[kind](node, places)
    names = {"boolean": "`true` or `false`", "integer": "whole number", "number": "number"}
    return names.get(kind, kind) + _bounds(node)


def _link(name: str, places: Mapping[str, Place]) -> str:
    if name not in places:
        return "a section"
    return f"[`{places[name].path}`](#{places[name].anchor})"


def _list_words(node: Schema, places: Mapping[str, Place]) -> str:
    return f"list of {type_words(node.get('items', {}), places)}"


def _mapping_words(node: Schema, places: Mapping[str, Place]) -> str:
    values = node.get("additionalProperties")
    inner = type_words(values, places) if isinstance(values, Mapping) else "anything"
    return f"names, each with {inner}"


def _text_words(node: Schema, places: Mapping[str, Place]) -> str:
    del places
    examples = node.get("examples")
    return f"text such as `{examples[0]}`" if examples else "text"


def _bounds(node: Schema) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    if node.get("type") == "integer" and above is not None:
        low, above = above + 1, None
    words = {"from": low, "above": above, "to": node.get("maximum")}
    words["below"] = node.get("exclusiveMaximum")
    return "".join(
        f" {word} {bound:,}"
        for word, bound in words.items()
        if bound is not None and bound < LARGEST_COUNT
    )
