"""From a plan of data-parallel ranks and stages to one of all ranks of a mixture.

Every rank of a tensor group does what its replica does in the plan of one of them, so that a class
grows, and each of its groups stands once for every place in the tensor group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.training.parallel.rank_grid import Groups, RankGrid
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    CommunicatorRole,
    RankClass,
    StepPlan,
    Task,
)


def expand_ranks(plan: StepPlan, grid: RankGrid) -> StepPlan:
    """Return the plan on all ranks of a grid.

    `plan`: rank s R + r is replica r of R in stage s. Its communicators of layers' calls and of the
    holders of the same experts get their groups here. Ranks of a context group train the same
    samples.
    """
    if grid.ranks == grid.data and grid.expert == 1:
        return plan
    called: Mapping[CommunicatorRole, Groups] = {
        "tensor": grid.tensor_groups,
        "context": grid.context_groups,
        "expert": grid.expert_groups,
        "expert_rail": grid.expert_groups,
        "expert_node": grid.expert_groups,
        "expert_copies": grid.expert_replica_groups,
    }
    classes = tuple(_grown(each, grid) for each in plan.classes)
    callers = _callers(plan, classes)
    return replace(
        plan,
        classes=classes,
        communicators=tuple(
            _placed(each, grid, called, callers.get(each.name, set()))
            for each in plan.communicators
        ),
        tasks=tuple(_rooted(task, grid) for task in plan.tasks),
        samples=plan.samples // grid.context,
    )


def _callers(plan: StepPlan, classes: tuple[RankClass, ...]) -> Mapping[str, set[int]]:
    """Ranks that take part in each communicator's collectives."""
    ranks = {each.name: each.ranks for each in classes}
    callers: dict[str, dict[str, None]] = {}
    for task in plan.tasks:
        if isinstance(task.work, Collective):
            callers.setdefault(task.work.communicator, {})[task.rank_class] = None
    return {
        name: {rank for rank_class in members for rank in ranks[rank_class]}
        for name, members in callers.items()
    }


def _placed(
    communicator: Communicator,
    grid: RankGrid,
    called: Mapping[CommunicatorRole, Groups],
    callers: set[int],
) -> Communicator:
    """Groups of all ranks: those of the calls of layers, or copies of a plan's own.

    `callers`: ranks that call its collectives, in their layers.
    """
    role = communicator.role
    if role in called:
        groups: Groups = tuple(group for group in called[role] if group[0] in callers)
        if role in ("expert_rail", "expert_node"):
            groups = _within(groups, len(communicator.groups[0]), by_node=role == "expert_node")
        if role == "expert_copies":
            groups = _joined(groups, len(called[role]) // grid.stages)
    else:
        groups = _copies(communicator, grid)
    if role == "amaxes":  # Transformer Engine's group has the ranks of tensor groups, too
        count = len(communicator.groups)
        groups = tuple(
            tuple(rank for place in range(grid.tensor) for rank in groups[at * grid.tensor + place])
            for at in range(count)
        )
    return replace(communicator, groups=groups)


def _within(groups: Groups, size: int, *, by_node: bool) -> Groups:
    """Cut groups whose ranks fill their nodes: ranks of one node, or of one place in all nodes."""
    if by_node:
        return tuple(
            group[first : first + size] for group in groups for first in range(0, len(group), size)
        )
    return tuple(
        group[place :: len(group) // size]
        for group in groups
        for place in range(len(group) // size)
    )


def _joined(groups: Groups, of_stage: int) -> Groups:
    """Join the holders of the same experts in two stages, which both hold a part (DualPipe).

    `of_stage`: groups of a stage; those of the next one follow in the same order.
    """
    return tuple(
        tuple(rank for group in groups[at::of_stage] for rank in group) for at in range(of_stage)
    )


def _copies(communicator: Communicator, grid: RankGrid) -> Groups:
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
