"""The variants of a sweep: every combination of its fields' values, each a scenario of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.files import check_rows, validate_document
from perfmodel.scenario import Scenario, change_scenario, scenario_digest
from perfmodel.scenario.load import change_content
from perfmodel.scenario.sections.variants import SweepSection


@dataclass(frozen=True, slots=True)
class Variant:
    """One point of a sweep.

    Parameters
    ----------
    index : int
        Position in the sweep, from 0.
    set : mapping of str to object
        The fields that the sweep sets, and their values as written.
    scenario : Scenario or None
        With these values; None where they do not make one.
    digest : str
        Equal for equal scenarios.
    fault : str
        Why there is no scenario.
    """

    index: int
    set: Mapping[str, Any]
    scenario: Scenario | None
    digest: str
    fault: str = ""


def variants(
    scenario: Scenario,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    zip: Mapping[str, Sequence[Any]] | None = None,  # noqa: A002  (the word of the file)
) -> tuple[Variant, ...]:
    """Return the variants of a scenario, the last field varying fastest.

    Each asks about one size: the whole cluster.

    Parameters
    ----------
    scenario : Scenario
        As it was loaded, with ``sweep`` unless `grid` or `zip` is given.
    grid, zip : mapping of str to sequence, optional
        Instead of those of ``sweep``.

    Raises
    ------
    InputError
        No sweep, fields that a scenario does not have, and values that cannot stand in them; all
        faults at once. Values that are sound by themselves but not together make a variant without
        a scenario.

    Examples
    --------
    >>> from perfmodel.scenario import load_scenario
    >>> here = load_scenario("bucket-size-slow-ethernet")
    >>> [v.set for v in variants(here, grid={"strategy.bucket_cap": ["1 MiB", "25 MiB"]})]
    [{'strategy.bucket_cap': '1 MiB'}, {'strategy.bucket_cap': '25 MiB'}]
    """
    section = _section(scenario, grid, zip)
    base = change_scenario(scenario, {"sweep": None})
    alike = base.model_dump(exclude={"sweep"}) == scenario.model_dump(exclude={"sweep"})
    changed = f"{scenario.name!r} is not as it was loaded: use perfmodel.scenario.change_scenario"
    check_rows((not alike, changed))
    base = change_scenario(base, {"scale": None})
    raise_faults(dict.fromkeys(_find_faults(scenario, base, section)))
    from_flag = scenario.origin.from_flag("sweep")
    listed = []
    for index, (places, values) in enumerate(_combine_values(section)):
        located = (
            {} if from_flag else {n: scenario.origin.locate(at)[1] for n, at in places.items()}
        )
        lines = {field: line for field, line in located.items() if line is not None}
        listed.append(
            make_variant(
                base,
                index,
                values,
                lines=lines,
                flags=() if base.origin.file and lines else tuple(values),
            )
        )
    return tuple(listed)


def make_variant(
    base: Scenario,
    index: int,
    changes: Mapping[str, Any],
    *,
    labels: Mapping[str, Any] | None = None,
    lines: Mapping[str, int] = MappingProxyType({}),
    flags: Sequence[str] = (),
    describe: Callable[[InputError], str] = str,
) -> Variant:
    """Return a scenario with changes as a variant, or why they make none.

    `labels`: what to call it by; default: the changes.
    `lines`, `flags`: where the values come from, for messages.
    `describe`: writes an error as text.
    """
    named = changes if labels is None else labels
    try:
        scenario = change_scenario(base, changes, lines=lines, flags=flags)
    except InputError as error:
        content, _, _ = change_content(base, changes, {}, ())
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        digest = hashlib.sha256(f"no scenario: {text}".encode()).hexdigest()
        return Variant(index, named, None, digest, describe(error))
    return Variant(index, named, scenario, scenario_digest(scenario))


def _section(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]] | None,
    together: Mapping[str, Sequence[Any]] | None,
) -> SweepSection:
    if grid is not None or together is not None:
        return validate_document(
            SweepSection, {"grid": dict(grid or {}), "zip": dict(together or {})}
        )
    if scenario.sweep is None:
        raise scenario.fault(
            "sweep",
            "nothing",
            "a section 'sweep' such as {grid: {strategy.bucket_cap: [1 MiB, 25 MiB]}}",
        )
    return scenario.sweep


def _combine_values(
    section: SweepSection,
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Yield the place of each value of a variant in the file, and the value, both by field."""
    for *at, row in itertools.product(
        *[range(len(values)) for values in section.grid.values()],
        range(min((len(values) for values in section.zip.values()), default=1)),
    ):
        chosen = [("grid", field, n) for field, n in zip(section.grid, at, strict=True)]
        chosen += [("zip", field, row) for field in section.zip]
        values = {field: getattr(section, part)[field][n] for part, field, n in chosen}
        yield {field: f"sweep.{part}.{field}.{n}" for part, field, n in chosen}, values


def _find_faults(scenario: Scenario, base: Scenario, section: SweepSection) -> Iterator[Fault]:
    """Yield the faults of single values by themselves, not of their combination with others."""
    for part, field, values in section.axes:
        for at, value in enumerate(values):
            place = f"sweep.{part}.{field}.{at}"
            content, _, broken = change_content(base, {field: value}, {}, ())
            faults = list(broken)
            try:
                validate_document(Scenario, content)
            except InputError as error:
                own = re.compile(rf"(--set )?{re.escape(field)}(\..*)?")
                faults += [fault for fault in error.faults if own.fullmatch(fault.field)]
            yield from (scenario.origin.fault(place, f.found, f.allowed) for f in faults)


def without_curve(scenario: Scenario) -> Scenario:
    """Drop all sizes but the whole cluster's."""
    if scenario.scale is None:
        return scenario
    content = {name: part for name, part in scenario.origin.content.items() if name != "scale"}
    return scenario.model_copy(update={"scale": None}).with_origin(
        replace(scenario.origin, content=content)
    )
