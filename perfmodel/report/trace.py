"""A traced step beside its simulation, in words and tables, and as one page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Code,
    Figure,
    Paragraph,
    Table,
    header,
    paragraphs,
    section,
)
from perfmodel.report.common.figures import axis_layout, new_figure, time_unit, title_row
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import WORK, work_of
from perfmodel.report.common.quantities import duration
from perfmodel.report.run.kineto import to_kineto
from perfmodel.traces.rebuild.layer_profile import BucketTimes
from perfmodel.traces.rebuild.scenario_files import MACHINE, MODEL, SCENARIO
from perfmodel.traces.run import TraceAnalysis, to_json
from perfmodel.workload.model import ITEM_BYTES

if TYPE_CHECKING:
    import plotly.graph_objects as go


LAUNCH_BOUND = 0.1
"""Part of a step from which its waiting for launches is called CPU-bound."""

MOST_LAYERS = 8


def title(analysis: TraceAnalysis) -> str:
    """What was traced."""
    first = analysis.first
    ranks = f"{len(analysis.ranks)} of {first.world_size} ranks"
    return f"{first.device}, {ranks}, {first.backend or 'no process group'}"


def headline(analysis: TraceAnalysis) -> str:
    """Say how long the step is, what it waits for, and how well the rebuilt one agrees."""
    step = f"A step takes {quantities.duration(analysis.profile.step_s)}"
    if not analysis.first.on_cpu and analysis.launch_bound >= LAUNCH_BOUND:
        step += f"; the GPU waits {quantities.percent(analysis.launch_bound)} of it for the host"
    if analysis.comparison is None:
        return f"{step}."
    rebuilt = quantities.duration(analysis.comparison.simulated_s)
    off = quantities.signed(analysis.comparison.error, quantities.percent)
    return f"{step}. Rebuilt and simulated it takes {rebuilt} ({off})."


def sentences(analysis: TraceAnalysis) -> list[str]:
    """What matters, in the order in which a reader asks."""
    profile = analysis.profile
    count = len(profile.steps_s)
    spread = quantities.span(min(profile.steps_s), max(profile.steps_s), quantities.duration)
    step = f"Step: {quantities.duration(profile.step_s)} (median of {count}; {spread})."
    lines = [step, _parts(analysis)]
    if not analysis.first.on_cpu:
        lines.append(_launches(analysis))
    lines += _communication(analysis)
    lines += _replayed(analysis)
    notes = analysis.rebuilt.notes if analysis.rebuilt else analysis.first.notes
    return lines + [f"Note: {note}." for note in notes]


def _parts(analysis: TraceAnalysis) -> str:
    profile = analysis.profile
    forward, backward = float(profile.forward_s.sum()), float(profile.backward_s.sum())
    return (
        f"Forward {quantities.duration(forward)}, backward {quantities.duration(backward)}, "
        f"exposed communication {quantities.duration(profile.exposed_s)}, optimizer and the rest "
        f"{quantities.duration(profile.tail_s)}."
    )


def _launches(analysis: TraceAnalysis) -> str:
    share = analysis.launch_bound
    busy = analysis.profile.busy_s / analysis.profile.step_s
    line = (
        f"The device works {quantities.percent(busy)} of the step and waits "
        f"{quantities.percent(share)} for the host to launch work"
    )
    if share < LAUNCH_BOUND:
        return f"{line}."
    return f"{line}: the step is CPU-bound, and a faster GPU or network hardly helps."


def _communication(analysis: TraceAnalysis) -> list[str]:
    profile = analysis.profile
    if not profile.buckets:
        return []
    waits = [bucket.waiting_s for bucket in profile.buckets if bucket.waiting_s is not None]
    lines = []
    if waits:
        transfer = sum(bucket.transfer_s for bucket in profile.buckets)
        lines.append(
            f"All-reduces transfer for {quantities.duration(transfer)} a step; the first rank "
            f"waits {quantities.duration(sum(waits))} more for the last one (skew)."
        )
    elif analysis.first.world_size > 1:
        lines.append(
            "With one rank's trace, times of collectives contain the waiting for other ranks."
        )
    if profile.slowdown is not None:
        lines.append(
            f"Work beside collectives takes {profile.slowdown:.2f} times as long as alone."
        )
    fit = analysis.rebuilt.fit if analysis.rebuilt else None
    if fit is not None:
        latency = 2 * (analysis.first.world_size - 1) * fit.latency_s
        lines.append(
            f"As recorded, all-reduces have a bus bandwidth of "
            f"{quantities.rate(fit.bandwidth_Bps)} and start in {quantities.duration(latency)}; "
            f"the worst bucket is {quantities.percent(fit.worst)} off that line."
        )
    return lines


def _replayed(analysis: TraceAnalysis) -> list[str]:
    comparison = analysis.comparison
    if comparison is None:
        return [f"No scenario: {analysis.refusal}"]
    simulated = quantities.duration(comparison.simulated_s)
    error = f"{100 * comparison.error:+.1f} %".replace("-", "\N{MINUS SIGN}")
    lines = [f"Rebuilt and simulated on the machine as recorded: {simulated}, {error}."]
    if analysis.changed is not None:
        factor = comparison.recorded_s / analysis.changed.simulated_s
        lines.append(
            f"With the changes: {quantities.duration(analysis.changed.simulated_s)}, "
            f"{factor:.2f} times as fast as recorded."
        )
    return lines


def bucket_table(analysis: TraceAnalysis) -> Table | None:
    """Buckets as recorded and as simulated; times since the beginning of the step."""
    profile = analysis.profile
    if not profile.buckets:
        return None
    simulated = analysis.comparison.point.buckets if analysis.comparison else ()
    skewed = any(bucket.waiting_s is not None for bucket in profile.buckets)
    header = [
        ">bucket",
        ">size",
        ">ready",
        ">end",
        ">simulated end",
        ">difference",
        ">transfer",
        *[">waiting"] * skewed,
        ">elements",
    ]
    rows = [
        (
            f"{bucket.index}",
            _bucket_size(bucket),
            quantities.duration(bucket.ready_s),
            quantities.duration(bucket.end_s),
            *_simulated_cells(
                bucket, simulated[bucket.index].end_s if bucket.index < len(simulated) else None
            ),
            quantities.duration(bucket.transfer_s),
            *["" if bucket.waiting_s is None else quantities.duration(bucket.waiting_s)] * skewed,
            "not stated" if bucket.elements is None else f"{bucket.elements:,}",
        )
        for bucket in profile.buckets
    ]
    return Table(header, rows, wraps=True)


def _bucket_size(bucket: BucketTimes) -> str:
    if bucket.elements is None:
        return ""
    return quantities.size(bucket.elements * ITEM_BYTES.get(bucket.dtype or "fp32", 4))


def _simulated_cells(bucket: BucketTimes, end_s: float | None) -> tuple[str, str]:
    if end_s is None:
        return "", ""
    apart = quantities.signed(end_s - bucket.end_s, quantities.duration)
    return quantities.duration(end_s), apart


def layer_table(analysis: TraceAnalysis, most: int = MOST_LAYERS) -> Table:
    """The layers that take longest."""
    profile, first = analysis.profile, analysis.first
    gradients = analysis.rebuilt.gradients if analysis.rebuilt else first.gradients
    total = float(profile.forward_s.sum() + profile.backward_s.sum()) or 1.0
    by_time = sorted(
        range(len(first.layers)), key=lambda at: -(profile.forward_s[at] + profile.backward_s[at])
    )
    rows = [
        (
            first.layers[at].name,
            f"{sum(gradients[g].elements or 0 for g in first.layers[at].gradients):,}",
            quantities.duration(float(profile.forward_s[at])),
            quantities.duration(float(profile.backward_s[at])),
            quantities.percent_column(
                float(profile.forward_s[at] + profile.backward_s[at]) / total
            ),
        )
        for at in by_time[:most]
    ]
    return Table(("longest layers", ">parameters", ">forward", ">backward", ">share"), rows)


def trace_lines(analysis: TraceAnalysis) -> list[Block]:
    """What ``perfmodel trace`` prints."""
    blocks: list[Block] = [Paragraph(title(analysis)), *paragraphs(sentences(analysis))]
    table = bucket_table(analysis)
    return [*blocks, *([table] if table else []), layer_table(analysis)]


PAGE, SUMMARY, TIMELINE = "trace.html", "trace.json", "timeline.json"
FILES = (PAGE, SUMMARY, TIMELINE, MODEL, MACHINE, SCENARIO)
"""Files that ``perfmodel trace -o`` writes."""

MOST_BARS = 400
LAYERS_LISTED = 20


class Bar(NamedTuple):
    """A piece of one row; seconds since the beginning of the step."""

    row: str
    work: str
    start_s: float
    end_s: float
    label: str


def write_trace_report(analysis: TraceAnalysis, folder: Path) -> Path:
    """Write the page, its numbers, and the simulated timeline for Perfetto.

    Returns and raises as `write_report_files`.
    """
    files: dict[str, object] = {PAGE: trace_html(analysis), SUMMARY: to_json(analysis)}
    if analysis.comparison is not None:
        first = analysis.first
        files[TIMELINE] = to_kineto(
            analysis.comparison.result.timeline,
            world_size=first.world_size,
            backend=first.backend or "nccl",
            gpu=first.device,
        )
    return write_report_files(folder, files)


def trace_html(analysis: TraceAnalysis) -> str:
    """Build the page as one string."""
    name = analysis.first.path.name
    note = "Recorded times are those of the profiler; simulated ones are predictions."
    setting = f"{name}: {title(analysis)}"
    blocks: list[Block | None] = [header(setting, headline(analysis), [note])]
    blocks.append(section("What it is made of", "", Bullets(sentences(analysis))))
    lead = "The median step of the slowest rank above, the simulated one below."
    figure = Figure(draw_steps(analysis), "timelines", "Bars: recorded and simulated step")
    blocks.append(section("Recorded and simulated", lead, figure))
    table = bucket_table(analysis)
    if table is not None:
        lead = "Times since the beginning of the step; the difference is simulated less recorded."
        blocks.append(section("Buckets", lead, table))
    blocks.append(
        section(
            "Layers",
            "Those that take longest; trace.json has all.",
            layer_table(analysis, LAYERS_LISTED),
        )
    )
    if analysis.rebuilt is not None:
        lead = "The same training on another machine; dgx-h100 is an example."
        command = f"perfmodel run {SCENARIO} --set cluster.node=dgx-h100"
        blocks.append(section("Go on", lead, Code(command)))
    return render_html(f"Trace: {name}", blocks)


# ---------------------------------------------------------------- timelines


_ROWS = (
    "recorded compute",
    "recorded communication",
    "simulated compute",
    "simulated communication",
)
"""In the order in which they are drawn."""


def recorded_bars(analysis: TraceAnalysis) -> list[Bar]:
    """The step as recorded: layers one after the other, collectives where they were."""
    profile, first = analysis.profile, analysis.first
    bars, position = [], 0.0
    compute, comm = _ROWS[:2]
    starts = profile.step_s - profile.tail_s - profile.exposed_s - float(profile.backward_s.sum())
    position = max(0.0, starts - float(profile.forward_s.sum()))
    for kind, order, times in (
        ("forward", range(len(first.layers) - 1, -1, -1), profile.forward_s),
        ("backward", range(len(first.layers)), profile.backward_s),
    ):
        for at in order:
            end = position + float(times[at])
            label = f"{kind} {first.layers[at].name}"
            bars.append(Bar(compute, work_of(kind), position, end, label))
            position = end
    tail = profile.step_s - profile.tail_s
    bars.append(Bar(compute, work_of("optimizer"), tail, profile.step_s, "optimizer and the rest"))
    last = first.steps[-1]
    bars += [
        Bar(
            comm,
            work_of("communication"),
            call.start_s - last.start_s,
            call.end_s - last.start_s,
            f"{call.op} of {call.elements or 'some'} elements",
        )
        for call in last.others
        if call.start_s >= last.start_s
    ]
    bars += [
        Bar(comm, work_of("communication"), b.start_s, b.end_s, f"all-reduce of bucket {b.index}")
        for b in profile.buckets
    ]
    return bars


def simulated_bars(analysis: TraceAnalysis) -> list[Bar]:
    """The simulated step of the rank class that is reported."""
    if analysis.comparison is None:
        return []
    spans = analysis.comparison.point.timeline.spans
    begin = min((span.start_s for span in spans if span.kind == "forward"), default=0.0)
    begin = min([begin, *(span.start_s for span in spans if span.step == spans[0].step)])
    first_class, (compute, comm) = spans[0].rank_class, _ROWS[2:]
    return [
        Bar(
            comm if span.kind == "communication" else compute,
            work_of(span.kind),
            span.start_s - begin,
            span.end_s - begin,
            span.name,
        )
        for span in spans
        if span.rank_class == first_class and span.end_s > span.start_s
    ]


def draw_steps(analysis: TraceAnalysis) -> go.Figure:
    """Draw both steps on one axis."""
    bars = [*recorded_bars(analysis), *simulated_bars(analysis)]
    rows = [row for row in _ROWS if any(bar.row == row for bar in bars)]
    longest = max(bar.end_s for bar in bars)
    unit, scale = time_unit(longest)
    figure = new_figure(110 + 76 * len(rows), barmode="overlay", bargap=0.3)
    for work, colour in WORK.items():
        chosen = [bar for bar in bars if bar.work == work]
        chosen.sort(key=lambda bar: bar.start_s - bar.end_s)
        if not chosen:
            continue
        longest_bars = chosen[:MOST_BARS]
        figure.add_bar(
            orientation="h",
            base=[bar.start_s / scale for bar in longest_bars],
            x=[(bar.end_s - bar.start_s) / scale for bar in longest_bars],
            y=[len(rows) - 1 - rows.index(bar.row) for bar in longest_bars],
            width=[0.5] * len(longest_bars),
            name=work,
            marker={"color": colour, "line": {"width": 0}},
            hovertext=[
                f"<b>{escape(bar.label, quote=False)}</b><br>{duration(bar.end_s - bar.start_s)}"
                for bar in longest_bars
            ],
            hoverinfo="text",
        )
    for at, row in enumerate(rows):
        title_row(figure, len(rows) - 1 - at + 0.28, row)
    figure.update_xaxes(
        **axis_layout(f"time since the step began ({unit})", range=[0, 1.01 * longest / scale])
    )
    figure.update_yaxes(
        **axis_layout(
            showgrid=False, showline=False, showticklabels=False, range=[-0.55, len(rows) - 0.4]
        )
    )
    return figure
