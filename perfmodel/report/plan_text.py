"""What a plan says in sentences; terminal, page and Markdown say the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from perfmodel.memo import first_applying
from perfmodel.report.common import quantities
from perfmodel.report.common.document import join_applying
from perfmodel.studies.plan.export import deadline_met, probability_in_time
from perfmodel.studies.plan.model import Pays, PlanOption, PlanResult, UpgradeOutcome
from perfmodel.studies.plan.time_to_train import HOURS_PER_YEAR

HOUR_S, DAY_S = 3600.0, 86400.0


Unit = tuple[str, float]
"""Name of a unit of time, and its seconds."""

YEAR_S = HOURS_PER_YEAR * HOUR_S

_UNITS = (
    ("s", 1.0, 120.0),
    ("min", 60.0, 2 * HOUR_S),
    ("h", HOUR_S, 2 * DAY_S),
    ("d", DAY_S, 2 * YEAR_S),
    ("years", YEAR_S, math.inf),
)
"""Name of a unit, its seconds, and the time from which the next one is used."""


def unit_of(time_s: float) -> Unit:
    """Choose the unit that a time is written in."""
    return next((name, unit_s) for name, unit_s, most_s in _UNITS if time_s < most_s)


def common_unit(times_s: Sequence[float]) -> Unit | None:
    """One unit for a column of times; None where the shortest would be lost in it."""
    if not times_s:
        return None
    name, unit_s = unit_of(max(times_s))
    return (name, unit_s) if min(times_s) >= 0.1 * unit_s else None


def span(time_s: float, unit: Unit | None = None) -> str:
    """Write how long a training takes, with three digits, by default in a unit that fits.

    Examples
    --------
    >>> [span(t).replace(chr(160), " ") for t in (90.0, 5 * 3600.0, 12.34 * 86400, 1e8)]
    ['90.0 s', '5.00 h', '12.3 d', '3.17 years']
    """
    name, unit_s = unit or unit_of(time_s)
    return f"{quantities.count(time_s / unit_s)}{quantities.SPACE}{name}"


def given_span(time_s: float) -> str:
    """Write a time as somebody gave it, without digits that say nothing.

    Examples
    --------
    >>> given_span(10 * 86400.0).replace(chr(160), " ")
    '10 d'
    """
    name, unit_s = unit_of(time_s)
    return f"{time_s / unit_s:.6g}{quantities.SPACE}{name}"


def span_range(ends: tuple[float, float], likely_s: float) -> str:
    """Write an interval of times in the unit of the likely one.

    Examples
    --------
    >>> span_range((1.46 * 3600, 4.3 * 3600), 2.36 * 3600).replace(chr(160), " ")
    '1.46 to 4.30 h'
    """
    name, unit_s = unit_of(likely_s)
    low, high = (quantities.count(end / unit_s) for end in ends)
    return f"{low} to {high}{quantities.SPACE}{name}"


def brief_range(
    likely: str, ends: tuple[float, float] | None, write: Callable[[float], str]
) -> str:
    """Write a number and its interval in a cell of a table; one that rounds away is left out.

    Examples
    --------
    >>> brief_range("5.56 d", (5.54, 5.65), str), brief_range("5.56 d", (5.56, 5.56), str)
    ('5.56 d (5.54\u20135.65)', '5.56 d')
    """
    written = [write(end) for end in ends or ()]
    is_exact = set(written) <= {likely.split(maxsplit=1)[0]}
    return likely if is_exact else f"{likely} ({chr(0x2013).join(written)})"


def money(amount: float, currency: str | None) -> str:
    """Write an amount in whole units of its currency, or with cents where it is small.

    Examples
    --------
    >>> money(1234567.8, "USD").replace(chr(160), " "), money(0.0021, "EUR").replace(chr(160), " ")
    ('1,234,568 USD', '0.0021 EUR')
    """
    return f"{amount_only(amount)}{quantities.SPACE}{currency or ''}".strip()


def amount_only(amount: float) -> str:
    """Write an amount without its currency."""
    return first_applying(
        (abs(amount) >= 100 or amount == 0, f"{amount:,.0f}"),
        (abs(amount) >= 1, f"{amount:,.2f}"),
        (True, f"{amount:.2g}"),
    )


def amount_range(ends: tuple[float, float]) -> str:
    """Write an interval of amounts without their currency."""
    return f"{amount_only(ends[0])} to {amount_only(ends[1])}"


def energy(energy_kWh: float) -> str:
    """Write an energy in kWh or MWh."""
    name, value = ("MWh", energy_kWh / 1000) if energy_kWh >= 1000 else ("kWh", energy_kWh)
    return f"{quantities.count(value)}{quantities.SPACE}{name}"


def power(power_W: float) -> str:
    """Write a power in kW."""
    return f"{quantities.count(power_W / 1e3)}{quantities.SPACE}kW"


def cluster(option: PlanOption) -> str:
    """Name an option: ``"rented A100, 4 nodes (32 GPUs)"``."""
    gpus = "" if option.gpus is None else f" ({quantities.gpus(option.gpus)})"
    return f"{option.candidate}, {quantities.nodes(option.nodes)}{gpus}"


def time_and_cost(option: PlanOption, currency: str | None, *, intervals: bool = True) -> str:
    """State time and cost, with their intervals if `intervals` is set and they are known."""
    training, bill = option.training, option.bill
    assert training is not None
    phrase = f"in {span(training.wall_s)}"
    if intervals and training.wall_interval_s is not None:
        phrase += f" ({span_range(training.wall_interval_s, training.wall_s)})"
    if bill is None or bill.total is None:
        return phrase
    phrase += f" for {money(bill.total, currency)}"
    if intervals and bill.interval is not None:
        phrase += f" ({amount_range(bill.interval)})"
    if bill.outlay is None:
        return phrase
    electricity = " and electricity" if bill.energy else ""
    return f"{phrase}, its share of {money(bill.outlay, currency)} to buy{electricity}"


# ---------------------------------------------------------------- sentences

LOST = (
    "Lost is time for checkpoints, restarts and work done again: expected by Daly's formula, the "
    "mean of simulated trainings with its standard error, and what nine of ten of them stay below. "
    "The step time's own uncertainty is left out of this."
)


def explain_in_time(plan: PlanResult) -> str:
    """Explain the column "in time", and that of prices."""
    said = (
        " In time: the probability, from the 80 % interval of the time; prices, data, people and "
        "whether it fits are not in it."
    )
    price = f" {plan.currency}/h is what a GPU costs an hour." if plan.currency else ""
    return f"{price}{'' if plan.deadline_s is None else said}"


def setting(plan: PlanResult) -> str:
    """Say what is trained, to what end."""
    return f"{plan.workload} to {plan.target}"


def headline(plan: PlanResult) -> str:
    """Answer the plan in one sentence."""
    best, within = plan.best, given_span(plan.deadline_s or 0.0)
    if best is None:
        return f"None of the {len(plan.options)} options can train {plan.workload}"
    if plan.deadline_s is not None and best.wall_s > plan.deadline_s:
        return f"Nothing finishes in {within}: even {cluster(best)} takes {span(best.wall_s)}"
    kind = first_applying(
        (best.cost is not None, "Cheapest"),
        (plan.deadline_s is None, "Fastest"),
        (True, "Smallest"),
    )
    in_time = "" if plan.deadline_s is None else f" that finishes in {within}"
    return f"{kind}{in_time}: {_describe(plan, best, intervals=False)}"


def answers(plan: PlanResult) -> dict[str, str]:
    """Each question and its answer; questions with the same answer are joined."""
    chosen, in_time = plan.answers, plan.deadline_s is not None
    fastest, cheapest = chosen.fastest, chosen.cheapest
    within = f"that finishes in {given_span(plan.deadline_s or 0.0)}"
    affordable = f"Fastest for {money(plan.budget or 0.0, plan.currency)} at most"
    is_priced, priced_in_time = cheapest is not None, chosen.cheapest_in_time
    asked: tuple[tuple[bool, str, PlanOption | None, str, PlanOption | None], ...] = (
        (in_time, f"Smallest {within}", chosen.smallest_in_time, "fastest", fastest),
        (in_time and is_priced, f"Cheapest {within}", priced_in_time, "fastest", fastest),
        (plan.budget is not None, affordable, chosen.fastest_in_budget, "cheapest", cheapest),
        (fastest is not None, "Fastest of all", fastest, "", None),
        (is_priced, "Cheapest of all", cheapest, "", None),
    )
    questions: dict[str, list[str]] = defaultdict(list)
    for applies, question, option, what, other in asked:
        if applies:
            answer = "none" if option is None else _describe(plan, option)
            instead = "" if option or not other else f"; the {what} is {_describe(plan, other)}"
            questions[f"{answer}{instead}"].append(question)
    joined = {
        ", ".join([own[0], *(later[0].lower() + later[1:] for later in own[1:])]): answer
        for answer, own in questions.items()
    }
    return {
        **joined,
        **(
            {f"{plan.best.candidate} rests on": plan.best.step.rests_on}
            if plan.best and plan.best.step and plan.best.step.rests_on
            else {}
        ),
        **dict(_price_answer(plan)),
        **dict(_upgrade_answers(plan)),
    }


def _price_answer(plan: PlanResult) -> Iterator[tuple[str, str]]:
    """What the machines of the answer cost an hour, and how much of the whole cost that is."""
    bill = None if plan.best is None else plan.best.bill
    if plan.best is not None and bill is not None and bill.total and bill.price_per_gpu_hour:
        is_listed = f"price of {plan.best.candidate}" in plan.sources
        yield (
            f"Price of {plan.best.candidate}",
            (
                f"{money(bill.price_per_gpu_hour, plan.currency)} per GPU and hour"
                f"{' (listed, see the sources)' if is_listed else ''}, which is "
                f"{quantities.percent((bill.machines or 0.0) / bill.total)} of the cost"
            ),
        )


def _describe(plan: PlanResult, option: PlanOption, *, intervals: bool = True) -> str:
    """The option, what it takes, and how sure it is to be in time."""
    met, share = deadline_met(option, plan.deadline_s), probability_in_time(option, plan.deadline_s)
    return join_applying(
        (
            True,
            f"{cluster(option)}, {time_and_cost(option, plan.currency, intervals=intervals)}",
        ),
        (option.step is not None and option.step.tight, "; its memory is tight"),
        (met is not None, f"; {_IN_TIME.get(met or '', '')}"),
        (met is not None and share is not None, f" (probability {odds(share or 0.0)})"),
        by="",
    )


def odds(share: float) -> str:
    """Write a probability, never as certain.

    Examples
    --------
    >>> [odds(share).replace(chr(160), " ") for share in (0.003, 0.424, 0.999)]
    ['below 1 %', '42 %', 'above 99 %']
    """
    number = first_applying(
        (share <= 0.005, "below 1"), (share >= 0.995, "above 99"), (True, f"{100 * share:.0f}")
    )
    return f"{number}\N{NO-BREAK SPACE}%"


_IN_TIME = {
    "whole interval": "in time, also at the slow end",
    "expected": "in time if all goes as expected, not at the slow end",
    "quick end": "in time at the quick end only",
    "no": "not in time",
}


def _upgrade_answers(plan: PlanResult) -> Iterator[tuple[str, str]]:
    """The best use of each upgrade."""
    for name in dict.fromkeys(outcome.upgrade for outcome in plan.outcomes):
        own = [outcome for outcome in plan.outcomes if outcome.upgrade == name]
        best = next(
            (o for o in own if o.pays not in {"never", "unknown"} and (o.saved_s or 0) > 0), None
        )
        if best is not None:
            does = f"{_verdict(best)}: {cluster(best.before)}, {pays(best, plan.currency)}"
            does += _at_headline_option(plan, own, best)
        elif all(outcome.saved_s is None for outcome in own):
            does = f"it fails: {own[0].after.reason}"
        else:
            does = "no: it saves nothing anywhere here"
        yield f"Does '{name}' pay?", does


def _at_headline_option(
    plan: PlanResult, own: Sequence[UpgradeOutcome], best: UpgradeOutcome
) -> str:
    """What the upgrade does for the option of the headline, if another one has most of it."""
    outcome = next((o for o in own if o.before is plan.best and o is not best), None)
    if outcome is None:
        return f"; that is the best of {len(own)} clusters" if len(own) > 1 else ""
    back = "" if not outcome.payback_s else f", its price is {_back(outcome.payback_s)}"
    return (
        f"; {cluster(outcome.before)}, the one above: "
        f"{'nothing is saved' if outcome.pays == 'never' else _verdict(outcome)}{back}"
    )


_PAYS: Mapping[Pays, str] = {
    "in this training": "yes",
    "later": "only in the long run",
    "not in its life": "no",
    "no price": "no price is given",
    "never": "no",
    "unknown": "not known",
}


_LONGEST_S = 100 * YEAR_S
"""A price that is not back by then is said not to come back: no hardware is used as long."""


def _verdict(outcome: UpgradeOutcome) -> str:
    return "no" if (outcome.payback_s or 0.0) > _LONGEST_S else _PAYS[outcome.pays]


def _back(payback_s: float) -> str:
    is_late = payback_s > _LONGEST_S
    return f"not back in {span(_LONGEST_S)}" if is_late else f"back after {span(payback_s)}"


def payback(payback_s: float | None) -> str:
    """Write in a cell of a table when a price is back; "" for never, and for at once."""
    if not payback_s:
        return ""
    return f"over {span(_LONGEST_S)}" if payback_s > _LONGEST_S else span(payback_s)


def pays(outcome: UpgradeOutcome, currency: str | None) -> str:
    """Say whether an upgrade of an option pays."""
    if outcome.saved_s is None:
        return f"fails: {outcome.after.reason}"
    saves = f"saves {span(outcome.saved_s)}" if outcome.saved_s > 0 else "saves no time"
    if outcome.saved is not None:
        amount = money(abs(outcome.saved), currency)
        saves += f" and {amount}" if outcome.saved >= 0 else f" but costs {amount} more"
    back_s, is_late = outcome.payback_s or 0.0, outcome.pays == "not in its life"
    back = f", its price is {_back(back_s)} of this"
    if back_s <= _LONGEST_S and (is_late or outcome.pays == "later"):
        late = ", longer than the nodes are used" if is_late else ""
        back += f", {math.ceil(back_s / outcome.after.wall_s):,} trainings{late}"
    endings: dict[Pays, str] = {
        "no price": ": worth no more than that",
        "in this training": ", more than its price" if outcome.price else " with its rent paid",
        "later": back,
        "not in its life": back,
        "never": ", never pays back",
        "unknown": "",
    }
    return f"{saves} per training{endings[outcome.pays]}"
