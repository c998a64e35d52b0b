"""Gathers, layers and reductions of one step of fully sharded training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.forward_backward import Segment, visit_segments
from perfmodel.training.sharded.options import FsdpOptions
from perfmodel.training.sharded.shard_units import (
    ShardUnit,
    Visit,
    flat_elements,
    row_elements,
    visit_units,
    wrap_units,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

RANKS = "ranks"
SHARDS, REGATHERED, COPIES = "shards", "regathered shards", "copies of shards"
"""Communicators: of a shard group, of its smaller groups, and of the holders of the same shard."""

REPLICA_STREAM = "replica comm"
PARTS = 4
"""Tasks that the layers of a unit are merged into at most."""

BEHIND_FORWARD, BEHIND_BACKWARD = 2, 3
"""FSDP1's rate limiter: an all-gather waits until the unit so many before it has been freed. Two
events are kept, and backward has one in hand when its prefetch is issued
(``_FreeEventQueue`` in torch/distributed/fsdp/_limiter_utils.py)."""


@dataclass(slots=True)
class ShardedStep:
    """A step under construction.

    Parameters
    ----------
    request : StepRequest
    options : FsdpOptions
    tasks : TaskList
    units : tuple of ShardUnit
    visits : tuple of Visit
    gathered : dict
        Units that are whole at this point of the step, with the task after which they are.
    copied_out : list of int
        Tasks that end each gather of this pass.
    freed : list of int
        Tasks after which units were freed in this pass.
    reduced : list of int
        Last task of each reduction of the last micro-batch.
    last_reduction : int, optional
        The reduction whose input buffer is still in use.
    """

    request: StepRequest
    options: FsdpOptions
    tasks: TaskList
    units: tuple[ShardUnit, ...]
    visits: tuple[Visit, ...]
    gathered: dict[str, int] = field(default_factory=dict)
    copied_out: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    reduced: list[int] = field(default_factory=list)
    last_reduction: int | None = None

    @property
    def shard_ranks(self) -> int:
        """Ranks that each unit is split over."""
        return self.options.shard_ranks or self.request.ranks

    def elements(self, unit: ShardUnit, ranks: int | None = None) -> int:
        """Elements of a unit as it travels, padding included."""
        pad = flat_elements if self.options.version == 1 else row_elements
        return pad(self.tensors(unit), ranks or self.shard_ranks)

    def tensors(self, unit: ShardUnit) -> tuple[ParameterTensor, ...]:
        """Parameters of a unit."""
        return tuple(self.request.workload.tensors[index] for index in unit.tensors)

    def gathered_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's parameters as they travel."""
        return self.elements(unit) * ITEM_BYTES[self.gathered_dtype(unit)]

    def reduced_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's gradients as they travel."""
        return self.elements(unit) * ITEM_BYTES[self.reduced_dtype(unit)]

    def gathered_dtype(self, unit: ShardUnit) -> str:
        """What a unit's parameters travel in."""
        return self.options.param_dtype or self.tensors(unit)[0].dtype

    def reduced_dtype(self, unit: ShardUnit) -> str:
        """What a unit's gradients travel in."""
        return self.options.reduce_dtype or self.gathered_dtype(unit)


def begin_step(request: StepRequest, options: FsdpOptions) -> ShardedStep:
    """Split the model into units and begin an empty list of tasks."""
    units = tuple(unit for unit in wrap_units(request.workload, options.wrap) if unit.tensors)
    tasks = TaskList(request.times.launch_s, request.kernel_s, request.times.copy_Bps)
    visits = visit_units(request.workload, units, options.wrap)
    return ShardedStep(request, options, tasks, units, visits)


# ---------------------------------------------------------------- forward


def add_forward(step: ShardedStep, micro_batch: int) -> None:
    """Add forward: each unit is gathered before its first layer, and freed after its last."""
    step.copied_out, step.freed = [], []
    for visit in step.visits:
        unit = visit.unit
        if unit.tensors and unit.name not in step.gathered:
            _gather(step, unit, micro_batch, backward=False)
        end = _add_layers(step, visit, micro_batch, backward=False)
        if step.options.reshard_after_forward and not unit.is_root:
            step.gathered.pop(unit.name, None)
            step.freed.append(end)


def _gather(step: ShardedStep, unit: ShardUnit, micro_batch: int, *, backward: bool) -> None:
    """Gather the parameters of a unit."""
    tasks, options = step.tasks, step.options
    nbytes = step.gathered_bytes(unit)
    regathered = backward and options.regather_ranks is not None
    ranks = options.regather_ranks if regathered and options.regather_ranks else step.shard_ranks
    name = f"gather {unit.name}"
    marks: dict[str, Any] = {"micro_batch": micro_batch}
    issued = tasks.issue(name, 3, RANKS, **marks)
    copied = tasks.compute(
        f"copy in {unit.name}", "copy", nbytes / ranks / tasks.copy_Bps + tasks.kernel_s, RANKS,
        after=(*issued, *_limit(step, backward=backward)), stream="gather copy", **marks,
    )  # fmt: skip
    phase = "backward" if backward else "forward"
    sent = tasks.collective(
        name, "all_gather", nbytes, RANKS, communicator=REGATHERED if regathered else SHARDS,
        key=f"{name} {phase} {micro_batch}", after=(copied,),
        dtype=step.gathered_dtype(unit), **marks,
    )  # fmt: skip
    if options.version == 2:
        sent = tasks.copy(f"copy out {unit.name}", nbytes, 1, RANKS, after=(sent,), **marks)
    step.copied_out.append(sent)
    step.gathered[unit.name] = sent


