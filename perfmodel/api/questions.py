"""From what a person writes in Python to objects: names, paths, mappings, fields as keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast, runtime_checkable

from perfmodel.errors import (
    Fault,
    InputError,
    changed_faults,
    describe_type,
    raise_faults,
    refuse_if,
)
from perfmodel.scenario import Scenario, change_scenario, load_scenario, make_scenario

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.topology.model import Topology


Question = Scenario | str | Path | Mapping[str, Any]
"""A scenario by name or path, as an object, or as a mapping of all its fields."""

Fields = Mapping[str, Any]
"""Dotted fields of a scenario and their values as written in a file."""

WHOLE = frozenset({"model", "cluster"})
"""Sections by which a mapping is a whole scenario, and not fields that change one."""

A_SCENARIO = (
    "a name such as 'resnet50-dgx-a100', a path, a Scenario, or a mapping with 'model', "
    "'compute', 'cluster' and 'training'"
)

_PYTHON_NAMES = {
    "SCENARIO": "scenario",
    "hosts": "nodes",
    "gpus_per_host": "gpus_per_node",
    "-j": "jobs",
    "--backend": "backend",
    "--scheduler": "scheduler",
    "--profile": "profile",
}
"""What faults call an argument, and what Python users call it."""


@runtime_checkable
class _Scalar(Protocol):
    """A number of NumPy or of another library of arrays."""

    def item(self) -> Any: ...


python_names = changed_faults(
    lambda f: replace(f, field=_PYTHON_NAMES.get(f.field, f.field.removeprefix("--set ")))
)
"""Decorates a function: reports faults under the names that Python users gave, not as flags."""


def as_scenario(
    question: object, fields: object = None, keywords: Fields | None = None
) -> Scenario:
    """Return a scenario with some fields changed.

    Parameters
    ----------
    question : Scenario, str, Path or mapping
        A name, a path, an object, or all fields.
    fields : mapping, optional
        Dotted fields and their values; None removes one.
    keywords : mapping, optional
        The same with two underscores for each dot, as keywords have them.

    Raises
    ------
    InputError
        Another type, a name that is not known, or what is wrong in the fields.

    Examples
    --------
    >>> as_scenario("resnet50-dgx-a100", {"cluster.nodes": 4}).cluster.nodes
    4
    >>> as_scenario("resnet50-dgx-a100", keywords={"cluster__nodes": 4}).cluster.nodes
    4
    """
    changes = _check_fields(fields) | {
        name.replace("__", "."): _plain(value) for name, value in (keywords or {}).items()
    }
    scenario = _find(question)
    if not changes:
        return scenario
    refuse_if(
        not scenario.origin.content,
        "scenario",
        "a Scenario made of sections",
        "a name, a path or a mapping, where fields are to be changed",
    )
    return change_scenario(scenario, changes, flags=tuple(changes))


def _find(question: object) -> Scenario:
    if isinstance(question, Scenario):
        return question
    if isinstance(question, str | Path):
        return load_scenario(question)
    if isinstance(question, Mapping):
        return make_scenario(_plain(question))
    raise refused("scenario", question, A_SCENARIO)


def refused(name: str, value: object, allowed: str) -> InputError:
    """Return the error about an argument of another type."""
    return InputError(Fault(name, describe_type(value), allowed))


def _check_fields(fields: object) -> dict[str, Any]:
    if fields is None:
        return {}
    refuse_if(
        not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields),
        "fields",
        describe_type(fields),
        "a mapping of dotted fields such as {'cluster.nodes': 4}",
    )
    return dict(_plain(fields))


def _plain(value: Any) -> Any:
    """Turn Python's objects into what a file holds: lists, mappings, numbers and text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set | range):
        return [_plain(part) for part in value]
    if isinstance(value, _Scalar) and getattr(value, "shape", None) == ():
        return value.item()
    return value


def is_whole(question: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a mapping has the sections of a whole scenario.

    Examples
    --------
    >>> is_whole({"cluster.nodes": 4})
    False
    """
    return isinstance(question, Mapping) and WHOLE.issubset(
        str(name).partition(".")[0] for name in question
    )


def as_columns(questions: Sequence[object], keywords: Fields) -> dict[str, Scenario]:
    """Label the scenarios of a comparison; a mapping of fields is a variation of the first one.

    Parameters
    ----------
    questions : sequence
        Scenarios and variations; or one list of them, or one mapping of labels to them.
    keywords : mapping
        Fields to change in all of them, with two underscores for each dot.
    """
    members = _members(questions)
    refuse_if(not members, "scenarios", "none", f"one or more, each {A_SCENARIO}")
    columns: dict[str, Scenario] = {}
    for at, (label, member) in enumerate(members, 1):
        varies = isinstance(member, Mapping) and not is_whole(member)
        refuse_if(varies and at == 1, "scenarios.0", describe_type(member), A_SCENARIO)
        changes = cast("Fields", member) if varies else {}
        scenario = as_scenario(members[0][1] if varies else member, changes)
        scenario = as_scenario(scenario, keywords=keywords)
        changed = ", ".join(f"{field}={value}" for field, value in changes.items())
        name = label or changed or scenario.name
        columns[name if name not in columns else f"{name} ({at})"] = scenario
    return columns


def _members(questions: Sequence[object]) -> list[tuple[str, object]]:
    """Label ("" for none) of each column and what stands for it."""
    single = questions[0] if len(questions) == 1 else None
    if (
        isinstance(single, Mapping)
        and not is_whole(single)
        and all(isinstance(each, Scenario | str | Path | Mapping) for each in single.values())
    ):
        return [(str(name), each) for name, each in single.items()]
    return [("", each) for each in (single if isinstance(single, list | tuple) else questions)]


def as_profile(profile: object) -> Profile | None:
    """Return a profile by name or path, or as it is."""
    from perfmodel.calibrate import Profile, read_profile

    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, str | Path):
        return read_profile(str(profile))
    raise refused("profile", profile, "a name, a path or a Profile (perfmodel.read_profile)")


def as_topology(machine: object, nodes: int, fabric: Any, gpus: int | None) -> Topology:
    """Return a machine by name, path or graph, or as it is; `gpus`: of each node."""
    from perfmodel.topology import build_cluster, is_graph
    from perfmodel.topology.model import Topology

    if isinstance(machine, Topology):
        own = {"nodes": nodes != 1, "fabric": fabric, "gpus_per_node": gpus}
        allowed = "nothing beside a Topology, which has its own"
        raise_faults(Fault(name, "a value", allowed) for name, value in own.items() if value)
        return machine
    if isinstance(machine, str | Path) or is_graph(machine):
        return build_cluster(machine, nodes=nodes, fabric=fabric, gpus_per_node=gpus)
    raise refused(
        "topology", machine, "a name such as 'dgx-a100', a path, a NetworkX graph or a Topology"
    )


def as_sizes(sizes: object) -> list[int]:
    """Return sizes of messages in bytes: numbers, or text with units such as '1 MiB'."""
    from perfmodel.units import parse_bytes

    sizes = _plain(sizes)
    listed = [sizes] if isinstance(sizes, int | str) else sizes
    if not isinstance(listed, Iterable):
        raise refused("sizes", sizes, "bytes, or text with a unit such as '1 MiB', or several")
    numbers = [
        round(parse_bytes(size, f"sizes.{at}")) if isinstance(size, str) else _plain(size)
        for at, size in enumerate(listed)
    ]
    refuse_if(not numbers, "sizes", "none", "one or more")
    return numbers
