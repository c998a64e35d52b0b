"""A plan as one self-contained HTML page, with Markdown, CSV and JSON beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path

from perfmodel.files import write_atomically, write_json
from perfmodel.report.common import markdown, quantities
from perfmodel.report.common.page import document, figure_html, figure_section, html_table
from perfmodel.report.planning import figures, tables
from perfmodel.report.planning import text as said
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


def write_plan(plan: PlanResult, folder: Path) -> Path:
    """Write ``plan.html``, ``plan.md``, ``plan.csv`` and ``plan.json``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to, or a number is not finite.
    """
    page = folder / "plan.html"
    write_json(folder / "plan.json", to_json(plan))
    write_atomically(page, plan_html(plan))
    write_atomically(folder / "plan.md", plan_markdown(plan))
    write_atomically(folder / "plan.csv", plan_csv(plan))
    return page


def plan_html(plan: PlanResult) -> str:
    """Build the page as one string."""
    sections = [
        _header(plan), _tiles(plan), _answers(plan), _options(plan), _ladder(plan),
        _upgrades(plan), _failures(plan), _purchase(plan), _left_out(plan), _grounds(plan),
    ]  # fmt: skip
    body = "<main>\n" + "\n".join(section for section in sections if section) + "\n</main>"
    return document(f"Plan: {said.setting(plan)}", body)


def _header(plan: PlanResult) -> str:
    question = f'<p class="question">{escape(plan.question)}</p>' if plan.question else ""
    mind = "".join(f'<p class="note">{escape(line)}</p>' for line in plan.cautions)
    return (
        f'<header><p class="setting">{escape(said.setting(plan))}</p>'
        f"<h1>{escape(said.headline(plan))}</h1>{question}"
        f'<p class="note">{NOT_MEASURED}</p>{mind}</header>'
    )


def _tiles(plan: PlanResult) -> str:
    best = said.best_of(plan)
    if best is None or best.training is None or best.step is None or best.bill is None:
        return ""
    training, step, sums = best.training, best.step, best.bill
    tiles = [("Cluster", said.cluster(best), f"{best.node}, network {best.fabric}", "text")]
    below = _between(training.wall_interval_s, lambda ends: said.span_range(ends, training.wall_s))
    tiles.append(("Time to train", said.span(training.wall_s), below, ""))
    if sums.total is not None:
        below = _between(sums.interval, said.amount_range)
        if sums.outlay is not None:
            below += f"; {said.money(sums.outlay, plan.currency)} to buy"
        tiles.append(("Cost", said.money(sums.total, plan.currency), below, ""))
    if sums.energy_kWh is not None:
        below = f"{quantities.count((sums.power_W or 0.0) / 1e3)} kW"
        tiles.append(("Energy", said.energy(sums.energy_kWh), below, ""))
    below = "nothing fails" if training.upkeep is None else "of the time, with failures"
    tiles.append(("Goodput", quantities.percent(training.goodput), below, ""))
    if step.efficiency is not None:
        below = plan.efficiency_base
        tiles.append(("Scaling efficiency", quantities.percent(step.efficiency), below, ""))
    items = "".join(
        f'<div class="tile {look}"><span>{escape(title)}</span><strong>{escape(value)}</strong>'
        f"<small>{escape(below)}</small></div>"
        for title, value, below, look in tiles
    )
    return f'<div class="tiles">{items}</div>'


def _between(ends: tuple[float, float] | None, write: Callable[[tuple[float, float]], str]) -> str:
    return "no interval known" if ends is None else f"80 % interval {write(ends)}"


def _answers(plan: PlanResult) -> str:
    found = said.answers(plan)
    return figure_section("Answers", "", _definitions(dict(found))) if found else ""


def _html(one: tables.Table) -> str:
    headers, rows = one
    left = [at for at, header in enumerate(headers) if not header.startswith(">")]
    return html_table([header.removeprefix(">") for header in headers], rows, words_at=left)


def _options(plan: PlanResult) -> str:
    if not plan.usable:
        return ""
    parts, lead = [], "Every candidate at every size that runs and fits."
    if any(option.cost is not None for option in plan.usable):
        drawn = figures.time_against_cost(plan)
        parts.append(
            figure_html(drawn, "pareto", "Cost against time to train, by candidate and size")
        )
        lead = (
            "Numbers beside the points are nodes, bars 80 % intervals. Whatever is not on the "
            "front, the dotted line, is beaten in time and cost by something that is."
        )
    parts.append(_html(tables.option_table(plan)))
    parts.append(f'<p class="hint">{escape(_hint(plan))}</p>')
    return figure_section("Time against cost", lead, *parts)


def _hint(plan: PlanResult) -> str:
    return f"In brackets: 80 % intervals. Efficiency is {plan.efficiency_base}.{said.odds(plan)}"


def _ladder(plan: PlanResult) -> str:
    if len(plan.answers.ladder) < 2:
        return ""
    return figure_section("Smallest cluster by deadline", LADDER, _html(tables.ladder_table(plan)))


def _upgrades(plan: PlanResult) -> str:
    if not plan.outcomes:
        return ""
    return figure_section("Which upgrade pays", UPGRADES, _html(tables.upgrade_table(plan)))


def _failures(plan: PlanResult) -> str:
    headers, rows = tables.failure_table(plan)
    if not rows:
        return ""
    return figure_section("Failures and checkpoints", said.LOST, _html((headers, rows)))


def _purchase(plan: PlanResult) -> str:
    if plan.currency is None or not plan.usable:
        return ""
    return figure_section("For a purchase paper", PURCHASE, _html(tables.bought_table(plan)))


def _left_out(plan: PlanResult) -> str:
    refused = tables.refused(plan)
    return figure_section("Left out", "", _definitions(dict(refused))) if refused else ""


def _grounds(plan: PlanResult) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in plan.assumptions)
    parts = [f"<h3>Assumptions</h3><ul>{items}</ul>", "<h3>Provenance</h3>"]
    parts.append(_definitions({"scenario": plan.scenario, **plan.provenance}))
    if plan.sources:
        parts += ["<h3>Sources</h3>", _definitions(plan.sources)]
    return figure_section("What this rests on", "", *parts)


def _definitions(entries: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>" for n, v in entries.items())
    return f"<dl>{rows}</dl>"


# ---------------------------------------------------------------- Markdown


def plan_markdown(plan: PlanResult) -> str:
    """Write the same answers and tables as Markdown."""
    return "\n\n".join(part.rstrip("\n") for part in _markdown(plan) if part) + "\n"


def _markdown(plan: PlanResult) -> Iterator[str]:
    cell = markdown.cell
    yield f"# {cell(said.headline(plan))}"
    yield cell(said.setting(plan))
    if plan.question:
        yield f"Question: {cell(plan.question)}"
    yield NOT_MEASURED
    yield from (cell(line) for line in plan.cautions)
    yield from ("## Answers", _pairs(dict(said.answers(plan))))
    for title, lead, one in (
        ("Time against cost", _hint(plan), tables.option_table(plan)),
        ("Smallest cluster by deadline", LADDER, tables.ladder_table(plan)),
        ("Which upgrade pays", UPGRADES, tables.upgrade_table(plan)),
        ("Failures and checkpoints", said.LOST, tables.failure_table(plan)),
        ("For a purchase paper", PURCHASE, tables.bought_table(plan)),
    ):
        if one[1]:
            yield from (f"## {title}", cell(lead), _md(one))
    if refused := tables.refused(plan):
        yield from ("## Left out", _pairs(dict(refused)))
    yield from ("## What this rests on", _bullets(plan.assumptions))
    yield _pairs({"scenario": plan.scenario, **plan.provenance, **plan.sources})


def _md(one: tables.Table) -> str:
    headers, rows = one
    left = [at for at, header in enumerate(headers) if not header.startswith(">")]
    return markdown.table([h.removeprefix(">") for h in headers], rows, words_at=left)


def _bullets(lines: tuple[str, ...]) -> str:
    return "\n".join(f"- {markdown.cell(line)}" for line in lines)


def _pairs(entries: Mapping[str, str]) -> str:
    lines = (f"{name}{'' if name.endswith('?') else ':'} {v}" for name, v in entries.items())
    return _bullets(tuple(lines))
