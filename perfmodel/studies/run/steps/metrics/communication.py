"""What a step sends, by operation, and how much of that compute does not hide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.studies.run.result.dimension_use import CommunicationUse
from perfmodel.timeline import exposed
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task, has_stages

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
