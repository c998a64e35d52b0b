"""Validate a document against its pydantic model, with faults in the terms of the file."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perfmodel.errors import (
    Fault,
    FieldErrors,
    InputError,
    allowed_names,
    changed_faults,
    refuse_if,
)
from perfmodel.files.read import line_of, plain, read_yaml
from perfmodel.memo import T

SpecT = TypeVar("SpecT", bound=BaseModel)


def validate_document(model: type[SpecT], document: Any, file: str | None = None) -> SpecT:
    """Validate a document.

    Raises
    ------
    InputError
        With every fault at once.
    """
    try:
        data = plain(document)
        return model.model_validate(data)
    except ValidationError as error:
        faults: list[Fault] = []
        for number, details in enumerate(_drop_secondary_errors(error.errors())):
            cause = (details.get("ctx") or {}).get("error")
            if isinstance(cause, FieldErrors):
                faults += _faults_of_fields(details, cause, (document, data), file)
            else:
                faults.append(
                    _make_fault(details, model, (document, data), file, near=number < MOST_NEAREST)
                )
        raise InputError(dict.fromkeys(faults)) from None
    except InputError as error:
        raise error.located(file) if file else error from None


MOST_NEAREST = 100
"""Faults of a file for which the nearest name is searched: each search takes some ms."""


def load_document(model: type[SpecT], path: Path) -> SpecT:
    """Read a YAML file and validate it."""
    return validate_document(model, read_yaml(path), str(path))


def shipped(model: type[SpecT], module: str, name: str) -> Callable[[], SpecT]:
    """Return what reads a file that lies beside a module, once, when it is first asked for."""
    return cache(partial(load_document, model, Path(module).parent / name))


def _drop_secondary_errors(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Drop errors of too short lists that are short only because members are faulty."""
    with_members = {e["loc"][:depth] for e in errors for depth in range(len(e["loc"]))}
    return [e for e in errors if e["type"] != "too_short" or e["loc"] not in with_members]


def _faults_of_fields(
    details: ErrorDetails, cause: FieldErrors, documents: tuple[Any, Any], file: str | None
) -> Iterator[Fault]:
    """Make the faults that the validator of a section found in its fields."""
    document, data = documents
    section = tuple(_data_path(data, details["loc"]))
    for fault in cause.faults:
        path = [*section, *fault.field.split(".")]
        yield Fault(
            ".".join(map(str, path)), fault.found, fault.allowed, file, line_of(document, path)
        )


def _make_fault(
    details: ErrorDetails,
    model: type[BaseModel],
    documents: tuple[Any, Any],
    file: str | None,
    *,
    near: bool,
) -> Fault:
    """Make a fault in the terms of the file from an error of pydantic.

    `documents`: as read, with lines, and plain. `near`: whether to name the nearest name.
    """
    document, data = documents
    path = list(_data_path(data, details["loc"]))
    context = details.get("ctx") or {}
    cause = context.get("error")
    text, allowed = _quote_value(details["input"]), _describe_allowed(details)
    if isinstance(cause, InputError):
        text, allowed = cause.faults[0].found, cause.faults[0].allowed
    elif isinstance(cause, ValueError):
        allowed = str(cause)
    elif details["type"] == "missing":
        path.append(details["loc"][-1])
        members = _models_at(model, details["loc"])
        text = "no such section" if members else "nothing"
        allowed = _SECTION + _fields_listed(members) if members else "a value: it is required"
    elif details["type"] == "extra_forbidden":
        names = _field_names(_models_at(model, details["loc"][:-1]))
        fields = allowed_names(names, str(path[-1]) if near else None)
        text, allowed = f"an unknown field, {text}", f"the fields of this section, {fields}"
        if len(path) > 1 and str(path[-1]) in model.model_fields:
            allowed = f"{path[-1]!r} as a section of its own, not indented below {path[-2]!r}"
    elif details["type"].startswith("union_tag"):
        path.append(str(context["discriminator"]).strip("'"))
        text = repr(context["tag"]) if "tag" in context else "nothing"
        allowed = allowed_names(_union_tags(model, details), context.get("tag"))
    elif details["type"] == "literal_error":
        names = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        close = str(details["input"])[:_SHORT_CHARACTERS] if near else None
        allowed = allowed_names(names, close) if names else allowed
    elif not path and details["type"] in {"model_type", "dict_type"}:
        text = f"{_TYPE_NAMES.get(type(data), 'one value')} only"  # may be any file: not quoted
    elif details["type"] in {"model_type", "model_attributes_type"}:
        members = _models_at(model, details["loc"])
        allowed += _fields_listed(members) + _naming_field(members, path, details["input"])
    field = ".".join(str(part) for part in path) or "document"
    return Fault(field, text, allowed, file, line_of(document, path))


_SHORT_CHARACTERS = 80

_TYPE_NAMES = {str: "text", list: "a list", int: "a number", float: "a number", bool: "one word"}

_REPR = reprlib.Repr()
_REPR.maxlevel = 4
_REPR.maxdict = _REPR.maxlist = 12
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 2 * _SHORT_CHARACTERS


