"""Where the time of a step goes: compute, communication, exposed communication, idle."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from perfmodel.memo import T, grouped
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.studies.run.usage import CommunicationUse
from perfmodel.timeline import Span, covered_s, exposed, exposed_s
from perfmodel.training.plan.step_plan import PASSES, Collective, StepPlan, Task, has_stages

PARTS = ("forward", "backward", "copies", "optimizer", "slowdown", "exposed communication", "idle")

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where one step went, or the mean one of several; seconds."""

    compute_s: float
    comm_s: float
    exposed_comm_s: float
    breakdown_s: dict[str, float]


def mean_parts(plan: StepPlan, run: Run, steps: range, step_s: float) -> StepParts:
    """Compute where some steps of a run went, on average; the rest of a step is idle.

    Under jitter a rank may begin a step before the slowest one has ended the last. Then the parts
    of a single step add up to more or less than its duration, so idle is worked out from the means.

    `step_s`: the mean of these steps; seconds.
    """
    by_step, ends, count = spans_by_step(run), (0.0, *run.step_ends_s), len(steps)
    parts = [_split_step(by_step[at], plan, ends[at + 1] - ends[at]) for at in steps]
    rows = [part.breakdown_s for part in parts]
    means = {name: sum(row[name] for row in rows) / count for name in rows[0]}
    if count > 1:
        means["idle"] = max(0.0, step_s - sum(means[name] for name in means if name != "idle"))
    return StepParts(
        sum(part.compute_s for part in parts) / count,
        sum(part.comm_s for part in parts) / count,
        sum(part.exposed_comm_s for part in parts) / count,
        means,
    )


def summed(pairs: Iterable[tuple[T, float]]) -> dict[T, float]:
    """Add up values by their keys, in the order in which these first occur; 0 for other keys."""
    totals: dict[T, float] = defaultdict(float)
    for key, value in pairs:
        totals[key] += value
    return totals


def spans_by_step(run: Run) -> dict[int, list[Span]]:
    """Group the spans of a run by step."""
    return grouped((span.step, span) for span in run.timeline.spans)


def _split_step(spans: list[Span], plan: StepPlan, step_s: float) -> StepParts:
    """Split the step of the class that computes longest, beside the communication of all.

    Of a pipeline, by what that stage takes part in itself.
    """
    kinds, is_pipeline = plan.stream_kinds, has_stages(plan)
    busiest = busiest_class(spans, kinds)
    own = [span for span in spans if span.rank_class == busiest]
    kernels = [span for span in own if computes(span, kinds)]
    compute = intervals_of(kernels)
    comm = intervals_of(s for s in (own if is_pipeline else spans) if communicates(s, kinds))
    breakdown_s = _break_down(kernels, exposed_s(comm, compute), step_s)
    if is_pipeline:
        bubble_s = min(exposed_s([window_of_passes(spans)], [*compute, *comm]), breakdown_s["idle"])
        breakdown_s |= {"bubble": bubble_s, "idle": breakdown_s["idle"] - bubble_s}
    return StepParts(
        covered_s(compute), covered_s(comm), breakdown_s["exposed communication"], breakdown_s
    )


def intervals_of(spans: Iterable[Span]) -> list[Interval]:
    """Return when spans begin and end."""
    return [(span.start_s, span.end_s) for span in spans]


def window_of_passes(spans: Iterable[Span]) -> Interval:
    """Return when the first pass of all stages begins, and when the last one ends."""
    passes = [span for span in spans if span.kind in PASSES]
    return min(span.start_s for span in passes), max(span.end_s for span in passes)


def computes(span: Span, kinds: Mapping[str, str]) -> bool:
    """Whether a span is of kernels; not of a collective that layers wait for in their stream."""
    return kinds[span.stream] == "compute" and span.kind != "communication"


def communicates(span: Span, kinds: Mapping[str, str]) -> bool:
    """Whether a span is of communication, in a stream of its own or in that of the layers."""
    return kinds[span.stream] == "comm" or (
        kinds[span.stream] == "compute" and span.kind == "communication"
    )


def busiest_class(spans: Sequence[Span], kinds: Mapping[str, str]) -> str:
    """Class that computes longest (nn.DataParallel's device 0 does more than the others)."""
    total_s = summed(
        (span.rank_class, span.end_s - span.start_s) for span in spans if computes(span, kinds)
    )
    return max(total_s, key=total_s.__getitem__, default=spans[0].rank_class)


