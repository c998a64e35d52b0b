"""How a model is split over GPUs, what that costs, and how the quickest split was found."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Section, Table, paragraphs, section
from perfmodel.report.common.palette import LINKS
from perfmodel.studies.run.result.dimension_use import DimensionUse, MixtureUse
from perfmodel.studies.run.result.model import SizeResult
from perfmodel.studies.run.result.searched_mixtures import MixtureSearch
from perfmodel.units import format_bytes

_TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN} "

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
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
    "data": "data-parallel gradients, parameters",
    "all ranks": "norm of all gradients",
}
"""What a dimension sends, where its name does not say it."""


def degrees(use: MixtureUse) -> str:
    """``"tensor 8 x pipeline 16 x data 8"``; experts share ranks of other dimensions."""
    names = ("tensor", "context", "pipeline")
    split = [f"{name} {getattr(use, name)}" for name in names if getattr(use, name) > 1]
    text = _TIMES.join([*split, f"data {use.data}"])
    return text if use.expert == 1 else f"{text}, experts over {use.expert} of data and context"


def bubble(use: MixtureUse) -> str:
    """How long stages wait; nothing without a pipeline."""
    if use.bubble is None or use.bubble_in_theory is None:
        return ""
    schedule = _SCHEDULES.get(use.schedule or "", use.schedule or "")
    equal = f"{use.pipeline} equal stages and {use.micro_batches:,} micro-batches"
    return (
        f"Bubble: a stage waits {quantities.percent(use.bubble)} of the pipeline's time, as "
        f"simulated; {quantities.percent(use.bubble_in_theory)} in theory ({schedule} of "
        f"{equal}, messages that take no time)"
    )


def lines(point: SizeResult) -> list[str]:
    """Sentences on the mixture of a size; none where each GPU has the whole model."""
    use = point.mixture
    if use is None:
        return []
    text = f"Split: {degrees(use)} (order {use.order})."
    return [text, *([f"{bubble(use)}."] if use.schedule else [])]


def crossing(use: DimensionUse) -> str:
    """Over which links the messages of a dimension go."""
    names = [LINKS[kind][1] if kind in LINKS else kind for kind in use.links]
    where = {0.0: "inside hosts", 1.0: "between hosts"}.get(
        use.between_hosts, "inside and between hosts"
    )
    return f"{where}: {', '.join(names)}" if names else where


def dimensions_table(use: MixtureUse) -> Table:
    """What each dimension sends, what of it is exposed, and over which links it goes."""
    header = ("Dimension", ">GPUs", ">Calls", ">Sent per GPU", ">Exposed", "Crosses")
    rows = [
        (
            _WORDS.get(each.dimension, each.dimension),
            f"{each.ranks:,}",
            f"{each.calls:,}",
            quantities.size(each.sent_bytes),
            quantities.duration(each.exposed_s),
            crossing(each),
        )
        for each in use.dimensions
    ]
    return Table(header, rows)


DIMENSIONS_HINT = (
    "Calls and bytes: of the GPU that sends most, as on rings. Exposed: while a GPU does not "
    "compute, mean of all GPUs. GPUs: in each group; neighbours in a group decide what it crosses."
)


def stages_table(point: SizeResult, use: MixtureUse) -> Table:
    """What each stage of a pipeline does, and what its GPUs hold."""
    header = (">Stage", ">Computes", ">Exposed", ">Waits", ">Memory per GPU")
    held = point.memory.stages_bytes
    rows = [
        (
            f"{each.stage}",
            quantities.duration(each.busy_s),
            quantities.duration(each.exposed_s),
            quantities.duration(each.waits_s),
            quantities.size(held[each.stage]) if held else "",
        )
        for each in use.stages
    ]
    return Table(header, rows)


def _reported_stage(point: SizeResult, use: MixtureUse) -> str:
    """Say which stage the step's own parts are those of: the mean of all is another number."""
    same = [s.stage for s in use.stages if isclose(s.exposed_s, point.exposed_comm_s, rel_tol=1e-6)]
    if len(same) != 1:
        return ""
    return (
        f"The parts of the step elsewhere on this page are those of stage {same[0]}, "
        f"{quantities.duration(point.exposed_comm_s)} of waiting for the network among them."
    )


