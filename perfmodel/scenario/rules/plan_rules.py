"""Faults between the parts of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import Fault, allowed_names
from perfmodel.scenario.sections.studies.plan import PlanSection
from perfmodel.scenario.source_map import SourceMap


def plan_is_valid(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find faults between the parts of a plan."""
    plan = parts.get("plan")
    for field, text, allowed in () if plan is None else _plan_faults(plan):
        yield origin.fault(f"plan.{field}", text, allowed)


def _plan_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
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
