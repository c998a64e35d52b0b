"""What a parallel layout costs: the bubble, what each dimension sends, over which links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from statistics import fmean

from perfmodel.errors import TopologyError
from perfmodel.library.machine import Machine
from perfmodel.library.transport import local_path
from perfmodel.memo import grouped
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.studies.run.steps.step_parts import (
    collective_of,
    computes,
    executions_by_step,
    exposed_by_name,
    intervals_of,
    is_communication,
    sum_sent_bytes,
    summed,
    window_of_passes,
)
from perfmodel.studies.run.usage import DimensionUse, LayoutUse, StageUse
from perfmodel.testing.closed_forms import PassTimes, pass_spans
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.plan.step_plan import (
    DIMENSIONS,
    PASSES,
    Communicator,
    Compute,
    StepPlan,
    Task,
    dimension_of,
)

MOST_NEIGHBOURS = 64
"""Neighbours of a group whose paths are looked up, at most; further ones are alike."""

PARTS_OF_PASSES = (*PASSES, "weights")


def layout_use(sized: SizedJob, reported: ReportedRun, spans: Sequence[Span]) -> LayoutUse | None:
    """Describe the parallel layout of a job; None where each GPU has the whole model.

    `spans`: of a counted step.
    """
    parallel_layout = sized.job.parallel_layout
    if parallel_layout.is_plain:
        return None
    micro_batches, has_pipeline = sized.job.options.accumulate, parallel_layout.stages > 1
    grid = parallel_layout.grid(sized.size.gpus)
    return LayoutUse(
        tensor=grid.tensor,
        context=grid.context,
        expert=grid.expert,
        pipeline=grid.stages,
        data=grid.data,
        order="-".join(grid.order),
        schedule=parallel_layout.schedule if has_pipeline else None,
        micro_batches=micro_batches,
        bubble=_simulated_bubble(reported.plan, spans) if has_pipeline else None,
        bubble_in_theory=bubble_in_theory(
            reported.plan, parallel_layout.pipeline_schedule(micro_batches)
        )
        if has_pipeline
        else None,
        dimensions=_dimension_uses(sized, reported),
        stages=_stage_uses(sized, reported.plan, spans) if has_pipeline else (),
        shared="experts" if parallel_layout.shard.tables is None else "tables",
    )


# ---------------------------------------------------------------- stages


def bubble_in_theory(plan: StepPlan, schedule: PipelineSchedule) -> float:
    """Share of a pipeline's time in which a stage has no pass, were all stages and chunks equal.

    Messages take no time, and shares of a vocabulary are no passes. For 1F1B and GPipe
    (P - 1) / (M + P - 1) of P stages and M micro-batches (Narayanan et al. 2021, section 2.2.1).
    """
    total_s = summed(
        ("weights" if task.role == "weight_gradient" else task.kind, task.work.duration_s)
        for task in plan.tasks
        if task.kind in PASSES and isinstance(task.work, Compute)
    )
    # a share does not change if each pass is as long as all of its kind are together
    if schedule.layout == "vocabulary":
        own = [tuple(each for each in stage if not each.chunk) for stage in schedule.actions]
        schedule = replace(schedule, actions=tuple(own))
    spans = pass_spans(schedule, PassTimes(*(total_s[each] for each in PARTS_OF_PASSES)))
    length = max(float(stage[-1][1]) for stage in spans)
    busy = fmean(sum(float(end) - float(start) for start, end in stage) for stage in spans)
    return 1 - busy / length


def _simulated_bubble(plan: StepPlan, spans: Sequence[Span]) -> float:
    """Mean over stages; messages between stages are no work of a stage."""
    (begin, end), kinds = window_of_passes(spans), plan.stream_kinds
    on_device = [span for span in spans if kinds[span.stream] == "compute"]
    waits_s = sum(
        len(each.ranks)
        * exposed_s([(begin, end)], intervals_of(s for s in on_device if s.rank_class == each.name))
        for each in plan.classes
    ) / sum(len(each.ranks) for each in plan.classes)
    return waits_s / (end - begin)


def _stage_uses(sized: SizedJob, plan: StepPlan, spans: Sequence[Span]) -> tuple[StageUse, ...]:
    window, kinds = window_of_passes(spans), plan.stream_kinds
    stage_of = {
        sized.allocation.own[rank]: stage
        for stage, ranks in enumerate(sized.job.parallel_layout.grid(sized.size.gpus).numbers)
        for rank in ranks.ravel().tolist()
    }
    uses = []
    for each in plan.classes:  # a class may be a part of the ranks of a stage
        own = [span for span in spans if span.rank_class == each.name]
        compute = intervals_of(span for span in own if computes(span, kinds))
        comm = intervals_of(span for span in own if span.kind == "communication")
        uses.append(
            StageUse(
                stage_of[each.ranks[0]],
                each.name,
                covered_s(compute),
                exposed_s(comm, compute),
                exposed_s([window], compute + comm),
            )
        )
    by_stage = grouped((each.stage, each) for each in uses)  # its slowest ranks count
    return tuple(max(by_stage[at], key=attrgetter("busy_s")) for at in sorted(by_stage))


# ---------------------------------------------------------------- dimensions


def _dimension_uses(sized: SizedJob, reported: ReportedRun) -> tuple[DimensionUse, ...]:
    plan, steps = reported.plan, reported.counted_steps
    dimensions = {each.name: dimension_of(each) for each in plan.communicators}

    def dimension_of_task(task: Task) -> str:
        return dimensions[collective_of(task).communicator]

    by_step, kinds = executions_by_step(reported.run, steps), plan.stream_kinds
    ranks = sum(len(each.ranks) for each in plan.classes)
    own = [grouped((each[0].rank_class, each) for each in step) for step in by_step.values()]
    exposed_s = summed(  # of all steps, mean over ranks
        (dimension, time_s * len(each.ranks) / ranks)
        for each in plan.classes
        for dimension, time_s in exposed_by_name(
            [step.get(each.name, ()) for step in own], kinds, each.name, dimension_of_task
        ).items()
    )
    sent = grouped(
        (dimension_of_task(task), task) for task, *_ in by_step[steps[-1]] if is_communication(task)
    )
    machine = sized.ensemble.likely
    return tuple(
        _dimension_use(each, plan, sent[each], exposed_s[each] / len(steps), machine)
        for each in DIMENSIONS
        if each in sent
    )


def _dimension_use(
    dimension: str,
    plan: StepPlan,
    tasks: Sequence[Task],
    exposed_s: float,
    machine: Machine,
) -> DimensionUse:
    """Sum up the collectives of one dimension of the layout, of the rank class that sends most."""
    works_of = grouped((task.rank_class, collective_of(task)) for task in tasks)
    names = {work.communicator for works in works_of.values() for work in works}
    called = [each for each in plan.communicators if each.name in names]
    pairs = [
        pair for each in called for pair in pairwise(list(each.groups[0][: MOST_NEIGHBOURS + 1]))
    ]
    per_host = machine.topology.gpus_per_host
    return DimensionUse(
        dimension=dimension,
        ranks=min(_group_ranks(called), sum(len(each.ranks) for each in plan.classes)),  # no server
        calls=max(sum(work.times for work in works) for works in works_of.values()),
        sent_bytes=max(sum_sent_bytes(plan, name, works) for name, works in works_of.items()),
        exposed_s=exposed_s,
        links=tuple(dict.fromkeys(kind for pair in pairs for kind in _links(machine, *pair))),
        between_hosts=sum(a // per_host != b // per_host for a, b in pairs) / len(pairs)
        if pairs
        else 0.0,
    )


def _group_ranks(communicators: Iterable[Communicator]) -> int:
    """Ranks of a dimension's groups; those of experts have so many rails of so many nodes."""
    by_role = grouped((each.role, len(each.groups[0])) for each in communicators)
    sizes = {role: max(of_role) for role, of_role in by_role.items()}
    legs = sizes.pop("expert_rail", 1) * sizes.pop("expert_node", 1)
    return max(legs, *sizes.values(), 1)


def _links(machine: Machine, source: int, target: int) -> Iterator[str]:
    """Kinds of link between two GPUs, in order; none that a fault has cut off."""
    topology, router = machine.topology, machine.router
    names, per_host = (topology.ranks[source], topology.ranks[target]), topology.gpus_per_host
    is_local = source // per_host == target // per_host
    with suppress(TopologyError):
        arcs = local_path(topology, router, *names).arcs if is_local else router.route(*names)
        yield from (topology.arcs.kinds[arc] for arc in arcs)
