"""A result as one self-contained HTML page, with its timeline and summary beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Definitions,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Section,
    Tile,
    Tiles,
    for_ranks_of,
    join_applying,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import draw_breakdown, draw_memory
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.images import ImageFormat, pictures, render
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.common.words import words_section
from perfmodel.report.explorer.grid import Grid
from perfmodel.report.explorer.section import explorer_section
from perfmodel.report.run.events import events_section, explain_device
from perfmodel.report.run.kineto import to_kineto, write_kineto
from perfmodel.report.run.parallelism import layout_section, servers_section
from perfmodel.report.run.pipeline_figure import PIPELINE_HINT, draw_pipeline
from perfmodel.report.run.scaling import scaling_section
from perfmodel.report.run.sizes import communication_table
from perfmodel.report.run.text import buckets_csv, result_header, run_markdown, sizes_csv, to_json
from perfmodel.report.run.timeline import device_window, draw_timeline, has_bucket_numbers
from perfmodel.report.topology_figure import draw_topology, topology_caption
from perfmodel.report.topology_layout import (
    busiest_link,
    drawn_hosts,
    find_limiting,
    limit_sentence,
)
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.usage import Memory

_BUCKETS_LISTED = 400

TIMELINE_HINT = (
    "Drag across the picture to zoom, double-click to go back. Bars too short to see are drawn "
    "with their neighbours; timeline.json, made for ui.perfetto.dev, holds every span."
)

_LONG_PICTURE_RATIO = 1.02
"""Of a step's picture to the step, from which on the reader is told why."""


FILES = (
    "report.html",
    "report.md",
    "result.json",
    SPREADSHEET,
    "summary.csv",
    "sizes.csv",
    "buckets.csv",
    "timeline.json",
)
"""Files that `write_report` may write, images and traces of single ranks aside."""


def write_report(
    result: Result, folder: Path, *, grid: Grid | None = None, images: ImageFormat | None = None
) -> Path:
    """Write the page and the data behind it.

    ``report.html`` and ``report.md``; ``result.json`` (as ``--json`` prints it) and the same as
    ``result.xlsx``, if XlsxWriter is installed; ``summary.csv``
    and ``sizes.csv`` (one row per size, in brief and in full), ``buckets.csv`` and
    ``timeline.json`` (Kineto-shaped, for Perfetto). Where ranks differ, as stages do, also
    ``ranks/rankN.json.gz``, a rank of each kind, for HolisticTraceAnalysis.

    `grid`: points of the what-if explorer, which is left out without them.
    `images`: write the figures as such files too, below ``images``.
    Returns the page.

    Raises `InputError`: the folder cannot be written to, or a number of the result is not finite.
    Raises `ExecutorUnavailable`: images are wanted, and what draws them is missing; nothing is
        written then.
    """
    document = to_json(result)
    files: dict[str, Any] = {
        "report.html": report_html(result, grid),
        "report.md": run_markdown(result),
        "result.json": document,
        SPREADSHEET: spreadsheet(document),
        "summary.csv": result.summary.to_csv(index=False),
        "sizes.csv": sizes_csv(result),
        **({"buckets.csv": buckets_csv(result)} if result.main.buckets else {}),
        **{
            f"images/{name}": image
            for name, image in (render(pictures(result), images) if images else {}).items()
        },
    }
    path, first_rank = write_report_files(folder, files), result.timeline.first_rank
    # Perfetto shows all ranks in one file; HolisticTraceAnalysis takes one for each.
    ranks = {f"ranks/rank{rank}.json.gz": name for name, rank in first_rank.items()}
    for place, rank_class in {"timeline.json": None, **(ranks if len(ranks) > 1 else {})}.items():
        write_timeline(result, folder / place, rank_class)
    return path


def write_timeline(result: Result, path: Path, rank_class: str | None = None) -> None:
    """Write the timeline of a step for Perfetto: of all ranks, or of the first rank of a class.

    Raises `InputError`: the file cannot be written.
    """
    document = to_kineto(
        result.timeline,
        world_size=result.main.gpus,
        backend=result.provenance.get("backend", "nccl"),
        gpu=result.topology.gpu.name,
        rank_class=rank_class,
    )
    write_kineto(document, path)


