"""Decisions of a plan: options that answer each question, upgrades that pay, what it depends on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.errors import PerfmodelError
from perfmodel.library.model import load_library
from perfmodel.scenario import (
    CandidateSection,
    Scenario,
    UpgradeSection,
    WhatIf,
    change_scenario,
)
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.plan.candidates import StepRequest
from perfmodel.studies.plan.model import (
    Answers,
    Pays,
    PlanOption,
    Sensitivity,
    Step,
    UpgradeOutcome,
)
from perfmodel.studies.plan.time_to_train import HOURS_PER_YEAR
from perfmodel.studies.run.steps.simulate_step import timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob, prepare
from perfmodel.training.ddp.options import MIB
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES
from perfmodel.units import format_bytes, format_time

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

# ---------------------------------------------------------------- answers


def pareto_front(options: Iterable[PlanOption]) -> tuple[PlanOption, ...]:
    """Return the options that no other dominates in wall time and cost, quickest first.

    Options without a price are left out.
    """
    front: list[PlanOption] = []
    for option in sorted((o for o in options if o.cost is not None), key=_quick_then_cheap):
        last = front[-1] if front else None
        is_same = last is not None and _quick_then_cheap(option) == _quick_then_cheap(last)
        if last is None or is_same or _cost(option) < _cost(last):
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
    return [each for each in options if each.step and not each.step.tight] or list(options)


def choose_answers(
    options: Sequence[PlanOption], deadline_s: float | None, budget: float | None
) -> Answers:
    """Choose the option for each question among those that run and fit.

    `options`: with status "ok".
    `deadline_s`: against expected wall times; seconds.
    """
    best = partial(min, default=None)
    in_time = [o for o in options if deadline_s is not None and o.wall_s <= deadline_s]
    priced = [o for o in options if o.cost is not None]
    return Answers(
        smallest_in_time=best(in_time, key=lambda o: (o.gpus or 0, _cost(o), o.wall_s)),
        cheapest_in_time=best((o for o in in_time if o.cost is not None), key=_cheap_then_quick),
        fastest_in_budget=best(
            (o for o in priced if budget is not None and _cost(o) <= budget), key=_quick_then_cheap
        ),
        fastest=best(options, key=_quick_then_cheap),
        cheapest=best(priced, key=_cheap_then_quick),
        pareto=pareto_front(options),
        ladder=smallest_by_deadline(options),
    )


def _quick_then_cheap(option: PlanOption) -> tuple[float, float]:
    return option.wall_s, _cost(option)


def _cheap_then_quick(option: PlanOption) -> tuple[float, float]:
    return _cost(option), option.wall_s


def _cost(option: PlanOption) -> float:
    return math.inf if option.cost is None else option.cost


# ---------------------------------------------------------------- upgrades


def one_off_price(upgrade: UpgradeSection, nodes: int) -> Money | None:
    """Return the one-off price of an upgrade of some nodes; None where none is given."""
    each = upgrade.price_per_node
    return upgrade.price if each is None else Money(nodes * each.amount, each.currency)


def compare_upgrade(
    upgrade: UpgradeSection, candidate: CandidateSection, before: PlanOption, after: PlanOption
) -> UpgradeOutcome:
    """Compare an option with the same option after an upgrade.

    `candidate`: of both options.
    `before`, `after`: `after` pays the upgrade's rent already, if it has one.
    """
    once, is_rented = one_off_price(upgrade, before.nodes), upgrade.price_per_gpu_hour is not None
    price, payback_s = None if once is None else once.amount, None
    if after.status != "ok":
        return UpgradeOutcome(upgrade.name, before, after, None, None, price, None, "unknown")
    saved = None if before.cost is None or after.cost is None else before.cost - after.cost
    if saved is not None and saved > 0:
        payback_s = 0.0 if is_rented else None if price is None else price / saved * after.wall_s
    verdicts: tuple[tuple[bool, Pays], ...] = (
        (price is None and not is_rented, "no price"),
        (saved is None, "unknown"),
        (payback_s is None, "never"),
        ((payback_s or 0.0) > (life_s(candidate) or math.inf), "not in its life"),
        ((price or 0.0) <= (saved or 0.0), "in this training"),
        (True, "later"),
    )
    return UpgradeOutcome(
        upgrade.name,
        before,
        after,
        before.wall_s - after.wall_s,
        saved,
        price,
        payback_s,
        next(verdict for holds, verdict in verdicts if holds),
    )


def life_s(candidate: CandidateSection) -> float | None:
    """Return the time of use of a purchase; seconds, None for a rented candidate."""
    bought = candidate.purchase
    return None if bought is None else bought.years * bought.utilisation * HOURS_PER_YEAR * 3600


def rank_upgrades(outcomes: Iterable[UpgradeOutcome]) -> tuple[UpgradeOutcome, ...]:
    """Sort upgrades: soonest paid back first, then by savings; failed ones last."""

    def key(outcome: UpgradeOutcome) -> tuple[bool, bool, float, float]:
        saved = outcome.saved or outcome.saved_s or 0.0
        return outcome.saved_s is None, outcome.payback_s is None, outcome.payback_s or 0.0, -saved

    return tuple(sorted(outcomes, key=key))


# ---------------------------------------------------------------- one assumption at a time

PRICE_SWING = 0.2
"""Prices of clouds differ by more between vendors; this is a discount that is bargained for."""
COMPUTE_SWING = 0.1
"""Half of the width of a usual interval of compute (`workload/compute_spread.yaml`)."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One assumption, with the changes that make it worse and better; None where none does."""

    what: str
    labels: tuple[str, str]
    worse: StepRequest | None
    better: StepRequest | None


