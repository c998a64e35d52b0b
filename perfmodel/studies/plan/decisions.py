"""Decisions of a plan: whether an upgrade pays, and the options that answer each question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from perfmodel.scenario import CandidateSection, UpgradeSection
from perfmodel.studies.plan.model import Answers, Pays, PlanOption, UpgradeOutcome
from perfmodel.studies.plan.time_to_train import HOURS_PER_YEAR


def one_off_price(upgrade: UpgradeSection, nodes: int) -> float | None:
    """Return the one-off price of an upgrade of some nodes; None where none is given."""
    if upgrade.price is not None:
        return upgrade.price.amount
    if upgrade.price_per_node is not None:
        return nodes * upgrade.price_per_node.amount
    return None


def compare_upgrade(
    upgrade: UpgradeSection, candidate: CandidateSection, before: PlanOption, after: PlanOption
) -> UpgradeOutcome:
    """Compare an option with the same option after an upgrade.

    `candidate`: of both options.
    `before`, `after`: `after` pays the upgrade's rent already, if it has one.
    """
    price = one_off_price(upgrade, before.nodes)
    if after.status != "ok":
        return UpgradeOutcome(upgrade.name, before, after, None, None, price, None, "unknown")
    saved_s = before.wall_s - after.wall_s
    saved = None if before.cost is None or after.cost is None else before.cost - after.cost
    payback_s = _payback_s(
        saved, price, after.wall_s, rented=upgrade.price_per_gpu_hour is not None
    )
    pays = _verdict(upgrade, saved, price, payback_s, life_s(candidate))
    return UpgradeOutcome(upgrade.name, before, after, saved_s, saved, price, payback_s, pays)


def life_s(candidate: CandidateSection) -> float | None:
    """Return the time of use of a purchase; seconds, None for a rented candidate."""
    bought = candidate.purchase
    return None if bought is None else bought.years * bought.utilisation * HOURS_PER_YEAR * 3600


def _payback_s(
    saved: float | None, price: float | None, wall_s: float, *, rented: bool
) -> float | None:
    """Return the training time until savings reach the price; seconds, None for never."""
    if saved is None or saved <= 0:
        return None
    if rented:
        return 0.0
    return None if price is None else price / saved * wall_s


def _verdict(
    upgrade: UpgradeSection,
    saved: float | None,
    price: float | None,
    payback_s: float | None,
    life: float | None,
) -> Pays:
    if price is None and upgrade.price_per_gpu_hour is None:
        return "no price"
    if saved is None:
        return "unknown"
    if payback_s is None:
        return "never"
    if life is not None and payback_s > life:
        return "not in its life"
    return "in this training" if price is None or price <= saved else "later"


def rank_upgrades(outcomes: list[UpgradeOutcome]) -> tuple[UpgradeOutcome, ...]:
    """Sort upgrades: soonest paid back first, then by savings; failed ones last."""

    def key(outcome: UpgradeOutcome) -> tuple[bool, bool, float, float]:
        never = outcome.payback_s is None
        return (
            outcome.saved_s is None,
            never,
            outcome.payback_s or 0.0,
            -(outcome.saved or outcome.saved_s or 0.0),
        )

    return tuple(sorted(outcomes, key=key))


def pareto_front(options: Iterable[PlanOption]) -> tuple[PlanOption, ...]:
    """Return the options that no other dominates in wall time and cost, quickest first.

    Options without a price are left out.
    """
    priced = [option for option in options if option.cost is not None]
    front: list[PlanOption] = []
    for option in sorted(priced, key=_quick_then_cheap):
        is_equal = bool(front) and _quick_then_cheap(option) == _quick_then_cheap(front[-1])
        if is_equal or not front or _cost(option) < _cost(front[-1]):
            front.append(option)
    return tuple(front)


def smallest_by_deadline(options: Iterable[PlanOption]) -> tuple[PlanOption, ...]:
    """Return the smallest cluster by deadline: each is quicker than all of as many GPUs or fewer.

    The first takes longest; for a deadline take the first one that meets it.
    """
    rungs: list[PlanOption] = []
    for option in sorted(options, key=lambda o: (o.gpus or 0, o.wall_s, _cost(o))):
        if not rungs or option.wall_s < rungs[-1].wall_s:
            rungs.append(option)
    return tuple(rungs)


def sure_fits(options: Sequence[PlanOption]) -> list[PlanOption]:
    """Return the options that may be answers: those of which it is sure that they fit memory.

    What is tight may run out of memory at the first step: it is bought only where nothing else
    fits.
    """
    sure = [option for option in options if option.step is not None and not option.step.tight]
    return sure or list(options)


def choose_answers(
    options: Sequence[PlanOption], deadline_s: float | None, budget: float | None
) -> Answers:
    """Choose the option for each question among those that run and fit.

    `options`: with status "ok".
    `deadline_s`: against expected wall times; seconds.
    """
    in_time = [o for o in options if deadline_s is not None and o.wall_s <= deadline_s]
    priced = [o for o in options if o.cost is not None]
    in_budget = [o for o in priced if budget is not None and _cost(o) <= budget]
    return Answers(
        smallest_in_time=_best(in_time, lambda o: (o.gpus or 0, _cost(o), o.wall_s)),
        cheapest_in_time=_best(
            [o for o in in_time if o.cost is not None], lambda o: (_cost(o), o.wall_s)
        ),
        fastest_in_budget=_best(in_budget, _quick_then_cheap),
        fastest=_best(options, _quick_then_cheap),
        cheapest=_best(priced, lambda o: (_cost(o), o.wall_s)),
        pareto=pareto_front(options),
        ladder=smallest_by_deadline(options),
    )


def _quick_then_cheap(option: PlanOption) -> tuple[float, float]:
    return option.wall_s, _cost(option)


def _cost(option: PlanOption) -> float:
    return math.inf if option.cost is None else option.cost


def _best(
    options: Sequence[PlanOption], key: Callable[[PlanOption], tuple[float, ...]]
) -> PlanOption | None:
    return min(options, key=key, default=None)
