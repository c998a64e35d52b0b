"""A result as one self-contained HTML page, with its timeline and summary beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    Table,
    Tile,
    Tiles,
    section,
)
from perfmodel.report.common.figures import draw_breakdown, draw_memory
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.images import ImageFormat, pictures, render
from perfmodel.report.common.processes import for_ranks_of
from perfmodel.report.explorer.grid import Grid
from perfmodel.report.explorer.section import explorer_section
from perfmodel.report.run import tables
from perfmodel.report.run.events import events_section, explain_device
from perfmodel.report.run.export import to_json
from perfmodel.report.run.kineto import write_kineto
from perfmodel.report.run.parallelism import mixture_section
from perfmodel.report.run.pipeline_figure import PIPELINE_HINT, draw_pipeline
from perfmodel.report.run.servers import servers_section
from perfmodel.report.run.text import result_header, run_markdown
from perfmodel.report.run.timeline_figure import draw_timeline, has_bucket_numbers
from perfmodel.report.run.timeline_layout import device_window
from perfmodel.report.scaling.text import scaling_section
from perfmodel.report.topology.figure import draw_topology, topology_caption
from perfmodel.report.topology.labels import (
    busiest_link,
    drawn_hosts,
    find_limiting,
    limit_sentence,
)
from perfmodel.studies.run.result.model import Result, SizeResult
from perfmodel.studies.run.result.usage import Memory

_BUCKETS_LISTED = 400

_LONGER = 1.02
"""Of a step's picture to the step, from which on the reader is told why."""