def _overlapping_steps(point: SizeResult, use: MixtureUse) -> str:
    """Say why the parts of a stage are more than a step, if they are by a digit that is shown."""
    longest_s = max(each.busy_s + each.exposed_s + each.waits_s for each in use.stages)
    if longest_s < 1.005 * point.step_time_s:
        return ""
    return (
        "Stages begin a step while others still end the one before: a stage may be at work on a "
        "step for longer than one step takes after another."
    )


def result_blocks(point: SizeResult) -> list[Block]:
    """The same for the terminal."""
    if point.mixture is None:
        return []
    return [*paragraphs(lines(point)), dimensions_table(point.mixture), Paragraph("")]


def mixture_section(point: SizeResult, *blocks: Block) -> Section | None:
    """A section of a page; None where each GPU has the whole model.

    `blocks`: what stands after the sentences.
    """
    use = point.mixture
    if use is None:
        return None
    tables: list[Block] = [dimensions_table(use), Paragraph(DIMENSIONS_HINT, "hint")]
    if use.stages:
        tables.append(stages_table(point, use))
        tables += paragraphs([_reported_stage(point, use), _overlapping_steps(point, use)], "hint")
    return section("How the model is split", " ".join(lines(point)), *blocks, *tables)


_TITLES = {
    "tensor": "tensor calls",
    "context": "context calls",
    "expert": "expert calls",
    "data": "data parallel",
    "pipeline": "messages",
    "bubble": "waiting",
}


def describe_search(search: MixtureSearch) -> tuple[str, ...]:
    """The answer in words, how many mixtures there were, and whether a better one may be left."""
    counts = (
        f"{search.listed:,} mixtures: {search.impossible:,} impossible, {search.too_big:,} too "
        f"big, {search.bounded:,} left out by their lower bounds, {search.simulated:,} simulated."
    )
    if search.unproven > 0:
        proof = (
            "The search ended at strategy.simulate: a mixture that was left out may be up to "
            f"{100 * search.unproven:.2g} % quicker."
        )
    else:
        proof = "None that was left out can be quicker."
    return f"The quickest that fits: {search.winner.text}.", counts, proof


def best_table(search: MixtureSearch) -> Table:
    """The ten best: step, memory, compute, exposed communication by kind, what else waits.

    That is the bubble of a pipeline, and the host where kernels are short.
    """
    kinds = [
        kind
        for kind in search.winner.parts_s
        if kind in ("compute", "bubble") or any(each.parts_s[kind] > 0 for each in search.best)
    ]
    rows = [
        [
            quantities.duration(each.step_time_s),
            format_bytes(each.memory_bytes),
            *(quantities.duration(each.parts_s[kind]) for kind in kinds),
            each.text,
        ]
        for each in search.best
    ]
    titles = (f">{_TITLES.get(kind, kind)}" for kind in kinds)
    return Table([">step", ">memory", *titles, "mixture"], rows, ruled=False)


def paste_section(changes: Mapping[str, Any]) -> str:
    """Sections of a scenario that are this mixture, as YAML in one line each.

    Examples
    --------
    >>> paste_section({"strategy": {"kind": "ddp"}, "parallel.tensor": 8})
    'strategy: {"kind": "ddp"}; parallel: {"tensor": 8}'
    """
    import json

    sections: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, part = field.partition(".")
        if part:
            sections.setdefault(name, {})[part] = value
        else:
            sections[name] = value
    return "; ".join(f"{name}: {json.dumps(value)}" for name, value in sections.items())


def search_blocks(search: MixtureSearch | None) -> list[Block]:
    """All of it; nothing where the scenario left no mixture open."""
    if search is None:
        return []
    paste = f"As sections of a scenario: {paste_section(search.winner.changes)}"
    return [
        *(Paragraph(line) for line in describe_search(search)),
        best_table(search),
        Paragraph(paste),
    ]
