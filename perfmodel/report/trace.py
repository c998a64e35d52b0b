"""A traced step beside its simulation, in words and tables, and as one page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Code,
    Figure,
    Table,
    header,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import (
    Drawing,
    axis_layout,
    new_figure,
    time_bars,
    time_unit,
    title_row,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import WORK, work_of
from perfmodel.report.common.quantities import duration
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.run.kineto import to_kineto
from perfmodel.traces.rebuild.layer_profile import BucketTimes
from perfmodel.traces.rebuild.scenario_files import MACHINE, MODEL, SCENARIO
from perfmodel.traces.run import TraceAnalysis, to_json
from perfmodel.workload.model import ITEM_BYTES

LAUNCH_BOUND = 0.1
"""Part of a step from which its waiting for launches is called CPU-bound."""

MOST_LAYERS = 8


def title(analysis: TraceAnalysis) -> str:
    """What was traced."""
    first = analysis.first
    return (
        f"{first.device}, {len(analysis.ranks)} of {first.world_size} ranks, "
        f"{first.backend or 'no process group'}"
    )


def headline(analysis: TraceAnalysis) -> str:
    """Say how long the step is, what it waits for, and how well the rebuilt one agrees."""
    is_bound = not analysis.first.on_cpu and analysis.launch_bound >= LAUNCH_BOUND
    waits = f"; the GPU waits {quantities.percent(analysis.launch_bound)} of it for the host"
    step = f"A step takes {duration(analysis.profile.step_s)}{waits if is_bound else ''}"
    if analysis.comparison is None:
        return f"{step}."
    return (
        f"{step}. Rebuilt and simulated it takes {duration(analysis.comparison.simulated_s)} "
        f"({quantities.signed(analysis.comparison.error, quantities.percent)})."
    )


def sentences(analysis: TraceAnalysis) -> list[str]:
    """What matters, in the order in which a reader asks."""
    profile = analysis.profile
    spread = quantities.span(min(profile.steps_s), max(profile.steps_s), quantities.duration)
    forward, backward = float(profile.forward_s.sum()), float(profile.backward_s.sum())
    bound = ": the step is CPU-bound, and a faster GPU or network hardly helps"
    launches = (
        f"The device works {quantities.percent(profile.busy_s / profile.step_s)} of the step and "
        f"waits {quantities.percent(analysis.launch_bound)} for the host to launch work"
        f"{'' if analysis.launch_bound < LAUNCH_BOUND else bound}."
    )
    return [
        f"Step: {duration(profile.step_s)} (median of {len(profile.steps_s)}; {spread}).",
        (
            f"Forward {duration(forward)}, backward {duration(backward)}, "
            f"exposed communication {duration(profile.exposed_s)}, optimizer and the "
            f"rest {duration(profile.tail_s)}."
        ),
        *([] if analysis.first.on_cpu else [launches]),
        *(_communication(analysis) if profile.buckets else ()),
        *_replayed(analysis),
        *(f"Note: {note}." for note in (analysis.rebuilt or analysis.first).notes),
    ]


def _communication(analysis: TraceAnalysis) -> Iterator[str]:
    profile, world_size = analysis.profile, analysis.first.world_size
    waits = [bucket.waiting_s for bucket in profile.buckets if bucket.waiting_s is not None]
    if waits:
        yield (
            "All-reduces transfer for "
            f"{duration(sum(bucket.transfer_s for bucket in profile.buckets))} a step; the first "
            f"rank waits {duration(sum(waits))} more for the last one (skew)."
        )
    elif world_size > 1:
        yield "With one rank's trace, times of collectives contain the waiting for other ranks."
    if profile.slowdown is not None:
        yield f"Work beside collectives takes {profile.slowdown:.2f} times as long as alone."
    fit = analysis.rebuilt.fit if analysis.rebuilt else None
    if fit is not None:
        yield (
            "As recorded, all-reduces have a bus bandwidth of "
            f"{quantities.rate(fit.bandwidth_Bps)} and start in "
            f"{duration(2 * (world_size - 1) * fit.latency_s)}; the worst bucket is "
            f"{quantities.percent(fit.worst)} off that line."
        )


def _replayed(analysis: TraceAnalysis) -> Iterator[str]:
    comparison, changed = analysis.comparison, analysis.changed
    if comparison is None:
        yield f"No scenario: {analysis.refusal}"
        return
    error = f"{100 * comparison.error:+.1f} %".replace("-", quantities.MINUS)
    yield (
        "Rebuilt and simulated on the machine as recorded: "
        f"{duration(comparison.simulated_s)}, {error}."
    )
    if changed is not None:
        yield (
            f"With the changes: {duration(changed.simulated_s)}, "
            f"{comparison.recorded_s / changed.simulated_s:.2f} times as fast as recorded."
        )


def bucket_table(analysis: TraceAnalysis) -> Table | None:
    """Buckets as recorded and as simulated; times since the beginning of the step."""
    buckets = analysis.profile.buckets
    if not buckets:
        return None
    ends_s = {
        bucket.index: bucket.end_s
        for bucket in (analysis.comparison.point.buckets if analysis.comparison else ())
    }

    def size(bucket: BucketTimes) -> str:
        if bucket.elements is None:
            return ""
        return quantities.size(bucket.elements * ITEM_BYTES.get(bucket.dtype or "fp32", 4))

    def apart(bucket: BucketTimes) -> str:
        late_s = ends_s.get(bucket.index, bucket.end_s) - bucket.end_s
        return quantities.signed(late_s, quantities.duration) if bucket.index in ends_s else ""

    return tabulate(
        buckets,
        [
            (">bucket", lambda bucket: f"{bucket.index}"),
            (">size", size),
            (">ready", lambda bucket: duration(bucket.ready_s)),
            (">end", lambda bucket: duration(bucket.end_s)),
            (
                ">simulated end",
                lambda bucket: quantities.or_empty(duration, ends_s.get(bucket.index)),
            ),
            (">difference", apart),
            (">transfer", lambda bucket: duration(bucket.transfer_s)),
            (">waiting", lambda bucket: quantities.or_empty(duration, bucket.waiting_s))
            if any(bucket.waiting_s is not None for bucket in buckets)
            else None,
            (
                ">elements",
                lambda each: "not stated" if each.elements is None else f"{each.elements:,}",
            ),
        ],
        wraps=True,
    )


def layer_table(analysis: TraceAnalysis, most: int = MOST_LAYERS) -> Table:
    """The layers that take longest."""
    layers = analysis.first.layers
    forward, backward = analysis.profile.forward_s.tolist(), analysis.profile.backward_s.tolist()
    gradients = (analysis.rebuilt or analysis.first).gradients
    both = [ahead_s + back_s for ahead_s, back_s in zip(forward, backward, strict=True)]
    total = float(analysis.profile.forward_s.sum() + analysis.profile.backward_s.sum()) or 1.0

    def parameters(at: int) -> int:
        return sum(gradients[number].elements or 0 for number in layers[at].gradients)

    return tabulate(
        sorted(range(len(layers)), key=lambda at: -both[at])[:most],
        (
            ("longest layers", lambda at: layers[at].name),
            (">parameters", lambda at: f"{parameters(at):,}"),
            (">forward", lambda at: duration(forward[at])),
            (">backward", lambda at: duration(backward[at])),
            (">share", lambda at: quantities.percent_column(both[at] / total)),
        ),
    )


def trace_lines(analysis: TraceAnalysis) -> list[Block]:
    """What ``perfmodel trace`` prints."""
    table = bucket_table(analysis)
    return [
        *paragraphs([title(analysis), *sentences(analysis)]),
        *([table] if table else []),
        layer_table(analysis),
    ]


PAGE, SUMMARY, TIMELINE = "trace.html", "trace.json", "timeline.json"
FILES = (PAGE, SUMMARY, SPREADSHEET, TIMELINE, MODEL, MACHINE, SCENARIO)
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
    document, first = to_json(analysis), analysis.first
    timelines = (
        {}
        if analysis.comparison is None
        else {
            TIMELINE: to_kineto(
                analysis.comparison.result.timeline,
                world_size=first.world_size,
                backend=first.backend or "nccl",
                gpu=first.device,
            )
        }
    )
    return write_report_files(
        folder,
        {
            PAGE: trace_html(analysis),
            SUMMARY: document,
            SPREADSHEET: spreadsheet(document),
            **timelines,
        },
    )


def trace_html(analysis: TraceAnalysis) -> str:
    """Build the page as one string."""
    name, table = analysis.first.path.name, bucket_table(analysis)
    return render_html(
        f"Trace: {name}",
        [
            header(
                f"{name}: {title(analysis)}",
                headline(analysis),
                ["Recorded times are those of the profiler; simulated ones are predictions."],
            ),
            section("What it is made of", "", Bullets(sentences(analysis))),
            section(
                "Recorded and simulated",
                "The median step of the slowest rank above, the simulated one below.",
                Figure(draw_steps(analysis), "timelines", "Bars: recorded and simulated step"),
            ),
            None
            if table is None
            else section(
                "Buckets",
                "Times since the beginning of the step; the difference is simulated less recorded.",
                table,
            ),
            section(
                "Layers",
                "Those that take longest; trace.json has all.",
                layer_table(analysis, LAYERS_LISTED),
            ),
            None
            if analysis.rebuilt is None
            else section(
                "Go on",
                "The same training on another machine; dgx-h100 is an example.",
                Code(f"perfmodel run {SCENARIO} --set cluster.node=dgx-h100"),
            ),
        ],
    )


# ---------------------------------------------------------------- timelines


_ROWS = (
    "recorded compute",
    "recorded communication",
    "simulated compute",
    "simulated communication",
)
"""In the order in which they are drawn."""


def recorded_bars(analysis: TraceAnalysis) -> Iterator[Bar]:
    """The step as recorded: layers one after the other, collectives where they were."""
    profile, first = analysis.profile, analysis.first
    compute, comm, last = _ROWS[0], _ROWS[1], first.steps[-1]
    tail = profile.step_s - profile.tail_s
    starts = tail - profile.exposed_s - float(profile.backward_s.sum())
    position = max(0.0, starts - float(profile.forward_s.sum()))
    numbers = range(len(first.layers))
    for kind, order, times in (
        ("forward", reversed(numbers), profile.forward_s),
        ("backward", numbers, profile.backward_s),
    ):
        for at in order:
            end = position + float(times[at])
            yield Bar(compute, work_of(kind), position, end, f"{kind} {first.layers[at].name}")
            position = end
    yield Bar(compute, work_of("optimizer"), tail, profile.step_s, "optimizer and the rest")
    for call in last.others:
        if call.start_s >= last.start_s:
            yield Bar(
                comm,
                work_of("communication"),
                call.start_s - last.start_s,
                call.end_s - last.start_s,
                f"{call.op} of {call.elements or 'some'} elements",
            )
    for b in profile.buckets:
        yield Bar(
            comm,
            work_of("communication"),
            b.start_s,
            b.end_s,
            f"all-reduce of bucket {b.index}",
        )


def simulated_bars(analysis: TraceAnalysis) -> list[Bar]:
    """The simulated step of the rank class that is reported."""
    if analysis.comparison is None:
        return []
    spans = analysis.comparison.point.timeline.spans
    first_class, (compute, comm) = spans[0].rank_class, _ROWS[2:]
    return [
        Bar(
            comm if span.kind == "communication" else compute,
            work_of(span.kind),
            span.start_s,
            span.end_s,
            span.name,
        )
        for span in spans
        if span.rank_class == first_class and span.end_s > span.start_s
    ]


def draw_steps(analysis: TraceAnalysis) -> Drawing:
    """Draw both steps on one axis."""
    drawn = [*recorded_bars(analysis), *simulated_bars(analysis)]
    rows = [row for row in _ROWS if any(bar.row == row for bar in drawn)]
    longest_s = max(bar.end_s for bar in drawn)
    unit, scale = time_unit(longest_s)
    drawn.sort(key=lambda bar: bar.start_s - bar.end_s)
    placed = grouped(
        (
            bar.work,
            (
                len(rows) - 1 - rows.index(bar.row),
                bar.start_s,
                bar.end_s,
                f"<b>{escape(bar.label, quote=False)}</b><br>{duration(bar.end_s - bar.start_s)}",
            ),
        )
        for bar in drawn
    )
    figure = new_figure(
        110 + 76 * len(rows),
        [
            time_bars(
                work,
                WORK[work],
                own,
                scale,
                width=[0.5] * len(own),
                line={"width": 0},
            )
            for work, own in ((work, placed[work][:MOST_BARS]) for work in WORK if work in placed)
        ],
        x=axis_layout(f"time since the step began ({unit})", range=[0, 1.01 * longest_s / scale]),
        y=axis_layout(
            showgrid=False, showline=False, showticklabels=False, range=[-0.55, len(rows) - 0.4]
        ),
        barmode="overlay",
        bargap=0.3,
    )
    for at, row in enumerate(rows):
        title_row(figure, len(rows) - 1 - at + 0.28, row)
    return figure
