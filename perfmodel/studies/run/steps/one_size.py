"""All results of one cluster size: times, links, buckets, costs of events, bottleneck, interval."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from statistics import fmean

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.memo import grouped
from perfmodel.simulate.engine.background import BackgroundJob, CollectiveArrivals
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.network import LinkCounters
from perfmodel.studies.run.memory_advice import advise
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.training_job import assign_buckets
from perfmodel.studies.run.resolve.what_if import peak_of
from perfmodel.studies.run.result import (
    BackgroundJobStep,
    BucketTime,
    DisturbanceCost,
    EventCost,
    SizeResult,
    Wait,
    with_bottleneck,
)
from perfmodel.studies.run.steps.bottleneck import name_bottleneck
from perfmodel.studies.run.steps.layout_use import layout_use
from perfmodel.studies.run.steps.output_analysis import SETTLED_STEPS, WARM_UP, mean_interval_s
from perfmodel.studies.run.steps.reliefs import simulate_reliefs
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps
from perfmodel.studies.run.steps.simulate_step import ReportedRun, simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import (
    SizedJob,
    first_step_s,
    locate_errors,
    simulate_reported,
)
from perfmodel.studies.run.steps.step_parts import (
    busiest_class,
    communication_uses,
    summed,
)
from perfmodel.studies.run.steps.uncertainty import (
    describe_sensitivity,
    simulate_uncertainties,
    with_interval,
)
from perfmodel.studies.run.usage import HotSpot, LinkUses, Memory
from perfmodel.timeline import GroupOfClass, Span, Timeline
from perfmodel.topology.arcs import LinkKinds
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import StepPlan

LISTED_HOSTS = 2
"""Hosts whose links a result lists one by one; all hosts have the same links."""
RANKS_LISTED = 32
"""Ranks of a group that a timeline names; it says how many there are."""


def simulate_size(
    sized: SizedJob,
    *,
    with_first: bool = True,
    with_limits: bool = True,
    with_ends: bool = True,
    reported: ReportedRun | None = None,
) -> SizeResult:
    """Simulate one size.

    `with_first`: whether the very first step is simulated, too; its time is nan otherwise.
    `with_limits`: whether what limits the step is looked for; the bottleneck is "" otherwise.
    `with_ends`: whether the ends of the interval are simulated, and what events cost; without them
        limits are not looked for, either.
    `reported`: the run of its steps, where that was simulated before.
    Raises `InputError`: names file, line and field of the scenario.
    """
    with locate_errors(sized):
        reported = reported or simulate_reported(sized)
        again = RetimedSteps(reported, sized.disturbances)
        point = _summarise(sized, reported, first_step_s(sized, again) if with_first else nan)
        if sized.is_main:
            lines = advise(sized, point.memory, point.step_time_s, timed=with_first)
            point = replace(point, memory=replace(point.memory, advice=lines))
        if not with_ends:
            return point
        if sized.disturbances and sized.is_main:
            point = replace(point, disturbance=simulate_costs(sized, reported))
        point = with_interval(point, sized, simulate_uncertainties(sized, again, point))
        if not with_limits:
            return point
        reliefs = simulate_reliefs(sized, again, point)
        bottleneck = name_bottleneck(sized, reported, point, reliefs)
        notes = [*point.notes, *_describe_profile(sized, reported)]
        notes += describe_sensitivity(sized, reported)
        return with_bottleneck(replace(point, notes=tuple(notes)), bottleneck, reliefs)


def _summarise(sized: SizedJob, reported: ReportedRun, first_step_s: float) -> SizeResult:
    """Compute means of the counted steps; efficiency, bottleneck and interval come later."""
    plan, run, parts, step_s = reported.plan, reported.run, reported.parts, reported.step_time_s
    topology = timer_of(reported.setup, sized.disturbances).machine.topology
    spans, memory = _longest_step(reported), sized.memory()
    means = "" if reported.counted == 1 else f", mean of {reported.counted} steps"
    return SizeResult(
        gpus=sized.size.gpus,
        nodes=sized.size.nodes,
        step_time_s=step_s,
        first_step_time_s=first_step_s,
        compute_s=parts.compute_s,
        comm_s=parts.comm_s,
        exposed_comm_s=parts.exposed_comm_s,
        breakdown_s=parts.breakdown_s,
        samples_per_s=plan.samples / step_s,
        scaling_efficiency=1.0,
        bottleneck="",
        global_batch=plan.samples,
        batch_per_gpu=sized.batch,
        memory=memory,
        hot_spot=find_hot_spot(sized, reported, spans, topology, memory),
        interval_s=None,
        buckets=_time_buckets(sized, spans),
        links=sum_link_uses(topology, run.counted, reported.steps, step_s),
        timeline=_timeline(plan, spans),
        communication=communication_uses(
            plan, run, reported.counted_steps, busiest_class(spans, plan.stream_kinds)
        ),
        mfu=mfu_of(sized, plan.samples / step_s),
        parallel_layout=layout_use(sized, reported, spans),
        mode=f"{sized.fidelity}, {reported.mode}{means}",
        notes=tuple(str(note) for note in run.notes),
    )


def mfu_of(sized: SizedJob, samples_per_s: float) -> float | None:
    """Model FLOPs utilisation on GPUs of one kind."""
    scenario, flops = sized.job.scenario, sized.job.model.training_flops
    peak = peak_of(scenario, sized.job.gpu)
    if not flops or not peak or scenario.cluster.mixed:
        return None
    return samples_per_s * flops / (sized.size.gpus * peak)


def _describe_profile(sized: SizedJob, reported: ReportedRun) -> tuple[str, ...]:
    """Say which collectives of the step are beyond what the profile was measured with."""
    profile = sized.ensemble.profile
    if profile is None:
        return ()
    from perfmodel.calibrate.apply import describe_beyond, requests_of

    return describe_beyond(profile, requests_of(reported.plan, sized.size.gpus_per_node))


def _longest_step(reported: ReportedRun) -> tuple[Span, ...]:
    """Spans of the longest counted step, with times from its start.

    Times may be negative, as the host runs ahead of the device.
    """
    step = reported.counted_steps[int(np.argmax(reported.steps_s))]
    start_s = (0.0, *reported.run.step_ends_s)[step]
    return tuple(
        span._replace(
            step=0,
            start_s=span.start_s - start_s,
            end_s=span.end_s - start_s,
            ready_s=span.ready_s - start_s,
        )
        for span in reported.run.timeline.spans
        if span.step == step
    )


def _timeline(plan: StepPlan, spans: tuple[Span, ...]) -> Timeline:
    """A timeline that says which ranks its classes and their groups are."""
    first_rank = {each.name: each.ranks[0] for each in plan.classes}
    used = dict.fromkeys((s.rank_class, s.communicator) for s in spans if s.communicator)
    listed = plan.groups_of
    groups = {
        (name, communicator): GroupOfClass(len(group), tuple(group[:RANKS_LISTED]))
        for name, communicator in used
        for group in listed[communicator]
        if first_rank[name] in group
    }
    return Timeline(spans, first_rank, groups, plan.stream_kinds, tuple(first_rank))


def _time_buckets(sized: SizedJob, spans: Sequence[Span]) -> tuple[BucketTime, ...]:
    """Times of buckets: of the strategy's own, or of what a user's plan numbers as buckets."""
    tensors = sized.job.workload.tensors
    numbered = grouped(
        (span.bucket, span)
        for span in spans
        if span.kind == "communication" and span.bucket is not None
    )
    own = [(at, same[0].nbytes, same, ()) for at, same in sorted(numbered.items())]
    listed = [
        (each.index, each.nbytes, numbered[each.index][-1:], each.tensors)
        for each in assign_buckets(sized.job)
        if each.index in numbered
    ]
    return tuple(
        BucketTime(
            index,
            nbytes,
            min(each.ready_s for each in same),
            min(each.start_s for each in same),
            max(each.end_s for each in same),
            tuple(tensors[at].name for at in indices),
        )
        for index, nbytes, same, indices in (own if sized.job.own else listed)
    )


def sum_link_uses(
    topology: Topology, counters: LinkCounters, steps: float, step_s: float
) -> LinkUses:
    """Traffic per step on the links of the first hosts and on those of the fabric."""
    arcs, fabric_from = topology.arcs, topology.hosts * topology.host_arcs
    wire_bytes, payload_bytes = counters.wire_bytes / steps, counters.payload_bytes / steps
    listed = np.flatnonzero(wire_bytes > 0)
    listed = listed[(listed < LISTED_HOSTS * topology.host_arcs) | (listed >= fabric_from)]
    could_send = arcs.bandwidth_Bps[listed] * step_s
    use = np.divide(wire_bytes[listed], could_send, out=np.zeros(len(listed)), where=could_send > 0)
    return LinkUses(
        arcs.names,
        LinkKinds(arcs.kinds.names, arcs.kinds.codes[listed]),
        listed,
        payload_bytes[listed],
        use,
    )


# ---------------------------------------------------------------- hot spot


def find_hot_spot(
    sized: SizedJob,
    reported: ReportedRun,
    spans: Sequence[Span],
    topology: Topology,
    memory: Memory,
) -> HotSpot | None:
    """Find the single GPU whose plan differs from that of all others; None where all are alike.

    `spans`: of one step.
    """
    classes, kinds = sized.plan_for(None).classes, reported.plan.stream_kinds
    alone = [each for each in classes if len(each.ranks) == 1]
    if len(classes) < 2 or len(alone) != 1:
        return None
    (hot,) = alone
    busy_s = summed(
        (span.rank_class, span.end_s - span.start_s)
        for span in spans
        if kinds[span.stream] == "compute"
    )
    gpu = topology.ranks[hot.ranks[0]]
    others = [topology.ranks[rank] for each in classes if each is not hot for rank in each.ranks]
    nbytes = reported.run.counted.payload_bytes / reported.steps
    return HotSpot(
        gpu=gpu,
        busy_s=busy_s[hot.name],
        others_busy_s=max(
            busy_s[each.name] for each in reported.plan.classes if each.name != hot.name
        ),
        link_bytes=_at(topology, nbytes, gpu),
        others_link_bytes=float(np.mean([_at(topology, nbytes, other) for other in others])),
        only_there_bytes=memory.optimizer_bytes + memory.buckets_bytes,
    )


def _at(topology: Topology, nbytes: FloatArray, gpu: str) -> float:
    """Bytes over the links of a GPU in both directions."""
    return float(sum(nbytes[at] for at, ends in enumerate(topology.arcs.names) if gpu in ends))


# ---------------------------------------------------------------- what events and other jobs cost

SAME_STEP = 1e-9
"""Share of a step by which others differ for rounding errors of sums alone."""
ROUNDING_S = 1e-12
"""Waits below this are rounding errors of sums."""


def simulate_costs(sized: SizedJob, reported: ReportedRun) -> DisturbanceCost:
    """Simulate the job without each of its disturbances, and find who waits for whom."""

    def step_with_s(disturbances: Sequence[Disturbance]) -> float:
        if any(each.varies for each in disturbances):
            return reported.simulate_again(disturbances)
        return simulate_steps(reported.setup, disturbances, SETTLED_STEPS).step_time_s

    cost = cost_of(sized.disturbances, step_with_s, reported.step_s, reported.steps_s)
    return replace(
        cost,
        waits=_find_waits(sized, reported, by_rank=cost.mean_interval_s is not None),
        jobs=tuple(
            _simulate_other_job(sized, reported, each.background_job)
            for each in sized.disturbances
            if each.background_job
        ),
    )


def cost_of(
    disturbances: Sequence[Disturbance],
    step_with_s: Callable[[Sequence[Disturbance]], float],
    step_s: float,
    steps_s: tuple[float, ...],
) -> DisturbanceCost:
    """Compare the step with that without each of its disturbances, and without all of them.

    `step_with_s`: the mean step with some of them. `step_s`: that with all; `steps_s`: the counted
        steps; seconds.
    """
    undisturbed_s = step_with_s(())
    cost_nothing = math.isclose(step_s, undisturbed_s, rel_tol=SAME_STEP)  # nor does one alone
    rests = [[each for each in disturbances if each is not left_out] for left_out in disturbances]
    without_s = [
        step_s if cost_nothing else step_with_s(rest) if rest else undisturbed_s for rest in rests
    ]
    return DisturbanceCost(
        steps_s=steps_s,
        undisturbed_s=undisturbed_s,
        mean_interval_s=mean_interval_s(steps_s) if any(d.jitter for d in disturbances) else None,
        events=tuple(
            EventCost(each.description, rest_s, step_s - rest_s)
            for each, rest_s in zip(disturbances, without_s, strict=True)
        ),
        waits=(),
    )


def _simulate_other_job(
    sized: SizedJob, reported: ReportedRun, job: BackgroundJob
) -> BackgroundJobStep:
    """Step time of another job while the main one's steps were counted, and alone."""
    ends, run = itertools.pairwise(reported.run.others_step_ends_s[job.plan.name]), reported.run
    times_s = [b - a for a, b in ends if a >= run.step_ends_s[WARM_UP - 1]]
    alone = simulate(
        job.plan,
        sized.ensemble.likely,
        steps=SETTLED_STEPS,
        overlap_slowdown=job.overlap_slowdown,
        timer=timer_of(reported.setup, ()),
    )
    return BackgroundJobStep(
        job.plan.name,
        sum(len(each.ranks) for each in job.plan.classes),
        fmean(times_s) if times_s else alone.step_time_s,
        alone.step_time_s,
    )