def report_html(result: Result, grid: Grid | None = None) -> str:
    """Build the page as one string; with an explorer if there is a grid for it."""
    to_json(result)  # refuses numbers that are not finite before anything is drawn
    main = result.main
    return render_html(
        f"{result.workload} on {result.machine}",
        for_ranks_of(
            result.topology,
            [
                result_header(result),
                _tiles(result),
                servers_section(main),
                events_section(main),
                layout_section(main, *_pipeline(main)),
                None if result.search is None else words_section(result.search.words),
                scaling_section(result),
                None if grid is None else explorer_section(result, grid),
                _breakdown(result),
                _step(main),
                _buckets(main),
                _topology(result),
                _memory(main),
                _grounds(result),
            ],
        ),
    )


def _pipeline(point: SizeResult) -> list[Block]:
    """Draw the passes of a pipeline, where the model is split into stages."""
    if point.parallel_layout is None or not point.parallel_layout.stages:
        return []
    return [
        Figure(draw_pipeline(point), "pipeline", "Passes of the stages of one training step"),
        Paragraph(PIPELINE_HINT, "hint"),
    ]


def _tiles(result: Result) -> Tiles:
    main, several = result.main, len(result.points) > 1
    limit, what = main.bottleneck, explain_device(main.bottleneck)
    if limit.partition(" ")[0].partition("'")[0].isalpha():  # but for a device's name, such as n5
        limit = limit[:1].upper() + limit[1:]
    below = quantities.limit(main) or "; ".join(
        filter(None, ["costs more than anything else", what])
    )
    if main.limit == "compute":
        limit, below = "Compute", "nothing else would save more than 1 % of the step"
    return Tiles(
        [
            Tile(
                "Throughput",
                quantities.count(main.samples_per_s),
                f"{quantities.samples(result)} per second",
            ),
            Tile(
                "Step time",
                quantities.duration(main.step_time_s),
                f"first step {quantities.duration(main.first_step_time_s)}",
            ),
            Tile(
                "Scaling efficiency",
                quantities.percent(main.scaling_efficiency) if several else "not known",
                quantities.efficiency_base(result) if several else "only one size was asked for",
            ),
            Tile(
                "Waiting for communication",
                quantities.duration(main.exposed_comm_s),
                f"{quantities.percent(main.exposed_comm_s / main.step_time_s)} of the step",
            ),
            _memory_tile(main.memory),
            Tile(
                "Global batch",
                f"{main.global_batch:,}",
                f"{main.batch_per_gpu:,} {quantities.batch_holder(main)}",
            ),
            Tile("Bottleneck", limit, below, "text"),
        ]
    )


def _breakdown(result: Result) -> Section:
    main = result.main
    part, time_s = max(main.breakdown_s.items(), key=lambda part: part[1], default=("compute", 0.0))
    return section(
        "Where the time goes",
        " ".join(
            filter(
                None,
                (
                    (
                        f"At {quantities.gpus(main.gpus)} the largest part is {part}: "
                        f"{quantities.duration(time_s)}, "
                        f"{quantities.percent(time_s / main.step_time_s)} of the step."
                    ),
                    quantities.hot_spot(main),
                    quantities.utilisation(main),
                ),
            )
        ),
        Figure(draw_breakdown(result), "breakdown", "Parts of the step at each size"),
    )


def _step(point: SizeResult) -> Section:
    hidden = point.comm_s - point.exposed_comm_s
    behind = f"{quantities.duration(hidden)} hidden" if hidden > 1e-12 else "nothing hidden"
    steps = 1 if point.disturbance is None else len(point.disturbance.steps_s)
    begin_s, end_s = device_window(point)
    lead = join_applying(
        (True, f"Communication takes {quantities.duration(point.comm_s)}"),
        (
            point.comm_s > 0,
            f": {behind} behind compute, {quantities.duration(point.exposed_comm_s)} exposed",
        ),
        (steps > 1, f" (means of {steps} steps; the longest of them is drawn)"),
        (has_bucket_numbers(point), ". The numbers are gradient buckets"),
        (
            steps <= 1 and end_s - begin_s > _LONG_PICTURE_RATIO * point.step_time_s,
            (
                f". {quantities.duration(end_s - begin_s)} are drawn: some GPUs begin the step "
                "while others have not ended the one before"
            ),
        ),
        (True, "."),
        by="",
    )
    return section(
        "One step",
        lead,
        Figure(draw_timeline(point), "timeline", "Timeline of one training step"),
        Paragraph(TIMELINE_HINT, "hint"),
        communication_table(point) if point.communication else None,
    )


