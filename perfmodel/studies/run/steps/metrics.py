"""From a simulated run to the figures of one cluster size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.simulate.engine.run import Run
from perfmodel.simulate.network import LinkCounters
from perfmodel.studies.run.result import BucketTime, LinkUse, Memory, SizeResult
from perfmodel.timeline import Span, Timeline, covered_s, exposed_s
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.plan import StepPlan
from perfmodel.workload.model import Workload

SHOWN_HOSTS = 2
"""Hosts whose links a result lists one by one; all hosts are alike."""

PARTS = ("forward", "backward", "copies", "optimizer", "slowdown", "exposed communication", "idle")

_PART_OF_KIND = {"copy": "copies"}


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one simulated size gave."""

    topology: Topology
    workload: Workload
    plan: StepPlan
    run: Run
    first_step_time_s: float
    steps: int
    gpus: int
    nodes: int
    batch: int
    memory: Memory
    buckets: tuple[Bucket, ...]
    mode: str
    counted: int = 1

    @property
    def steps_s(self) -> tuple[float, ...]:
        """Durations of the counted steps, which are the last ones; seconds."""
        return self.run.step_times_s[-self.counted :]

    @property
    def shown(self) -> int:
        """The counted step whose timeline is shown: the longest."""
        longest = max(range(self.counted), key=lambda at: self.steps_s[at])
        return self.steps - self.counted + longest


@dataclass(frozen=True, slots=True)
class Parts:
    """Where one step went; seconds."""

    compute_s: float
    comm_s: float
    exposed_s: float
    breakdown_s: dict[str, float]


def to_point(seen: Observed) -> SizeResult:
    """Work out the means of the counted steps. Efficiency and bottleneck are filled in later."""
    by_step = _by_step(seen.run)
    ends = (0.0, *seen.run.step_ends_s)
    counted = range(seen.steps - seen.counted, seen.steps)
    parts = parts_of_steps(seen.plan, seen.run, counted)
    spans = _within(tuple(by_step[seen.shown]), ends[seen.shown])
    step_s = sum(seen.steps_s) / seen.counted
    links = link_uses(seen.topology, seen.run.counted, seen.steps, step_s)
    return SizeResult(
        gpus=seen.gpus,
        nodes=seen.nodes,
        step_time_s=step_s,
        first_step_time_s=seen.first_step_time_s,
        compute_s=mean([part.compute_s for part in parts]),
        comm_s=mean([part.comm_s for part in parts]),
        exposed_comm_s=mean([part.exposed_s for part in parts]),
        breakdown_s=_mean_breakdown(parts, step_s),
        samples_per_s=seen.plan.samples / step_s,
        scaling_efficiency=1.0,
        bottleneck="",
        global_batch=seen.plan.samples,
        batch_per_gpu=seen.batch,
        memory=seen.memory,
        interval_s=None,
        buckets=_bucket_times(spans, seen.buckets, seen.workload),
        links=links,
        timeline=Timeline(tuple(spans)),
        mode=seen.mode,
        notes=tuple(str(note) for note in seen.run.notes),
    )


def parts_of_steps(plan: StepPlan, run: Run, counted: range) -> list[Parts]:
    """Where each of some steps of a run went."""
    by_step, ends = _by_step(run), (0.0, *run.step_ends_s)
    kinds = {stream.name: stream.kind for stream in plan.streams}
    return [_parts(by_step[at], kinds, ends[at + 1] - ends[at]) for at in counted]


def _by_step(run: Run) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in run.timeline.spans:
        found.setdefault(span.step, []).append(span)
    return found


def _parts(spans: list[Span], kinds: Mapping[str, str], step_s: float) -> Parts:
    busiest = _busiest(spans, kinds)
    mine = [s for s in spans if s.rank_class == busiest and kinds[s.stream] == "compute"]
    compute = [(span.start_s, span.end_s) for span in mine]
    comm = [(span.start_s, span.end_s) for span in spans if kinds[span.stream] == "comm"]
    exposed = exposed_s(comm, compute)
    parts = breakdown(mine, exposed, step_s)
    return Parts(covered_s(compute), covered_s(comm), exposed, parts)


def _mean_breakdown(parts: list[Parts], step_s: float) -> dict[str, float]:
    """Mean of each part of a step; what is left over is idle.

    Under jitter a rank may begin a step before the slowest one has ended the last; then single
    steps have more parts than time, and others less.
    """
    found = {name: mean([p.breakdown_s[name] for p in parts]) for name in parts[0].breakdown_s}
    if len(parts) > 1:
        found["idle"] = 0.0
        found["idle"] = max(0.0, step_s - sum(found.values()))
    return found


def mean(values: Sequence[float]) -> float:
    """Return the mean of counted steps."""
    return sum(values) / len(values)


def _within(spans: tuple[Span, ...], start_s: float) -> list[Span]:
    """Spans of a step with times from its start; the host may have run ahead of it."""
    return [
        span._replace(
            step=0,
            start_s=span.start_s - start_s,
            end_s=span.end_s - start_s,
            ready_s=span.ready_s - start_s,
        )
        for span in spans
    ]


def _busiest(spans: list[Span], kinds: Mapping[str, str]) -> str:
    """Class that computes longest (nn.DataParallel's device 0 does more than the others)."""
    total: dict[str, float] = {}
    for span in spans:
        if kinds[span.stream] == "compute":
            total[span.rank_class] = total.get(span.rank_class, 0.0) + span.end_s - span.start_s
    return max(total, key=lambda name: total[name]) if total else spans[0].rank_class


def breakdown(compute: list[Span], exposed: float, step_s: float) -> dict[str, float]:
    """Parts of a step that add up to it: what one compute stream does, waits for, or neither.

    Parameters
    ----------
    compute : list of Span
        Of one compute stream, which runs one task at a time.
    exposed, step_s : float
        Exposed communication and the whole step; seconds.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    for span in compute:
        part = _PART_OF_KIND.get(span.kind, span.kind)
        parts[part if part in parts else "idle"] += span.work_s
        parts["slowdown"] += max(0.0, span.end_s - span.start_s - span.work_s)
    parts["exposed communication"] = exposed
    parts["idle"] += max(0.0, step_s - sum(parts.values()))
    return parts


def _bucket_times(
    spans: list[Span], buckets: tuple[Bucket, ...], workload: Workload
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


def link_uses(
    topology: Topology, counted: LinkCounters, steps: int, step_s: float
) -> tuple[LinkUse, ...]:
    """Traffic per step on the links of the first hosts and on the fabric's."""
    arcs = topology.arcs
    fabric_from = topology.hosts * topology.host_arcs
    wire_bytes, payload_bytes = counted.wire_bytes / steps, counted.payload_bytes / steps
    shown = np.flatnonzero(wire_bytes > 0)
    shown = shown[(shown < SHOWN_HOSTS * topology.host_arcs) | (shown >= fabric_from)]
    rates = arcs.bandwidth_Bps
    use = np.divide(wire_bytes, rates * step_s, out=np.zeros(len(arcs)), where=rates > 0)
    return tuple(
        LinkUse(*arcs.names[i], arcs.kinds[i], float(payload_bytes[i]), float(use[i]))
        for i in shown.tolist()
    )
