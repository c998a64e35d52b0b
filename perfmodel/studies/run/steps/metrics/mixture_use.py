"""What a mixture of parallelisms costs: the bubble, what each dimension sends, over which links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from perfmodel.arrays import RankGroup
from perfmodel.errors import TopologyError
from perfmodel.library.machine import Machine
from perfmodel.library.transport import local_path
from perfmodel.simulate.engine.outcome import TaskExecution
from perfmodel.studies.run.result.dimension_use import DimensionUse, MixtureUse, StageUse
from perfmodel.studies.run.steps.metrics.communication import (
    add_times,
    executions_by_step,
    sum_sent_bytes,
)
from perfmodel.studies.run.steps.metrics.step_parts import computes
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.testing.pipeline_times import PassTimes, pass_spans
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.plan.step_plan import (
    DIMENSIONS,
    Collective,
    Communicator,
    Compute,
    Dimension,
    StepPlan,
    Task,
    dimension_of,
)

MOST_NEIGHBOURS = 64
"""Neighbours of a group whose paths are looked up, at most; further ones are alike."""

PASSES = ("forward", "backward")


def mixture_use(sized: SizedJob, reported: ReportedRun, spans: Sequence[Span]) -> MixtureUse | None:
    """Describe the mixture of a job; None where each GPU has the whole model.

    `spans`: of a counted step.
    """
    mixture = sized.job.mixture
    if mixture.is_plain:
        return None
    micro_batches = sized.job.options.accumulate
    grid = mixture.grid(sized.size.gpus)
    stages = _stage_uses(sized, reported.plan, spans) if mixture.stages > 1 else ()
    bubble = theory = None
    if mixture.stages > 1:
        bubble = _simulated_bubble(reported.plan, spans)
        theory = bubble_in_theory(reported.plan, mixture.pipeline_schedule(micro_batches))
    return MixtureUse(
        tensor=grid.tensor,
        context=grid.context,
        expert=grid.expert,
        pipeline=grid.stages,
        data=grid.data,
        order="-".join(grid.order),
        schedule=mixture.schedule if mixture.stages > 1 else None,
        micro_batches=micro_batches,
        bubble=bubble,
        bubble_in_theory=theory,
        dimensions=_dimension_uses(sized, reported),
        stages=stages,
    )


# ---------------------------------------------------------------- stages


def bubble_in_theory(plan: StepPlan, schedule: PipelineSchedule) -> float:
    """Share of a pipeline's time in which a stage has no pass, were all stages and chunks equal.

    Messages take no time. For 1F1B and GPipe (P - 1) / (M + P - 1) of P stages and M micro-batches
    (Narayanan et al. 2021, section 2.2.1).
    """
    total = {"forward": 0.0, "backward": 0.0, "weights": 0.0}
    for task in plan.tasks:
        if task.kind in PASSES and isinstance(task.work, Compute):
            total[_part_of_pass(task)] += task.work.duration_s
    counts = sum(len(each) for each in schedule.actions) / (3 if schedule.splits_backward else 2)
    times = PassTimes(*(each / counts for each in total.values()))
    spans = pass_spans(schedule, times)
    length = max(float(stage[-1][1]) for stage in spans)
    busy = fmean(sum(float(end) - float(start) for start, end in stage) for stage in spans)
    return 1 - busy / length


def _part_of_pass(task: Task) -> str:
    return "weights" if task.role == "weight_gradient" else task.kind


def _simulated_bubble(plan: StepPlan, spans: Sequence[Span]) -> float:
    """Mean over stages; messages between stages are no work of a stage."""
    kinds = {stream.name: stream.kind for stream in plan.streams}
    passes = [span for span in spans if span.kind in PASSES]
    begin, end = min(span.start_s for span in passes), max(span.end_s for span in passes)
    works: dict[str, list[tuple[float, float]]] = {each.name: [] for each in plan.classes}
    for span in spans:
        if kinds[span.stream] == "compute":
            works[span.rank_class].append((span.start_s, span.end_s))
    ranks = {each.name: len(each.ranks) for each in plan.classes}
    waits = sum(
        ranks[name] * exposed_s([(begin, end)], busy) for name, busy in works.items()
    ) / sum(ranks.values())
    return waits / (end - begin)


def _stage_uses(sized: SizedJob, plan: StepPlan, spans: Sequence[Span]) -> tuple[StageUse, ...]:
    kinds = {stream.name: stream.kind for stream in plan.streams}
    passes = [span for span in spans if span.kind in PASSES]
    begin, end = min(span.start_s for span in passes), max(span.end_s for span in passes)
    uses: dict[int, StageUse] = {}
    by_class: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_class[span.rank_class].append(span)
    for name, stage in stage_of_classes(sized, plan).items():
        compute = [(s.start_s, s.end_s) for s in by_class[name] if computes(s, kinds)]
        comm = [(s.start_s, s.end_s) for s in by_class[name] if s.kind == "communication"]
        waits_s = exposed_s([(begin, end)], [*compute, *comm])
        use = StageUse(stage, name, covered_s(compute), exposed_s(comm, compute), waits_s)
        if stage not in uses or uses[stage].busy_s < use.busy_s:  # of its slowest ranks
            uses[stage] = use
    return tuple(uses[stage] for stage in sorted(uses))


def stage_of_classes(sized: SizedJob, plan: StepPlan) -> dict[str, int]:
    """Stage that each class of a placed plan belongs to, the ranks of which may be a part of it."""
    numbers = sized.job.mixture.grid(sized.size.gpus).numbers
    own = sized.allocation.own
    stage_of = {
        own[rank]: stage
        for stage, ranks in enumerate(numbers.tolist())
        for replica in ranks
        for rank in replica
    }
    return {each.name: stage_of[each.ranks[0]] for each in plan.classes}


# ---------------------------------------------------------------- dimensions


def _dimension_uses(sized: SizedJob, reported: ReportedRun) -> tuple[DimensionUse, ...]:
    plan, steps = reported.plan, reported.counted_steps
    by_step = executions_by_step(reported.run, steps)
    dimension_of_task = _dimensions(plan)
    exposed = _exposed_s(plan, by_step, dimension_of_task)
    by_class: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for execution in by_step[steps[-1]]:
        task = execution[0]
        if isinstance(task.work, Collective):
            by_class[dimension_of_task(task), task.rank_class].append(task)
    used = {dimension for dimension, _ in by_class}
    return tuple(
        _dimension_use(
            dimension,
            plan,
            [tasks for (each, _), tasks in by_class.items() if each == dimension],
            exposed[dimension] / len(steps),
            sized.ensemble.likely,
        )
        for dimension in DIMENSIONS
        if dimension in used
    )


def _exposed_s(
    plan: StepPlan,
    by_step: Mapping[int, Sequence[TaskExecution]],
    dimension_of_task: Callable[[Task], Dimension],
) -> Mapping[str, float]:
    """Exposed time by dimension, of all steps, mean over ranks."""
    kinds = {stream.name: stream.kind for stream in plan.streams}
    total: dict[str, float] = defaultdict(float)
    ranks = sum(len(each.ranks) for each in plan.classes)
    for executions in by_step.values():
        own: dict[str, list[TaskExecution]] = defaultdict(list)
        for each in executions:
            own[each[0].rank_class].append(each)
        for rank_class in plan.classes:
            busy_s, exposed_s = defaultdict[str, float](float), defaultdict[str, float](float)
            name = rank_class.name
            add_times(own[name], kinds, name, dimension_of_task, busy_s, exposed_s)
            for dimension, time_s in exposed_s.items():
                total[dimension] += time_s * len(rank_class.ranks) / ranks
    return total


def _dimensions(plan: StepPlan) -> Callable[[Task], Dimension]:
    """Dimension that a communication of a plan serves."""
    dimensions = {each.name: dimension_of(each) for each in plan.communicators}

    def dimension(task: Task) -> Dimension:
        assert isinstance(task.work, Collective)
        return dimensions[task.work.communicator]

    return dimension


def _dimension_use(
    dimension: str,
    plan: StepPlan,
    classes: Iterable[Sequence[Task]],
    exposed_s: float,
    machine: Machine,
) -> DimensionUse:
    calls, sent_bytes = 0, 0.0
    names: dict[str, None] = {}
    for tasks in classes:
        works = [task.work for task in tasks if isinstance(task.work, Collective)]
        names |= dict.fromkeys(work.communicator for work in works)
        calls = max(calls, sum(work.times for work in works))
        sent_bytes = max(sent_bytes, sum_sent_bytes(plan, tasks, works))
    called = [each for each in plan.communicators if each.name in names]
    groups = [each.groups for each in called]
    pairs = [pair for each in groups for pair in _neighbours(each[0])]
    per_host = machine.topology.gpus_per_host
    crossing = sum(a // per_host != b // per_host for a, b in pairs)
    return DimensionUse(
        dimension=dimension,
        ranks=_group_ranks(called),
        calls=calls,
        sent_bytes=sent_bytes,
        exposed_s=exposed_s,
        links=tuple(dict.fromkeys(kind for pair in pairs for kind in _links(machine, *pair))),
        between_hosts=crossing / len(pairs) if pairs else 0.0,
    )


def _group_ranks(communicators: Iterable[Communicator]) -> int:
    """Ranks of a dimension's groups; those of experts have so many rails of so many nodes."""
    sizes: dict[str, int] = {}
    for each in communicators:
        sizes[each.role] = max(sizes.get(each.role, 1), len(each.groups[0]))
    legs = sizes.pop("expert_rail", 1) * sizes.pop("expert_node", 1)
    return max(legs, *sizes.values(), 1)


def _neighbours(group: RankGroup) -> Iterator[tuple[int, int]]:
    members = list(group[: MOST_NEIGHBOURS + 1])
    yield from pairwise(members)


def _links(machine: Machine, source: int, target: int) -> Iterator[str]:
    """Kinds of link between two GPUs, in order; none that a fault has cut off."""
    topology, router = machine.topology, machine.router
    names = topology.ranks[source], topology.ranks[target]
    per_host = topology.gpus_per_host
    try:
        if source // per_host == target // per_host:
            arcs = local_path(topology, router, *names).arcs
        else:
            arcs = router.route(*names)
    except TopologyError:
        return
    yield from (topology.arcs.kinds[arc] for arc in arcs)
