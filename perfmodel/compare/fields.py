"""Which fields of scenarios differ, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfmodel.compare.model import Field
from perfmodel.scenario import Scenario

NOT_COMPARED = frozenset({"sweep", "plan"})
"""Sections that `run` does not read."""

DEFAULT = "default"


def differing(scenarios: Sequence[Scenario]) -> tuple[Field, ...]:
    """Return the fields whose meaning differs, with the values as written in each scenario.

    Two ways to write one value ("25 MiB", "25600 KiB") are no difference.
    """
    asked = [each.model_dump(mode="json", exclude=set(NOT_COMPARED)) for each in scenarios]
    leaves = [dict(_leaves(each)) for each in asked]
    names = dict.fromkeys(name for each in leaves for name in each)
    found: dict[str, Field] = {}
    for name in names:
        if len({json.dumps(each.get(name), sort_keys=True) for each in leaves}) > 1:
            places = [_written(scenario, name) for scenario in scenarios]
            where = min((place for place, _ in places), key=len)
            values = tuple(_value(scenario, where) for scenario in scenarios)
            if len(set(values)) > 1:  # else it follows from a field that is written
                found.setdefault(where, Field(where, values))
    return tuple(found.values())


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted name; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _written(scenario: Scenario, name: str) -> tuple[str, Any]:
    """Where a field is written: itself, or a word that stands for its section; and the value."""
    here: Any = scenario.origin.content
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(here, Mapping):
            return ".".join(parts[:depth]), here
        if part not in here:
            return name, DEFAULT
        here = here[part]
    return name, here


def _value(scenario: Scenario, name: str) -> str:
    value = _written(scenario, name)[1]
    return value if isinstance(value, str) else json.dumps(value)
