"""Whether an upgrade pays: what it saves, against its price."""

from __future__ import annotations

from perfmodel.plan.model import Option, Outcome, Pays
from perfmodel.plan.priced import HOURS_PER_YEAR
from perfmodel.scenario import CandidateSection, UpgradeSection


def one_off_price(upgrade: UpgradeSection, nodes: int) -> float | None:
    """What an upgrade of so many nodes costs once; None where no such price is given."""
    if upgrade.price is not None:
        return upgrade.price.amount
    if upgrade.price_per_node is not None:
        return nodes * upgrade.price_per_node.amount
    return None


def outcome(
    upgrade: UpgradeSection, candidate: CandidateSection, before: Option, after: Option
) -> Outcome:
    """Compare an option with what it becomes.

    Parameters
    ----------
    upgrade : UpgradeSection
    candidate : CandidateSection
        Of both options.
    before, after : Option
        `after` pays the upgrade's rent already, if it has one.
    """
    price = one_off_price(upgrade, before.nodes)
    if after.status != "ok":
        return Outcome(upgrade.name, before, after, None, None, price, None, "unknown")
    saved_s = before.wall_s - after.wall_s
    saved = None if before.cost is None or after.cost is None else before.cost - after.cost
    payback_s = _payback_s(
        saved, price, after.wall_s, rented=upgrade.price_per_gpu_hour is not None
    )
    pays = _verdict(upgrade, saved, price, payback_s, life_s(candidate))
    return Outcome(upgrade.name, before, after, saved_s, saved, price, payback_s, pays)


def life_s(candidate: CandidateSection) -> float | None:
    """Hours of use that a purchase has, in seconds; None for what is not bought."""
    bought = candidate.purchase
    return None if bought is None else bought.years * bought.utilisation * HOURS_PER_YEAR * 3600


def _payback_s(
    saved: float | None, price: float | None, wall_s: float, *, rented: bool
) -> float | None:
    """Training time until savings reach the price: price over what is saved per second."""
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


def ranked(outcomes: list[Outcome]) -> tuple[Outcome, ...]:
    """Soonest paid back first, then by what is saved; those that failed last."""

    def key(one: Outcome) -> tuple[bool, bool, float, float]:
        never = one.payback_s is None
        return one.saved_s is None, never, one.payback_s or 0.0, -(one.saved or one.saved_s or 0.0)

    return tuple(sorted(outcomes, key=key))
