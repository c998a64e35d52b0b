"""A plan as a self-contained HTML page, in Markdown and in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Definitions,
    Figure,
    Header,
    Heading,
    Paragraph,
    Section,
    Tile,
    Tiles,
    header,
    paragraphs,
    section,
    table_section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.planning import tables, text
from perfmodel.report.planning.figures import (
    draw_throughput,
    draw_time_against_cost,
    draw_tornado,
)
from perfmodel.studies.plan.export import plan_csv, to_json
from perfmodel.studies.plan.model import PlanResult

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


FILES = ("plan.html", "plan.md", "plan.csv", "plan.json")
"""Files that `write_plan` writes."""


def write_plan(plan: PlanResult, folder: Path) -> Path:
    """Write ``plan.html``, ``plan.md``, ``plan.csv`` and ``plan.json``.

    Returns and raises as `write_report_files`, and `InputError` where a number is not finite.
    """
    files = {
        "plan.html": plan_html(plan),
        "plan.md": plan_markdown(plan),
        "plan.csv": plan_csv(plan),
        "plan.json": to_json(plan),
    }
    return write_report_files(folder, files)


# ---------------------------------------------------------------- page and Markdown


def plan_html(plan: PlanResult) -> str:
    """Build the page as one string."""
    answers = Definitions(text.answers(plan))
    return render_html(
        f"Plan: {text.setting(plan)}",
        [
            _header(plan),
            _tiles(plan),
            section("Answers", "", answers) if answers.entries else None,
            _options(plan),
            _throughput(plan),
            _sensitivity(plan),
            *_tables(plan),
            *_left_out(plan),
            _grounds(plan),
        ],
    )


def plan_markdown(plan: PlanResult) -> str:
    """Write the same answers and tables as Markdown."""
    facts = {"scenario": plan.scenario, **plan.provenance, **plan.sources}
    return render_markdown(
        [
            _header(plan),
            section("Answers", "", Definitions(text.answers(plan))),
            table_section("Time against cost", _hint(plan), tables.option_table(plan)),
            table_section("What the answer depends on", "", tables.sensitivity_table(plan)),
            *_tables(plan),
            *_left_out(plan),
            section("What this rests on", "", Bullets(plan.assumptions), Definitions(facts)),
        ]
    )


def _header(plan: PlanResult) -> Header:
    notes = [NOT_MEASURED, *plan.cautions]
    return header(text.setting(plan), text.headline(plan), notes, [plan.question])


def _tiles(plan: PlanResult) -> Tiles | None:
    best = plan.best
    if best is None or best.training is None or best.step is None or best.bill is None:
        return None
    training, step, sums = best.training, best.step, best.bill
    network = f"{best.node}, network {best.fabric}"
    ends = _between(training.wall_interval_s, lambda ends: text.span_range(ends, training.wall_s))
    tiles = [
        Tile("Cluster", text.cluster(best), network, "text"),
        Tile("Time to train", text.span(training.wall_s), ends),
    ]
    if sums.total is not None:
        below = _between(sums.interval, text.amount_range)
        if sums.outlay is not None:
            below += f"; {text.money(sums.outlay, plan.currency)} to buy"
        tiles.append(Tile("Cost", text.money(sums.total, plan.currency), below))
    if sums.energy_kWh is not None:
        power = f"{quantities.count((sums.power_W or 0.0) / 1e3)} kW"
        tiles.append(Tile("Energy", text.energy(sums.energy_kWh), power))
    below = "nothing fails" if training.upkeep is None else "of the time, with failures"
    tiles.append(Tile("Goodput", quantities.percent(training.goodput), below))
    if step.efficiency is not None:
        efficiency = quantities.percent(step.efficiency)
        tiles.append(Tile("Scaling efficiency", efficiency, plan.efficiency_base))
    return Tiles(tiles)


def _between(ends: tuple[float, float] | None, write: Callable[[tuple[float, float]], str]) -> str:
    return "no interval known" if ends is None else f"80 % interval {write(ends)}"


def _options(plan: PlanResult) -> Section | None:
    if not plan.usable:
        return None
    figure, lead = None, "Every candidate at every size that runs and fits."
    if any(option.cost is not None for option in plan.usable):
        description = "Cost against time to train, by candidate and size"
        figure = Figure(draw_time_against_cost(plan), "pareto", description)
        lead = (
            "Numbers beside the points are nodes, bars 80 % intervals. Whatever is not on the "
            "front, the dotted line, is beaten in time and cost by something that is."
        )
    table, hint = tables.option_table(plan), Paragraph(_hint(plan), "hint")
    return section("Time against cost", lead, figure, table, hint)


def _throughput(plan: PlanResult) -> Section | None:
    """Draw what more nodes bring; nothing where each candidate has one size."""
    names = [option.candidate for option in plan.usable]
    if len(set(names)) == len(names):
        return None
    drawn = Figure(draw_throughput(plan), "throughput", "Throughput by GPUs, with 80 % bands")
    return section("Throughput by size", "With 80 % intervals, as bands.", drawn)


def _sensitivity(plan: PlanResult) -> Section | None:
    if plan.best is None or not plan.sensitivities:
        return None
    drawn = Figure(draw_tornado(plan), "tornado", "Bars: what each assumption makes of the answer")
    lead = f"{text.cluster(plan.best)}: one thing at a time is made worse and better."
    table = tables.sensitivity_table(plan)
    return section("What the answer depends on", lead, drawn, table)


def _hint(plan: PlanResult) -> str:
    in_time = text.explain_in_time(plan)
    return f"In brackets: 80 % intervals. Efficiency is {plan.efficiency_base}.{in_time}"


def _tables(plan: PlanResult) -> list[Section | None]:
    """Sections of one table."""
    failures, upgrades = tables.failure_table(plan), tables.upgrade_table(plan)
    sections = [
        table_section("Which upgrade pays", UPGRADES, upgrades),
        table_section("Failures and checkpoints", text.LOST, failures),
    ]
    if len(plan.answers.ladder) > 1:
        ladder = tables.ladder_table(plan)
        sections.insert(0, table_section("Smallest cluster by deadline", LADDER, ladder))
    if plan.currency is not None:
        purchase = tables.purchase_table(plan)
        sections.append(table_section("For a purchase paper", PURCHASE, purchase))
    return sections


def _left_out(plan: PlanResult) -> list[Section]:
    refused = tables.refused(plan)
    return [section("Left out", "", Definitions(refused))] if refused else []


def _grounds(plan: PlanResult) -> Section:
    sources = [Heading("Sources"), Definitions(plan.sources)] if plan.sources else []
    return section(
        "What this rests on",
        "",
        Heading("Assumptions"),
        Bullets(plan.assumptions),
        Heading("Provenance"),
        Definitions({"scenario": plan.scenario, **plan.provenance}),
        *sources,
    )


# ---------------------------------------------------------------- terminal


def plan_lines(plan: PlanResult) -> list[Block]:
    """Arrange a plan for the terminal: the answer, the options, what was refused."""
    blocks: list[Block] = [Paragraph(f"{text.headline(plan)}.\n")]
    options, failures = tables.option_table(plan, narrow=True), tables.failure_table(plan)
    if options.rows:
        blocks += [options, Paragraph("")]
    blocks += [
        Paragraph(f"{title}{'' if title.endswith('?') else ':'} {answer}.")
        for title, answer in text.answers(plan).items()
    ]
    if failures.rows:
        blocks += [Paragraph(f"\n{text.LOST}\n"), failures]
    return blocks + paragraphs(
        f"left out: {name}: {reason}" for name, reason in tables.refused(plan).items()
    )
