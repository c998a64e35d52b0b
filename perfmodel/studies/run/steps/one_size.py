"""All results of one cluster size: times, links, buckets, costs of events, bottleneck, interval."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import nan
from statistics import fmean

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.simulate.engine.background import BackgroundJob, CollectiveArrivals
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.network import LinkCounters
from perfmodel.studies.run.memory_advice import advise
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.training_job import assign_buckets
from perfmodel.studies.run.result.memory import Memory
from perfmodel.studies.run.result.model import (
    BackgroundJobStep,
    BucketTime,
    DisturbanceCost,
    EventCost,
    SizeResult,
    Wait,
    with_bottleneck,
)
from perfmodel.studies.run.result.usage import CommunicationUse, HotSpot, LinkUses
from perfmodel.studies.run.steps.bottleneck import name_bottleneck
from perfmodel.studies.run.steps.mixture_use import mixture_use
from perfmodel.studies.run.steps.output_analysis import SETTLED, WARM_UP, mean_interval_s
from perfmodel.studies.run.steps.reliefs import simulate_reliefs
from perfmodel.studies.run.steps.simulate_step import simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import (
    ReportedRun,
    SizedJob,
    locate_errors,
    simulate_first_step,
    simulate_reported,
)
from perfmodel.studies.run.steps.step_parts import (
    busiest_class,
    communication_uses,
    mean,
    mean_breakdown,
    parts_of_steps,
)
from perfmodel.studies.run.steps.uncertainty import (
    describe_sensitivity,
    simulate_uncertainties,
    step_interval,
)
from perfmodel.timeline import GroupOfClass, Span, Timeline
from perfmodel.topology.arcs import LinkKinds
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.workload.model import Workload

LISTED_HOSTS = 2
"""Hosts whose links a result lists one by one; all hosts have the same links."""
RANKS_LISTED = 32
"""Ranks of a group that a timeline names; it says how many there are."""


def simulate_size(
    sized: SizedJob, *, with_first: bool = True, with_limits: bool = True
) -> SizeResult:
    """Simulate one size.

    `with_first`: whether the very first step is simulated, too; its time is nan otherwise.
    `with_limits`: whether what limits the step is looked for; the bottleneck is "" otherwise.
    Raises `InputError`: names file, line and field of the scenario.
    """
    with locate_errors(sized):
        reported = simulate_reported(sized)
        first_s = simulate_first_step(sized).step_time_s if with_first else nan
        point = _summarise(sized, reported, first_s)
        if sized.is_main:
            lines = advise(sized, point.memory, point.step_time_s, timed=with_first)
            point = replace(point, memory=replace(point.memory, advice=lines))
        if sized.disturbances and sized.is_main:
            point = replace(point, disturbance=simulate_costs(sized, reported))
        uncertainties = simulate_uncertainties(sized, reported, point)
        ends = None if uncertainties is None else step_interval(point.step_time_s, uncertainties)
        point = replace(point, uncertainties=uncertainties, interval_s=ends)
        return _add_limits(sized, reported, point) if with_limits else point


def _add_limits(sized: SizedJob, reported: ReportedRun, point: SizeResult) -> SizeResult:
    """Add what limits the step, and what its time is sensitive to."""
    reliefs = simulate_reliefs(sized, reported, point)
    bottleneck = name_bottleneck(sized, reported, point, reliefs)
    notes = (
        *point.notes,
        *_describe_profile(sized, reported),
        *describe_sensitivity(sized, reported),
    )
    return replace(with_bottleneck(point, bottleneck), reliefs=reliefs, notes=notes)


def _summarise(sized: SizedJob, reported: ReportedRun, first_step_s: float) -> SizeResult:
    """Compute means of the counted steps; efficiency, bottleneck and interval come later."""
    run, counted = reported.run, reported.counted
    topology = timer_of(reported.setup, sized.disturbances).machine.topology
    step_s = sum(reported.steps_s) / counted
    parts = parts_of_steps(reported.plan, run, reported.counted_steps)
    spans = _longest_step(reported)
    means = "" if counted == 1 else f", mean of {counted} steps"
    memory = sized.memory()
    return SizeResult(
        gpus=sized.size.gpus,
        nodes=sized.size.nodes,
        step_time_s=step_s,
        first_step_time_s=first_step_s,
        compute_s=mean([part.compute_s for part in parts]),
        comm_s=mean([part.comm_s for part in parts]),
        exposed_comm_s=mean([part.exposed_s for part in parts]),
        breakdown_s=mean_breakdown(parts, step_s),
        samples_per_s=reported.plan.samples / step_s,
        scaling_efficiency=1.0,
        bottleneck="",
        global_batch=reported.plan.samples,
        batch_per_gpu=sized.batch,
        memory=memory,
        hot_spot=find_hot_spot(sized, reported, spans, topology, memory),
        interval_s=None,
        buckets=_own_buckets(spans)
        if sized.job.own
        else _time_buckets(spans, assign_buckets(sized.job), sized.job.workload),
        links=sum_link_uses(topology, run.counted, reported.steps, step_s),
        timeline=_timeline(reported.plan, spans),
        communication=_communication(reported, spans),
        mfu=mfu_of(sized, reported.plan.samples / step_s),
        mixture=mixture_use(sized, reported, spans),
        mode=f"{sized.fidelity}, {reported.mode}{means}",
        notes=tuple(str(note) for note in run.notes),
    )


def _communication(reported: ReportedRun, spans: Sequence[Span]) -> tuple[CommunicationUse, ...]:
    kinds = {stream.name: stream.kind for stream in reported.plan.streams}
    rank_class = busiest_class(spans, kinds)
    return communication_uses(reported.plan, reported.run, reported.counted_steps, rank_class)


def mfu_of(sized: SizedJob, samples_per_s: float) -> float | None:
    """Model FLOPs utilisation on GPUs of one kind."""
    compute, flops = sized.job.scenario.compute, sized.job.model.training_flops
    peak = sized.job.gpu.peak_flops.get(compute.precision)
    if not flops or not peak or sized.job.scenario.cluster.mixed:
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
    steps_s = reported.steps_s
    step = reported.counted_steps[steps_s.index(max(steps_s))]
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
    listed = {each.name: each.groups for each in plan.communicators}
    groups = {
        (name, communicator): GroupOfClass(len(group), tuple(group[:RANKS_LISTED]))
        for name, communicator in used
        for group in listed[communicator]
        if first_rank[name] in group
    }
    kinds = {stream.name: stream.kind for stream in plan.streams}
    return Timeline(spans, first_rank, groups, kinds, tuple(first_rank))


def _time_buckets(
    spans: tuple[Span, ...], buckets: tuple[Bucket, ...], workload: Workload
) -> tuple[BucketTime, ...]:
    reduced = {s.bucket: s for s in spans if s.kind == "communication" and s.bucket is not None}
    return tuple(
        BucketTime(
            index=bucket.index,
            nbytes=bucket.nbytes,
            ready_s=reduced[bucket.index].ready_s,
            start_s=reduced[bucket.index].start_s,
            end_s=reduced[bucket.index].end_s,
            parameters=tuple(workload.tensors[index].name for index in bucket.tensors),
        )
        for bucket in buckets
        if bucket.index in reduced
    )


def _own_buckets(spans: Sequence[Span]) -> tuple[BucketTime, ...]:
    """Collectives of one class that a user's plan numbers as buckets, whose parameters it has."""
    numbered: dict[int, list[Span]] = {}
    for span in spans:
        if span.kind == "communication" and span.bucket is not None:
            numbered.setdefault(span.bucket, []).append(span)
    return tuple(
        BucketTime(
            index=index,
            nbytes=same[0].nbytes,
            ready_s=min(span.ready_s for span in same),
            start_s=min(span.start_s for span in same),
            end_s=max(span.end_s for span in same),
            parameters=(),
        )
        for index, same in sorted(numbered.items())
    )