def _break_down(compute: list[Span], exposed: float, step_s: float) -> dict[str, float]:
    """Parts of a step that add up to its duration.

    `compute`: of one compute stream, which runs one task at a time.
    `exposed`, `step_s`: exposed communication and the whole step; seconds.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    for span in compute:
        part = "copies" if span.kind == "copy" else span.kind
        parts[part if part in parts else "idle"] += span.work_s
        parts["slowdown"] += max(0.0, span.end_s - span.start_s - span.work_s)
    parts["exposed communication"] = exposed
    parts["idle"] += max(0.0, step_s - sum(parts.values()))
    return parts


# ---------------------------------------------------------------- what a step sends


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
        "gather": 1 / ranks,  # its root sends nothing
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
    by_step = executions_by_step(run, steps)
    works_of = grouped(
        (op_of(task), collective_of(task))
        for task, *_ in by_step[steps[-1]]
        if task.rank_class == rank_class and is_communication(task)
    )
    if has_stages(plan):
        by_step = {
            at: [each for each in executions if each[0].rank_class == rank_class]
            for at, executions in by_step.items()
        }
    exposed_by_op_s = exposed_by_name(by_step.values(), plan.stream_kinds, rank_class, op_of)

    return tuple(
        CommunicationUse(
            op,
            sum(work.times for work in works),
            sum(work.times * work.nbytes for work in works),
            sum_sent_bytes(plan, rank_class, works),
            sum(_busy_s(executions, op) for executions in by_step.values()) / len(steps),
            exposed_by_op_s[op] / len(steps),
        )
        for op, works in works_of.items()
    )


def _busy_s(executions: Sequence[TaskExecution], op: str) -> float:
    """Time in which at least one call of an operation is in flight; seconds."""
    busy = [(e[2], e[3]) for e in executions if is_communication(e[0]) and op_of(e[0]) == op]
    return sum(end - start for start, end in exposed(busy, ()))


def executions_by_step(run: Run, steps: range) -> dict[int, list[TaskExecution]]:
    """Group what ran in some steps by step."""
    return grouped((each[1], each) for each in run.executions if each[1] in steps)


def is_communication(task: Task) -> bool:
    """Whether a task communicates, also where it does so in the stream of the layers."""
    return isinstance(task.work, Collective)


def collective_of(task: Task) -> Collective:
    """Return what a communication sends."""
    assert isinstance(task.work, Collective)
    return task.work


def op_of(task: Task) -> str:
    """Operation of a communication."""
    return collective_of(task).op


def sum_sent_bytes(plan: StepPlan, rank_class: str, works: Sequence[Collective]) -> float:
    """Bytes that a rank sends in collectives on rings; of a message only the one that sends it.

    `rank_class`: whose ranks call the collectives.
    """
    groups = plan.groups_of
    own = frozenset(next(each.ranks for each in plan.classes if each.name == rank_class))
    receives_only = {
        work.communicator
        for work in works
        if work.op == "send" and not any(group[0] in own for group in groups[work.communicator])
    }
    return sum(
        (
            work.times * ring_bytes(work.op, work.nbytes, len(groups[work.communicator][0]))
            for work in works
            if work.communicator not in receives_only
        ),
        start=0.0,
    )


def exposed_by_name(
    steps: Iterable[Sequence[TaskExecution]],
    kinds: Mapping[str, str],
    rank_class: str,
    name_of: Callable[[Task], str],
) -> dict[str, float]:
    """Time in which communication is exposed to a class, of all steps, by what it is called.

    `name_of`: the name that a task is counted under.
    """
    total_s = defaultdict[str, float](float)
    for executions in steps:
        comm = [(name_of(e[0]), (e[2], e[3])) for e in executions if is_communication(e[0])]
        compute = [
            (e[2], e[3])
            for e in executions
            if kinds[e[0].stream] == "compute"
            and e[0].rank_class == rank_class
            and not is_communication(e[0])
        ]
        for start, end, names in _shared(
            comm, exposed([interval for _, interval in comm], compute)
        ):
            for name in names:
                total_s[name] += (end - start) / len(names)
    return total_s


def _shared(
    comm: Sequence[tuple[str, Interval]], free: Sequence[Interval]
) -> Iterator[tuple[float, float, list[str]]]:
    """Cut exposed intervals where an operation starts or ends; with those in flight in each."""
    begins = [(interval[0], 1, op) for op, interval in comm]
    marks = deque(
        sorted(begins + [(interval[1], -1, op) for op, interval in comm], key=itemgetter(0))
    )
    running = Counter[str]()
    for low, high in free:
        start = low
        while marks and marks[0][0] < high:
            time_s, change, op = marks.popleft()
            if time_s > start:
                yield start, time_s, [*running]
                start = time_s
            running[op] += change
            running += Counter()  # without those that ended
        yield start, high, [*running]
