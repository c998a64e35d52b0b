"""How a model is split over GPUs, what that costs, and how the quickest split was found.

Parameter servers: updates per second, staleness, how busy servers are, for page and terminal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from perfmodel.files.write import attributes
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Column,
    Figure,
    Heading,
    Paragraph,
    Section,
    Table,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import Drawing, axis_layout, bars, new_figure
from perfmodel.report.common.palette import WORK
from perfmodel.report.common.words import words_blocks
from perfmodel.report.topology_layout import link_name
from perfmodel.studies.run.result import LayoutSearch, SizeResult
from perfmodel.studies.run.usage import DimensionUse, LayoutUse, ServerUse, Staleness
from perfmodel.units import format_bytes

_TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN} "

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "1f1b_vocab_1": "1F1B Vocab-1",
    "1f1b_vocab_2": "1F1B Vocab-2",
    "interleaved": "interleaved 1F1B",
    "looped_bfs": "breadth-first",
    "zb_h1": "ZB-H1",
    "zb_h2": "ZB-H2",
    "zb_v": "ZB-V",
    "interleaved_zero_bubble": "interleaved zero-bubble",
    "dualpipe": "DualPipe",
    "dualpipe_v": "DualPipeV",
    "sequential": "one stage after the other",
}
"""What papers call each schedule."""

_WORDS = {
    "pipeline": "pipeline messages",
    "servers": "rows of tables at a server",
    "data": "data-parallel gradients, parameters",
    "all ranks": "norm of all gradients",
}
"""What a dimension sends, where its name does not say it."""


def degrees(use: LayoutUse) -> str:
    """``"tensor 8 x pipeline 16 x data 8"``; experts share ranks of other dimensions."""
    sizes = attributes(use, "tensor context pipeline")
    text = _TIMES.join(
        [*(f"{name} {size}" for name, size in sizes.items() if size > 1), f"data {use.data}"]
    )
    return (
        text if use.expert == 1 else f"{text}, {use.shared} over {use.expert} of data and context"
    )


def bubble(use: LayoutUse) -> str:
    """How long stages wait; nothing without a pipeline."""
    if use.bubble is None or use.bubble_in_theory is None:
        return ""
    schedule = _SCHEDULES.get(use.schedule or "", use.schedule or "")
    return (
        f"Bubble: a stage waits {quantities.percent(use.bubble)} of the pipeline's time, as "
        f"simulated; {quantities.percent(use.bubble_in_theory)} in theory ({schedule} of "
        f"{use.pipeline} equal stages and {use.micro_batches:,} micro-batches, messages that take "
        "no time)"
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences on the parallel layout of a size; none where each GPU has the whole model."""
    use = point.parallel_layout
    if use is None:
        return []
    split = f"Split: {degrees(use)} (order {use.order})."
    return [split, f"{bubble(use)}."] if use.schedule else [split]


def crossing(use: DimensionUse) -> str:
    """Over which links the messages of a dimension go."""
    where = {0.0: "inside hosts", 1.0: "between hosts"}.get(
        use.between_hosts, "inside and between hosts"
    )
    return ": ".join(filter(None, [where, ", ".join(map(link_name, use.links))]))


def dimensions_table(use: LayoutUse) -> Table:
    """What each dimension sends, what of it is exposed, and over which links it goes."""
    words = {**_WORDS, "expert": "tables"} if use.shared == "tables" else _WORDS
    return tabulate(
        use.dimensions,
        (
            ("Dimension", lambda each: words.get(each.dimension, each.dimension)),
            (">GPUs", lambda each: f"{each.ranks:,}"),
            (">Calls", lambda each: f"{each.calls:,}"),
            (">Sent per GPU", lambda each: quantities.size(each.sent_bytes)),
            (">Exposed", lambda each: quantities.duration(each.exposed_s)),
            ("Crosses", crossing),
        ),
    )


DIMENSIONS_HINT = (
    "Calls and bytes: of the GPU that sends most, as on rings. Exposed: while a GPU does not "
    "compute, mean of all GPUs. GPUs: in each group; neighbours in a group decide what it crosses."
)


def stages_table(point: SizeResult, use: LayoutUse) -> Table:
    """What each stage of a pipeline does, and what its GPUs hold."""
    held = point.memory.stages_bytes
    return tabulate(
        use.stages,
        (
            (">Stage", lambda each: f"{each.stage}"),
            (">Computes", lambda each: quantities.duration(each.busy_s)),
            (">Exposed", lambda each: quantities.duration(each.exposed_s)),
            (">Waits", lambda each: quantities.duration(each.waits_s)),
            (
                ">Memory per GPU",
                lambda each: quantities.size(held[each.stage]) if held else "",
            ),
        ),
    )


