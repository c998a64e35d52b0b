"""What a step sends, by operation, and how much of that compute does not hide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.studies.run.result import CommunicationUse
from perfmodel.timeline import exposed
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task

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

    `steps`: over which times are means. Where several operations are exposed together, they share
    that time, so that exposed times add up to the exposed communication of the step.
    """
    kinds = {stream.name: stream.kind for stream in plan.streams}
    by_step = {at: list[TaskExecution]() for at in steps}
    for execution in run.executions:
        if execution[1] in by_step:
            by_step[execution[1]].append(execution)
    tasks = [
        each[0]
        for each in by_step[steps[-1]]
        if each[0].rank_class == rank_class and not isinstance(each[0].work, Compute)
    ]
    busy_s, exposed_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for executions in by_step.values():
        _add_times(executions, kinds, rank_class, busy_s, exposed_s)
    ranks = {each.name: len(each.groups[0]) for each in plan.communicators}
    return tuple(
        _sum_up(op, tasks, ranks, busy_s[op] / len(steps), exposed_s[op] / len(steps))
        for op in dict.fromkeys(op_of(task) for task in tasks)
    )


def is_communication(task: Task) -> bool:
    """Whether a task communicates, also where it does so in the stream of the layers."""
    return isinstance(task.work, Collective)


def op_of(task: Task) -> str:
    """Operation of a communication."""
    assert isinstance(task.work, Collective)
    return task.work.op


def _sum_up(
    op: str, tasks: Sequence[Task], ranks: Mapping[str, int], busy_s: float, exposed_s: float
) -> CommunicationUse:
    calls, nbytes, sent_bytes = 0, 0, 0.0
    for task in tasks:
        if isinstance(task.work, Compute) or op_of(task) != op:
            continue
        size, times = ranks[task.work.communicator], task.work.times
        calls, nbytes = calls + times, nbytes + times * task.work.nbytes
        sent_bytes += times * ring_bytes(op, task.work.nbytes, size)
    return CommunicationUse(op, calls, nbytes, sent_bytes, busy_s, exposed_s)


def _add_times(
    executions: Sequence[TaskExecution],
    kinds: Mapping[str, str],
    rank_class: str,
    busy_s: dict[str, float],
    exposed_s: dict[str, float],
) -> None:
    """Add the times of one step to those of each operation."""
    comm = [(op_of(e[0]), (e[2], e[3])) for e in executions if is_communication(e[0])]
    compute = [
        (e[2], e[3])
        for e in executions
        if kinds[e[0].stream] == "compute"
        and e[0].rank_class == rank_class
        and not is_communication(e[0])
    ]
    for op in dict.fromkeys(op for op, _ in comm):
        own = [interval for each, interval in comm if each == op]
        busy_s[op] += sum(end - start for start, end in exposed(own, ()))
    for start, end, ops in _shared(comm, exposed([interval for _, interval in comm], compute)):
        for op in ops:
            exposed_s[op] += (end - start) / len(ops)


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
