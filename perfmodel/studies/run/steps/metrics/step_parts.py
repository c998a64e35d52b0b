"""Where the time of a step goes: compute, communication, exposed communication, idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfmodel.simulate.engine.outcome import Run
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.plan.step_plan import StepPlan

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
    return [_split_step(by_step[at], kinds, ends[at + 1] - ends[at]) for at in steps]


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
    own = [s for s in spans if s.rank_class == busiest and kinds[s.stream] == "compute"]
    compute = [(span.start_s, span.end_s) for span in own]
    comm = [(span.start_s, span.end_s) for span in spans if kinds[span.stream] == "comm"]
    exposed = exposed_s(comm, compute)
    return StepParts(
        covered_s(compute), covered_s(comm), exposed, _break_down(own, exposed, step_s)
    )


def busiest_class(spans: Sequence[Span], kinds: Mapping[str, str]) -> str:
    """Class that computes longest (nn.DataParallel's device 0 does more than the others)."""
    total: dict[str, float] = {}
    for span in spans:
        if kinds[span.stream] == "compute":
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
