"""Read a scenario: file, ``--set`` overrides, every fault at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfmodel.errors import Fault, InputError, changed_faults, refuse_if
from perfmodel.files import (
    collect_faults,
    find_file,
    plain,
    read_text,
    read_yaml,
    validate_document,
)
from perfmodel.files.read import first_comment, parse_yaml
from perfmodel.scenario.model import Scenario
from perfmodel.scenario.rules import broken_rules
from perfmodel.scenario.source_map import SourceMap, format_fields, line_map

_OVERRIDE = re.compile(r"(?P<field>[a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)=(?P<value>.*)", re.DOTALL)
_NAMED_SECTIONS = {
    "strategy": "kind",
    "strategy.hook": "kind",
    "cluster.fabric": "kind",
    "cluster.node": "extends",
}
"""Sections that a name alone may stand for, and their field that has it."""


def load_scenario(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario by name or path, with fields replaced by ``a.b=VALUE``.

    Parameters
    ----------
    name_or_path : str or Path
        A file, or the name of one in ``scenarios/`` here, of the user or shipped.
    overrides : sequence of str
        As given to ``--set``: a dotted field, ``=``, and a value by the rules of YAML.

    Raises
    ------
    InputError
        With every fault of the file and of the overrides.
    """
    path = find_file(str(name_or_path), "scenarios", field="SCENARIO")
    document = read_yaml(path)
    refuse_if(
        not isinstance(document, Mapping),
        "document",
        "a list only" if isinstance(document, list) else "one value only",
        "the fields of a scenario",
        str(path),
        1,
    )
    faults: list[Fault] = []
    content = copy.deepcopy(plain(document))
    flags, notes = [], list[str]()
    for text in overrides:
        with collect_faults(faults):
            flags.append(_apply_override(content, text, notes))
    origin = SourceMap(
        name=path.stem,
        question=first_comment(read_text(path)),
        file=str(path),
        lines=line_map(document),
        flags=tuple(flags),
        content=content,
        notes=tuple(notes),
    )
    question = Fault("question", "no comment", "a first line '# <the question>?'", str(path), 1)
    return _validate_content(content, origin, faults if origin.question else [*faults, question])


def make_scenario(content: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Make a scenario from its fields, as a file would have them.

    Parameters
    ----------
    content : mapping of str to object
        Sections, and dotted fields in or instead of them; sizes, rates and times with units.
        `perfmodel` may be left out.
    name : str
        For titles; relative paths in it are relative to the working directory.

    Raises
    ------
    InputError
        With every fault.

    Examples
    --------
    >>> make_scenario({
    ...     "model": {"name": "resnet50"}, "compute": {"precision": "bf16"},
    ...     "cluster": {"node": "dgx-a100"}, "training": {"batch_per_gpu": 256},
    ... }).cluster.node
    'dgx-a100'
    """
    plain_content = copy.deepcopy(
        {field: value for field, value in content.items() if "." not in field}
    )
    faults: list[Fault] = []
    for field, value in content.items():
        if "." in field:
            with collect_faults(faults):
                _replace_field(plain_content, field, value)
    return _validate_content(plain_content, SourceMap(name=name, content=plain_content), faults)


def _validate_content(
    content: Mapping[str, Any], origin: SourceMap, faults: Sequence[Fault]
) -> Scenario:
    """Make a scenario from plain values, or raise all faults at once."""
    all_faults, scenario = list(faults), None
    try:
        scenario = validate_document(Scenario, content)
    except InputError as error:
        all_faults += [_locate_fault(fault, origin) for fault in error.faults]
    all_faults += broken_rules(content, origin, scenario)
    if all_faults or scenario is None:
        raise InputError(sorted(dict.fromkeys(all_faults), key=lambda f: f.line or 0))
    return scenario.with_origin(origin)


def change_scenario(
    scenario: Scenario,
    changes: Mapping[str, Any],
    *,
    lines: Mapping[str, int] = MappingProxyType({}),
    flags: Sequence[str] = (),
) -> Scenario:
    """Return a scenario with other values in some fields, validated like a file.

    Parameters
    ----------
    scenario : Scenario
        As it was loaded.
    changes : mapping of str to object
        Dotted fields, as for ``--set``, and their values as written in a file (sizes, rates and
        times with units); None as null in a file.
    lines : mapping of str to int
        Line of the new values in the file, by field.
    flags : sequence of str
        The fields that a flag gave.

    Raises
    ------
    InputError
        With every fault.
    ValueError
        The scenario is not as it was loaded, so its file no longer describes it.

    Examples
    --------
    >>> scenario = load_scenario("bucket-size-slow-ethernet")
    >>> change_scenario(scenario, {"strategy.bucket_cap": "50 MiB"}).strategy.bucket_cap
    52428800.0
    """
    return _validate_content(*change_content(scenario, changes, lines, flags))


def change_content(
    scenario: Scenario, changes: Mapping[str, Any], lines: Mapping[str, int], flags: Sequence[str]
) -> tuple[dict[str, Any], SourceMap, list[Fault]]:
    """As `change_scenario`, before the new values are checked."""
    origin = scenario.origin
    content = copy.deepcopy(dict(origin.content))
    faults, notes = list[Fault](), list(origin.notes)
    for field, value in changes.items():
        with collect_faults(faults):
            said = _replace_field(content, field, value)
            notes += said if field in flags else ()

    def is_changed(place: str) -> bool:
        return any(place == field or place.startswith(f"{field}.") for field in changes)

    lines_left = {place: line for place, line in origin.lines.items() if not is_changed(place)}
    flags_left = [flag for flag in origin.flags if not is_changed(flag)]
    return (
        content,
        replace(
            origin,
            content=content,
            lines={**lines_left, **lines},
            flags=tuple(dict.fromkeys([*flags_left, *flags])),
            notes=tuple(notes),
        ),
        faults,
    )


def _locate_fault(fault: Fault, origin: SourceMap) -> Fault:
    placed = origin.fault(fault.field, fault.found, fault.allowed)
    return replace(placed, line=placed.line or (1 if placed.file else None))


def _apply_override(content: dict[str, Any], text: str, notes: list[str]) -> str:
    """Replace one field in place, and return its name; add to `notes` as `_replace_field` does."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        raise InputError(
            Fault("--set", repr(text), "FIELD=VALUE such as 'strategy.bucket_cap=50 MiB'")
        )
    field = match["field"]
    with changed_faults(lambda fault: replace(fault, field=f"--set {field}", line=None)):
        value = plain(parse_yaml(match["value"]))
    notes += _replace_field(content, field, value)
    return field


