"""Where a job runs: which nodes it gets, and its plan on their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from perfmodel.errors import ScheduleError
from perfmodel.training.plan import Collective, Compute, StepPlan, Task


def chosen_hosts(
    free: Sequence[int], count: int, placement: Literal["packed", "spread", "random"], seed: int
) -> tuple[int, ...]:
    """Choose nodes for a job among those that are free.

    Parameters
    ----------
    free : sequence of int
        Rising; neighbours share switches.
    count : int
        At most as many as are free.
    placement : {"packed", "spread", "random"}
        The first ones; every so many-th one; or any.
    seed : int
        For "random".

    Returns
    -------
    tuple of int
        Rising, as schedulers list nodes (Slurm sorts them), so that rings follow the fabric.

    Examples
    --------
    >>> chosen_hosts(range(8), 4, "spread", 0)
    (0, 2, 4, 6)
    """
    if placement == "packed":
        return tuple(free[:count])
    if placement == "spread":
        return tuple(free[at * len(free) // count] for at in range(count))
    drawn = np.random.default_rng(seed).choice(len(free), count, replace=False)
    return tuple(free[at] for at in sorted(drawn.tolist()))


def placed(plan: StepPlan, ranks: range | tuple[int, ...]) -> StepPlan:
    """Return the plan on other ranks: its rank r becomes ``ranks[r]``.

    Raises
    ------
    ScheduleError
        Fewer ranks than the plan has.
    """
    needed = 1 + max(max(each.ranks) for each in plan.classes)
    if needed > len(ranks):
        raise ScheduleError(f"{plan.name!r} has {needed} ranks; {len(ranks)} were given")
    if ranks == range(len(ranks)):
        return plan
    to = np.asarray(ranks, dtype=np.int64)

    def moved(members: range | tuple[int, ...]) -> tuple[int, ...]:
        return tuple(to[np.asarray(members, dtype=np.int64)].tolist())

    def task_moved(task: Task) -> Task:
        work = task.work
        if isinstance(work, Compute):
            return task
        if isinstance(work, Collective):
            return replace(task, work=replace(work, root=int(to[work.root])))
        src, dst = int(to[work.src_rank]), int(to[work.dst_rank])
        return replace(task, work=replace(work, src_rank=src, dst_rank=dst))

    return replace(
        plan,
        classes=tuple(replace(each, ranks=moved(each.ranks)) for each in plan.classes),
        communicators=tuple(
            replace(each, groups=tuple(moved(group) for group in each.groups))
            for each in plan.communicators
        ),
        tasks=tuple(task_moved(task) for task in plan.tasks),
    )
