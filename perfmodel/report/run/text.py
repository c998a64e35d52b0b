"""A result in the terminal and as a Markdown file."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Column,
    Header,
    Paragraph,
    Table,
    bullets_section,
    header,
    paragraphs,
    section,
    table_section,
    tabulate,
)
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.common.processes import for_ranks_of
from perfmodel.report.run import events, parallelism, sizes
from perfmodel.report.run.parallelism import search_blocks, server_lines
from perfmodel.report.run.scaling import basis, findings
from perfmodel.studies.run.result.model import Result, SizeResult


def result_header(result: Result) -> Header:
    """The setting, the question, and the answer."""
    setting = f"{result.workload} with {result.strategy} on {result.machine}"
    certainty = f"Step time: {quantities.interval(result.main)}."
    note = f"A prediction by simulation, not a measurement. {certainty}"
    return header(setting, quantities.headline(result), [note], [result.question])


# ---------------------------------------------------------------- terminal


def result_lines(result: Result) -> list[Block]:
    """Arrange a result for the terminal: the answer, the sizes, memory and certainty."""
    main = result.main
    too_big = ", ".join(f"{point.gpus:,}" for point in result.points[:-1] if not point.memory.fits)
    notes = [
        f"{quantities.memory(main.memory)}.",
        *main.memory.advice,
        f"Does not fit on {too_big} GPUs: those rows are hypothetical." if too_big else "",
        quantities.hot_spot(main),
        quantities.limit(main),
        quantities.slowest(result),
        quantities.utilisation(main),
        f"{quantities.scaling(result)}. Step time: {quantities.interval(main)}.",
    ]
    blocks: list[Block] = [
        Paragraph(quantities.headline(result), "headline"),
        *search_blocks(result.search),
        _short_sizes(result),
        *parallelism.result_blocks(main),
        *paragraphs(server_lines(main)),
        *paragraphs(events.lines(main)),
        *paragraphs(notes, "note"),
    ]
    return for_ranks_of(result.topology, blocks)


def _short_sizes(result: Result) -> Table:
    """One row per cluster size; no efficiency where there is one size only."""
    return tabulate(
        result.points,
        (
            (">GPUs", lambda point: f"{point.gpus:,}"),
            (">step", lambda point: quantities.duration(point.step_time_s)),
            (
                f">{quantities.samples_short(result)}/s",
                lambda point: quantities.count(point.samples_per_s),
            ),
            (">efficiency", lambda point: quantities.percent_column(point.scaling_efficiency))
            if len(result.points) > 1
            else None,
            (">exposed", lambda point: quantities.duration(point.exposed_comm_s)),
            ("bottleneck", lambda point: point.bottleneck),
        ),
        ruled=False,
    )


# ---------------------------------------------------------------- Markdown


def run_markdown(result: Result) -> str:
    """Write the answer, the findings, the sizes, the parts of the step and what it rests on."""
    main = result.main
    explained = [*sizes.hints(result), "sizes.csv holds every number in SI units."]
    facts = {"scenario": result.scenario, "simulated as": main.mode, **result.provenance}
    searched, limits = search_blocks(result.search), (quantities.hot_spot, quantities.limit)
    blocks = [
        result_header(result),
        section("The mixture", "", *searched) if searched else None,
        bullets_section("Parameter servers", server_lines(main)),
        bullets_section("What happens around it", events.lines(main)),
        section(
            "Scaling",
            basis(result),
            Bullets(findings(result)),
            sizes.sizes_table(result),
            Paragraph(" ".join(explained)),
        ),
        parallelism.mixture_section(main),
        section(
            "Where the time of a step goes",
            " ".join(filter(None, [say(main) for say in limits])),
            _breakdown(result),
        ),
        table_section(
            "Communication",
            f"A rank's operations in a step on {quantities.gpus(main.gpus)}.",
            sizes.communication_table(main),
        ),
        section(
            "Memory",
            "",
            Paragraph(f"{quantities.memory(main.memory)}."),
            Bullets(main.memory.advice),
        ),
        section(
            "What this rests on",
            "",
            Bullets([quantities.assumed(text) for text in result.assumptions]),
            Table(("What", "Value"), list(facts.items())),
        ),
    ]
    return render_markdown(for_ranks_of(result.topology, blocks))


def _breakdown(result: Result) -> Table:
    parts = dict.fromkeys(part for point in result.points for part in point.breakdown_s)

    def time_of(part: str) -> Callable[[SizeResult], str]:
        return lambda point: quantities.duration(point.breakdown_s.get(part, 0.0))

    columns: list[Column] = [
        (">GPUs", lambda point: f"{point.gpus:,}"),
        (">Step", lambda point: quantities.duration(point.step_time_s)),
        *(
            (f">{part}", time_of(part))
            for part in parts
            if any(point.breakdown_s.get(part, 0) > 0 for point in result.points)
        ),
    ]
    return tabulate(result.points, columns)