def list_swings(scenario: Scenario, best: PlanOption) -> Iterator[Swing]:
    """Yield what is simulated again for the chosen cluster.

    Each costs up to two steps; a search for the best parallel layout would be one for each, so that
    plans with `strategy.kind: auto` vary failures only.
    """
    plan = scenario.plan
    assert plan is not None
    candidate = next(c for c in plan.candidates if c.name == best.candidate)
    now = StepRequest(candidate, best.nodes)

    def changed(what: str, fields: Mapping[str, object]) -> StepRequest:
        """Set fields as a free upgrade, whose training is not simulated."""
        return replace(now, upgrade=UpgradeSection.model_construct(name=what, set=fields))

    if plan.failures is not None:
        mtbf_s = candidate.mtbf_per_node or plan.failures.mtbf_per_node or math.inf
        ends = [
            replace(
                changed("failures", {}),
                candidate=candidate.model_copy(update={"mtbf_per_node": factor * mtbf_s}),
            )
            for factor in (0.5, 2.0)
        ]
        yield Swing("failures", ("twice as many", "half as many"), *ends)
    current = change_scenario(scenario, now.changes)
    if current.strategy.kind == "auto":
        return
    own, fabric, by = current.what_if or WhatIf(), current.cluster.fabric, COMPUTE_SWING
    ratio = 1.0 if fabric is None else fabric.oversubscription or 1.0
    rows: tuple[tuple[bool, str, str, tuple[str, str], tuple[float, float | None]], ...] = (
        (
            True,
            "compute",
            "what_if.compute",
            (f"{100 * by:g} % slower", f"{100 * by:g} % quicker"),
            (own.compute * (1 - by), own.compute * (1 + by)),
        ),
        (
            best.nodes > 1,
            "network",
            "what_if.network_bandwidth",
            ("half as fast", "twice as fast"),
            (own.network_bandwidth * 0.5, own.network_bandwidth * 2.0),
        ),
        (
            best.nodes > 1 and fabric is not None,
            "oversubscription",
            "cluster.fabric.oversubscription",
            (f"{2 * ratio:g} to 1", "1 to 1"),
            (2 * ratio, 1.0 if ratio > 1 else None),
        ),
    )
    for holds, what, field, labels, values in rows:
        if holds:
            worse, better = (None if n is None else changed(what, {field: n}) for n in values)
            yield Swing(what, labels, worse, better)


