"""The tables of a plan, the same in the terminal, on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.report.planning.text import (
    Unit,
    amount_only,
    brief_range,
    cluster,
    common_unit,
    energy,
    odds,
    payback,
    span,
    unit_of,
)
from perfmodel.studies.plan.export import deadline_met, probability_in_time
from perfmodel.studies.plan.model import Cost, PlanOption, PlanResult, Training, Upkeep

T = TypeVar("T")

NOTHING = "\N{EN DASH}"
"""Where there is no such number."""

FEWEST_FAILURES = 10
"""In all simulated trainings together: with fewer the error of their mean says nothing."""

_SPACE = "\N{NO-BREAK SPACE}"


def option_table(plan: PlanResult, *, narrow: bool = False) -> Table:
    """One row per option that runs and fits, in the order of the file; intervals are of 80 %.

    front: whether nothing else is both as quick and as cheap (Pareto). A narrow table is for the
    terminal.
    """
    currency = plan.currency
    headers = ["candidate", ">nodes", ">GPUs"]
    headers += [">in time"] if plan.deadline_s is not None else []
    headers += [">front"] if currency else []
    headers += [">time (80 %)"] + ([f">cost, {currency} (80 %)"] if currency else [])
    headers += [">energy", ">efficiency"] + ([] if narrow else [">step"])
    unit = common_unit([option.wall_s for option in plan.usable])
    rows = [_option_row(plan, option, unit) for option in plan.usable]
    return Table(headers, [row[: len(headers)] for row in rows])


def _option_row(plan: PlanResult, option: PlanOption, unit: Unit | None) -> list[str]:
    step, training, sums = option.step, option.training, option.bill
    assert step is not None
    assert training is not None
    assert sums is not None
    name = option.candidate + (" (memory tight)" if step.tight else "")
    row = [name, f"{option.nodes:,}", f"{option.gpus:,}"]
    row += [_in_time(plan, option)] if plan.deadline_s is not None else []
    row += ["yes" if option in plan.answers.pareto else ""] if plan.currency else []
    row += [_times(training, unit)] + ([_amounts(sums)] if plan.currency else [])
    return [
        *row,
        _or_nothing(energy, sums.energy_kWh),
        _or_nothing(quantities.percent_column, step.efficiency),
        quantities.duration(step.step_time_s),
    ]


def _in_time(plan: PlanResult, option: PlanOption) -> str:
    """Probability of meeting the deadline, or where the expected time is without an interval."""
    share = probability_in_time(option, plan.deadline_s)
    return (deadline_met(option, plan.deadline_s) or "") if share is None else odds(share)


def _times(training: Training, unit: Unit | None) -> str:
    likely = span(training.wall_s, unit)
    if training.wall_interval_s is None:
        return likely
    own = unit or unit_of(training.wall_s)
    low, high = (quantities.count(end / own[1]) for end in training.wall_interval_s)
    return brief_range(likely, low, high)


def _amounts(sums: Cost) -> str:
    if sums.total is None:
        return NOTHING
    if sums.interval is None:
        return amount_only(sums.total)
    return brief_range(amount_only(sums.total), *map(amount_only, sums.interval))


def _or_nothing(write: Callable[[T], str], value: T | None) -> str:
    return NOTHING if value is None else write(value)


def refused(plan: PlanResult) -> dict[str, str]:
    """Options that cannot run, and why; sizes of a candidate with one reason are joined."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for option in plan.options:
        if option.status != "ok":
            sizes.setdefault((option.candidate, option.reason), []).append(option.nodes)
    return {
        f"{name}, {', '.join(map(str, nodes))} node{'' if nodes == [1] else 's'}": reason
        for (name, reason), nodes in sizes.items()
    }


def failure_table(plan: PlanResult) -> Table:
    """What failures cost each option, by formula and by simulation.

    lost: time for checkpoints, restarts and work that was done again.
    """
    headers = [
        "candidate",
        ">nodes",
        ">fails every",
        ">saves every",
        ">which takes",
        ">failures",
        ">lost",
        ">simulated",
        ">9 in 10 lose less",
        ">goodput",
    ]
    rows = [
        _failure_row(option, option.training, option.training.upkeep)
        for option in plan.usable
        if option.training is not None and option.training.upkeep is not None
    ]
    return Table(headers, rows)