def sum_link_uses(
    topology: Topology, counters: LinkCounters, steps: float, step_s: float
) -> LinkUses:
    """Traffic per step on the links of the first hosts and on those of the fabric."""
    arcs = topology.arcs
    fabric_from = topology.hosts * topology.host_arcs
    wire_bytes, payload_bytes = counters.wire_bytes / steps, counters.payload_bytes / steps
    listed = np.flatnonzero(wire_bytes > 0)
    listed = listed[(listed < LISTED_HOSTS * topology.host_arcs) | (listed >= fabric_from)]
    could_send = arcs.bandwidth_Bps[listed] * step_s
    use = np.divide(wire_bytes[listed], could_send, out=np.zeros(len(listed)), where=could_send > 0)
    kinds = LinkKinds(arcs.kinds.names, arcs.kinds.codes[listed])
    return LinkUses(arcs.names, kinds, listed, payload_bytes[listed], use)


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
    classes = sized.plan_for(None).classes
    alone = [each for each in classes if len(each.ranks) == 1]
    if len(classes) < 2 or len(alone) != 1:
        return None
    (hot,) = alone
    streams = {stream.name for stream in reported.plan.streams if stream.kind == "compute"}
    busy_s: dict[str, float] = {each.name: 0.0 for each in reported.plan.classes}
    for span in spans:
        if span.stream in streams:
            busy_s[span.rank_class] += span.end_s - span.start_s
    gpu = topology.ranks[hot.ranks[0]]
    others = [topology.ranks[rank] for each in classes if each is not hot for rank in each.ranks]
    nbytes = reported.run.counted.payload_bytes / reported.steps
    return HotSpot(
        gpu=gpu,
        busy_s=busy_s[hot.name],
        others_busy_s=max(time for name, time in busy_s.items() if name != hot.name),
        link_bytes=_at(topology, nbytes, gpu),
        others_link_bytes=float(np.mean([_at(topology, nbytes, other) for other in others])),
        only_there_bytes=memory.optimizer_bytes + memory.buckets_bytes,
    )


