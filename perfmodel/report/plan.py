"""A plan as a self-contained HTML page, in Markdown and in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perfmodel.memo import grouped
from perfmodel.report import plan_text
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Column,
    Definitions,
    Figure,
    Header,
    Heading,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    header,
    paragraphs,
    section,
    table_section,
    tabulate,
)
from perfmodel.report.common.html import render_html
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.plan_figures import (
    draw_throughput,
    draw_time_against_cost,
    draw_tornado,
)
from perfmodel.studies.plan.export import deadline_met, plan_csv, probability_in_time, to_json
from perfmodel.studies.plan.model import PlanOption, PlanResult

NOTHING = "\N{EN DASH}"
"""Where there is no such number."""

FEWEST_FAILURES = 10
"""In all simulated trainings together: with fewer the error of their mean says nothing."""


_or_nothing = partial(quantities.or_empty, absent=NOTHING)


# Options that can be used have all their parts.
_CANDIDATE: tuple[Column, ...] = (
    ("candidate", lambda option: option.candidate),
    (">nodes", lambda option: f"{option.nodes:,}"),
)


def option_table(plan: PlanResult, *, narrow: bool = False) -> Table:
    """One row per option that runs and fits, in the order of the file; intervals are of 80 %.

    front: whether nothing else is both as quick and as cheap (Pareto). A narrow table is for the
    terminal.
    """
    unit = plan_text.common_unit([option.wall_s for option in plan.usable])

    def in_time(option: Any) -> str:
        """Probability of meeting the deadline, or where the expected time is without it."""
        share = probability_in_time(option, plan.deadline_s)
        return (
            (deadline_met(option, plan.deadline_s) or "")
            if share is None
            else plan_text.odds(share)
        )

    def time(option: Any) -> str:
        wall_s, ends = option.training.wall_s, option.training.wall_interval_s
        own_s = (unit or plan_text.unit_of(wall_s))[1]
        return plan_text.brief_range(
            plan_text.span(wall_s, unit), ends, lambda end_s: quantities.count(end_s / own_s)
        )

    def amounts(option: Any) -> str:
        write, bill = plan_text.amount_only, option.bill
        return _or_nothing(
            lambda total: plan_text.brief_range(write(total), bill.interval, write), bill.total
        )

    return tabulate(
        plan.usable,
        [
            (
                "candidate",
                lambda each: each.candidate + (" (memory tight)" if each.step.tight else ""),
            ),
            _CANDIDATE[1],
            (">GPUs", lambda option: f"{option.gpus:,}"),
            None if plan.deadline_s is None else (">in time", in_time),
            (">front", lambda option: "yes" if option in plan.answers.pareto else "")
            if plan.currency
            else None,
            (">time (80 %)", time),
            (f">cost, {plan.currency} (80 %)", amounts) if plan.currency else None,
            (
                f">{plan.currency}/h",
                lambda option: _or_nothing(plan_text.amount_only, option.bill.price_per_gpu_hour),
            )
            if plan.currency
            else None,
            (">energy", lambda option: _or_nothing(plan_text.energy, option.bill.energy_kWh)),
            (
                ">efficiency",
                lambda option: _or_nothing(quantities.percent_column, option.step.efficiency),
            ),
            None if narrow else (">step", lambda each: quantities.duration(each.step.step_time_s)),
        ],
    )


def refused(plan: PlanResult) -> dict[str, str]:
    """Options that cannot run, and why; sizes of a candidate with one reason are joined."""
    sizes = grouped(
        ((option.candidate, option.reason), option.nodes)
        for option in plan.options
        if option.status != "ok"
    )
    return {
        f"{name}, {', '.join(map(str, nodes))} node{'' if nodes == [1] else 's'}": reason
        for (name, reason), nodes in sizes.items()
    }


def failure_table(plan: PlanResult) -> Table:
    """What failures cost each option, by formula and by simulation.

    lost: time for checkpoints, restarts and work that was done again.
    """

    def simulated(option: Any) -> str:
        simulation = option.training.simulated
        if simulation is None:
            return NOTHING
        lost_s = simulation.mean_s - option.training.work_s
        name, unit_s = plan_text.unit_of(lost_s)
        error = f" \N{PLUS-MINUS SIGN} {simulation.error_s / unit_s:#.2g}".rstrip(".")
        enough = simulation.failures * simulation.runs >= FEWEST_FAILURES
        return f"{quantities.count(lost_s / unit_s)}{error if enough else ''} {name}"

    return tabulate(
        (each for each in plan.usable if each.training and each.training.upkeep),
        (
            *_CANDIDATE,
            (">fails every", lambda each: plan_text.span(each.training.upkeep.mtbf_s)),
            (">saves every", lambda each: plan_text.span(each.training.upkeep.interval_s)),
            (">which takes", lambda each: plan_text.span(each.training.upkeep.write_s)),
            (
                ">failures",
                lambda each: quantities.count(each.training.wall_s / each.training.upkeep.mtbf_s),
            ),
            (">lost", lambda each: plan_text.span(each.training.wall_s - each.training.work_s)),
            (">simulated", simulated),
            (
                ">9 in 10 lose less",
                lambda each: _or_nothing(
                    lambda trainings: plan_text.span(trainings.high_s - each.training.work_s),
                    each.training.simulated,
                ),
            ),
            (">goodput", lambda each: quantities.percent_column(each.training.goodput)),
        ),
    )


def upgrade_table(plan: PlanResult) -> Table:
    """Every upgrade of every option, soonest paid back first."""
    currency = plan.currency or "no prices"

    def signed(write: Callable[[float], str], value: float | None) -> str:
        return _or_nothing(lambda known: f"{'-' if known < 0 else ''}{write(abs(known))}", value)

    return tabulate(
        plan.outcomes,
        (
            ("upgrade", lambda outcome: outcome.upgrade),
            ("of", lambda outcome: plan_text.cluster(outcome.before)),
            (">saves time", lambda outcome: signed(plan_text.span, outcome.saved_s)),
            (
                f">saves per training, {currency}",
                lambda outcome: signed(plan_text.amount_only, outcome.saved),
            ),
            (
                f">price, {currency}",
                lambda outcome: _or_nothing(plan_text.amount_only, outcome.price),
            ),
            (">pays back after", lambda outcome: plan_text.payback(outcome.payback_s) or NOTHING),
            (
                "pays",
                lambda outcome: (
                    f"fails: {outcome.after.reason}" if outcome.saved_s is None else outcome.pays
                ),
            ),
        ),
    )


def ladder_table(plan: PlanResult) -> Table:
    """Smallest cluster by deadline."""
    unit = plan_text.common_unit([option.wall_s for option in plan.answers.ladder])
    return tabulate(
        reversed(plan.answers.ladder),
        [
            ("with at least", lambda option: plan_text.span(option.wall_s, unit)),
            (
                "the smallest is",
                lambda option: f"{option.candidate}, {quantities.nodes(option.nodes)}",
            ),
            (">GPUs", lambda option: f"{option.gpus:,}"),
            (
                f">cost, {plan.currency}",
                lambda option: _or_nothing(plan_text.amount_only, option.cost),
            )
            if plan.currency
            else None,
        ],
    )


def purchase_table(plan: PlanResult) -> Table:
    """Figures for a purchase: outlay, power, shares of the cost."""

    def amount(name: str) -> Callable[[PlanOption], str]:
        return lambda option: _or_nothing(plan_text.amount_only, getattr(option.bill, name))

    currency = plan.currency or ""
    return tabulate(
        plan.usable,
        (
            *_CANDIDATE,
            (f">to buy, {currency}", amount("outlay")),
            (">power", lambda option: _or_nothing(plan_text.power, option.bill.power_W)),
            (f">machines, {currency}", amount("machines")),
            (f">electricity, {currency}", amount("energy")),
            (f">per step, {currency}", amount("per_step")),
            (">FLOPs used", lambda option: _or_nothing(quantities.percent_column, option.step.mfu)),
        ),
    )


def sensitivity_table(plan: PlanResult) -> Table:
    """What one assumption at a time makes of the best option."""

    def ends(at: int) -> tuple[Column, ...]:
        return (
            (("worse", "better")[at], lambda each: each.labels[at]),
            (">time", lambda each: plan_text.span(each.wall_s[at])),
            (
                ">cost",
                lambda each: "" if each.cost is None else plan_text.amount_only(each.cost[at]),
            ),
        )

    return tabulate(
        plan.sensitivities, (("assumption", lambda each: each.what), *ends(0), *ends(1))
    )


NOT_MEASURED = "A prediction by simulation, not a measurement; prices are those of the file."

LADDER = (
    "The fewest GPUs that are expected to do it, the more time there is the fewer; whatever is not "
    "listed takes longer with as many."
)

UPGRADES = (
    "What a training saves with each upgrade, against its price. Soonest paid back first: after so "
    "much time of training like this, one after the other."
)

PURCHASE = "What the cost is made of. FLOPs used: model FLOPs over the dense peak of all GPUs."


# ---------------------------------------------------------------- page and Markdown


def plan_html(plan: PlanResult) -> str:
    """Build the page as one string."""
    said = plan_text.answers(plan)
    names = [option.candidate for option in plan.usable]
    throughput = sensitivity = None
    if len(set(names)) < len(names):  # what more nodes bring, where a candidate has many sizes
        drawn = Figure(draw_throughput(plan), "throughput", "Throughput by GPUs, with 80 % bands")
        throughput = section("Throughput by size", "With 80 % intervals, as bands.", drawn)
    if plan.best is not None and plan.sensitivities:
        sensitivity = section(
            "What the answer depends on",
            f"{plan_text.cluster(plan.best)}: one thing at a time is made worse and better.",
            Figure(draw_tornado(plan), "tornado", "Bars: what each assumption makes of the answer"),
            sensitivity_table(plan),
        )
    return render_html(
        f"Plan: {plan_text.setting(plan)}",
        [
            _header(plan),
            _tiles(plan),
            section("Answers", "", Definitions(said)) if said else None,
            _options(plan),
            throughput,
            sensitivity,
            *_tables(plan),
            section(
                "What this rests on",
                "",
                Heading("Assumptions"),
                Bullets(plan.assumptions),
                Heading("Provenance"),
                Definitions({"scenario": plan.scenario, **plan.provenance}),
                *([Heading("Sources"), Definitions(plan.sources)] if plan.sources else []),
            ),
        ],
    )


def plan_markdown(plan: PlanResult) -> str:
    """Write the same answers and tables as Markdown."""
    return render_markdown(
        [
            _header(plan),
            section("Answers", "", Definitions(plan_text.answers(plan))),
            table_section("Time against cost", _hint(plan), option_table(plan)),
            table_section("What the answer depends on", "", sensitivity_table(plan)),
            *_tables(plan),
            section(
                "What this rests on",
                "",
                Bullets(plan.assumptions),
                Definitions({"scenario": plan.scenario, **plan.provenance, **plan.sources}),
            ),
        ]
    )


def _header(plan: PlanResult) -> Header:
    return header(
        plan_text.setting(plan),
        plan_text.headline(plan),
        [NOT_MEASURED, *plan.cautions],
        [plan.question],
    )


def _tiles(plan: PlanResult) -> Tiles | None:
    best = plan.best
    if best is None or best.training is None or best.step is None or best.bill is None:
        return None
    training, step, bill = best.training, best.step, best.bill

    def between(ends: tuple[float, float] | None, write: Callable[..., str], *likely: float) -> str:
        return "no interval known" if ends is None else f"80 % interval {write(ends, *likely)}"

    outlay = f"; {plan_text.money(bill.outlay or 0.0, plan.currency)} to buy"
    cost = between(bill.interval, plan_text.amount_range) + ("" if bill.outlay is None else outlay)
    known = (
        (True, "Cluster", plan_text.cluster(best), f"{best.node}, network {best.fabric}", "text"),
        (
            True,
            "Time to train",
            plan_text.span(training.wall_s),
            between(training.wall_interval_s, plan_text.span_range, training.wall_s),
        ),
        (bill.total is not None, "Cost", plan_text.money(bill.total or 0.0, plan.currency), cost),
        (
            bill.energy_kWh is not None,
            "Energy",
            plan_text.energy(bill.energy_kWh or 0.0),
            f"{quantities.count((bill.power_W or 0.0) / 1e3)} kW",
        ),
        (
            True,
            "Goodput",
            quantities.percent(training.goodput),
            "nothing fails" if training.upkeep is None else "of the time, with failures",
        ),
        (
            step.efficiency is not None,
            "Scaling efficiency",
            quantities.percent(step.efficiency or 0.0),
            plan.efficiency_base,
        ),
    )
    return Tiles([Tile(*tile) for is_known, *tile in known if is_known])


def _options(plan: PlanResult) -> Section | None:
    if not plan.usable:
        return None
    figure, lead = None, "Every candidate at every size that runs and fits."
    if any(option.cost is not None for option in plan.usable):
        figure = Figure(
            draw_time_against_cost(plan),
            "pareto",
            "Cost against time to train, by candidate and size",
        )
        lead = (
            "Numbers beside the points are nodes, bars 80 % intervals. Whatever is not on the "
            "front, the dotted line, is beaten in time and cost by something that is."
        )
    return section(
        "Time against cost", lead, figure, option_table(plan), Paragraph(_hint(plan), "hint")
    )


def _hint(plan: PlanResult) -> str:
    return (
        f"In brackets: 80 % intervals. Efficiency is {plan.efficiency_base}."
        f"{plan_text.explain_in_time(plan)}"
    )


def _tables(plan: PlanResult) -> list[Section | None]:
    """Sections of one table, and what is left out."""
    shown = (
        (len(plan.answers.ladder) > 1, "Smallest cluster by deadline", LADDER, ladder_table),
        (True, "Which upgrade pays", UPGRADES, upgrade_table),
        (True, "Failures and checkpoints", plan_text.LOST, failure_table),
        (plan.currency is not None, "For a purchase paper", PURCHASE, purchase_table),
    )
    left_out = refused(plan)
    return [
        *(
            table_section(title, lead, make(plan))
            for applies, title, lead, make in shown
            if applies
        ),
        section("Left out", "", Definitions(left_out)) if left_out else None,
    ]


# ---------------------------------------------------------------- terminal


def plan_lines(plan: PlanResult) -> list[Block]:
    """Arrange a plan for the terminal: the answer, the options, what was refused."""
    options, failures = option_table(plan, narrow=True), failure_table(plan)
    return [
        Paragraph(f"{plan_text.headline(plan)}.\n"),
        *([options, Paragraph("")] if options.rows else []),
        *(
            Paragraph(f"{title}{'' if title.endswith('?') else ':'} {answer}.")
            for title, answer in plan_text.answers(plan).items()
        ),
        *([Paragraph(f"\n{plan_text.LOST}\n"), failures] if failures.rows else []),
        *paragraphs(f"left out: {name}: {reason}" for name, reason in refused(plan).items()),
    ]


FILES = {
    "plan.html": plan_html,
    "plan.md": plan_markdown,
    "plan.csv": plan_csv,
    "plan.json": to_json,
    SPREADSHEET: lambda plan: spreadsheet(to_json(plan)),
}
"""Files of a plan, and what makes them; CSV and JSON refuse numbers that are not finite."""