def _failure_row(option: PlanOption, training: Training, upkeep: Upkeep) -> list[str]:
    simulation, simulated = training.simulated, [NOTHING] * 2
    if simulation is not None:
        lost_s = simulation.mean_s - training.work_s
        name, unit_s = unit_of(lost_s)
        mean = quantities.count(lost_s / unit_s)
        if simulation.failures * simulation.runs >= FEWEST_FAILURES:
            mean += f" \N{PLUS-MINUS SIGN} {simulation.error_s / unit_s:#.2g}".rstrip(".")
        simulated = [f"{mean} {name}", span(simulation.high_s - training.work_s)]
    return [
        option.candidate,
        f"{option.nodes:,}",
        span(upkeep.mtbf_s),
        span(upkeep.interval_s),
        span(upkeep.write_s),
        quantities.count(training.wall_s / upkeep.mtbf_s),
        span(training.wall_s - training.work_s),
        *simulated,
        quantities.percent_column(training.goodput),
    ]


def upgrade_table(plan: PlanResult) -> Table:
    """Every upgrade of every option, soonest paid back first."""
    currency = plan.currency or "no prices"
    headers = [
        "upgrade",
        "of",
        ">saves time",
        f">saves per training, {currency}",
        f">price, {currency}",
        ">pays back after",
        "pays",
    ]
    rows = [
        [
            outcome.upgrade,
            cluster(outcome.before),
            _or_nothing(lambda saved: _signed(span, saved), outcome.saved_s),
            _or_nothing(lambda saved: _signed(amount_only, saved), outcome.saved),
            _or_nothing(amount_only, outcome.price),
            payback(outcome.payback_s) or NOTHING,
            outcome.pays if outcome.saved_s is not None else f"fails: {outcome.after.reason}",
        ]
        for outcome in plan.outcomes
    ]
    return Table(headers, rows)


def _signed(write: Callable[[float], str], value: float) -> str:
    return f"{'-' if value < 0 else ''}{write(abs(value))}"


def ladder_table(plan: PlanResult) -> Table:
    """Smallest cluster by deadline."""
    headers = ["with at least", "the smallest is", ">GPUs"]
    headers += [f">cost, {plan.currency}"] if plan.currency else []
    rows = []
    unit = common_unit([option.wall_s for option in plan.answers.ladder])
    for option in reversed(plan.answers.ladder):
        row = [span(option.wall_s, unit), f"{option.candidate}, {quantities.nodes(option.nodes)}"]
        row += [f"{option.gpus:,}"]
        if plan.currency:
            row += [_or_nothing(amount_only, option.cost)]
        rows.append(row)
    return Table(headers, rows)


def purchase_table(plan: PlanResult) -> Table:
    """Figures for a purchase: outlay, power, shares of the cost."""
    currency = plan.currency or ""
    headers = [
        "candidate",
        ">nodes",
        f">to buy, {currency}",
        ">power",
        f">machines, {currency}",
        f">electricity, {currency}",
        f">per step, {currency}",
        ">FLOPs used",
    ]
    rows = []
    for option in plan.usable:
        sums, step = option.bill, option.step
        assert sums is not None
        assert step is not None
        rows.append(
            [
                option.candidate,
                f"{option.nodes:,}",
                _or_nothing(amount_only, sums.outlay),
                _or_nothing(
                    lambda watts: f"{quantities.count(watts / 1e3)}{_SPACE}kW", sums.power_W
                ),
                _or_nothing(amount_only, sums.machines),
                _or_nothing(amount_only, sums.energy),
                _or_nothing(amount_only, sums.per_step),
                _or_nothing(quantities.percent_column, step.mfu),
            ]
        )
    return Table(headers, rows)


def sensitivity_table(plan: PlanResult) -> Table:
    """What one assumption at a time makes of the best option."""
    header = ["assumption", "worse", ">time", ">cost", "better", ">time", ">cost"]
    rows = []
    for each in plan.sensitivities:
        cells = [each.what]
        for end in (0, 1):
            cost = "" if each.cost is None else amount_only(each.cost[end])
            cells += [each.labels[end], span(each.wall_s[end]), cost]
        rows.append(cells)
    return Table(header, rows)
