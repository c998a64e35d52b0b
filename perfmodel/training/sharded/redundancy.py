"""PyTorch's ZeroRedundancyOptimizer: DDP with the optimizer's states split by parameter.

Written after ``torch/distributed/optim/zero_redundancy_optimizer.py`` of torch 2.13: after its own
update each rank broadcasts its parameters, one by one or in one buffer, and all wait for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perfmodel.scenario.sections.strategies.zero_redundancy import ZeroRedundancyStrategy
from perfmodel.training.ddp.bucket_reduction import GROUP
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import RANKS, ddp_plan
from perfmodel.training.ddp.strategy import ddp_memory, ddp_options
from perfmodel.training.memory.use import MemoryUse, Setup
from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.step_plan import Compute, StepPlan
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.workload.model import ParameterTensor


@dataclass(frozen=True, slots=True)
class ZeroRedundancyOptions:
    """Options of ``ZeroRedundancyOptimizer``, and of the DDP that it is used with.

    `parameters_as_bucket_view`: the parameters of a rank lie in one buffer, and are broadcast in
        one call.
    """

    ddp: DdpOptions = field(default_factory=DdpOptions)
    parameters_as_bucket_view: bool = False

    @property
    def accumulate(self) -> int:
        """Micro-batches per step."""
        return self.ddp.accumulate


def partition_parameters(
    tensors: Sequence[ParameterTensor], ranks: int
) -> tuple[tuple[int, ...], ...]:
    """Give each parameter, the largest first, to the rank that has the fewest elements.

    Returns the places of each rank's parameters (``_partition_parameters``).
    """
    order = sorted(range(len(tensors)), key=lambda place: tensors[place].numel, reverse=True)
    owned: list[list[int]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for place in order:
        rank = sizes.index(min(sizes))
        owned[rank].append(place)
        sizes[rank] += tensors[place].numel
    return tuple(map(tuple, owned))


def zero_redundancy_plan(request: StepRequest, options: ZeroRedundancyOptions) -> StepPlan:
    """Return one step of DDP whose optimizer updates a part and broadcasts it.

    All ranks take as long as the one with most parameters.

    Raises `InputError`: a bad ready order.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    plan = ddp_plan(request, options.ddp)
    if request.ranks == 1:
        return plan
    sizes = {each.name: len(each.groups[0]) for each in plan.communicators}
    trained = _trained(request.workload.tensors, request.workload.ready_order)
    owned = partition_parameters(trained, sizes[GROUP])
    place = next(i for i, task in enumerate(plan.tasks) if task.kind == "optimizer")
    end = max(i for task in plan.tasks for i in task.after_previous)
    tasks = TaskList.of(request)
    tasks.tasks = list(plan.tasks)
    update = tasks.tasks[place]
    assert isinstance(update.work, Compute)
    share = _fullest_share(trained, owned)
    tasks.tasks[place] = replace(update, work=Compute(update.work.duration_s * share))
    last = _add_broadcasts(tasks, trained, owned, options, end)
    follows = (last,)
    return replace(
        plan,
        name=f"ZeroRedundancyOptimizer, {plan.name}",
        tasks=tuple(
            replace(task, after_previous=follows) if task.after_previous == (end,) else task
            for task in tasks.tasks
        ),
    )


def _trained(
    tensors: Sequence[ParameterTensor], ready_order: Sequence[int]
) -> list[ParameterTensor]:
    return [tensors[index] for index in sorted(ready_order)]


def _fullest_share(tensors: Sequence[ParameterTensor], owned: Sequence[Sequence[int]]) -> float:
    most = max(sum(tensors[place].numel for place in places) for places in owned)
    return most / sum(tensor.numel for tensor in tensors)


def _add_broadcasts(
    tasks: TaskList,
    tensors: Sequence[ParameterTensor],
    owned: Sequence[Sequence[int]],
    options: ZeroRedundancyOptions,
    end: int,
) -> int:
    """Broadcast the parameters of one rank after the other; return the last task."""
    last = end
    for rank, places in enumerate(owned):
        views = options.parameters_as_bucket_view
        for group in [places] if views else [(place,) for place in places]:
            members = [tensors[place] for place in group]
            name = f"parameters of rank {rank}" if views else members[0].name
            dtype = members[0].dtype if members else "fp32"
            nbytes = sum(each.nbytes for each in members) or 4  # an empty buffer holds one element
            issued = tasks.issue(f"broadcast {name}", 1, RANKS)
            last = tasks.collective(
                f"broadcast {name}",
                "broadcast",
                nbytes,
                RANKS,
                communicator=GROUP,
                key=f"updated {name}",
                after=dict.fromkeys((*issued, end)),
                dtype=dtype,
                root=rank,
            )
    return last


def zero_redundancy_memory(setup: Setup) -> MemoryUse:
    """Add up what DDP keeps, with the optimizer states of the fullest rank.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options = setup.options
    assert isinstance(options, ZeroRedundancyOptions)
    use = ddp_memory(replace(setup, options=options.ddp))
    trained = _trained(setup.workload.tensors, setup.workload.ready_order)
    share = _fullest_share(trained, partition_parameters(trained, setup.ranks))
    return replace(use, optimizer_bytes=use.optimizer_bytes * share)


def _options(section: ZeroRedundancyStrategy) -> ZeroRedundancyOptions:
    return ZeroRedundancyOptions(ddp_options(section.ddp), section.parameters_as_bucket_view)


def _settings(*_: object) -> tuple[Setting, ...]:
    """The optimizer's own; bucket caps are tuned with ``kind: ddp``."""
    return (Setting("parameters_as_bucket_view", (False, True)),)


def _own_words(section: ZeroRedundancyStrategy) -> tuple[str, ...]:
    views = section.parameters_as_bucket_view
    return (f"ZeroRedundancyOptimizer(parameters, parameters_as_bucket_view={views}, ...)",)


ZERO_REDUNDANCY = Strategy(
    "DistributedDataParallel with ZeroRedundancyOptimizer",
    _options,
    zero_redundancy_plan,
    zero_redundancy_memory,
    settings=_settings,
    own_words=_own_words,
    lighter=({},),
)
