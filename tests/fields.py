"""Does every field of a schema act? Its fields, other values for each, and what came of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from perfmodel.errors import InputError, TopologyError

Document = dict[str, Any]
Answer = Callable[[Document], object]
"""The answer to a document; raises `InputError` where it is refused."""


def list_fields(model: type[BaseModel], document: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields of a model, inside sections that the document has as well.

    From ``model_fields``, so that a new field is in it without a change of any test.
    """
    for name, info in model.model_fields.items():
        field = info.alias or name
        value = document.get(field) if isinstance(document, Mapping) else None
        members = value if isinstance(value, list) else [value]
        inner = [m for m in _models_in(info.annotation) if _fits(m, members)]
        if not inner or value is None:
            yield f"{prefix}{field}"
        elif isinstance(value, list):
            for at, member in enumerate(value):
                yield from list_fields(inner[0], member, f"{prefix}{field}.{at}.")
        elif set(value) & _names(inner[0]):
            yield from list_fields(inner[0], value, f"{prefix}{field}.")
        else:  # sections by name
            for key, member in value.items():
                yield from list_fields(inner[0], member, f"{prefix}{field}.{key}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _names(model: type[BaseModel]) -> set[str]:
    return {info.alias or name for name, info in model.model_fields.items()}


def _fits(model: type[BaseModel], members: Sequence[Any]) -> bool:
    """Whether the members are sections of this model, or sections of it by name."""
    if not all(isinstance(member, Mapping) for member in members):
        return False
    inside = [value for member in members for value in member.values()]
    return all(set(member) <= _names(model) for member in members) or all(
        isinstance(value, Mapping) and set(value) <= _names(model) for value in inside
    )


# ---------------------------------------------------------------- other values


def other_values(model: type[BaseModel], document: Document, field: str) -> list[Any]:
    """Values that a field may have by its schema, besides the one that it has, or by default."""
    schema = _schema_of(model)
    parts: list[Mapping[str, Any]] = [schema]
    for part in field.split("."):
        parts = [inner for each in parts for inner in _inside(each, part, schema)]
    current = value_at(document, field)
    if current is None:
        current = next((each["default"] for each in parts if "default" in each), None)
    values = [value for each in parts for value in _values(each, current)]
    return [value for value in values if value != current]


@cache
def _schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema()


def _alternatives(
    part: Mapping[str, Any], schema: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    if "$ref" in part:
        yield from _alternatives(schema["$defs"][part["$ref"].rpartition("/")[2]], schema)
    elif "anyOf" in part or "oneOf" in part:
        for each in part.get("anyOf") or part["oneOf"]:
            yield from _alternatives(each, schema)
    else:
        yield part


def _inside(
    part: Mapping[str, Any], name: str, schema: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    for each in _alternatives(part, schema):
        inner = each.get("properties", {}).get(name)
        if inner is None and name.isdigit():
            inner = each.get("items")
        if inner is None and isinstance(each.get("additionalProperties"), Mapping):
            inner = each["additionalProperties"]
        if inner is not None:
            default = {"default": inner["default"]} if "default" in inner else {}
            yield from ({**other, **default} for other in _alternatives(inner, schema))


def _values(part: Mapping[str, Any], current: Any) -> Iterator[Any]:
    if "const" in part or "enum" in part:
        yield from part.get("enum", [part.get("const")])
    elif part.get("type") == "boolean":
        yield from (True, False)
    elif part.get("type") in {"integer", "number"}:
        number = current if isinstance(current, int | float) and current else 1
        yield from (number * 2, number * 3, number / 2 if part["type"] == "number" else 1)
    elif part.get("type") == "string" and part.get("examples"):
        text = current if isinstance(current, str) else part["examples"][0]
        match = re.fullmatch(r"([\d_.e+-]+)( .*)", text)
        assert match is not None, text
        number = float(match[1]) or 1.0
        yield from (f"{number * factor:g}{match[2]}" for factor in (2.0, 0.5, 1.0, 1000.0))


# ---------------------------------------------------------------- what comes of them


def value_at(document: Any, field: str) -> Any:
    """The value of a dotted field; None where there is none."""
    for part in field.split("."):
        if isinstance(document, list):
            document = document[int(part)]
        elif isinstance(document, Mapping):
            document = document.get(part)
        else:
            return None
    return document


def with_value(document: Document, field: str, value: Any) -> Document:
    """A copy of a document with another value in one field."""
    changed = copy.deepcopy(document)
    *sections, last = field.split(".")
    inside: Any = changed
    for part in sections:
        inside = inside[int(part)] if isinstance(inside, list) else inside.setdefault(part, {})
    inside[last] = value
    return changed


def acts(document: Document, answer: Answer, field: str, values: Sequence[Any]) -> bool:
    """Whether some value of a field changes the answer, or all are refused by the field's name.

    That some are refused is not enough: one that is taken has to change something.
    """
    before = answer(document)
    taken = False
    for value in values:
        try:
            if answer(with_value(document, field, value)) != before:
                return True
            taken = True
        except InputError as error:
            section, _, last = field.rpartition(".")
            if last not in str(error) and not (section and section in str(error)):
                raise AssertionError(f"{field} = {value!r} is refused as {error}") from None
        except TopologyError:
            return True  # names the devices that the value has parted
    return not taken
