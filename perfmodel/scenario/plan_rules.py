"""Faults between the parts of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import one_of
from perfmodel.scenario.plan import PlanSection


def plan_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    """Faults between the parts of a plan: field within it, what was found, what is allowed."""
    currency = plan.paid_in
    for field, money in plan.money.items():
        if money.currency != currency:
            found = f"{money.amount:g} {money.currency}"
            yield field, found, f"{currency}, as everywhere in this plan: nothing is converted"
    if plan.budget is not None and not plan.budget.amount:
        yield "budget", f"0 {currency}", "more than zero"
    names = [candidate.name for candidate in plan.candidates]
    yield from _twice("candidates", names)
    yield from _twice("upgrades", [upgrade.name for upgrade in plan.upgrades])
    yield from _of_candidates(plan)
    for at, upgrade in enumerate(plan.upgrades):
        yield from _of_plan(f"upgrades.{at}.set", upgrade.set, ("plan.failures.",))
        for place, name in enumerate(upgrade.candidates or ()):
            if name not in names:
                yield f"upgrades.{at}.candidates.{place}", repr(name), one_of(names, name)


def _of_candidates(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    for at, candidate in enumerate(plan.candidates):
        if candidate.fabric is None and candidate.nodes[-1] > 1:
            nodes = candidate.nodes[-1]
            allowed = f"the network between the {nodes} nodes, such as 'rail-optimised'"
            yield f"candidates.{at}.fabric", "nothing", allowed
        if candidate.mtbf_per_node is not None and plan.failures is None:
            yield f"candidates.{at}.mtbf_per_node", "no 'failures'", "'failures' beside it"
        yield from _of_plan(f"candidates.{at}.set", candidate.set or {}, ())


_HARDWARE = {"cluster"} | {f"cluster.{n}" for n in ("node", "nodes", "gpus_per_node", "mixed")}
"""What the price, power and memory of a candidate stand for."""


def _of_plan(
    field: str, changes: Mapping[str, Any], allowed: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Fields that cannot be set for one candidate: the question's, and what a candidate is."""
    for name in changes:
        if name in _HARDWARE:
            what = "a field of the candidate itself"
            yield f"{field}.{name}", what, "one of a step; hardware is a candidate, with its price"
        if name.partition(".")[0] in {"plan", "sweep", "perfmodel"} and not name.startswith(
            allowed
        ):
            which = (
                "a field of the question, or of plan.failures" if allowed else "one of the question"
            )
            yield f"{field}.{name}", "a field that is none of a training step", which


def _twice(kind: str, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for at, name in enumerate(names):
        if name in names[:at]:
            yield f"{kind}.{at}.name", repr(name), f"a name that no other of the {kind} has"
