"""A traced job in words and tables."""

from __future__ import annotations

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table, paragraphs
from perfmodel.traces.rebuild.layer_profile import BucketTimes
from perfmodel.traces.run import Comparison, TraceAnalysis
from perfmodel.workload.model import ITEM_BYTES

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
    return f"{step}. Rebuilt and simulated it takes {_rebuilt(analysis.comparison)}."


def _rebuilt(comparison: Comparison) -> str:
    sign = "+" if comparison.error >= 0 else "\N{MINUS SIGN}"
    off = quantities.percent(abs(comparison.error))
    return f"{quantities.duration(comparison.simulated_s)} ({sign}{off})"


def sentences(analysis: TraceAnalysis) -> list[str]:
    """What matters, in the order in which a reader asks."""
    profile = analysis.profile
    low, high = min(profile.steps_s), max(profile.steps_s)
    count = len(profile.steps_s)
    spread = quantities.span(low, high, quantities.duration)
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
    apart = end_s - bucket.end_s
    sign = "+" if apart >= 0 else "\N{MINUS SIGN}"
    return quantities.duration(end_s), f"{sign}{quantities.duration(abs(apart))}"


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