def _buckets(point: SizeResult) -> Section | None:
    if not point.buckets:
        return None
    last_s = max(bucket.end_s for bucket in point.buckets)

    def ends_of(names: Sequence[str]) -> str:
        return f"{names[0]} ... {names[-1]} ({len(names)})" if len(names) > 1 else "".join(names)

    return section(
        "Gradient buckets",
        join_applying(
            (
                True,
                (
                    f"{len(point.buckets)} buckets; the last one ends "
                    f"{quantities.duration(last_s)} after the step began. Wait is the time between "
                    "ready and start, behind earlier buckets."
                ),
            ),
            (
                len(point.buckets) > _BUCKETS_LISTED,
                f"The first {_BUCKETS_LISTED} are listed; result.json holds all of them.",
            ),
        ),
        tabulate(
            point.buckets[:_BUCKETS_LISTED],
            (
                (">Bucket", lambda bucket: f"{bucket.index}"),
                (">Size", lambda bucket: quantities.size(bucket.nbytes)),
                (">Ready", lambda bucket: quantities.duration(bucket.ready_s)),
                (">Start", lambda bucket: quantities.duration(bucket.start_s)),
                (">End", lambda bucket: quantities.duration(bucket.end_s)),
                (
                    ">Wait",
                    lambda bucket: quantities.duration(max(0.0, bucket.start_s - bucket.ready_s)),
                ),
                (">Duration", lambda bucket: quantities.duration(bucket.end_s - bucket.start_s)),
                ("Parameters", lambda bucket: ends_of(bucket.parameters)),
            ),
        ),
    )


def _topology(result: Result) -> Section:
    main = result.main
    caption = topology_caption(result.topology, drawn_hosts(result.topology, find_limiting(main)))
    limit = f"{limit_sentence(result.topology, main)}. Rates are usable ones, each way."
    lead = f"{caption}. {limit if main.links else ''}"
    return section(
        "Machine and links",
        lead.strip(),
        Figure(draw_topology(result.topology, main), "topology", lead),
        *paragraphs([busiest_link(main)], "hint"),
    )


def _memory_tile(memory: Memory) -> Tile:
    title, figure = "Memory per GPU", quantities.memory_size(memory)
    if not memory.is_stated:
        return Tile(title, figure, f"of {quantities.size(memory.capacity_bytes)}")
    used, verdict = memory.total_bytes / memory.capacity_bytes, quantities.memory_verdict(memory)
    share, bad = quantities.percent(used), not memory.fits or memory.tight
    note = f"{verdict}: {share}" if bad else f"{verdict}, {share} used"
    return Tile(title, figure, note, "bad" if bad else "")


def _memory(point: SizeResult) -> Section:
    memory = point.memory
    summary = quantities.memory(memory)
    if not memory.is_stated:
        return section("Memory", f"{summary}.")
    title = Heading("Room to save" if memory.fits else "What would make it fit")
    return section(
        "Memory",
        f"{summary}.",
        Figure(draw_memory(memory), "memory", summary),
        *([title, Bullets(memory.advice)] if memory.advice else []),
    )


def _grounds(result: Result) -> Section:
    lines = [quantities.assumed(text) for text in result.assumptions]
    records = quantities.near_records(result.main)
    return section(
        "What this rests on",
        "",
        *([Heading("Assumptions"), Bullets(lines)] if lines else []),
        Heading("Provenance"),
        Definitions(
            {"scenario": result.scenario, "simulated as": result.main.mode}
            | {"interval": quantities.interval(result.main), **result.provenance}
        ),
        *([Heading("Nearest records"), Definitions(records)] if records else []),
        Folded(f"Sources of {len(result.sources)} numbers", [Definitions(result.sources)]),
    )