def _limit(step: ShardedStep, *, backward: bool) -> tuple[int, ...]:
    """What an all-gather waits for so that few units are whole at once."""
    if step.options.version == 2:
        behind = 1 if backward else 2
        return tuple(step.copied_out[-behind:][:1]) if len(step.copied_out) >= behind else ()
    if not step.options.limit_all_gathers:
        return ()
    behind = BEHIND_BACKWARD if backward else BEHIND_FORWARD
    return tuple(step.freed[-behind:][:1]) if len(step.freed) >= behind else ()


def _add_layers(step: ShardedStep, visit: Visit, micro_batch: int, *, backward: bool) -> int:
    """Add the layers of a visit once its unit is whole; returns the last task."""
    waits = [step.gathered[visit.unit.name]] if visit.unit.name in step.gathered else []
    workload, times = step.request.workload, step.request.times
    last = -1
    for part in visit_segments(workload, times, visit.layers, at_most=PARTS, backward=backward):
        last = _add_segment(step, part, micro_batch, waits, backward=backward)
        waits = []
    return last


def _add_segment(
    step: ShardedStep, part: Segment, micro_batch: int, waits: Sequence[int], *, backward: bool
) -> int:
    kind = "backward" if backward else "forward"
    name = f"{kind} {part.name}"
    marks: dict[str, Any] = {"micro_batch": micro_batch}
    issued = step.tasks.issue(name, part.kernels, RANKS, **marks)
    return step.tasks.compute(name, kind, part.duration_s, RANKS, after=(*issued, *waits), **marks)


# ---------------------------------------------------------------- backward


def add_backward(step: ShardedStep, micro_batch: int) -> None:
    """Add backward: units are gathered again, ahead of their layers, and reduced behind them."""
    last = micro_batch == step.options.accumulate - 1
    reduces = last or step.options.reduce_each
    step.copied_out, step.freed = [], []
    order = list(reversed(step.visits))
    ends: dict[str, int] = {}
    visits_left = {visit.unit.name: 0 for visit in order}
    for visit in order:
        visits_left[visit.unit.name] += 1
    for place, visit in enumerate(order):
        unit, following = visit.unit, order[place + 1 :]
        if unit.tensors and unit.name not in step.gathered:
            _gather(step, unit, micro_batch, backward=True)
        if step.options.backward_prefetch == "pre":
            _prefetch(step, following, micro_batch)
        ends[unit.name] = _add_layers(step, visit, micro_batch, backward=True)
        visits_left[unit.name] -= 1
        if visits_left[unit.name]:
            continue
        step.freed.append(ends[unit.name])
        step.gathered.pop(unit.name, None)
        if step.options.backward_prefetch == "post":
            _prefetch(step, following, micro_batch)
        if reduces and unit.tensors:
            _reduce(step, unit, micro_batch, ends[unit.name])


def _prefetch(step: ShardedStep, following: Sequence[Visit], micro_batch: int) -> None:
    """Gather the next unit that is not whole."""
    for visit in following:
        if visit.unit.tensors and not visit.unit.is_root:
            if visit.unit.name not in step.gathered:
                _gather(step, visit.unit, micro_batch, backward=True)
            return


def _reduce(step: ShardedStep, unit: ShardUnit, micro_batch: int, ready: int) -> None:
    """Reduce the gradients of a unit to the ranks that hold its shards."""
    tasks = step.tasks
    nbytes = step.reduced_bytes(unit)
    name = f"reduce {unit.name}"
    marks: dict[str, Any] = {"micro_batch": micro_batch}
    waits = [ready] if step.last_reduction is None else [ready, step.last_reduction]
    issued = tasks.issue(name, 3, RANKS, **marks)
    if step.options.version == 2:
        ready = tasks.copy(f"copy in {name}", nbytes, 1, RANKS, after=(*issued, *waits), **marks)
        waits = [ready]
    sent = tasks.collective(
        name, "reduce_scatter", nbytes, RANKS, communicator=SHARDS,
        key=f"{name} {micro_batch}", after=(*issued, *waits), dtype=step.reduced_dtype(unit),
        **marks,
    )  # fmt: skip
    if step.options.version == 2:
        step.last_reduction = sent
    if step.shard_ranks < step.request.ranks:
        sent = tasks.collective(
            f"average {unit.name}", "all_reduce", nbytes // step.shard_ranks, RANKS,
            communicator=COPIES, key=f"average {unit.name} {micro_batch}", after=(sent,),
            stream=REPLICA_STREAM, dtype=step.reduced_dtype(unit), **marks,
        )  # fmt: skip
    if micro_batch == step.options.accumulate - 1:
        step.reduced.append(sent)
