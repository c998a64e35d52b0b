"""Is a StepPlan well formed? Whoever writes a strategy calls this in a test."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import get_args

from perfmodel.errors import ScheduleError, allowed_names, describe_type
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from perfmodel.workload.model import ITEM_BYTES


def check_plan(plan: StepPlan, ranks: int | None = None) -> None:
    """Check a plan; the error lists all faults at once.

    Names must be known and unique, ranks in one class each; `after` points to earlier tasks;
    every class with members in a collective's communicator takes part in it once, and alike;
    messages have two ends; semaphores are given back as often as taken; and the streams' orders do
    not make tasks wait for each other in a circle. With `ranks`, the classes hold so many.

    Raises
    ------
    ScheduleError
        One line per fault.
    """
    faults = [*_types(plan)] or [
        *_declarations(plan),
        *_ranks(plan, ranks),
        *_tasks(plan),
        *_collectives(plan),
    ]
    faults += [] if faults else [*_semaphores(plan), *_circles(plan)]
    if faults:
        raise ScheduleError(f"plan {plan.name!r}:\n" + "\n".join(f"  {fault}" for fault in faults))


def _types(plan: StepPlan) -> Iterator[str]:
    parts = {"classes": RankClass, "streams": Stream, "communicators": Communicator}
    for name, kind in parts.items():
        for each in getattr(plan, name):
            if not isinstance(each, kind):
                yield f"{name}: found {describe_type(each)}; allowed: a perfmodel.{kind.__name__}"
    if isinstance(plan.samples, bool) or not isinstance(plan.samples, int):
        yield f"samples: found {plan.samples!r}; allowed: a whole number"
    for index, task in enumerate(plan.tasks):
        if not isinstance(task, Task):
            yield f"task {index}: found {describe_type(task)}; allowed: a perfmodel.Task"
            continue
        where = f"task {index} {task.name!r}"
        if not all(isinstance(each, int) for each in (*task.after, *task.after_previous)):
            yield f"{where}: found after {task.after!r}; allowed: numbers of tasks"
        yield from (f"{where}: {fault}" for fault in _work_faults(task.work))


def _work_faults(work: object) -> Iterator[str]:
    if isinstance(work, Compute):
        if not isinstance(work.duration_s, int | float):
            yield f"found duration_s {work.duration_s!r}; allowed: seconds"
    elif isinstance(work, Collective):
        if not isinstance(work.nbytes, int):
            yield f"found nbytes {work.nbytes!r}; allowed: a whole number"
        if work.op not in get_args(Op):
            yield f"found op {work.op!r}; allowed: {allowed_names(get_args(Op), str(work.op))}"
    else:
        yield f"found work {describe_type(work)}; allowed: a perfmodel.Compute or Collective"


def _declarations(plan: StepPlan) -> Iterator[str]:
    named: dict[str, Iterable[str]] = {
        "class": (each.name for each in plan.classes),
        "stream": (each.name for each in plan.streams),
        "communicator": (each.name for each in plan.communicators),
        "semaphore": (name for name, _ in plan.semaphores),
    }
    for kind, names in named.items():
        yield from (f"{kind} {name!r} is declared twice" for name in _twice(names))
    for stream in plan.streams:
        if stream.workers < 1:
            yield f"stream {stream.name!r} has {stream.workers} workers; at least 1"
    for name, capacity in plan.semaphores:
        if capacity < 1:
            yield f"semaphore {name!r} has capacity {capacity}; at least 1"
    if plan.samples < 1:
        yield f"{plan.samples} samples; at least 1"


def _ranks(plan: StepPlan, count: int | None) -> Iterator[str]:
    planned = {rank for each in plan.classes for rank in each.ranks}
    if count is not None and planned != set(range(count)):
        missing, extra = sorted(set(range(count)) - planned), sorted(planned - set(range(count)))
        without = f", without {missing[:4]}" if missing else ""
        beyond = f", with {extra[:4]}" if extra else ""
        yield f"classes: found {len(planned)} ranks{without}{beyond}; allowed: 0 to {count - 1}"
    for rank in _twice(rank for each in plan.classes for rank in each.ranks):
        yield f"rank {rank} is in two classes"
    yield from (f"class {each.name!r} has no ranks" for each in plan.classes if not each.ranks)
    for communicator in plan.communicators:
        members = [rank for group in communicator.groups for rank in group]
        for rank in _twice(members):
            yield f"communicator {communicator.name!r}: rank {rank} is in two of its groups"
        for rank in sorted(set(members) - planned):
            yield f"communicator {communicator.name!r}: rank {rank} is in no class"


def _tasks(plan: StepPlan) -> Iterator[str]:
    declared = {
        "stream": [stream.name for stream in plan.streams],
        "class": [each.name for each in plan.classes],
        "semaphore": [name for name, _ in plan.semaphores],
    }
    for index, task in enumerate(plan.tasks):
        where = f"task {index} {task.name!r}"
        references = [
            ("stream", task.stream),
            ("class", task.rank_class),
            ("semaphore", task.acquires),
            ("semaphore", task.releases),
        ]
        for kind, name in references:
            if name is not None and name not in declared[kind]:
                yield f"{where}: {kind} {name!r}; {allowed_names(declared[kind], name)}"
        for other in task.after:
            if not 0 <= other < index:
                yield f"{where}: after {other}, which is no earlier task"
        for other in task.after_previous:
            if not 0 <= other < len(plan.tasks):
                yield f"{where}: after_previous {other}; 0 to {len(plan.tasks) - 1}"
        size = task.work.duration_s if isinstance(task.work, Compute) else task.work.nbytes
        if not (math.isfinite(size) and size >= 0):
            yield f"{where}: takes or moves {size}; finite and not negative"
        elif isinstance(task.work, Collective) and task.work.dtype is not None:
            yield from (f"{where}: {each}" for each in _dtype_faults(size, task.work.dtype))


def _dtype_faults(nbytes: float, dtype: str) -> Iterator[str]:
    if dtype not in ITEM_BYTES:
        yield f"dtype {dtype!r}; {allowed_names(ITEM_BYTES, dtype)}"
    elif nbytes % ITEM_BYTES[dtype]:
        yield f"{nbytes} bytes of {dtype}; a multiple of {ITEM_BYTES[dtype]}"


def _collectives(plan: StepPlan) -> Iterator[str]:
    communicators = {each.name: each for each in plan.communicators}
    for key, works, present in _by_key(plan):
        if len(works) > 1:
            yield f"collective {key!r}: its tasks differ in operation, size, group or root"
            continue
        (work,) = works
        communicator = communicators.get(work.communicator)
        if communicator is None:
            allowed = allowed_names(communicators, work.communicator)
            yield f"collective {key!r}: communicator {work.communicator!r}; {allowed}"
            continue
        yield from _members(plan, communicator, key, present)
        if work.op == "send" and {len(group) for group in communicator.groups} != {2}:
            yield f"collective {key!r}: groups of a send have two ranks; {communicator.name!r}"
        if work.times < 1:
            yield f"collective {key!r}: {work.times} times; at least 1"
        rooted = work.op in ("broadcast", "reduce", "scatter", "gather")
        if rooted and not any(work.root in group for group in communicator.groups):
            yield f"collective {key!r}: root {work.root} is not in {communicator.name!r}"


def _by_key(plan: StepPlan) -> Iterator[tuple[str, set[Collective], Counter[str]]]:
    """Collectives that share a key, and how many of their tasks each class has."""
    works: defaultdict[str, set[Collective]] = defaultdict(set)
    present: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in plan.tasks:
        if isinstance(task.work, Collective):
            works[task.work.key].add(task.work)
            present[task.work.key][task.rank_class] += 1
    return ((key, works[key], present[key]) for key in works)


def _members(
    plan: StepPlan, communicator: Communicator, key: str, present: Counter[str]
) -> Iterator[str]:
    members = {rank for group in communicator.groups for rank in group}
    for each in plan.classes:
        expected = int(not members.isdisjoint(each.ranks))
        if present[each.name] != expected:
            yield (
                f"collective {key!r}: class {each.name!r} has {present[each.name]} tasks in it; "
                f"{expected}, by its ranks in {communicator.name!r}"
            )


def _semaphores(plan: StepPlan) -> Iterator[str]:
    balance: Counter[tuple[str, str]] = Counter()
    for task in plan.tasks:
        if task.acquires is not None:
            balance[task.rank_class, task.acquires] += 1
        if task.releases is not None:
            balance[task.rank_class, task.releases] -= 1
    for (rank_class, name), surplus in balance.items():
        if surplus:
            held = f"semaphore {name!r} in class {rank_class!r}"
            yield f"{held}: taken {surplus} times more than given"


def _circles(plan: StepPlan) -> Iterator[str]:
    """Tasks that wait for each other: a stream starts in order, a collective starts together.

    Each task has a node for its start; all tasks of a collective or a message share their end.
    """
    alone = {stream.name: stream.workers == 1 for stream in plan.streams}
    ends = [
        f"task {index} {task.name!r}" if isinstance(task.work, Compute) else repr(task.work.key)
        for index, task in enumerate(plan.tasks)
    ]
    graph: TopologicalSorter[str] = TopologicalSorter()
    newest: dict[tuple[str, str], int] = {}
    for index, task in enumerate(plan.tasks):
        start = f"start of task {index} {task.name!r}"
        graph.add(ends[index], start)
        graph.add(start, *(ends[other] for other in task.after))
        before = newest.get((task.rank_class, task.stream))
        newest[task.rank_class, task.stream] = index
        if before is not None and alone[task.stream]:
            graph.add(start, ends[before])
        elif before is not None:
            graph.add(start, f"start of task {before} {plan.tasks[before].name!r}")
    try:
        graph.prepare()
    except CycleError as error:
        yield f"these wait for each other: {' <- '.join(error.args[1][:12])}"


def _twice(names: Iterable[object]) -> list[object]:
    return [name for name, count in Counter(names).items() if count > 1]