FILES = (
    "report.html",
    "report.md",
    "result.json",
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

    ``report.html`` and ``report.md``; ``result.json`` (as ``--json`` prints it), ``summary.csv``
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
    page = report_html(result, grid)
    drawn = {} if images is None else render(pictures(result), images)
    buckets = {"buckets.csv": tables.buckets_csv(result)} if result.main.buckets else {}
    path = write_report_files(
        folder,
        {
            "report.html": page,
            "report.md": run_markdown(result),
            "result.json": to_json(result),
            "summary.csv": result.summary.to_csv(index=False),
            "sizes.csv": tables.sizes_csv(result),
            **buckets,
            **{f"images/{name}": image for name, image in drawn.items()},
        },
    )
    _write_timelines(result, folder)
    return path


def _write_timelines(result: Result, folder: Path) -> None:
    """Write the timeline of all ranks, and where they differ that of one of each kind.

    Perfetto shows all in one; HolisticTraceAnalysis takes a file for each rank.
    """
    first_rank = result.timeline.first_rank
    places: dict[str, str | None] = {"timeline.json": None}
    if len(first_rank) > 1:
        places |= {f"ranks/rank{rank}.json.gz": name for name, rank in first_rank.items()}
    for place, rank_class in places.items():
        write_kineto(
            result.timeline,
            folder / place,
            world_size=result.main.gpus,
            backend=result.provenance.get("backend", "nccl"),
            gpu=result.topology.gpu.name,
            rank_class=rank_class,
        )


def report_html(result: Result, grid: Grid | None = None) -> str:
    """Build the page as one string; with an explorer if there is a grid for it."""
    to_json(result)  # refuses numbers that are not finite before anything is drawn
    return render_html(
        f"{result.workload} on {result.machine}",
        for_ranks_of(
            result.topology,
            [
                result_header(result),
                _tiles(result),
                servers_section(result.main),
                events_section(result.main),
                mixture_section(result.main, *_pipeline(result.main)),
                scaling_section(result),
                None if grid is None else explorer_section(result, grid),
                _breakdown(result),
                _step(result.main),
                _buckets(result.main),
                _topology(result),
                _memory(result.main),
                _grounds(result),
            ],
        ),
    )


def _pipeline(point: SizeResult) -> list[Block]:
    if point.mixture is None or not point.mixture.stages:
        return []
    figure = Figure(draw_pipeline(point), "pipeline", "Passes of the stages of one training step")
    return [figure, Paragraph(PIPELINE_HINT, "hint")]


def _tiles(result: Result) -> Tiles:
    main, memory = result.main, result.main.memory
    share = quantities.percent(main.exposed_comm_s / main.step_time_s)
    speed = quantities.count(main.samples_per_s)
    first_step = f"first step {quantities.duration(main.first_step_time_s)}"
    waiting = quantities.duration(main.exposed_comm_s)
    limit, below = main.bottleneck, quantities.limit(main)
    if not below:
        below = "costs more than anything else"
        below += f"; {explained}" if (explained := explain_device(limit)) else ""
    if main.limit == "compute":
        limit, below = "Compute", "nothing else would save more than 1 % of the step"
    return Tiles(
        [
            Tile("Throughput", speed, f"{quantities.samples(result)} per second"),
            Tile("Step time", quantities.duration(main.step_time_s), first_step),
            Tile("Scaling efficiency", *_efficiency(result)),
            Tile("Waiting for network", waiting, f"{share} of the step"),
            _memory_tile(memory),
            Tile(
                "Global batch",
                f"{main.global_batch:,}",
                f"{main.batch_per_gpu:,} {quantities.batch_holder(main)}",
            ),
            Tile("Bottleneck", _capital(limit), below, "text"),
        ]
    )


def _capital(text: str) -> str:
    """Begin a text with a capital letter, unless it begins with the name of a device (``n5``)."""
    first = text.partition(" ")[0].partition("'")[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text


def _efficiency(result: Result) -> tuple[str, str]:
    if len(result.points) < 2:
        return "not known", "only one size was asked for"
    return quantities.percent(result.main.scaling_efficiency), quantities.efficiency_base(result)


def _breakdown(result: Result) -> Section:
    main = result.main
    part, time_s = max(main.breakdown_s.items(), key=lambda part: part[1], default=("compute", 0.0))
    lead = (
        f"At {quantities.gpus(main.gpus)} the largest part is {part}: "
        f"{quantities.duration(time_s)}, "
        f"{quantities.percent(time_s / main.step_time_s)} of the step."
    )
    if hot_spot := quantities.hot_spot(main):
        lead += f" {hot_spot}"
    if used := quantities.utilisation(main):
        lead += f" {used}"
    figure = Figure(draw_breakdown(result), "breakdown", "Parts of the step at each size")
    return section("Where the time goes", lead, figure)


def _step(point: SizeResult) -> Section:
    hidden = point.comm_s - point.exposed_comm_s
    lead = f"Communication takes {quantities.duration(point.comm_s)}"
    if point.comm_s > 0:
        behind = f"{quantities.duration(hidden)} hidden" if hidden > 1e-12 else "nothing hidden"
        lead += f": {behind} behind compute, {quantities.duration(point.exposed_comm_s)} exposed"
    averaged = point.disturbance is not None and len(point.disturbance.steps_s) > 1
    if point.disturbance is not None and averaged:
        lead += f" (mean of {len(point.disturbance.steps_s)} steps; one of them is drawn)"
    drawing = draw_timeline(point)
    if has_bucket_numbers(point):
        lead += ". The numbers are gradient buckets"
    begin_s, end_s = device_window(point)
    if not averaged and end_s - begin_s > _LONGER * point.step_time_s:
        lead += (
            f". {quantities.duration(end_s - begin_s)} are drawn: some GPUs begin the step while "
            "others have not ended the one before"
        )
    hint = (
        "Drag across the picture to zoom, double-click to go back. Bars too short to see are drawn "
        "with their neighbours; timeline.json, made for ui.perfetto.dev, holds every span."
    )
    figure = Figure(drawing, "timeline", "Timeline of one training step")
    table = [tables.communication_table(point)] if point.communication else []
    return section("One step", f"{lead}.", figure, Paragraph(hint, "hint"), *table)


def _buckets(point: SizeResult) -> Section | None:
    if not point.buckets:
        return None
    last = max(point.buckets, key=lambda bucket: bucket.end_s)
    lead = (
        f"{len(point.buckets)} buckets; the last one ends {quantities.duration(last.end_s)} after "
        "the step began. Wait is the time between ready and start, behind earlier buckets."
    )
    if len(point.buckets) > _BUCKETS_LISTED:
        lead += f" The first {_BUCKETS_LISTED} are listed; result.json holds all of them."
    header = (">Bucket", ">Size", ">Ready", ">Start", ">End", ">Wait", ">Duration", "Parameters")
    rows = [
        (
            f"{bucket.index}",
            quantities.size(bucket.nbytes),
            quantities.duration(bucket.ready_s),
            quantities.duration(bucket.start_s),
            quantities.duration(bucket.end_s),
            quantities.duration(max(0.0, bucket.start_s - bucket.ready_s)),
            quantities.duration(bucket.end_s - bucket.start_s),
            _ends_of(bucket.parameters),
        )
        for bucket in point.buckets[:_BUCKETS_LISTED]
    ]
    return section("Gradient buckets", lead, Table(header, rows))


def _ends_of(names: Sequence[str]) -> str:
    return f"{names[0]} ... {names[-1]} ({len(names)})" if len(names) > 1 else "".join(names)


def _topology(result: Result) -> Section:
    main = result.main
    hosts = drawn_hosts(result.topology, find_limiting(main))
    lead = f"{topology_caption(result.topology, hosts)}. "
    if main.links:
        lead += f"{limit_sentence(result.topology, main)}. Rates are usable ones, each way."
    figure = Figure(draw_topology(result.topology, main), "topology", lead)
    detail = busiest_link(main)
    return section(
        "Machine and links", lead.strip(), figure, Paragraph(detail, "hint") if detail else None
    )


def _memory_tile(memory: Memory) -> Tile:
    title, figure = "Memory per GPU", quantities.memory_size(memory)
    if not memory.is_stated:
        return Tile(title, figure, f"of {quantities.size(memory.capacity_bytes)}")
    used = quantities.percent(memory.total_bytes / memory.capacity_bytes)
    verdict = quantities.memory_verdict(memory)
    if not memory.fits or memory.tight:
        return Tile(title, figure, f"{verdict}: {used}", "bad")
    return Tile(title, figure, f"{verdict}, {used} used")


def _memory(point: SizeResult) -> Section:
    memory = point.memory
    summary = quantities.memory(memory)
    if not memory.is_stated:
        return section("Memory", f"{summary}.")
    title = Heading("Room to save" if memory.fits else "What would make it fit")
    advice = [title, Bullets(memory.advice)] if memory.advice else []
    figure = Figure(draw_memory(memory), "memory", summary)
    return section("Memory", f"{summary}.", figure, *advice)


def _grounds(result: Result) -> Section:
    main = result.main
    facts = {
        "scenario": result.scenario,
        "simulated as": main.mode,
        "interval": quantities.interval(main),
        **result.provenance,
    }
    lines = [quantities.assumed(text) for text in result.assumptions]
    assumed = [Heading("Assumptions"), Bullets(lines)] if lines else []
    return section(
        "What this rests on",
        "",
        *assumed,
        Heading("Provenance"),
        Definitions(facts),
        Folded(f"Sources of {len(result.sources)} numbers", [Definitions(result.sources)]),
    )
