"""Is a StepPlan well formed? Whoever writes a strategy calls this in a test."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import get_args

from perfmodel.errors import allowed_names, check_schedule, describe_type
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
    check_schedule((faults, f"plan {plan.name!r}:\n" + "\n".join(f"  {fault}" for fault in faults)))


def _types(plan: StepPlan) -> Iterator[str]:
    parts = {"classes": RankClass, "streams": Stream, "communicators": Communicator}
    yield from (
        f"{name}: found {describe_type(each)}; allowed: a perfmodel.{kind.__name__}"
        for name, kind in parts.items()
        for each in getattr(plan, name)
        if not isinstance(each, kind)
    )
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
    counts = [
        *((f"stream {s.name!r} has {s.workers} workers", s.workers) for s in plan.streams),
        *((f"semaphore {name!r} has capacity {n}", n) for name, n in plan.semaphores),
        (f"{plan.samples} samples", plan.samples),
    ]
    yield from (f"{text}; at least 1" for text, count in counts if count < 1)


def _ranks(plan: StepPlan, count: int | None) -> Iterator[str]:
    planned = {rank for each in plan.classes for rank in each.ranks}
    expected = planned if count is None else set(range(count))
    if planned != expected:
        missing, extra = sorted(expected - planned), sorted(planned - expected)
        without = f", without {missing[:4]}" if missing else ""
        beyond = f", with {extra[:4]}" if extra else ""
        yield (
            f"classes: found {len(planned)} ranks{without}{beyond}; allowed: 0 to "
            f"{len(expected) - 1}"
        )
    yield from (
        f"rank {rank} is in two classes"
        for rank in _twice(rank for each in plan.classes for rank in each.ranks)
    )
    yield from (f"class {each.name!r} has no ranks" for each in plan.classes if not each.ranks)
    for communicator in plan.communicators:
        members = [rank for group in communicator.groups for rank in group]
        faults = [f"rank {rank} is in two of its groups" for rank in _twice(members)]
        faults += [f"rank {rank} is in no class" for rank in sorted(set(members) - planned)]
        yield from (f"communicator {communicator.name!r}: {fault}" for fault in faults)


def _tasks(plan: StepPlan) -> Iterator[str]:
    declared = {
        "stream": [stream.name for stream in plan.streams],
        "class": [each.name for each in plan.classes],
        "semaphore": [name for name, _ in plan.semaphores],
    }
    for index, task in enumerate(plan.tasks):
        references = [
            ("stream", task.stream),
            ("class", task.rank_class),
            ("semaphore", task.acquires),
            ("semaphore", task.releases),
        ]
        last = len(plan.tasks) - 1
        faults = [
            *(
                f"{kind} {name!r}; {allowed_names(declared[kind], name)}"
                for kind, name in references
                if name is not None and name not in declared[kind]
            ),
            *(
                f"after {other}, which is no earlier task"
                for other in task.after
                if not 0 <= other < index
            ),
            *(
                f"after_previous {other}; 0 to {last}"
                for other in task.after_previous
                if not 0 <= other <= last
            ),
            *_size_faults(task),
        ]
        yield from (f"task {index} {task.name!r}: {fault}" for fault in faults)


def _size_faults(task: Task) -> Iterator[str]:
    size = task.work.duration_s if isinstance(task.work, Compute) else task.work.nbytes
    dtype = task.work.dtype if isinstance(task.work, Collective) else None
    if not (math.isfinite(size) and size >= 0):
        yield f"takes or moves {size}; finite and not negative"
    elif dtype is not None and dtype not in ITEM_BYTES:
        yield f"dtype {dtype!r}; {allowed_names(ITEM_BYTES, dtype)}"
    elif dtype is not None and size % ITEM_BYTES[dtype]:
        yield f"{size} bytes of {dtype}; a multiple of {ITEM_BYTES[dtype]}"


def _collectives(plan: StepPlan) -> Iterator[str]:
    """Check the tasks that share a key, and how many of them each class has."""
    communicators = {each.name: each for each in plan.communicators}
    works: defaultdict[str, set[Collective]] = defaultdict(set)
    present: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in plan.tasks:
        if isinstance(task.work, Collective):
            works[task.work.key].add(task.work)
            present[task.work.key][task.rank_class] += 1
    for key in works:
        yield from (
            f"collective {key!r}: {fault}"
            for fault in _faults(plan, communicators, works[key], present[key])
        )


def _faults(
    plan: StepPlan,
    communicators: Mapping[str, Communicator],
    works: set[Collective],
    present: Counter[str],
) -> Iterator[str]:
    """Say what is wrong with the tasks of one collective."""
    work, *others = works
    communicator = communicators.get(work.communicator)
    if others:
        yield "its tasks differ in operation, size, group or root"
    elif communicator is None:
        allowed = allowed_names(communicators, work.communicator)
        yield f"communicator {work.communicator!r}; {allowed}"
    else:
        name, groups = communicator.name, communicator.groups
        members = {rank for group in groups for rank in group}
        for each in plan.classes:
            expected = int(not members.isdisjoint(each.ranks))
            if present[each.name] != expected:
                yield (
                    f"class {each.name!r} has {present[each.name]} tasks in it; {expected}, by "
                    f"its ranks in {name!r}"
                )
        if work.op == "send" and {len(group) for group in groups} != {2}:
            yield f"groups of a send have two ranks; {name!r}"
        if work.times < 1:
            yield f"{work.times} times; at least 1"
        if work.op in ("broadcast", "reduce", "scatter", "gather") and work.root not in members:
            yield f"root {work.root} is not in {name!r}"


def _semaphores(plan: StepPlan) -> Iterator[str]:
    taken = Counter((task.rank_class, task.acquires) for task in plan.tasks)
    given = Counter((task.rank_class, task.releases) for task in plan.tasks)
    for rank_class, name in dict.fromkeys([*taken, *given]):
        surplus = taken[rank_class, name] - given[rank_class, name]
        if name is not None and surplus:
            yield (
                f"semaphore {name!r} in class {rank_class!r}: taken {surplus} times more than given"
            )


def _circles(plan: StepPlan) -> Iterator[str]:
    """Find tasks that wait for each other: a stream starts in order, a collective together.

    Each task has a node for its start; all tasks of a collective or a message share their end.
    """
    alone = {stream.name: stream.workers == 1 for stream in plan.streams}
    names = [f"task {index} {task.name!r}" for index, task in enumerate(plan.tasks)]
    ends = [
        name if isinstance(task.work, Compute) else repr(task.work.key)
        for name, task in zip(names, plan.tasks, strict=True)
    ]
    graph: TopologicalSorter[str] = TopologicalSorter()
    newest: dict[tuple[str, str], int] = {}
    for index, task in enumerate(plan.tasks):
        start = f"start of {names[index]}"
        graph.add(ends[index], start)
        graph.add(start, *(ends[other] for other in task.after))
        before = newest.get((task.rank_class, task.stream))
        newest[task.rank_class, task.stream] = index
        if before is not None:
            graph.add(start, ends[before] if alone[task.stream] else f"start of {names[before]}")
    try:
        graph.prepare()
    except CycleError as error:
        yield f"these wait for each other: {' <- '.join(error.args[1][:12])}"


def _twice(names: Iterable[object]) -> list[object]:
    return [name for name, count in Counter(names).items() if count > 1]