def _replace_field(content: dict[str, Any], field: str, value: object) -> tuple[str, ...]:
    """Replace one field in place, and say what its section took along or left.

    Raises `InputError`: the field is inside of what has no fields.
    """
    *outer, last = field.split(".")
    section: Any = content
    for depth, key in enumerate([*outer, last]):
        inside = ".".join(outer[:depth])
        if allowed := _missing_key(section, key, inside):
            raise InputError(Fault(f"--set {field}", f"{inside} = {section!r}", allowed))
        if depth < len(outer):
            section = _open_section(section, key, f"{inside}.{key}".lstrip("."))
    # A copy: fields that follow may be inside of it, and the caller's value serves others as well.
    if isinstance(section, list):
        section[int(last)] = copy.deepcopy(value)
        return ()
    before, section[last] = section.get(last), copy.deepcopy(value)
    if _NAMED_SECTIONS.get(".".join(outer)) == last:
        kept = {name: own for name, own in section.items() if name != last}
        said = f"The new {field} keeps the rest of its section: {format_fields(kept)}."
        return (said,) if kept else ()
    if not isinstance(before, dict) or not isinstance(value, dict | str):
        return ()
    given = value if isinstance(value, dict) else (_NAMED_SECTIONS.get(field),)
    left = {name: own for name, own in before.items() if name not in given}
    said = f"The new {field} replaces a section that also had {format_fields(left)}: left out."
    return (said,) if left else ()


def _missing_key(section: Any, key: str, inside: str) -> str:
    """Return what is allowed where a key cannot be in a section or list, else nothing."""
    if isinstance(section, list):
        if key.isdecimal() and int(key) < len(section):
            return ""
        return f"{inside}.0 to {inside}.{len(section) - 1}" if section else f"{inside}=[...]"
    return "" if isinstance(section, dict) else "a field of a section"


def _open_section(outer: Any, key: str, inside: str) -> Any:
    """Return what a key holds, made a section where it is nothing or a name."""
    if isinstance(outer, list):
        return outer[int(key)]
    if outer.get(key) is None:
        outer[key] = {}
    elif isinstance(outer[key], str) and inside in _NAMED_SECTIONS:
        outer[key] = {_NAMED_SECTIONS[inside]: outer[key]}
    return outer[key]
