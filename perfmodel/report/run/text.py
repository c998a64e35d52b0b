"""A result in the terminal, as Markdown, as JSON and as CSV.

Keys of the JSON, which ``perfmodel run --json`` prints, are a contract that other programs rely on:
they are added to, never renamed.
"""

from __future__ import annotations

from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTION,
    Block,
    Bullets,
    Column,
    Header,
    Paragraph,
    Table,
    bullets_section,
    for_ranks_of,
    header,
    paragraphs,
    section,
    table_section,
    tabulate,
)
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.run import events, parallelism, sizes
from perfmodel.report.run.parallelism import search_blocks, server_lines
from perfmodel.report.run.scaling import basis, findings
from perfmodel.report.run.sizes import size_gains
from perfmodel.studies.run.result import Result, SizeResult


def result_header(result: Result) -> Header:
    """The setting, the question, and the answer."""
    return header(
        f"{result.workload} with {result.strategy} on {result.machine}",
        quantities.headline(result),
        [
            f"{PREDICTION} Step time: {quantities.interval(result.main)}.",
            quantities.rests_on(result.main),
        ],
        [result.question],
    )


# ---------------------------------------------------------------- terminal


def result_lines(result: Result) -> list[Block]:
    """Arrange a result for the terminal: the answer, the sizes, memory and certainty."""
    main = result.main
    too_big = ", ".join(f"{point.gpus:,}" for point in result.points[:-1] if not point.memory.fits)
    sizes = tabulate(
        result.points,
        (
            (">GPUs", lambda point: f"{point.gpus:,}"),
            (">step", lambda point: quantities.duration(point.step_time_s)),
            (
                f">{result.samples.units}/s",
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
    return for_ranks_of(
        result.topology,
        [
            Paragraph(quantities.headline(result), "headline"),
            *search_blocks(result.search),
            sizes,
            *parallelism.result_blocks(main),
            *paragraphs(server_lines(main)),
            *paragraphs(events.lines(main)),
            *paragraphs(
                [
                    f"{quantities.memory(main.memory)}.",
                    *main.memory.advice,
                    f"Does not fit on {too_big} GPUs: those rows are hypothetical."
                    if too_big
                    else "",
                    quantities.hot_spot(main),
                    quantities.limit(main),
                    quantities.slowest(result),
                    quantities.utilisation(main),
                    f"{quantities.scaling(result)}. Step time: {quantities.interval(main)}.",
                    quantities.rests_on(main, sourced=True),
                    *result.notes,
                ],
                "note",
            ),
        ],
    )


# ---------------------------------------------------------------- Markdown


def run_markdown(result: Result) -> str:
    """Write the answer, the findings, the sizes, the parts of the step and what it rests on."""
    main = result.main
    facts = {"scenario": result.scenario, "simulated as": main.mode, **result.provenance}
    searched = search_blocks(result.search)
    return render_markdown(
        for_ranks_of(
            result.topology,
            [
                result_header(result),
                section("The parallel layout", "", *searched) if searched else None,
                bullets_section("Parameter servers", server_lines(main)),
                bullets_section("What happens around it", events.lines(main)),
                section(
                    "Scaling",
                    basis(result),
                    Bullets(findings(result)),
                    sizes.sizes_table(result),
                    Paragraph(
                        " ".join(
                            [*sizes.hints(result), "sizes.csv holds every number in SI units."]
                        )
                    ),
                ),
                parallelism.layout_section(main),
                section(
                    "Where the time of a step goes",
                    " ".join(filter(None, [quantities.hot_spot(main), quantities.limit(main)])),
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
                    Table(("What", "Value"), list((facts | quantities.near_records(main)).items())),
                ),
            ],
        )
    )


def _breakdown(result: Result) -> Table:
    steps_s = [point.breakdown_s for point in result.points]
    present = [
        part
        for part in dict.fromkeys(part for step_s in steps_s for part in step_s)
        if any(step_s.get(part, 0) > 0 for step_s in steps_s)
    ]

    def part_column(part: str) -> Column:
        return f">{part}", lambda point: quantities.duration(point.breakdown_s.get(part, 0.0))

    return tabulate(
        result.points,
        [
            (">GPUs", lambda point: f"{point.gpus:,}"),
            (">Step", lambda point: quantities.duration(point.step_time_s)),
            *map(part_column, present),
        ],
    )


def to_json(result: Result) -> dict[str, Any]:
    """Write a result as plain data; times in seconds, sizes in bytes, every number finite.

    The top level speaks of the size that the scenario asks about; ``curve`` holds the same
    values for every size.

    Raises `InputError`: a number is infinite or not a number; names the field.
    """
    names = "scenario question workload strategy machine scaling efficiency_base slowest_gpu"
    cost = result.main.disturbance
    return dict(
        as_json(
            {
                **attributes(result, names),
                **size_to_json(result.main),
                "buckets": result.main.buckets,
                **(
                    {"undisturbed_s": None, "steps_s": [], "mean_interval_s": None}
                    | {"events": [], "waits": [], "jobs": []}
                    if cost is None
                    else attributes(cost, "undisturbed_s steps_s mean_interval_s events waits jobs")
                ),
                "evidence": result.main.evidence,
                "server_use": result.main.server_use,
                "hot_spot": result.main.hot_spot,
                "search": result.search,
                "curve": [size_to_json(point) for point in result.points],
                **attributes(result, "assumptions sources provenance"),
            },
            "result",
        )
    )


def size_to_json(point: SizeResult) -> dict[str, Any]:
    """Return the numbers of one cluster size."""
    memory = point.memory
    needs = (
        "parameters_bytes gradients_bytes optimizer_bytes buckets_bytes activations_bytes "
        "gathered_bytes temporary_bytes"
    )
    return {
        **attributes(
            point,
            "gpus nodes global_batch batch_per_gpu step_time_s interval_s first_step_time_s "
            "compute_s comm_s exposed_comm_s breakdown_s samples_per_s scaling_efficiency "
            "scaling_efficiency_interval bottleneck bottleneck_path uncertainties communication "
            "sent_bytes mfu parallel_layout",
        ),
        "memory_bytes": memory.total_bytes if memory.is_stated else None,
        "fits": memory.fits if memory.is_stated else None,
        "tight": memory.tight if memory.is_stated else None,
        "memory": attributes(
            memory,
            f"{needs} total_bytes capacity_bytes advice low_bytes high_bytes is_sure reserve_bytes "
            "host_bytes host_capacity_bytes drive_bytes drive_capacity_bytes",
        )
        if memory.is_stated
        else None,
        "mode": point.mode,
        "reliefs": [attributes(each, "what parts what_if saves_s") for each in point.reliefs],
    }


def sizes_csv(result: Result) -> str:
    """Every number of every size; SI units, empty where there is no interval."""
    parts = sorted({part for point in result.points for part in point.breakdown_s})

    def ends(low: str, high: str, interval: tuple[float, float] | None) -> dict[str, object]:
        return dict(zip((low, high), interval or (None, None), strict=True))

    rows: list[dict[str, object]] = [
        {
            **attributes(size.point, "gpus nodes global_batch batch_per_gpu step_time_s"),
            **ends("step_low_s", "step_high_s", size.point.interval_s),
            **attributes(size.point, "first_step_time_s samples_per_s"),
            **ends("samples_low_per_s", "samples_high_per_s", size.samples),
            **attributes(size.point, "scaling_efficiency"),
            **ends("efficiency_low", "efficiency_high", size.efficiency),
            "marginal_efficiency": size.marginal,
            **attributes(size.point, "compute_s comm_s exposed_comm_s bottleneck"),
            "memory_bytes": memory.total_bytes if memory.is_stated else None,
            "memory_capacity_bytes": memory.capacity_bytes,
            "fits": memory.fits if memory.is_stated else None,
            **{
                f"{part.replace(' ', '_')}_s": size.point.breakdown_s.get(part, 0.0)
                for part in parts
            },
        }
        for size, memory in ((size, size.point.memory) for size in size_gains(result))
    ]
    return csv_text(rows[0], (row.values() for row in rows))


def buckets_csv(result: Result) -> str:
    """Gradient buckets of the size that is asked about; seconds from the start of the step."""
    names = "index nbytes ready_s start_s end_s"
    return csv_text(
        [*names.split(), "parameters"],
        (
            [*attributes(bucket, names).values(), " ".join(bucket.parameters)]
            for bucket in result.main.buckets
        ),
    )
