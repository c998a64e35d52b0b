"""Times below which no step of a layout can be: its kernels, its exposed calls, its bubble.

Layers and calls are priced once per share of the model, micro-batch and recomputation. A stage
begins once the first micro-batch has passed the stages before it, runs all passes of its parts, and
where backward is one pass the last gradients still pass the stages before it. Collectives take at
least as long as alone on the network. So no simulated step is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, RankGroup, running_sum
from perfmodel.memo import once
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.choose.layouts import CALLED_DIMENSIONS, LayoutCandidate
from perfmodel.studies.choose.plan_path import longest_path_s
from perfmodel.studies.run.resolve.job_plan import price_layers
from perfmodel.studies.run.resolve.training_job import gpu_spread
from perfmodel.studies.run.resolve.what_if import what_if_of
from perfmodel.studies.run.steps.simulate_step import collective_s
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.studies.run.steps.step_parts import summed
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.pipeline.schedules import SCHEDULES
from perfmodel.training.pipeline.stage_workload import PartitionOptions, part_layers
from perfmodel.training.plan.layer_calls import (
    PassCall,
    backward_calls,
    forward_calls,
    repeated_calls,
)
from perfmodel.training.plan.step_plan import Collective, Compute, Op
from perfmodel.training.rank_grid import RankGrid
from perfmodel.workload.compute_spread import slowest_factor
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, Workload, slow_device

WHOLE_BACKWARD = ("gpipe", "1f1b", "interleaved", "looped_bfs")
"""Schedules whose last backward of a stage is followed by those of the stages before it."""

HIDING_EXPERTS = ("dualpipe", "dualpipe_v")
"""Schedules that hide what experts exchange."""

Groups = tuple[tuple[str, tuple[RankGroup, ...]], ...]


@dataclass(frozen=True, slots=True)
class PricedShare:
    """Times of passes through the layers before each, of one micro-batch; seconds.

    `workload`: the share, whose layers are those of all shares.
    """

    workload: Workload
    forward_s: FloatArray
    backward_s: FloatArray


@dataclass
class StepBounds:
    """Bounds of layouts on one machine.

    `precision`: of the compute.
    `make`: the job of a layout.
    """

    precision: str
    make: Callable[[LayoutCandidate], SizedJob]
    _found: dict[Hashable, Any] = field(default_factory=dict)  # by what it is, and of which layouts
    _timers: dict[str, UncontendedTimer] = field(default_factory=dict)

    def lower_bound_s(self, candidate: LayoutCandidate) -> float:
        """Least time of a step.

        Raises `PerfmodelError`: a layout that the model does not allow.
        """
        share = self._share(candidate)
        if candidate.pipeline == 1:
            return float(candidate.micro_batches * (share.forward_s[-1] + share.backward_s[-1]))
        return self._pipeline_bound_s(candidate, share)

    def _share(self, candidate: LayoutCandidate) -> PricedShare:
        """Prices of a share; an error is one for all layouts of it."""

        def held_dtype() -> str | None:
            job = self.make(candidate).job
            return job.strategy.held_dtype(job.options)

        groups = self._exposed_groups(candidate)
        key = (
            "prices of a share",
            candidate.tensor,
            candidate.sequence_parallel,
            candidate.context,
            candidate.expert,
            candidate.micro_batch,
            candidate.recompute,
            once(self._found, ("held dtype", candidate.sharding), held_dtype),
            groups,
            candidate.micro_batches if self.precision == "fp8" else 0,
        )
        return once(self._found, key, lambda: self._price(self.make(candidate), dict(groups)))

    def _exposed_groups(self, candidate: LayoutCandidate) -> Groups:
        """Return groups of which calls may not be hidden.

        One group of each stage whose ranks share layers, without those that are alike.
        """
        key = (candidate.tensor, candidate.context, candidate.expert, candidate.pipeline)
        groups = once(self._found, ("groups", key), lambda: _groups_of_calls(self.make(candidate)))
        return groups[:-1] if candidate.schedule in HIDING_EXPERTS else groups

    def _price(self, sized: SizedJob, groups: dict[str, tuple[RankGroup, ...]]) -> PricedShare:
        job, workload = sized.job, sized.job.workload
        times = slow_device(
            price_layers(job, sized.batch), slowest_factor(sized.size.gpus, gpu_spread(job))
        )
        forward_s, backward_s = times.forward_s.copy(), times.backward_s.copy()
        if any(layer.calls for layer in workload.layers) and _is_timed(sized):
            called_s: dict[Hashable, tuple[float, float]] = {}
            for begin, end in _segments(sized):
                layers = range(begin, end)
                calls = tuple(workload.layers[layer].calls for layer in layers)
                if calls not in called_s:
                    called_s[calls] = self._calls_s(sized, times, layers, groups)
                forward_s[begin] += called_s[calls][0]
                backward_s[begin] += called_s[calls][1]
        return PricedShare(workload, running_sum(forward_s), running_sum(backward_s))

    def _calls_s(
        self,
        sized: SizedJob,
        times: LayerTimes,
        layers: range,
        groups: dict[str, tuple[RankGroup, ...]],
    ) -> tuple[float, float]:
        """Exposed calls of forward and of backward of some layers, each alone; seconds."""
        job = sized.job
        precision = "fp32" if job.wide_precision == "tf32" else job.wide_precision

        def exposed_s(each: PassCall) -> float:
            """What a call takes at least beyond the kernels beside it."""
            call = each.call
            nbytes = round(call.elements * sized.batch) * ITEM_BYTES[call.dtype or precision]
            alone_s = (self._collective_s(sized, g, call.op, nbytes) for g in groups[call.group])
            return max(0.0, call.times * min(alone_s) - each.window_s)

        again = repeated_calls(job.workload, job.recompute)
        forward, backward = (
            [
                exposed_s(each)
                for each in calls
                if each.call.group in groups
                and not each.call.joins_previous
                and (not each.window_s or CALLED_DIMENSIONS[-1] in groups)
            ]
            for calls in (
                forward_calls(job.workload, times, layers),
                backward_calls(job.workload, times, layers, again),
            )
        )
        return sum(forward, 0.0), sum(backward, 0.0)

    def _collective_s(self, sized: SizedJob, group: RankGroup, op: Op, nbytes: int) -> float:
        return once(
            self._found,
            (op, nbytes, group),
            lambda: collective_s(sized.machine, group, self._timers, op, nbytes),
        )

    def _pipeline_bound_s(self, candidate: LayoutCandidate, share: PricedShare) -> float:
        """Fill, all passes of a stage, and drain, of the stage where they take longest; seconds."""
        assert candidate.schedule is not None
        row, count = SCHEDULES[candidate.schedule], candidate.micro_batches
        chunks, stages = candidate.chunks or row.chunks or 1, candidate.pipeline
        shape = PipelineSchedule(row.title, stages, count, chunks, row.layout, ())
        edges = self._edges(candidate, share, shape)
        forward_s, backward_s = np.diff(share.forward_s[edges]), np.diff(share.backward_s[edges])
        both_ways, chunks_held = row.layout == "bidirectional", range(shape.chunks)
        held = np.array([[shape.part(s, chunk) for chunk in chunks_held] for s in range(stages)])
        bounds = (count / 2 if both_ways else count) * (forward_s + backward_s)[held].sum(axis=1)
        if not both_ways:
            bounds = bounds + running_sum(forward_s)[:stages]
        if candidate.schedule in WHOLE_BACKWARD:
            bounds = bounds + running_sum(backward_s)[:stages]
        return float(bounds.max())

    def _edges(
        self, candidate: LayoutCandidate, share: PricedShare, shape: PipelineSchedule
    ) -> IntArray:
        """First layers of the parts of the model, and the end of the last."""
        ends, split = candidate.ends_as_blocks, (candidate.tensor, candidate.context)
        key = (*split, candidate.expert, candidate.sequence_parallel, shape.parts, ends)

        def find() -> IntArray:
            options = PartitionOptions(embedding_as_block=ends, loss_as_block=ends)
            return np.array([0, *(p.stop for p in part_layers(share.workload, shape, options))])

        return once(self._found, ("edges", key), find)

    def plan_s(self, sized: SizedJob) -> float:
        """Least time of a step by its plan: of what waits for each other, or of one stream.

        Kernels are slower beside communication of other streams, which calls in their own stream
        hide no longer than these take.
        """
        plan = sized.plan_for(None)
        groups = {each.name: each.groups[0] for each in plan.communicators if each.groups}
        streams = {each.name: each for each in plan.streams if each.kind != "host"}
        slowdown = sized.job.scenario.compute.overlap_slowdown or sized.job.gpu.overlap_slowdown
        works_s = [self._work_s(sized, task.work, groups) for task in plan.tasks]
        busy_s, called_s = (
            summed(
                ((task.rank_class, task.stream), work_s / streams[task.stream].workers)
                for task, work_s in zip(plan.tasks, works_s, strict=True)
                if task.stream in streams and not task.acquires and not task.releases
                if isinstance(task.work, kinds)
            )
            for kinds in (Compute | Collective, Collective)
        )
        beside_s = {
            (rank_class, name): max(s for (own, _), s in called_s.items() if own == rank_class)
            - called_s.get((rank_class, name), 0.0)
            for rank_class, name in busy_s
            if streams[name].kind == "compute" and any(own == rank_class for own, _ in called_s)
        }
        slowed_s = (busy_s[at] + (1 - 1 / slowdown) * most_s for at, most_s in beside_s.items())
        return max([longest_path_s(plan, works_s), *busy_s.values(), *slowed_s])

    def _work_s(
        self, sized: SizedJob, work: Compute | Collective, groups: dict[str, RankGroup]
    ) -> float:
        if isinstance(work, Compute):
            return work.duration_s
        group = groups.get(work.communicator, ())
        if len(group) < 2 or not _is_timed(sized) or work.root or work.op in ("send", "broadcast"):
            return 0.0
        return work.times * self._collective_s(sized, group, work.op, work.nbytes)


def _is_timed(sized: SizedJob) -> bool:
    """Whether collectives take as long as alone, at least."""
    return what_if_of(sized.job.scenario).communication and sized.fidelity == "flow"


def _segments(sized: SizedJob) -> list[tuple[int, int]]:
    """Return the layers before the blocks, of each block, and after them."""
    workload = sized.job.workload
    ends = (end for block in repeated_blocks(workload) for end in (block.start, block.stop))
    return [
        (begin, end) for begin, end in pairwise([0, *ends, len(workload.layers)]) if begin < end
    ]


def _groups_of_calls(sized: SizedJob) -> Groups:
    """Return the groups of layers' calls by dimension, those of experts last."""
    grid = sized.job.parallel_layout.grid(sized.size.gpus)
    groups = (grid.tensor_groups, grid.context_groups, grid.expert_groups)
    own, per_node = sized.allocation.own, sized.size.gpus_per_node
    return tuple(
        (name, _first_of_kinds(each, grid, own, per_node))
        for name, each in zip(CALLED_DIMENSIONS, groups, strict=True)
    )


def _first_of_kinds(
    groups: tuple[RankGroup, ...], grid: RankGrid, own: RankGroup, per_node: int
) -> tuple[RankGroup, ...]:
    """Return groups of the machine's ranks, one of each stage and the first of those alike.

    All of a stage wait for the slowest of their groups. Those take as long that have the same
    places in a node.
    """
    first = {int(rank) for rank in grid.numbers[:, 0, 0]}
    kinds: dict[Hashable, RankGroup] = {}
    for group in groups:
        if first.intersection(group):
            in_node = len({rank // per_node for rank in group}) == 1
            kind = tuple(rank % per_node for rank in group) if in_node else tuple(group)
            kinds.setdefault(kind, tuple(own[rank] for rank in group))
    return tuple(kinds.values())