OVERLAPPING_STEPS_HINT = (
    "Stages begin a step while others still end the one before: a stage may be at work on a step "
    "for longer than one step takes after another."
)


def _stage_hints(point: SizeResult, use: LayoutUse) -> Iterator[str]:
    """Say which stage the step's own parts are those of, and why parts are more than a step."""
    same = [s.stage for s in use.stages if isclose(s.exposed_s, point.exposed_comm_s, rel_tol=1e-6)]
    if len(same) == 1:  # the mean of all stages is another number
        yield (
            f"The parts of the step elsewhere on this page are those of stage {same[0]}, "
            f"{quantities.duration(point.exposed_comm_s)} of waiting for communication among them."
        )
    longest_s = max(each.busy_s + each.exposed_s + each.waits_s for each in use.stages)
    if longest_s >= 1.005 * point.step_time_s:  # by a digit that is shown
        yield OVERLAPPING_STEPS_HINT


def result_blocks(point: SizeResult) -> list[Block]:
    """The same for the terminal."""
    if point.parallel_layout is None:
        return []
    return [*paragraphs(lines(point)), dimensions_table(point.parallel_layout), Paragraph("")]


def layout_section(point: SizeResult, *blocks: Block) -> Section | None:
    """A section of a page; None where each GPU has the whole model.

    `blocks`: what stands after the sentences.
    """
    use = point.parallel_layout
    if use is None:
        return None
    return section(
        "How the model is split",
        " ".join(lines(point)),
        *blocks,
        dimensions_table(use),
        Paragraph(DIMENSIONS_HINT, "hint"),
        stages_table(point, use) if use.stages else None,
        *paragraphs(_stage_hints(point, use) if use.stages else (), "hint"),
    )


_TITLES = {
    "tensor": "tensor calls",
    "context": "context calls",
    "expert": "expert calls",
    "data": "data parallel",
    "pipeline": "messages",
    "bubble": "waiting",
}


def describe_search(search: LayoutSearch) -> tuple[str, ...]:
    """The answer in words, how many layouts there were, and whether a better one may be left."""
    open_end = (
        "The search ended at strategy.simulate or --seconds: a parallel layout that was left out "
        f"may be up to {100 * search.unproven:.2g} % quicker."
    )
    return (
        f"The quickest that fits: {search.winner.text}.",
        (
            f"{search.listed:,} parallel layouts: {search.impossible:,} impossible, "
            f"{search.too_big:,} too big, {search.bounded:,} left out by their lower bounds "
            f"({search.bounded_by_plan:,} by their plan, the others by kernels, exposed calls and "
            f"bubble alone), {search.simulated:,} simulated."
        ),
        open_end if search.unproven > 0 else "None that was left out can be quicker.",
        (
            "A step is its compute and what kernels do not hide: calls of layers (tensor, context, "
            "expert) among the GPUs that share them, data parallel of gradients and parameters, "
            "messages between stages, and waiting for anything else: a pipeline's bubble, the host."
        ),
    )


def best_table(search: LayoutSearch) -> Table:
    """The ten best: step, memory, compute, exposed communication by kind, what else waits.

    That is the bubble of a pipeline, and the host where kernels are short.
    """
    kinds = [
        kind
        for kind in search.winner.parts_s
        if kind in ("compute", "bubble") or any(each.parts_s[kind] > 0 for each in search.best)
    ]

    def part(kind: str) -> Column:
        return f">{_TITLES.get(kind, kind)}", lambda each: quantities.duration(each.parts_s[kind])

    return tabulate(
        search.best,
        (
            (">step", lambda each: quantities.duration(each.step_time_s)),
            (">memory", lambda each: format_bytes(each.memory_bytes)),
            *map(part, kinds),
            ("parallel layout", lambda each: each.text),
        ),
        ruled=False,
    )


def paste_section(changes: Mapping[str, Any]) -> str:
    """Sections of a scenario that are this parallel layout, as YAML in one line each.

    Examples
    --------
    >>> paste_section({"strategy": {"kind": "ddp"}, "parallel.tensor": 8})
    'strategy: {"kind": "ddp"}; parallel: {"tensor": 8}'
    """
    import json

    sections: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, part = field.partition(".")
        sections[name] = sections.get(name, {}) | {part: value} if part else value
    return "; ".join(f"{name}: {json.dumps(value)}" for name, value in sections.items())


