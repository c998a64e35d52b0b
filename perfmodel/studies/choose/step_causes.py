"""Why a step takes as long as it does: kernels, exposed communication by kind, bubble."""

from __future__ import annotations

from perfmodel.studies.run.steps.metrics.step_parts import busiest_class, spans_by_step
from perfmodel.studies.run.steps.sized_job import ReportedRun
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.plan.step_plan import Dimension, dimension_of

CALLS: tuple[Dimension, ...] = ("tensor", "context", "expert")
"""Dimensions of layers' collectives (`perfmodel.training.plan.layer_calls`)."""

Intervals = list[tuple[float, float]]


def step_causes(reported: ReportedRun) -> dict[str, float]:
    """Parts of the last counted step of the class that computes longest; seconds.

    They add up to the step. "data" is what gradients and parameters are exchanged for longer than
    kernels hide, "pipeline" messages between stages, "bubble" all other waiting.
    """
    at = reported.counted_steps[-1]
    spans = spans_by_step(reported.run)[at]
    kinds = {stream.name: stream.kind for stream in reported.plan.streams}
    busiest = busiest_class(spans, kinds)
    own = [span for span in spans if span.rank_class == busiest]
    on_device = [span for span in own if kinds[span.stream] == "compute"]
    exchanged = [span for span in own if kinds[span.stream] == "comm"]
    communicators = {each.name: each for each in reported.plan.communicators}
    kernels = _intervals([span for span in on_device if span.kind != "communication"])
    parts = {"compute": covered_s(kernels)}
    cover = list(kernels)
    sent = [span for span in on_device + exchanged if span.kind == "communication"]
    for name in CALLS:
        calls = [s for s in sent if dimension_of(communicators[s.communicator]) == name]
        parts[name] = exposed_s(_intervals(calls), cover)
        cover += _intervals(calls)
    messages = [s for s in exchanged if communicators[s.communicator].role == "stages"]
    others = [s for s in exchanged if communicators[s.communicator].role != "stages"]
    for cause, spans_of_cause in (("data", others), ("pipeline", messages)):
        busy = _intervals(spans_of_cause)
        parts[cause] = exposed_s(busy, cover)
        cover += busy
    parts["bubble"] = max(0.0, reported.run.step_times_s[at] - sum(parts.values()))
    return parts


def _intervals(spans: list[Span]) -> Intervals:
    return [(span.start_s, span.end_s) for span in spans]
