"""Where the time of a step goes: compute, communication, exposed communication, idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.studies.run.result.usage import CommunicationUse
from perfmodel.timeline import Span, covered_s, exposed, exposed_s
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task, has_stages

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


# ---------------------------------------------------------------- what a step sends

Interval = tuple[float, float]


def ring_bytes(op: str, nbytes: float, ranks: int) -> float:
    """Bytes that each rank sends in an operation on a ring; the root, where there is one.

    All-reduce: 2 (N - 1) / N of the buffer, and half of it in either of its parts (Patarasuk and
    Yuan 2009, "Bandwidth optimal all-reduce algorithms", JPDC 69).
    """
    share = (ranks - 1) / ranks
    factor = {
        "all_reduce": 2 * share,
        "broadcast": min(1.0, ranks - 1),
        "send": 1.0,
        "send_recv": 1.0,
    }
    return nbytes * factor.get(op, share)


def communication_uses(
    plan: StepPlan, run: Run, steps: range, rank_class: str
) -> tuple[CommunicationUse, ...]:
    """Return what the ranks of a class communicate in a step, by operation.

    Of a pipeline only what the stage itself takes part in.

    `steps`: over which times are means. Where several operations are exposed together, they share
    that time, so that exposed times add up to the exposed communication of the step.
    """
    kinds = {stream.name: stream.kind for stream in plan.streams}
    by_step = executions_by_step(run, steps)
    if has_stages(plan):
        by_step = {
            at: [each for each in executions if each[0].rank_class == rank_class]
            for at, executions in by_step.items()
        }
    tasks = [
        each[0]
        for each in by_step[steps[-1]]
        if each[0].rank_class == rank_class and not isinstance(each[0].work, Compute)
    ]
    busy_s, exposed_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for executions in by_step.values():
        add_times(executions, kinds, rank_class, op_of, busy_s, exposed_s)
    return tuple(
        _sum_up(op, tasks, plan, busy_s[op] / len(steps), exposed_s[op] / len(steps))
        for op in dict.fromkeys(op_of(task) for task in tasks)
    )


def executions_by_step(run: Run, steps: range) -> dict[int, list[TaskExecution]]:
    """Group what ran in some steps by step."""
    by_step = {at: list[TaskExecution]() for at in steps}
    for execution in run.executions:
        if execution[1] in by_step:
            by_step[execution[1]].append(execution)
    return by_step


def is_communication(task: Task) -> bool:
    """Whether a task communicates, also where it does so in the stream of the layers."""
    return isinstance(task.work, Collective)


def op_of(task: Task) -> str:
    """Operation of a communication."""
    assert isinstance(task.work, Collective)
    return task.work.op


def _sum_up(
    op: str, tasks: Sequence[Task], plan: StepPlan, busy_s: float, exposed_s: float
) -> CommunicationUse:
    own = [task.work for task in tasks if isinstance(task.work, Collective) and op_of(task) == op]
    calls = sum(work.times for work in own)
    nbytes = sum(work.times * work.nbytes for work in own)
    return CommunicationUse(op, calls, nbytes, sum_sent_bytes(plan, tasks, own), busy_s, exposed_s)


def sum_sent_bytes(plan: StepPlan, tasks: Sequence[Task], works: Sequence[Collective]) -> float:
    """Bytes that a rank sends in collectives on rings; of a message only the one that sends it.

    `tasks`: of one class, whose ranks call the collectives.
    """
    if not works:
        return 0.0
    groups = {each.name: each.groups for each in plan.communicators}
    own = frozenset(next(e.ranks for e in plan.classes if e.name == tasks[0].rank_class))
    senders = {
        name: any(group[0] in own for group in groups[name])
        for name in {work.communicator for work in works if work.op == "send"}
    }
    return sum(
        work.times * ring_bytes(work.op, work.nbytes, len(groups[work.communicator][0]))
        for work in works
        if senders.get(work.communicator, True)
    )


def add_times(
    executions: Sequence[TaskExecution],
    kinds: Mapping[str, str],
    rank_class: str,
    name_of: Callable[[Task], str],
    busy_s: dict[str, float],
    exposed_s: dict[str, float],
) -> None:
    """Add the times of one step to those of each kind of communication.

    `name_of`: the kind that a task is of.
    """
    comm = [(name_of(e[0]), (e[2], e[3])) for e in executions if is_communication(e[0])]
    compute = [
        (e[2], e[3])
        for e in executions
        if kinds[e[0].stream] == "compute"
        and e[0].rank_class == rank_class
        and not is_communication(e[0])
    ]
    for name in dict.fromkeys(name for name, _ in comm):
        own = [interval for each, interval in comm if each == name]
        busy_s[name] += sum(end - start for start, end in exposed(own, ()))
    free = exposed([interval for _, interval in comm], compute)
    for start, end, names in _shared(comm, free):
        for name in names:
            exposed_s[name] += (end - start) / len(names)


def _shared(
    comm: Sequence[tuple[str, Interval]], free: Sequence[Interval]
) -> Iterator[tuple[float, float, list[str]]]:
    """Cut exposed intervals where an operation starts or ends; with those in flight in each."""
    active: list[tuple[str, Interval]] = []
    waiting = sorted(comm, key=lambda each: each[1])
    place = 0
    for low, high in free:
        while place < len(waiting) and waiting[place][1][0] < high:
            active.append(waiting[place])
            place += 1
        active = [each for each in active if each[1][1] > low]
        ends = {time_s for _, interval in active for time_s in interval if low < time_s < high}
        for start, end in pairwise(sorted({low, high, *ends})):
            ops = dict.fromkeys(op for op, (a, b) in active if a <= start and b >= end)
            yield start, end, list(ops)
