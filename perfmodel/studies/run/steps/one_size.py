"""All results of one cluster size: times, links, buckets, costs of events, bottleneck, interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.simulate.network import LinkCounters
from perfmodel.studies.run.memory_advice import advise
from perfmodel.studies.run.resolve.training_job import assign_buckets
from perfmodel.studies.run.result.memory import Memory
from perfmodel.studies.run.result.model import BucketTime, SizeResult, with_bottleneck
from perfmodel.studies.run.result.usage import CommunicationUse, HotSpot, LinkUses
from perfmodel.studies.run.steps.bottleneck import name_bottleneck
from perfmodel.studies.run.steps.disturbance_cost import simulate_costs
from perfmodel.studies.run.steps.mixture_use import mixture_use
from perfmodel.studies.run.steps.reliefs import simulate_reliefs
from perfmodel.studies.run.steps.simulate_step import timer_of
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
    from perfmodel.calibrate.sampling import describe_beyond, requests_of

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
