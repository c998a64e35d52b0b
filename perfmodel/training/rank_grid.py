"""Which rank stands where in a parallel layout of tensor, context, expert, data and pipeline.

Ranks are numbered by an order of dimensions, the first of which varies fastest; "tp-cp-ep-dp-pp" is
Megatron-Core's (``core/parallel_state.py``, ``RankGenerator``). Experts are spread over ranks that
are data-parallel (and context-parallel) to each other for all other layers: their dimension
multiplies no ranks, it divides data x context.

`expand_ranks` puts a plan of data-parallel ranks and stages on all ranks. Every rank of a tensor
group does what its replica does in the plan of one of them, so that a class grows, and each of its
groups stands once for every place in the tensor group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from perfmodel.arrays import IntArray, RankGroup
from perfmodel.errors import refuse_if
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    CommunicatorRole,
    StepPlan,
    Task,
)

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RankGrid:
    """Ranks of a parallel layout.

    Parameters
    ----------
    tensor, context, data, stages : int
        Degrees; their product is the number of ranks.
    expert : int
        Ranks that share experts; divides ``data * context``, times `tensor` over `expert_tensor`.
    expert_tensor : int
        Ranks that share each expert: `tensor`, or 1, where ranks of a tensor group hold different
        experts.
    order : tuple of str
        "tp", "cp", "ep", "dp" and "pp", by how fast they vary with the rank.

    Raises
    ------
    InputError
        An expert degree that does not divide.
    """

    tensor: int = 1
    context: int = 1
    data: int = 1
    stages: int = 1
    expert: int = 1
    order: tuple[str, ...] = ("tp", "cp", "ep", "dp", "pp")
    expert_tensor: int = 1

    def __post_init__(self) -> None:
        holders = self.replicas * self._tensor_over_experts
        tensor = f"tensor ({self.tensor}), " if self._tensor_over_experts > 1 else ""
        refuse_if(
            self.expert * self.expert_copies != holders,
            "parallel.expert",
            str(self.expert),
            f"a divisor of {holders}, the product of {tensor}data ({self.data}) and context "
            f"({self.context})",
        )

    @property
    def _tensor_over_experts(self) -> int:
        """Ranks of a tensor group that hold different experts."""
        return 1 if self.expert == 1 else max(1, self.tensor // self.expert_tensor)

    @property
    def expert_copies(self) -> int:
        """Ranks that hold the same experts, and average their gradients."""
        return self.replicas * self._tensor_over_experts // self.expert

    @property
    def replicas(self) -> int:
        """Ranks that average the gradients of the same tensor: data x context."""
        return self.data * self.context

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return self.tensor * self.replicas * self.stages

    def replicas_per_host(self, ranks_per_host: int) -> int:
        """Ranks of one host that average the gradients of the same tensor."""
        hosts = self.numbers[0, :, 0] // ranks_per_host
        return int(np.count_nonzero(hosts == hosts[0]))

    def expert_ranks_per_host(self, ranks_per_host: int) -> int:
        """Ranks of one expert group that share a host."""
        hosts = [rank // ranks_per_host for rank in self.expert_groups[0]]
        return hosts.count(hosts[0])

    @cached_property
    def numbers(self) -> IntArray:
        """Rank by stage, replica and place in the tensor group.

        Shape (stages, replicas, tensor). Replicas follow each other as `order` has it: with "cp"
        before "dp", those of a context group are neighbours.
        """
        sizes = {"tp": self.tensor, "cp": self.context, "dp": self.data, "pp": self.stages}
        slowest_first = [name for name in self.order if name != "ep"][::-1]
        grid = np.arange(self.ranks).reshape([sizes[name] for name in slowest_first])
        replicas = [name for name in slowest_first if name in ("cp", "dp")]
        axes = [slowest_first.index(name) for name in ("pp", *replicas, "tp")]
        return grid.transpose(axes).reshape(self.stages, self.replicas, self.tensor)

    @property
    def tensor_groups(self) -> Groups:
        """Ranks that share matrices."""
        return _tuples(self.numbers.reshape(-1, self.tensor))

    @property
    def context_groups(self) -> Groups:
        """Ranks that share the tokens of a sample."""
        sizes = {"cp": self.context, "dp": self.data}
        by_replica = [sizes[name] for name in reversed(self.order) if name in sizes]
        ranks = self.numbers.reshape(self.stages, *by_replica, self.tensor).transpose(0, 3, 1, 2)
        if self.order.index("cp") > self.order.index("dp"):
            ranks = ranks.swapaxes(2, 3)
        return _tuples(ranks.reshape(-1, self.context))

    @property
    def expert_groups(self) -> Groups:
        """Ranks that share the experts of a layer; neighbours among replicas if "ep" is before."""
        return _tuples(self._by_expert.reshape(-1, self.expert))

    @property
    def expert_replica_groups(self) -> Groups:
        """Ranks that hold the same experts, and average their gradients."""
        return _tuples(self._by_expert.swapaxes(2, 3).reshape(-1, self.expert_copies))

    def placed(self, members: RankGroup) -> IntArray:
        """Ranks of members of a plan without tensor parallelism, by place in the tensor group.

        `members`: by their number in that plan: stage x replicas + replica.
        """
        ranks: IntArray = self.numbers.reshape(-1, self.tensor)[np.asarray(members)].T
        return ranks

    @property
    def _by_expert(self) -> IntArray:
        """Ranks by stage, place, replica of the experts and share of them.

        Where ranks of a tensor group hold different experts, places are one: all ranks of the
        stage, by their numbers.
        """
        by_place = self.numbers.transpose(0, 2, 1)
        if self._tensor_over_experts > 1:
            by_place = np.sort(self.numbers.reshape(self.stages, 1, -1))
        places, copies = by_place.shape[1], self.expert_copies
        if self.order.index("ep") < self.order.index("dp"):
            return by_place.reshape(self.stages, places, copies, self.expert)
        return by_place.reshape(self.stages, places, self.expert, copies).swapaxes(2, 3)


def _tuples(groups: IntArray) -> Groups:
    return tuple(tuple(group) for group in groups.tolist())


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
    placed = ((each.name, grid.placed(each.ranks)) for each in plan.classes)
    ranks = {name: tuple(np.sort(own, axis=None).tolist()) for name, own in placed}
    works = ((task.work, task.rank_class) for task in plan.tasks)
    callers: dict[str, set[int]] = {each.name: set() for each in plan.communicators}
    for name, caller in {(w.communicator, by) for w, by in works if isinstance(w, Collective)}:
        callers.setdefault(name, set()).update(ranks[caller])
    return replace(
        plan,
        classes=tuple(replace(each, ranks=ranks[each.name]) for each in plan.classes),
        communicators=tuple(
            _placed(each, grid, called, callers[each.name]) for each in plan.communicators
        ),
        tasks=tuple(_rooted(task, grid) for task in plan.tasks),
        samples=plan.samples // grid.context,
    )


def _placed(
    communicator: Communicator,
    grid: RankGrid,
    called: Mapping[CommunicatorRole, Groups],
    callers: set[int],
) -> Communicator:
    """Groups of all ranks: those of the calls of layers, or copies of a plan's own.

    Of holders of the same experts those in two stages, which both hold a part (DualPipe), are one
    group. Transformer Engine's group for greatest values has the ranks of tensor groups, too.
    `callers`: ranks that call its collectives, in their layers.
    """
    role = communicator.role
    if role not in called:  # once for every place in the tensor group
        is_one = role == "amaxes"
        placed = (grid.placed(group) for group in communicator.groups)
        copies = (ranks.reshape(1, -1) if is_one else ranks for ranks in placed)
        return replace(communicator, groups=tuple(chain.from_iterable(map(_tuples, copies))))
    groups: Groups = tuple(group for group in called[role] if group[0] in callers)
    if role in ("expert_rail", "expert_node"):
        groups = _within(groups, len(communicator.groups[0]), by_node=role == "expert_node")
    if role == "expert_copies":  # those of a stage, and of the next one in the same order
        of_stage = len(called[role]) // grid.stages
        joined = (groups[at::of_stage] for at in range(of_stage))
        groups = tuple(tuple(rank for group in each for rank in group) for each in joined)
    return replace(communicator, groups=groups)


def _within(groups: Groups, size: int, *, by_node: bool) -> Groups:
    """Cut groups whose ranks fill their nodes: ranks of one node, or of one place in all nodes."""
    cut: list[tuple[int, ...]] = []
    for group in groups:
        nodes = len(group) // size
        node_parts = [group[at : at + size] for at in range(0, len(group), size)]
        cut += node_parts if by_node else [group[place::nodes] for place in range(nodes)]
    return tuple(cut)


def _rooted(task: Task, grid: RankGrid) -> Task:
    """Move the root of a collective to the first place of its tensor group."""
    if not isinstance(task.work, Collective) or not task.work.root:
        return task
    return replace(task, work=replace(task.work, root=int(grid.placed((task.work.root,))[0, 0])))
