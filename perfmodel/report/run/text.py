"""A result in the terminal and as a Markdown file."""

from __future__ import annotations

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Header,
    Paragraph,
    Section,
    Table,
    header,
    paragraphs,
    section,
)
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.common.processes import for_ranks_of
from perfmodel.report.run import events, parallelism, servers, tables
from perfmodel.report.run.parallelism import search_blocks
from perfmodel.report.scaling.text import basis, findings
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
    lines = [quantities.memory(main.memory) + ".", *main.memory.advice]
    if not_fitting := [f"{p.gpus:,}" for p in result.points[:-1] if not p.memory.fits]:
        lines.append(f"Does not fit on {', '.join(not_fitting)} GPUs: those rows are hypothetical.")
    lines += filter(
        None, [quantities.hot_spot(main), quantities.limit(main), quantities.slowest(result)]
    )
    lines += filter(None, [quantities.utilisation(main)])
    lines.append(f"{quantities.scaling(result)}. Step time: {quantities.interval(main)}.")
    blocks: list[Block] = [
        Paragraph(quantities.headline(result), "headline"),
        *search_blocks(result.search),
        _short_sizes(result),
        *parallelism.result_blocks(main),
        *paragraphs(servers.lines(main)),
        *paragraphs(events.lines(main)),
        *paragraphs(lines, "note"),
    ]
    return for_ranks_of(result.topology, blocks)


def _short_sizes(result: Result) -> Table:
    """One row per cluster size; no efficiency where there is one size only."""
    efficiency = slice(3, 4 if len(result.points) > 1 else 3)
    titles = [">GPUs", ">step", f">{quantities.samples_short(result)}/s", ">efficiency"]
    rows = [
        [
            f"{point.gpus:,}",
            quantities.duration(point.step_time_s),
            quantities.count(point.samples_per_s),
            quantities.percent_column(point.scaling_efficiency),
            quantities.duration(point.exposed_comm_s),
            point.bottleneck,
        ]
        for point in result.points
    ]
    return Table(
        [*titles[:3], *titles[efficiency], ">exposed", "bottleneck"],
        [[*row[:3], *row[efficiency], *row[4:]] for row in rows],
        ruled=False,
    )


# ---------------------------------------------------------------- Markdown


def run_markdown(result: Result) -> str:
    """Write the answer, the findings, the sizes, the parts of the step and what it rests on."""
    main = result.main
    explained = [*tables.hints(result), "sizes.csv holds every number in SI units."]
    happening, serving = events.lines(main), servers.lines(main)
    facts = {"scenario": result.scenario, "simulated as": main.mode, **result.provenance}
    mixture = search_blocks(result.search)
    memory = [Paragraph(f"{quantities.memory(main.memory)}."), Bullets(main.memory.advice)]
    return render_markdown(
        for_ranks_of(
            result.topology,
            [
                result_header(result),
                *([section("The mixture", "", *mixture)] if mixture else []),
                *([section("Parameter servers", "", Bullets(serving))] if serving else []),
                *([section("What happens around it", "", Bullets(happening))] if happening else []),
                section(
                    "Scaling",
                    basis(result),
                    Bullets(findings(result)),
                    tables.sizes_table(result),
                    Paragraph(" ".join(explained)),
                ),
                *filter(None, [parallelism.mixture_section(main)]),
                section("Where the time of a step goes", _limits(main), _breakdown(result)),
                *_communication(result),
                section("Memory", "", *memory),
                section(
                    "What this rests on",
                    "",
                    Bullets([quantities.assumed(text) for text in result.assumptions]),
                    Table(("What", "Value"), list(facts.items())),
                ),
            ],
        )
    )


def _communication(result: Result) -> list[Section]:
    if not result.main.communication:
        return []
    lead = f"A rank's operations in a step on {quantities.gpus(result.main.gpus)}."
    return [section("Communication", lead, tables.communication_table(result.main))]


def _limits(main: SizeResult) -> str:
    return " ".join(filter(None, [quantities.hot_spot(main), quantities.limit(main)]))


def _breakdown(result: Result) -> Table:
    parts = list(dict.fromkeys(part for p in result.points for part in p.breakdown_s))
    used = [part for part in parts if any(p.breakdown_s.get(part, 0) > 0 for p in result.points)]
    rows = [
        [
            f"{point.gpus:,}",
            quantities.duration(point.step_time_s),
            *(quantities.duration(point.breakdown_s.get(part, 0.0)) for part in used),
        ]
        for point in result.points
    ]
    return Table([">GPUs", ">Step", *(f">{part}" for part in used)], rows)
