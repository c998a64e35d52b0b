"""A traced step beside its simulation, as one page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.report.common.document import Block, Bullets, Code, Figure, header, section
from perfmodel.report.common.figures import axis_layout, new_figure, time_unit
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import QUIET_INK, WORK, work_of
from perfmodel.report.common.quantities import duration
from perfmodel.report.comparison.traces import text
from perfmodel.report.run.kineto.profiler_trace import to_kineto
from perfmodel.traces.rebuild.scenario_files import MACHINE, MODEL, SCENARIO
from perfmodel.traces.run import TraceAnalysis, to_json

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
    setting = f"{name}: {text.title(analysis)}"
    blocks: list[Block | None] = [header(setting, text.headline(analysis), [note])]
    blocks.append(section("What it is made of", "", Bullets(text.sentences(analysis))))
    lead = "The median step of the slowest rank above, the simulated one below."
    figure = Figure(draw_steps(analysis), "timelines", "Bars: recorded and simulated step")
    blocks.append(section("Recorded and simulated", lead, figure))
    table = text.bucket_table(analysis)
    if table is not None:
        lead = "Times since the beginning of the step; the difference is simulated less recorded."
        blocks.append(section("Buckets", lead, table))
    blocks.append(
        section(
            "Layers",
            "Those that take longest; trace.json has all.",
            text.layer_table(analysis, LAYERS_LISTED),
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
        figure.add_annotation(
            x=0,
            xref="paper",
            y=len(rows) - 1 - at + 0.28,
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            text=row,
            font={"size": 12, "color": QUIET_INK},
        )
    figure.update_xaxes(
        **axis_layout(f"time since the step began ({unit})", range=[0, 1.01 * longest / scale])
    )
    figure.update_yaxes(
        **axis_layout(
            showgrid=False, showline=False, showticklabels=False, range=[-0.55, len(rows) - 0.4]
        )
    )
    return figure
