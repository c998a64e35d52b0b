"""A result as one self-contained HTML page, with its timeline and summary beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from perfmodel.files import write_atomically, write_json
from perfmodel.report.common import figures, quantities
from perfmodel.report.common.images import ImageFormat, pictures, render
from perfmodel.report.common.page import document, figure_html, figure_section, html_table
from perfmodel.report.explorer import section as explorer
from perfmodel.report.explorer.grid import Grid
from perfmodel.report.run import events
from perfmodel.report.run.chrome_trace import write_kineto
from perfmodel.report.run.export import to_json
from perfmodel.report.run.markdown import run_markdown
from perfmodel.report.run.tables import buckets_csv, sizes_csv
from perfmodel.report.run.timeline_figure import timeline
from perfmodel.report.scaling import text as scaling_section
from perfmodel.report.topology import figure
from perfmodel.studies.run.result import BucketTime, Result, SizeResult

_BUCKETS_LISTED = 400
_URL = re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;]")


def write_report(
    result: Result, folder: Path, *, grid: Grid | None = None, images: ImageFormat | None = None
) -> Path:
    """Write the page and the data behind it.

    ``report.html`` and ``report.md``; ``result.json`` (as ``--json`` prints it), ``summary.csv``
    and ``sizes.csv`` (one row per size, in brief and in full), ``buckets.csv`` and
    ``timeline.json`` (Kineto-shaped, for Perfetto).

    Parameters
    ----------
    result : Result
    folder : Path
    grid : Grid, optional
        Points of the what-if explorer, which is left out without them.
    images : {"png", "svg"}, optional
        Write the figures as such files too, below ``images``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to, or a number of the result is not finite.
    ExecutorUnavailable
        Images are wanted, and what draws them is missing; nothing is written then.
    """
    page, text = folder / "report.html", report_html(result, grid)
    drawn = {} if images is None else render(pictures(result), images)
    for name, image in drawn.items():
        write_atomically(folder / "images" / name, image)
    write_atomically(page, text)
    write_kineto(
        result.timeline,
        folder / "timeline.json",
        world_size=result.main.gpus,
        backend=result.provenance.get("backend", "nccl"),
        gpu=result.topology.gpu.name,
    )
    write_json(folder / "result.json", to_json(result))
    write_atomically(folder / "summary.csv", result.summary.to_csv(index=False))
    write_atomically(folder / "sizes.csv", sizes_csv(result))
    if result.main.buckets:
        write_atomically(folder / "buckets.csv", buckets_csv(result))
    write_atomically(folder / "report.md", run_markdown(result))
    return page


def report_html(result: Result, grid: Grid | None = None) -> str:
    """Build the page as one string; with an explorer if there is a grid for it."""
    to_json(result)  # refuses numbers that are not finite before anything is drawn
    sections = [
        _header(result),
        _tiles(result),
        events.section(result.main),
        scaling_section.section(result),
        "" if grid is None else explorer.section(result, grid),
        _breakdown(result),
        _step(result.main),
        _buckets(result.main),
        _topology(result),
        _memory(result.main),
        _grounds(result),
    ]
    body = "<main>\n" + "\n".join(section for section in sections if section) + "\n</main>"
    return document(f"{result.workload} on {result.machine}", body)


def _header(result: Result) -> str:
    setting = f"{result.workload} with {result.strategy} on {result.machine}"
    question = f'<p class="question">{escape(result.question)}</p>' if result.question else ""
    return (
        f'<header><p class="setting">{escape(setting)}</p>'
        f"<h1>{escape(quantities.headline(result))}</h1>{question}"
        '<p class="note">A prediction by simulation, not a measurement. '
        f"Step time: {escape(quantities.interval(result.main))}.</p></header>"
    )


def _tiles(result: Result) -> str:
    main = result.main
    share = main.exposed_comm_s / main.step_time_s
    used = main.memory.total_bytes / main.memory.capacity_bytes
    by_compute = main.bottleneck == "compute"
    limit = "Compute" if by_compute else main.bottleneck
    below = "the network is not what limits the step" if by_compute else "limits the communication"
    tiles = [
        (
            "Throughput",
            quantities.count(main.samples_per_s),
            f"{quantities.samples(result)} per second",
            "",
        ),
        ("Step time", quantities.duration(main.step_time_s), f"first step {_first(main)}", ""),
        ("Scaling efficiency", *_efficiency(result), ""),
        (
            "Waiting for network",
            quantities.duration(main.exposed_comm_s),
            f"{quantities.percent(share)} of the step",
            "",
        ),
        (
            "Memory per GPU",
            quantities.size(main.memory.total_bytes),
            f"fits, {quantities.percent(used)} used"
            if main.memory.fits
            else f"does not fit: {quantities.percent(used)}",
            "" if main.memory.fits else "bad",
        ),
        (
            "Global batch",
            f"{main.global_batch:,}",
            f"{main.batch_per_gpu:,} per GPU",
            "",
        ),
        ("Bottleneck", limit, below, "text"),
    ]
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles)}</div>'


def _efficiency(result: Result) -> tuple[str, str]:
    if len(result.points) < 2:
        return "not known", "only one size was asked for"
    return quantities.percent(result.main.scaling_efficiency), quantities.efficiency_base(result)


def _first(point: SizeResult) -> str:
    return quantities.duration(point.first_step_time_s)


def _tile(title: str, value: str, below: str, look: str) -> str:
    return (
        f'<div class="tile {look}"><span>{escape(title)}</span>'
        f"<strong>{escape(value)}</strong><small>{escape(below)}</small></div>"
    )


def _breakdown(result: Result) -> str:
    main = result.main
    part, time = max(main.breakdown_s.items(), key=lambda item: item[1], default=("compute", 0.0))
    lead = (
        f"At {quantities.gpus(main.gpus)} the largest part is {part}: {quantities.duration(time)}, "
        f"{quantities.percent(time / main.step_time_s)} of the step."
    )
    drawing = figure_html(figures.breakdown(result), "breakdown", "Parts of the step at each size")
    return figure_section("Where the time goes", lead, drawing)


def _step(point: SizeResult) -> str:
    hidden = point.comm_s - point.exposed_comm_s
    lead = f"Communication takes {quantities.duration(point.comm_s)}"
    if point.comm_s > 0:
        lead += (
            f": {quantities.duration(hidden)} hidden behind compute, "
            f"{quantities.duration(point.exposed_comm_s)} exposed"
        )
    if point.buckets:
        lead += ". The numbers are gradient buckets"
    drawing = figure_html(timeline(point), "timeline", "Timeline of one training step")
    hint = (
        '<p class="hint">Drag across the picture to zoom, double-click to go back. Bars too short '
        "to see are drawn with their neighbours; timeline.json, made for ui.perfetto.dev, holds "
        "every span.</p>"
    )
    return figure_section("One step", f"{lead}.", drawing, hint)


def _buckets(point: SizeResult) -> str:
    if not point.buckets:
        return ""
    last = max(point.buckets, key=lambda bucket: bucket.end_s)
    lead = (
        f"{len(point.buckets)} buckets; the last one ends {quantities.duration(last.end_s)} after the "
        "step began. Wait is the time between ready and start, behind earlier buckets."
    )
    if len(point.buckets) > _BUCKETS_LISTED:
        lead += f" The first {_BUCKETS_LISTED} are listed; result.json holds all of them."
    rows = html_table(
        ("Bucket", "Size", "Ready", "Start", "End", "Wait", "Duration", "Parameters"),
        (_bucket_row(bucket) for bucket in point.buckets[:_BUCKETS_LISTED]),
        words_at=(7,),
    )
    return figure_section("Gradient buckets", lead, rows)


def _bucket_row(bucket: BucketTime) -> tuple[str, ...]:
    names = bucket.parameters
    held = ""
    if names:
        held = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"
    return (
        f"{bucket.index}",
        quantities.size(bucket.nbytes),
        quantities.duration(bucket.ready_s),
        quantities.duration(bucket.start_s),
        quantities.duration(bucket.end_s),
        quantities.duration(max(0.0, bucket.start_s - bucket.ready_s)),
        quantities.duration(bucket.end_s - bucket.start_s),
        held,
    )


def _topology(result: Result) -> str:
    main = result.main
    lead = figure.caption(result.topology)
    if main.links:
        busiest = max(main.links, key=lambda link: link.utilisation)
        lead += (
            f". Busiest link: {busiest.src} to {busiest.dst} ({busiest.kind}), "
            f"{quantities.percent(busiest.utilisation)} used over the whole step"
        )
    drawn = figure.figure(result.topology, main.links)
    return figure_section("Machine and links", f"{lead}.", figure_html(drawn, "topology", lead))


def _memory(point: SizeResult) -> str:
    drawing = figure_html(figures.memory(point.memory), "memory", quantities.memory(point.memory))
    advice = ""
    if point.memory.advice:
        items = "".join(f"<li>{escape(line)}</li>" for line in point.memory.advice)
        title = "Room to save" if point.memory.fits else "What would make it fit"
        advice = f"<h3>{title}</h3><ul>{items}</ul>"
    return figure_section("Memory", f"{quantities.memory(point.memory)}.", drawing, advice)


def _grounds(result: Result) -> str:
    main = result.main
    assumed = "".join(f"<li>{_linked(line)}</li>" for line in result.assumptions)
    facts = {
        "scenario": result.scenario,
        "simulated as": main.mode,
        "interval": quantities.interval(main),
        **result.provenance,
    }
    return figure_section(
        "What this rests on",
        "",
        f"<h3>Assumptions</h3><ul>{assumed}</ul>" if assumed else "",
        f"<h3>Provenance</h3>{_definitions(facts)}",
        _folded(f"Sources of {len(result.sources)} numbers", _definitions(result.sources)),
    )


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _definitions(entries: Mapping[str, str]) -> str:
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{_linked(str(value))}</dd>" for name, value in entries.items()
    )
    return f"<dl>{rows}</dl>"


def _linked(text: str) -> str:
    """Escape text and turn web addresses into links, which load nothing until they are clicked."""
    parts, position = [], 0
    for match in _URL.finditer(text):
        address = escape(match.group())
        parts.append(escape(text[position : match.start()]))
        parts.append(f'<a rel="noopener noreferrer" href="{address}">{address}</a>')
        position = match.end()
    return "".join([*parts, escape(text[position:])])