def search_blocks(search: LayoutSearch | None) -> list[Block]:
    """All of it; nothing where the scenario left no parallel layout open."""
    if search is None:
        return []
    return [
        *paragraphs(describe_search(search)),
        best_table(search),
        Paragraph(f"As sections of a scenario: {paste_section(search.winner.changes)}"),
        *words_blocks(search.words),
    ]


MOST_SERVERS_LISTED = 32
"""Servers that the page lists; result.json holds all."""


def server_lines(point: SizeResult) -> list[str]:
    """Return sentences about parameter servers for the terminal; none if a step has none."""
    use = point.server_use
    return [] if use is None else [_updates(use), _waiting(use), _staleness(use)]


def _updates(use: ServerUse) -> str:
    ends = " to ".join(map(quantities.count, use.updates_interval_per_s or ()))
    return (
        f"{use.mode.capitalize()}: {quantities.count(use.updates_per_s)} updates/s of the "
        f"parameters{f' (80 % interval {ends})' if ends else ''} from {use.workers:,} workers, "
        f"{quantities.percent(use.updates_per_s / use.most_updates_per_s)} of what {use.bound_by} "
        "allows."
    )


def _waiting(use: ServerUse) -> str:
    count, busiest = len(use.servers), quantities.percent(max(use.server_busy))
    speeds = (
        f"; an iteration takes the fastest {quantities.duration(use.fastest_s)}, the slowest "
        f"{quantities.duration(use.slowest_s)}"
    )
    return (
        f"{'The server' if count == 1 else f'The busiest of {count:,} servers'} updates for "
        f"{busiest} of the time, and holds {quantities.size(use.server_bytes)}; a worker waits for "
        f"{quantities.percent(use.worker_wait)} of its time"
        f"{speeds if use.slowest_s > 1.01 * use.fastest_s else ''}."
    )


def _staleness(use: ServerUse) -> str:
    stale = use.staleness
    if use.mode == "synchronous":
        return "No gradient is stale: each update has the gradients of all workers."
    ahead = f" No worker was more than {stale.most_ahead} iterations ahead of the slowest."
    return (
        f"A gradient is {stale.mean:.1f} updates late on average (median {stale.p50}, 90 % up to "
        f"{stale.p90}, most {stale.most}).{'' if stale.most_ahead is None else ahead} What that "
        "costs in learning is not modelled."
    )


def servers_section(point: SizeResult) -> Section | None:
    """Build the section of the page; None without parameter servers."""
    use = point.server_use
    if use is None:
        return None
    caption = "Share of gradients by how many updates late they are"
    more = len(use.servers) - MOST_SERVERS_LISTED
    return section(
        "Parameter servers",
        f"{_updates(use)} {_waiting(use)}",
        Paragraph(_staleness(use)),
        *(
            []
            if use.mode == "synchronous"
            else [
                Heading("How late gradients are"),
                Figure(draw_staleness(use.staleness), "staleness", caption),
            ]
        ),
        Heading("How busy the servers are"),
        tabulate(
            list(zip(use.servers, use.server_busy, strict=True))[:MOST_SERVERS_LISTED],
            (
                ("Server", lambda row: row[0]),
                (">Updates for", lambda row: quantities.percent_column(row[1])),
            ),
        ),
        Paragraph(
            f"A push waits {quantities.duration(use.queue_wait_s)} in its server's queue on "
            f"average.{f' {more} more servers are in result.json.' if more > 0 else ''}",
            "hint",
        ),
    )


_MOST_LABELS = 6
"""Of the histogram: more would touch on a phone."""


def draw_staleness(stale: Staleness) -> Drawing:
    """Draw the histogram of staleness."""
    shares = {
        f"{first}" if first == last else f"{first} to {last}": share
        for first, last, share in stale.histogram
    }
    names = list(shares)
    return new_figure(
        260,
        [
            bars(
                "",
                names,
                [100 * share for share in shares.values()],
                WORK["backward"],
                [
                    f"<b>{name} updates</b><br>{quantities.percent(share)} of gradients"
                    for name, share in shares.items()
                ],
            )
        ],
        x=axis_layout(
            "updates by others since the parameters were read",
            type="category",
            tickvals=names[:: math.ceil(len(names) / _MOST_LABELS)],
            tickangle=0,
        ),
        y=axis_layout("gradients, %", rangemode="tozero"),
        bargap=0.15,
    )