def measure_swings(
    best: PlanOption,
    swings: Sequence[Swing],
    answer: Callable[[Sequence[StepRequest]], Sequence[PlanOption]],
) -> tuple[Sensitivity, ...]:
    """Return what each assumption makes of time and cost, the largest effect first.

    `answer`: options of requests, in their order.
    """
    sides = [(swing.worse, swing.better) for swing in swings]
    answered = iter(answer([request for pair in sides for request in pair if request]))
    measured = [*_from_intervals(best)]
    for swing, pair in zip(swings, sides, strict=True):
        worse, better = (next(answered) if request else best for request in pair)
        if worse.status == better.status == "ok":
            is_free = worse.cost is None or better.cost is None
            costs = None if is_free else (_cost(worse), _cost(better))
            measured.append(
                Sensitivity(swing.what, swing.labels, (worse.wall_s, better.wall_s), costs)
            )

    def effect(each: Sensitivity) -> float:
        """Return the widest relative swing, of the cost where it is known and of the time."""
        ends = [each.wall_s] + ([] if each.cost is None else [each.cost])
        return max(abs(worse - better) / (max(worse, better) or 1.0) for worse, better in ends)

    return tuple(sorted(measured, key=effect, reverse=True))


def _from_intervals(best: PlanOption) -> Iterator[Sensitivity]:
    """Yield what needs no simulation: the prediction's own interval, and the price."""
    training, bill = best.training, best.bill
    if training is not None and training.wall_interval_s is not None:
        quick_s, slow_s = training.wall_interval_s
        costs = None if bill is None or bill.interval is None else bill.interval[::-1]
        labels = ("slow end", "quick end")
        yield Sensitivity("the prediction (80 % interval)", labels, (slow_s, quick_s), costs)
    if bill is not None and bill.machines and bill.total is not None:
        by, percent = PRICE_SWING * bill.machines, f"{100 * PRICE_SWING:g} %"
        labels, costs = (f"{percent} more", f"{percent} less"), (bill.total + by, bill.total - by)
        yield Sensitivity("price of the machines", labels, (best.wall_s, best.wall_s), costs)


# ---------------------------------------------------------------- dips of efficiency

LEAST_DIP = 0.05
"""Efficiency that has to be missing beside a larger size, before a reader wonders."""
LEAST_SPEEDUP = 1.02
"""Times as quick as another algorithm makes a step before it is worth naming."""

NCCL_ALGO_NAMES = {"ring": "Ring", "tree": "Tree"}
"""Algorithms that a user can ask for by NCCL_ALGO, as NCCL writes them."""


MOST_EFFICIENCY = 1.005
"""Above it a reader wonders, too."""


def explain_gains(options: Iterable[PlanOption], bases: Mapping[str, Step]) -> Iterator[str]:
    """Yield a sentence for each candidate that is more efficient than what is said to be 100 %.

    `bases`: steps of an efficiency of one, by candidate.
    """
    best: dict[str, tuple[float, str, Step]] = {}
    for option in options:
        if (step := option.step) is not None and option.status == "ok":
            found = step.efficiency or 0.0, f"{option.gpus:,} GPUs", step
            name = option.candidate
            best[name] = max(best.get(name, found), found, key=itemgetter(0))
    for name, (efficiency, gpus, step) in best.items():
        if efficiency > MOST_EFFICIENCY:
            why = f"its limit is {bases[name].bottleneck}, here {step.bottleneck}"
            if bases[name].memory_bytes > step.memory_bytes:
                alone, here = (format_bytes(s.memory_bytes) for s in (bases[name], step))
                why = (
                    f"a GPU would hold {alone}, here {here}; the more GPUs share the model's "
                    "weights and optimizer states, the fewer of them each has to update in a step"
                )
            yield f"{name} is {100 * efficiency:.0f} % efficient on {gpus}: at 100 % {why}."


