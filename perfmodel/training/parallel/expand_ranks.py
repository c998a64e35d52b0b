"""From a plan of data-parallel ranks and stages to one of all ranks of a mixture.

Every rank of a tensor group does what its replica does in the plan of one of them, so that a class
grows, and each of its groups stands once for every place in the tensor group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.training.parallel.rank_grid import Groups, RankGrid
from perfmodel.training.plan.step_plan import Collective, Communicator, RankClass, StepPlan, Task

TENSOR, CONTEXT, EXPERT = "tensor", "context", "expert"
"""Communicators of calls (`perfmodel.workload.shards.calls.CallGroup`)."""


def expand_ranks(plan: StepPlan, grid: RankGrid) -> StepPlan:
    """Return the plan on all ranks of a grid.

    `plan`: rank s R + r is replica r of R in stage s. Communicators "tensor", "context" and
    "expert" that its tasks name get their groups here.
    """
    members = _called_groups(plan, grid)
    communicators = tuple(
        replace(each, groups=_copies(each, grid)) for each in plan.communicators
    ) + tuple(Communicator(name, groups) for name, groups in members.items())
    return replace(
        plan,
        classes=tuple(_grown(each, grid) for each in plan.classes),
        communicators=communicators,
        tasks=tuple(_rooted(task, grid) for task in plan.tasks),
    )


def _called_groups(plan: StepPlan, grid: RankGrid) -> Mapping[str, Groups]:
    named = {task.work.communicator for task in plan.tasks if isinstance(task.work, Collective)} - {
        each.name for each in plan.communicators
    }
    groups = {
        TENSOR: grid.tensor_groups,
        CONTEXT: grid.context_groups,
        EXPERT: grid.expert_groups,
    }
    return {name: groups[name] for name in (TENSOR, CONTEXT, EXPERT) if name in named}


def _copies(communicator: Communicator, grid: RankGrid) -> tuple[RankGroup, ...]:
    """Groups of a communicator, once for every place in the tensor group."""
    return tuple(
        tuple(grid.placed(np.asarray(group, dtype=np.int64), place).tolist())
        for group in communicator.groups
        for place in range(grid.tensor)
    )


def _grown(rank_class: RankClass, grid: RankGrid) -> RankClass:
    own = np.asarray(rank_class.ranks, dtype=np.int64)
    ranks = np.concatenate([grid.placed(own, place) for place in range(grid.tensor)])
    return replace(rank_class, ranks=tuple(np.sort(ranks).tolist()))


def _rooted(task: Task, grid: RankGrid) -> Task:
    """Move the root of a collective to the first place of its tensor group."""
    if not isinstance(task.work, Collective) or not task.work.root:
        return task
    root = int(grid.placed(np.array([task.work.root]), 0)[0])
    return replace(task, work=replace(task.work, root=root))
