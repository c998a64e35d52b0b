"""Faults between sections that need nothing but the file, found even if other sections fail.

Faults between the parts of a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault, allowed_names
from perfmodel.files import is_file, is_folder
from perfmodel.scenario.model import Scenario, divisible_by, is_resized_by_flag
from perfmodel.scenario.sections.model import ModelSection, transformer_findings
from perfmodel.scenario.sections.strategies.auto import AutoStrategy
from perfmodel.scenario.sections.strategies.parameter_server import (
    ParameterServerStrategy,
    server_nodes,
)
from perfmodel.scenario.sections.studies.plan import PlanSection
from perfmodel.scenario.source_map import SourceMap


def plan_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    """Find faults between the parts of a plan: field within it, what was found, what is allowed."""
    currency = plan.paid_in
    for field, money in plan.money.items():
        if money.currency != currency:
            price = f"{money.amount:g} {money.currency}"
            yield field, price, f"{currency}, the currency of this plan: nothing is converted"
    if plan.budget is not None and not plan.budget.amount:
        yield "budget", f"0 {currency}", "more than zero"
    names = [candidate.name for candidate in plan.candidates]
    yield from _repeated_names("candidates", names)
    yield from _repeated_names("upgrades", [upgrade.name for upgrade in plan.upgrades])
    yield from _candidate_faults(plan)
    for index, upgrade in enumerate(plan.upgrades):
        yield from _change_faults(f"upgrades.{index}.set", upgrade.set, ("plan.failures.",))
        for position, name in enumerate(upgrade.candidates or ()):
            if name not in names:
                field = f"upgrades.{index}.candidates.{position}"
                yield field, repr(name), allowed_names(names, name)


def _candidate_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    for index, candidate in enumerate(plan.candidates):
        if candidate.fabric is None and candidate.nodes[-1] > 1:
            nodes = candidate.nodes[-1]
            allowed = f"the network between the {nodes} nodes, such as 'rail-optimised'"
            yield f"candidates.{index}.fabric", "nothing", allowed
        if candidate.mtbf_per_node is not None and plan.failures is None:
            yield f"candidates.{index}.mtbf_per_node", "no 'failures'", "'failures' beside it"
        yield from _change_faults(f"candidates.{index}.set", candidate.set or {}, ())


_HARDWARE = {"cluster"} | {f"cluster.{n}" for n in ("node", "nodes", "gpus_per_node", "mixed")}
"""Fields that a candidate gives itself, together with their price and power."""


def _change_faults(
    field: str, changes: Mapping[str, Any], allowed: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Find changes that no candidate may make: to its hardware, or outside the training step."""
    for name in changes:
        if name in _HARDWARE:
            expected = "a field of a training step; other hardware is another candidate"
            yield f"{field}.{name}", "a field of the candidate itself", expected
        section = name.partition(".")[0]
        if section in {"plan", "sweep", "perfmodel"} and not name.startswith(allowed):
            expected = "a field of a training step" + (", or of plan.failures" if allowed else "")
            yield f"{field}.{name}", f"a field of {section!r}", expected


def _repeated_names(kind: str, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{kind}.{index}.name", repr(name), f"a name that no other of the {kind} has"


_SECTIONS: Mapping[str, TypeAdapter[Any]] = {
    name: TypeAdapter(Scenario.model_fields[name].rebuild_annotation())
    for name in (
        "model", "compute", "strategy", "parallel", "cluster", "training", "scale", "events",
        "jobs", "plan", "library", "fidelity",
    )
}  # fmt: skip


def broken_rules(content: Mapping[str, Any], origin: SourceMap) -> list[Fault]:
    """Find faults between sections; sections that are faulty themselves are skipped.

    `content`: the file with its overrides, as plain values.
    """
    parts: dict[str, Any] = {}
    for name, adapter in _SECTIONS.items():
        try:
            parts[name] = adapter.validate_python(content[name])
        except (KeyError, ValidationError):
            continue
    for name in ("strategy", "parallel"):
        if name not in content:
            parts[name] = Scenario.model_fields[name].default
    faults: list[Fault] = []
    for rule in _RULES:
        faults += rule(parts, origin)
    return faults


def _files_exist(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    for section, key in (("model", "file"), ("model", "config"), ("compute", "times")):
        value = getattr(parts.get(section), key, None)
        if value is None:
            continue
        path: Path = origin.resolve(f"{section}.{key}", value)
        if key == "config" and is_folder(path):
            path /= "config.json"
        if not is_file(path):
            problem = "which is a folder" if is_folder(path) else "and there is no such file"
            yield origin.fault(f"{section}.{key}", f"{str(path)!r}, {problem}", "a readable file")


def _transformer_fits(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    model = parts.get("model")
    if model is None or model.transformer is None:
        return
    for field, text, allowed in transformer_findings(model.transformer):
        yield origin.fault(f"model.transformer.{field}", text, allowed)


