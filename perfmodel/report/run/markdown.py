"""A result as a Markdown file that can be read alone."""

from __future__ import annotations

from perfmodel.report.common import quantities
from perfmodel.report.common.markdown import cell, table
from perfmodel.report.run import events, tables
from perfmodel.report.scaling.text import basis, findings
from perfmodel.studies.run.result import Result


def run_markdown(result: Result) -> str:
    """Write the answer, the findings, the sizes, the parts of the step and what it rests on."""
    main = result.main
    setting = f"{result.workload} with {result.strategy} on {result.machine}"
    parts = [f"# {cell(quantities.headline(result))}", cell(setting)]
    if result.question:
        parts.append(f"Question: {cell(result.question)}")
    parts.append(
        f"A prediction by simulation, not a measurement. Step time: {cell(quantities.interval(main))}."
    )
    parts += _happening(result)
    parts += ["## Scaling", cell(basis(result)), _bullets(findings(result)), _sizes(result)]
    parts += ["## Where the time of a step goes", _breakdown(result)]
    parts += ["## Memory", cell(f"{quantities.memory(main.memory)}."), _bullets(main.memory.advice)]
    parts += ["## What this rests on", _bullets(result.assumptions), _provenance(result)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _happening(result: Result) -> list[str]:
    lines = events.lines(result.main)
    return ["## What happens around it", _bullets(lines)] if lines else []


def _sizes(result: Result) -> str:
    titles, rows, words_at = tables.listed(result)
    explained = [*tables.hints(result), "sizes.csv holds every number in SI units."]
    return f"{table(titles, rows, words_at=words_at)}\n{' '.join(explained)}"


def _breakdown(result: Result) -> str:
    parts = list(dict.fromkeys(part for p in result.points for part in p.breakdown_s))
    used = [part for part in parts if any(p.breakdown_s.get(part, 0) > 0 for p in result.points)]
    return table(
        ("GPUs", "Step", *used),
        (
            (
                f"{point.gpus:,}",
                quantities.duration(point.step_time_s),
                *(quantities.duration(point.breakdown_s.get(part, 0.0)) for part in used),
            )
            for point in result.points
        ),
    )


def _bullets(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {cell(line)}" for line in lines)


def _provenance(result: Result) -> str:
    facts = {"scenario": result.scenario, "simulated as": result.main.mode, **result.provenance}
    return table(("What", "Value"), facts.items(), words_at=(0, 1))