def _quote_value(value: object) -> str:
    text = "nothing" if value is None else _REPR.repr(value)
    return text if len(text) <= _SHORT_CHARACTERS else text[: _SHORT_CHARACTERS - 3] + "..."


_SECTION = "a section of fields"
_ALLOWED_BY_TYPE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
    "dict_type": _SECTION,
    "tuple_type": "a list",
    "list_type": "a list",
}


def _describe_allowed(details: ErrorDetails) -> str:
    message = details["msg"].removeprefix("Input should be ")
    if details["type"] == "too_short":
        return f"a list of at least {(details.get('ctx') or {}).get('min_length', 1)}"
    if details["type"] == "string_type" and isinstance(details["input"], bool | int | float):
        return f'text, in quotes: "{str(details["input"]).lower()}"'
    if details["type"] in {"list_type", "tuple_type"} and isinstance(details["input"], int | float):
        return f"a list such as [{details['input']}]"
    if details["type"] == "int_type" and isinstance(details["input"], float):
        return "a whole number, without point and exponent"
    most = (details.get("ctx") or {}).get("le")
    if isinstance(most, int) and most >= 1000:
        return f"at most {most:,}"
    return _ALLOWED_BY_TYPE.get(details["type"], message[:1].lower() + message[1:])


def _fields_listed(members: Sequence[type[BaseModel]]) -> str:
    """List fields of a section given as one value; of a union those that all members have."""
    fields = [set(_field_names([member])) for member in members]
    names = set.intersection(*fields) if fields else set()
    return f": {allowed_names(names).removeprefix('one of ')}" if names else ""


def _field_names(members: Sequence[type[BaseModel]]) -> list[str]:
    """Return the names of fields as a file has them."""
    return [info.alias or name for member in members for name, info in member.model_fields.items()]


_NAMING = ("name", "node", "kind")
"""Fields that have the name of what a section is about."""


def _naming_field(
    members: Sequence[type[BaseModel]], path: Sequence[str | int], value: object
) -> str:
    """Ask for the field of a section for which its user gave a name alone, or nothing."""
    infos = (info for member in members for info in member.model_fields.values())
    if value is None and not any(info.is_required() for info in infos):
        return ", or {} for its defaults"
    fields = {name for member in members for name in member.model_fields}
    name = next((each for each in _NAMING if each in fields), None)
    if name is None or not isinstance(value, str) or len(value) > _SHORT_CHARACTERS or "?" in value:
        return ""
    return f" (did you mean {'.'.join(map(str, [*path, name]))}={value}?)"


def _data_path(document: Any, loc: Sequence[str | int]) -> Iterator[str | int]:
    """Drop the names that pydantic puts into a path for the members of a union."""
    node = document
    for part in loc:
        if isinstance(node, Mapping) and str(part) in node:
            node = node[str(part)]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        yield part


def _union_tags(model: type[BaseModel], details: ErrorDetails) -> list[str]:
    context = details.get("ctx") or {}
    if expected := str(context.get("expected_tags", "")):
        return re.findall(r"'([^']*)'", expected)
    discriminator, members = str(context["discriminator"]).strip("'"), details["loc"]
    fields = [m.model_fields[discriminator] for m in _models_at(model, members)]
    return [tag for field in fields for tag in _literals(field.annotation)]


def _models_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[type[BaseModel]]:
    """Models allowed at a path; several where it is a union."""
    models: list[type[BaseModel]] = [model]
    for part in loc:
        fields = [m.model_fields[str(part)] for m in models if str(part) in m.model_fields]
        if fields:
            models = [m for info in fields for m in _models_in(info.annotation)]
        else:  # an index, a key of a mapping, or the name or tag of one member of a union
            tags = {
                m: {
                    m.__name__,
                    *(t for i in m.model_fields.values() for t in _literals(i.annotation)),
                }
                for m in models
            }
            models = [m for m in models if part in tags[m]] or models
    return models


def _literals(annotation: Any) -> list[str]:
    return [str(v) for v in get_args(annotation)] if get_origin(annotation) is Literal else []


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def require_finite(value: float, field: str) -> float:
    """Return a number that is neither infinite nor NaN, or raise `InputError`."""
    refuse_if(not math.isfinite(value), field, repr(value), "a finite number")
    return value


@contextmanager
def collect_faults(faults: list[Fault], file: str | None = None) -> Iterator[None]:
    """Add the faults of an error to those found before, and go on.

    `file`: that of the faults that name none.
    """
    try:
        yield
    except InputError as error:
        faults += (error.located(file) if file else error).faults


def faults_in(document: Any, path: Path) -> AbstractContextManager[None]:
    """Say of faults that name no file where they are in a document that was read from one."""
    return changed_faults(
        lambda fault: (
            fault
            if fault.file
            else replace(fault, file=str(path), line=line_of(document, fault.field.split(".")))
        )
    )


def in_file(file: str) -> AbstractContextManager[None]:
    """Say of faults that name no file that they are in this one."""
    return changed_faults(lambda fault: replace(fault, file=fault.file or file))


def attempt(faults: list[Fault], read: Callable[[], T]) -> T | None:
    """Return what is read; None where that fails, whose faults are added to those before."""
    with collect_faults(faults):
        return read()
    return None
