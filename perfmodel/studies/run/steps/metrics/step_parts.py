"""Where the time of a step goes: compute, communication, exposed communication, idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.simulate.engine.outcome import Run
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.plan.step_plan import StepPlan, has_stages

PARTS = ("forward", "backward", "copies", "optimizer", "slowdown", "exposed communication", "idle")

_PART_OF_KIND = {"copy": "copies"}


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where one step went; seconds."""

    compute_s: float
    comm_s: float
    exposed_s: float
    breakdown_s: dict[str, float]


def parts_of_steps(plan: StepPlan, run: Run, steps: range) -> list[StepParts]:
    """Compute where each of some steps of a run went."""
    by_step, ends = spans_by_step(run), (0.0, *run.step_ends_s)
    kinds = {stream.name: stream.kind for stream in plan.streams}
    split = _split_pipeline if has_stages(plan) else _split_step
    return [split(by_step[at], kinds, ends[at + 1] - ends[at]) for at in steps]


def spans_by_step(run: Run) -> dict[int, list[Span]]:
    """Group the spans of a run by step."""
    by_step: dict[int, list[Span]] = {}
    for span in run.timeline.spans:
        by_step.setdefault(span.step, []).append(span)
    return by_step


def mean(values: Sequence[float]) -> float:
    """Return the mean over the counted steps."""
    return sum(values) / len(values)


def mean_breakdown(parts: list[StepParts], step_s: float) -> dict[str, float]:
    """Mean of each part of a step; the rest is idle.

    Under jitter a rank may begin a step before the slowest one has ended the last. Then the parts
    of a single step add up to more or less than its duration, so idle is worked out from the means.
    """
    means = {name: mean([p.breakdown_s[name] for p in parts]) for name in parts[0].breakdown_s}
    if len(parts) > 1:
        means["idle"] = 0.0
        means["idle"] = max(0.0, step_s - sum(means.values()))
    return means


def _split_step(spans: list[Span], kinds: Mapping[str, str], step_s: float) -> StepParts:
    busiest = busiest_class(spans, kinds)
    own = [span for span in spans if span.rank_class == busiest and computes(span, kinds)]
    compute = [(span.start_s, span.end_s) for span in own]
    comm = [(span.start_s, span.end_s) for span in spans if communicates(span, kinds)]
    exposed = exposed_s(comm, compute)
    return StepParts(
        covered_s(compute), covered_s(comm), exposed, _break_down(own, exposed, step_s)
    )


def _split_pipeline(spans: list[Span], kinds: Mapping[str, str], step_s: float) -> StepParts:
    """Split the step of the stage that computes longest, by what it takes part in itself."""
    busiest = busiest_class(spans, kinds)
    parts = _split_step([s for s in spans if s.rank_class == busiest], kinds, step_s)
    waits_s = min(stage_waits_s(spans, kinds)[busiest], parts.breakdown_s["idle"])
    rest = parts.breakdown_s | {"bubble": waits_s, "idle": parts.breakdown_s["idle"] - waits_s}
    return replace(parts, breakdown_s=rest)


def stage_waits_s(spans: Sequence[Span], kinds: Mapping[str, str]) -> dict[str, float]:
    """Time that each class neither computes nor communicates while any stage runs passes."""
    passes = [span for span in spans if span.kind in ("forward", "backward")]
    begin, end = min(span.start_s for span in passes), max(span.end_s for span in passes)
    works: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        if computes(span, kinds) or communicates(span, kinds):
            works.setdefault(span.rank_class, []).append((span.start_s, span.end_s))
    return {name: exposed_s([(begin, end)], intervals) for name, intervals in works.items()}


def computes(span: Span, kinds: Mapping[str, str]) -> bool:
    """Whether a span is of kernels; not of a collective that layers wait for in their stream."""
    return kinds[span.stream] == "compute" and span.kind != "communication"


def communicates(span: Span, kinds: Mapping[str, str]) -> bool:
    """Whether a span is of communication, in a stream of its own or in that of the layers."""
    on_compute = kinds[span.stream] == "compute" and span.kind == "communication"
    return kinds[span.stream] == "comm" or on_compute


def busiest_class(spans: Sequence[Span], kinds: Mapping[str, str]) -> str:
    """Class that computes longest (nn.DataParallel's device 0 does more than the others)."""
    total: dict[str, float] = {}
    for span in spans:
        if computes(span, kinds):
            total[span.rank_class] = total.get(span.rank_class, 0.0) + span.end_s - span.start_s
    return max(total, key=lambda name: total[name]) if total else spans[0].rank_class


def _break_down(compute: list[Span], exposed: float, step_s: float) -> dict[str, float]:
    """Parts of a step that add up to its duration.

    `compute`: of one compute stream, which runs one task at a time.
    `exposed`, `step_s`: exposed communication and the whole step; seconds.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    for span in compute:
        part = _PART_OF_KIND.get(span.kind, span.kind)
        parts[part if part in parts else "idle"] += span.work_s
        parts["slowdown"] += max(0.0, span.end_s - span.start_s - span.work_s)
    parts["exposed communication"] = exposed
    parts["idle"] += max(0.0, step_s - sum(parts.values()))
    return parts