def explain_dips(
    options: Sequence[PlanOption],
    scenarios: Mapping[tuple[str, int], Scenario | None],
    profile: Profile | None,
) -> Iterator[str]:
    """Yield a sentence for each option that is much less efficient than the next larger one.

    `scenarios`: by candidate and number of nodes.
    """
    stepped = [
        (each, each.step)
        for each in options
        if each.step is not None and each.step.efficiency is not None
    ]
    for (option, step), (larger, more) in pairwise(stepped):
        low, high = step.efficiency or 0.0, more.efficiency or 0.0
        is_next = option.candidate == larger.candidate and option.nodes < larger.nodes
        own, other = (scenarios[each.candidate, each.nodes] for each in (option, larger))
        if is_next and high - low >= LEAST_DIP and own is not None and other is not None:
            limits = f"its limit there is {step.bottleneck}; on more {more.bottleneck}"
            yield (
                f"{option.candidate} is less efficient on {option.nodes:,} nodes "
                f"({100 * low:.0f} %) than on {larger.nodes:,} ({100 * high:.0f} %): "
                f"{_other_algorithm(own, other, profile) or limits}."
            )


def _other_algorithm(smaller: Scenario, larger: Scenario, profile: Profile | None) -> str:
    """Say which algorithm makes the difference, and what the other would; "" where none does."""
    if STRATEGIES[smaller.strategy.kind].loops is not None:
        return ""  # its workers have no step of collectives in common
    with suppress(PerfmodelError):
        own, other = (
            _main_collective(prepare(each, profile=profile)) for each in (smaller, larger)
        )
        if own is not None and other is not None and own[0] != other[0]:
            name = smaller.library.name
            library = "NCCL" if load_library(name).nccl_tuner else name
            (here, text), (there, text_there) = own, other
            return (
                f"there {library} prefers a {here.replace('_', ' ')} ({text}), on more nodes a "
                f"{there.replace('_', ' ')} ({text_there}){_if_named(smaller, there, profile)}"
            )
    return ""


def _if_named(scenario: Scenario, algorithm: str, profile: Profile | None) -> str:
    """Say how long the step is where the user names the algorithm, if that is shorter."""
    env, name = scenario.library.env, NCCL_ALGO_NAMES.get(algorithm)
    if not load_library(scenario.library.name).nccl_tuner or name is None or "NCCL_ALGO" in env:
        return ""
    before_s, after_s = (
        prepare(each, profile=profile).step().step_time_s
        for each in (
            scenario,
            change_scenario(scenario, {"library.env": {**env, "NCCL_ALGO": name}}),
        )
    )
    if before_s < LEAST_SPEEDUP * after_s:
        return ""
    return (
        f"; with NCCL_ALGO={name} a step would take {format_time(after_s)} instead of "
        f"{format_time(before_s)} by this model, which is not NCCL's own estimate: worth measuring"
    )


def _main_collective(sized: SizedJob) -> tuple[str, str] | None:
    """Return the algorithm that takes most time of a step, and its mean message in words.

    None without collectives.
    """
    plan, timer = sized.plan_for(None), timer_of(sized.setup(), sized.steady_disturbances)
    groups = {each.name: max(each.groups, key=len) for each in plan.communicators}
    totals: defaultdict[tuple[str, str], FloatArray] = defaultdict(lambda: np.zeros(3))
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        group = groups[work.communicator]
        if len(group) > 1:
            lowered, time_s = timer.best(work.op, work.nbytes, group, work.root)
            sums = totals[work.op, lowered.schedule.algorithm]
            sums += np.array([time_s * work.times, work.nbytes * work.times, work.times])
    if not totals:
        return None
    (op, algorithm), (total_s, total_bytes, count) = max(totals.items(), key=lambda row: row[1][0])
    size = format_bytes(round(total_bytes / count / MIB) * MIB)
    return algorithm, f"{size} of {op.replace('_', '-')} in {format_time(total_s / count)}"
