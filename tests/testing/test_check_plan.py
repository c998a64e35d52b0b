"""Each way in which a plan can be malformed is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfmodel.errors import ScheduleError
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

GOOD = StepPlan(
    name="two classes",
    classes=(RankClass("a", (0, 1)), RankClass("b", (2,))),
    streams=(Stream("compute", "compute"), Stream("comm", "comm")),
    communicators=(Communicator("all", (range(3),)), Communicator("pair", ((1, 2),))),
    tasks=(
        Task("work a", "forward", "a", "compute", Compute(1.0)),
        Task("sum", "communication", "a", "comm", Collective("all_reduce", 8, "all", "k"), (0,)),
        Task("sum", "communication", "b", "comm", Collective("all_reduce", 8, "all", "k")),
        Task("send", "communication", "a", "comm", Collective("send", 8, "pair", "m"), (1,)),
        Task("receive", "communication", "b", "comm", Collective("send", 8, "pair", "m"), (2,)),
        Task("take", "forward", "b", "compute", Compute(1.0), acquires="slot"),
        Task("give", "forward", "b", "compute", Compute(1.0), (5,), (0,), releases="slot"),
    ),
    samples=1,
    semaphores=(("slot", 1),),
)


def changed(index: int, **fields: Any) -> StepPlan:
    tasks = list(GOOD.tasks)
    tasks[index] = replace(tasks[index], **fields)
    return replace(GOOD, tasks=tuple(tasks))


def reduce_of(**fields: Any) -> Collective:
    return replace(Collective("all_reduce", 8, "all", "k"), **fields)


def test_a_good_plan_passes() -> None:
    check_plan(GOOD)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(GOOD, samples=0), "0 samples"),
        (
            replace(GOOD, classes=(*GOOD.classes, RankClass("b", (9,)))),
            "class 'b' is declared twice",
        ),
        (replace(GOOD, classes=(*GOOD.classes, RankClass("c", (1,)))), "rank 1 is in two classes"),
        (replace(GOOD, classes=(*GOOD.classes, RankClass("c", ()))), "class 'c' has no ranks"),
        (replace(GOOD, streams=(*GOOD.streams, Stream("x", "comm", 0))), "has 0 workers"),
        (replace(GOOD, semaphores=(("slot", 0),)), "capacity 0"),
        (
            replace(GOOD, communicators=(Communicator("all", ((0, 1, 2, 7),)),)),
            "rank 7 is in no class",
        ),
        (
            replace(GOOD, communicators=(Communicator("all", ((0, 1), (1, 2))),)),
            "rank 1 is in two of its groups",
        ),
        (changed(0, stream="compuet"), "did you mean 'compute'"),
        (changed(0, rank_class="c"), "class 'c'"),
        (changed(5, acquires="slto"), "did you mean 'slot'"),
        (changed(0, after=(0,)), "after 0, which is no earlier task"),
        (changed(0, after=(-1,)), "after -1"),
        (changed(0, after_previous=(7,)), "after_previous 7; 0 to 6"),
        (changed(0, work=Compute(-1.0)), "takes or moves -1.0"),
        (changed(0, work=Compute(float("nan"))), "takes or moves nan"),
        (changed(2, work=reduce_of(nbytes=9)), "'k': its tasks differ"),
        (changed(2, work=reduce_of(dtype="fp31")), "did you mean 'fp32'"),
        (changed(2, work=reduce_of(nbytes=9, dtype="fp16")), "9 bytes of fp16; a multiple of 2"),
        (changed(2, work=reduce_of(key="other")), "class 'b' has 0 tasks in it; 1"),
        (changed(2, rank_class="a"), "class 'a' has 2 tasks in it; 1"),
        (changed(4, work=Collective("send", 9, "pair", "m")), "'m': its tasks differ"),
        (changed(4, rank_class="a"), "'m': class 'a' has 2 tasks in it; 1"),
        (changed(4, work=Collective("send", 8, "pair", "n")), "'n': class 'a' has 0 tasks in it"),
        (changed(2, work=reduce_of(times=0)), "'k': its tasks differ"),
        (changed(6, releases=None), "semaphore 'slot' in class 'b': taken 1 times more"),
    ],
)
def test_each_fault_is_named(plan: StepPlan, words: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        check_plan(plan)
    assert words in str(caught.value)


def test_unknown_communicator_and_root_outside() -> None:
    work = reduce_of(communicator="al")
    tasks = (replace(GOOD.tasks[1], after=(), work=work), replace(GOOD.tasks[2], work=work))
    with pytest.raises(ScheduleError, match="did you mean 'all'"):
        check_plan(replace(GOOD, tasks=tasks, semaphores=()))
    work = reduce_of(op="broadcast", root=5)
    tasks = (replace(GOOD.tasks[1], after=(), work=work), replace(GOOD.tasks[2], work=work))
    with pytest.raises(ScheduleError, match="root 5 is not in 'all'"):
        check_plan(replace(GOOD, tasks=tasks, semaphores=()))


def test_all_faults_are_told_at_once() -> None:
    plan = replace(changed(0, stream="x", rank_class="y"), samples=0)
    with pytest.raises(ScheduleError) as caught:
        check_plan(plan)
    assert len(str(caught.value).splitlines()) == 1 + 3


def crossed(workers: int) -> StepPlan:
    """Two classes that reach two collectives in opposite order."""
    first, second = (Collective("all_reduce", 8, "all", key) for key in "xy")
    order = {"a": (first, second), "b": (second, first)}
    tasks = tuple(
        Task(work.key, "communication", rank_class, "comm", work)
        for rank_class, works in order.items()
        for work in works
    )
    streams = (Stream("comm", "comm", workers),)
    return replace(GOOD, tasks=tasks, streams=streams, semaphores=())


def test_collectives_in_opposite_order_wait_for_each_other_forever() -> None:
    with pytest.raises(ScheduleError, match="wait for each other"):
        check_plan(crossed(workers=1))
    check_plan(crossed(workers=2))


def test_a_send_has_two_ends_and_collectives_run_at_least_once() -> None:
    works = [reduce_of(op="send"), reduce_of(times=0)]
    reasons = ["groups of a send have two ranks", "0 times; at least 1"]
    for work, reason in zip(works, reasons, strict=True):
        tasks = (replace(GOOD.tasks[1], after=(), work=work), replace(GOOD.tasks[2], work=work))
        with pytest.raises(ScheduleError, match=reason):
            check_plan(replace(GOOD, tasks=tasks, semaphores=()))