def _at(topology: Topology, nbytes: FloatArray, gpu: str) -> float:
    """Bytes over the links of a GPU in both directions."""
    return float(sum(nbytes[at] for at, ends in enumerate(topology.arcs.names) if gpu in ends))


# ---------------------------------------------------------------- what events and other jobs cost

ROUNDING_S = 1e-12
"""Waits below this are rounding errors of sums."""


def simulate_costs(sized: SizedJob, reported: ReportedRun) -> DisturbanceCost:
    """Simulate the job without each of its disturbances, and find who waits for whom."""
    undisturbed_s = _simulate_with(reported, ())
    costs = []
    for disturbance in sized.disturbances:
        rest = tuple(other for other in sized.disturbances if other is not disturbance)
        without_s = _simulate_with(reported, rest) if rest else undisturbed_s
        costs.append(EventCost(disturbance.description, without_s, reported.step_s - without_s))
    is_random = any(each.jitter for each in sized.disturbances)
    jobs = [each.background_job for each in sized.disturbances if each.background_job]
    return DisturbanceCost(
        steps_s=reported.steps_s,
        undisturbed_s=undisturbed_s,
        mean_interval_s=mean_interval_s(reported.steps_s) if is_random else None,
        events=tuple(costs),
        waits=_find_waits(sized, reported, by_rank=is_random),
        jobs=tuple(_simulate_other_job(sized, reported, job) for job in jobs),
    )


def _simulate_with(reported: ReportedRun, disturbances: tuple[Disturbance, ...]) -> float:
    """Mean step with some of the disturbances, over the same steps; seconds."""
    if any(each.varies for each in disturbances):
        return reported.simulate_again(disturbances)
    return simulate_steps(reported.setup, disturbances, SETTLED)[1].step_time_s


def _simulate_other_job(
    sized: SizedJob, reported: ReportedRun, job: BackgroundJob
) -> BackgroundJobStep:
    """Step time of another job while the main one's steps were counted, and alone."""
    ends = reported.run.others_step_ends_s[job.plan.name]
    from_s = reported.run.step_ends_s[WARM_UP - 1]
    times_s = [b - a for a, b in itertools.pairwise(ends) if a >= from_s]
    alone = simulate(
        job.plan,
        sized.ensemble.likely,
        steps=SETTLED,
        overlap_slowdown=job.overlap_slowdown,
        timer=timer_of(reported.setup, ()),
    )
    gpus = sum(len(each.ranks) for each in job.plan.classes)
    step_s = fmean(times_s) if times_s else alone.step_time_s
    return BackgroundJobStep(job.plan.name, gpus, step_s, alone.step_time_s)


# ---------------------------------------------------------------- waits in collectives


def _find_waits(sized: SizedJob, reported: ReportedRun, *, by_rank: bool) -> tuple[Wait, ...]:
    """Find who came last to each collective, over the counted steps.

    `by_rank`: whether the last one is named as a rank of its class rather than as the class.
    """
    ranks = sized.ensemble.likely.topology.ranks
    usual = [each.name for each in sized.plan_for(None).classes]
    class_names = _name_classes(reported.plan, usual)

    def name_last(meeting: CollectiveArrivals) -> str:
        return ranks[meeting.last_rank] if by_rank else class_names[meeting.last]

    meetings_of: dict[str, list[CollectiveArrivals]] = {}
    for meeting in reported.run.arrivals:
        if meeting.step in reported.counted_steps:
            meetings_of.setdefault(meeting.name, []).append(meeting)
    return tuple(_wait_of(name, each, name_last) for name, each in meetings_of.items())


def _name_classes(plan: StepPlan, usual: Collection[str]) -> dict[str, str]:
    """Name rank classes; undisturbed ranks of the only class (`usual`) by their number of GPUs.

    Of several, as of the stages of a pipeline, each keeps its name, or nobody knew which is meant.
    """
    return {
        each.name: f"the other {len(each.ranks):,} GPUs"
        if list(usual) == [each.name] and len(each.ranks) > 1
        else each.name
        for each in plan.classes
    }


def _wait_of(
    name: str,
    arrivals: Sequence[CollectiveArrivals],
    name_last: Callable[[CollectiveArrivals], str],
) -> Wait:
    counts: dict[str, int] = {}
    for meeting in arrivals:
        if meeting.longest_s > ROUNDING_S:
            last = name_last(meeting)
            counts[last] = counts.get(last, 0) + 1
    most_often = max(counts, key=lambda last: counts[last], default="")
    return Wait(
        collective=name,
        bucket=arrivals[0].bucket,
        last=most_often,
        share=counts.get(most_often, 0) / len(arrivals),
        waited_s=_round_to_zero(fmean([meeting.waited_s for meeting in arrivals])),
        longest_s=_round_to_zero(max(meeting.longest_s for meeting in arrivals)),
    )


def _round_to_zero(wait_s: float) -> float:
    return wait_s if wait_s > ROUNDING_S else 0.0