# ---------------------------------------------------------------- waits in collectives


def _find_waits(sized: SizedJob, reported: ReportedRun, *, by_rank: bool) -> tuple[Wait, ...]:
    """Find who came last to each collective, over the counted steps.

    `by_rank`: whether the last one is named as a rank of its class rather than as the class. The
        undisturbed ranks of the only class are named by their number; of several, as of the stages
        of a pipeline, each keeps its name, or nobody knew which is meant.
    """
    ranks = sized.ensemble.likely.topology.ranks
    usual = [each.name for each in sized.plan_for(None).classes]
    class_names = {
        each.name: f"the other {len(each.ranks):,} GPUs"
        if usual == [each.name] and len(each.ranks) > 1
        else each.name
        for each in reported.plan.classes
    }
    counted = (each for each in reported.run.arrivals if each.step in reported.counted_steps)
    return tuple(
        _wait_of(
            each,
            [ranks[at.last_rank] if by_rank else class_names[at.last] for at in each],
        )
        for each in grouped((arrival.name, arrival) for arrival in counted).values()
    )


def _wait_of(arrivals: Sequence[CollectiveArrivals], last: Sequence[str]) -> Wait:
    """Sum up the arrivals at one collective; `last` came last to each."""
    counts = Counter(
        name for each, name in zip(arrivals, last, strict=True) if each.longest_s > ROUNDING_S
    )
    most_often, times = counts.most_common(1)[0] if counts else ("", 0)
    waits_s = fmean(each.waited_s for each in arrivals), max(each.longest_s for each in arrivals)
    mean_s, longest_s = (wait_s if wait_s > ROUNDING_S else 0.0 for wait_s in waits_s)
    return Wait(
        arrivals[0].name,
        arrivals[0].bucket,
        last=most_often,
        share=times / len(arrivals),
        waited_s=mean_s,
        longest_s=longest_s,
    )
