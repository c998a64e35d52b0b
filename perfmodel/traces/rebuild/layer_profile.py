"""What all ranks' traces say of one step: layers, buckets, transfers, waiting for others.

The machine that a trace was recorded on is known as far as its collectives show it: a star; each
rank has one link to a switch, with the bandwidth and latency at which a ring takes as long as the
recorded all-reduces did.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.timeline import union
from perfmodel.traces.kineto.work import overlap_s
from perfmodel.traces.model import Call, RankTrace, StepParts, TracedStep


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """A bucket as recorded; medians over steps, seconds.

    `transfer_s`: of the rank that came last, the shortest of all ranks. `waiting_s`: of the first
    rank for the last one; None with one rank's trace, whose transfer contains the waiting.
    `ready_s`: issued by the slowest rank, from the begin of its step. `start_s`, `end_s`: of its
    collective.
    """

    index: int
    elements: int | None
    dtype: str | None
    transfer_s: float
    least_s: float
    waiting_s: float | None
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Profile(StepParts):
    """One step as the slowest rank runs it, without what a collective in progress adds to layers.

    `effective_slowdown`: of the time of backward beside collectives, gaps included.
    `gathers`: of sharded parameters; elements of one rank.
    `averages`: all-reduces beside the buckets: of shards, among the ranks that hold the same.
    `steps_s`: of each step the mean over ranks.
    """

    step_s: float
    steps_s: tuple[float, ...]
    slowdown: float | None
    effective_slowdown: float
    buckets: tuple[BucketTimes, ...]
    gathers: tuple[BucketTimes, ...]
    averages: tuple[BucketTimes, ...]


def profile_ranks(ranks: Sequence[RankTrace]) -> Profile:
    """Join the traces of several ranks of one job.

    Of each step the rank counts that works longest, which the others wait for; times of layers
    are means over steps, scaled to the median step.
    Raises `InputError`: ranks that did not run the same model.
    """
    _check_alike(ranks)
    rounds = [list(steps) for steps in zip(*(rank.steps for rank in ranks), strict=False)]
    slowest = [max(steps, key=_awaited_s) for steps in rounds]
    factors = [rank.slowdown for rank in ranks if rank.slowdown is not None]
    slowdown = statistics.median(factors) if factors and not ranks[0].blocks else None
    effective = _effective(slowest, slowdown)
    if ranks[0].blocks:  # ranks meet at each unit: its slowest rank counts
        forwards = [np.max([step.forward_s for step in steps], axis=0) for steps in rounds]
        backwards = [np.max([step.backward_s for step in steps], axis=0) for steps in rounds]
    else:
        forwards = [step.forward_s for step in slowest]
        backwards = [_alone(step, effective) for step in slowest]
    sums = [float(np.sum(passes)) for passes in zip(forwards, backwards, strict=True)]
    mean = statistics.fmean(sums)
    scale = statistics.median(sums) / mean if mean > 0 else 1.0
    # Ranks begin a step at different times, but in the long run each as often as the others.
    lengths_s = tuple(statistics.fmean(step.length_s for step in steps) for steps in rounds)
    medians = {
        name: statistics.median(getattr(step, name) for step in slowest)
        for name in ("exposed_s", "tail_s", "busy_s", "launch_wait_s")
    }
    return Profile(
        forward_s=np.mean(forwards, axis=0) * scale,
        backward_s=np.mean(backwards, axis=0) * scale,
        copied_in_s=np.mean([step.copied_in_s for step in slowest], axis=0) * scale,
        step_s=statistics.median(lengths_s),
        steps_s=lengths_s,
        slowdown=slowdown,
        effective_slowdown=_blocking(slowest) if ranks[0].blocks else effective,
        buckets=_call_times(rounds, slowest, lambda step: step.buckets),
        gathers=_call_times(rounds, slowest, lambda step: step.others_of("all_gather")),
        averages=_call_times(rounds, slowest, lambda step: step.others_of("all_reduce")),
        **medians,
    )


def _awaited_s(step: TracedStep) -> float:
    """Return for how long a rank computes in a step, the pause to the next step included; seconds.

    Other ranks wait for that at collectives.
    """
    return float(step.forward_s.sum() + step.backward_s.sum()) + step.tail_s


def _check_alike(ranks: Sequence[RankTrace]) -> None:
    first, faults = ranks[0], list[Fault]()
    sizes = [len(layer.gradients) for layer in first.layers]
    for rank in ranks[1:]:
        faults += failed(
            (
                [len(layer.gradients) for layer in rank.layers] != sizes,
                "trace",
                f"rank {rank.rank} with {len(rank.layers)} layers",
                f"the {len(sizes)} layers of rank {first.rank}: traces of one job",
            ),
            (
                rank.world_size != first.world_size,
                "world_size",
                f"{rank.world_size} ranks",
                f"{first.world_size}, as {first.path.name} says",
            ),
            file=str(rank.path),
        )
    raise_faults(faults)


def _effective(steps: Sequence[TracedStep], slowdown: float | None) -> float:
    """Return the slowdown of the time beside collectives, of which gaps are no slower."""
    overlapped = sum(step.overlapped_s for step in steps)
    saved = sum(step.overlapped_work_s for step in steps) * (1 - 1 / (slowdown or 1.0))
    return overlapped / (overlapped - saved) if overlapped > saved > 0 else 1.0


def _blocking(steps: Sequence[TracedStep]) -> float:
    """Slowdown at which layers make no more progress beside collectives than they did."""
    calls = [call for step in steps for call in (*step.buckets, *step.others)]
    lasted_s = sum(call.length_s for call in calls)
    idle_s = sum(step.waited_s + step.exposed_s for step in steps)
    return min(max(1.0, lasted_s / max(lasted_s - idle_s, 1e-3 * lasted_s)), 1e3) if calls else 1.0


def _alone(step: TracedStep, effective: float) -> FloatArray:
    """Return times of backward without what collectives add, which is spread over layers."""
    total = float(step.backward_s.sum())
    if effective <= 1 or total <= 0:
        return step.backward_s
    ends = step.backward_end_s - total + np.cumsum(step.backward_s)
    overlaps = overlap_s(
        ends - step.backward_s, ends, union([(call.start_s, call.end_s) for call in step.buckets])
    )
    return np.asarray(step.backward_s - overlaps * (1 - 1 / effective))


def _call_times(
    rounds: Sequence[Sequence[TracedStep]],
    slowest: Sequence[TracedStep],
    calls_of: Callable[[TracedStep], tuple[Call, ...]],
) -> tuple[BucketTimes, ...]:
    counts, times = {len(calls_of(step)) for steps in rounds for step in steps}, []
    for index in range(min(counts, default=0)):
        lengths = [[calls_of(step)[index].length_s for step in steps] for steps in rounds]
        waits = [max(each) - min(each) for each in lengths]
        mine = [(step.start_s, calls_of(step)[index]) for step in slowest]
        last = calls_of(rounds[-1][0])[index]
        times.append(
            BucketTimes(
                index=index,
                elements=last.elements,
                dtype=last.dtype,
                transfer_s=statistics.median(map(min, lengths)),
                least_s=min(map(min, lengths)),
                waiting_s=statistics.median(waits) if len(rounds[0]) > 1 else None,
                ready_s=statistics.median(call.issued_s - begin_s for begin_s, call in mine),
                start_s=statistics.median(call.start_s - begin_s for begin_s, call in mine),
                end_s=statistics.median(call.end_s - begin_s for begin_s, call in mine),
            )
        )
    return tuple(times)


LEAST_RATE_SHARE = 1e-3
"""Where times do not grow with size, all of the largest transfer but this is latency."""


class LinkFit(NamedTuple):
    """Link of each rank: bandwidth, latency, and how far off recorded times are at most."""

    bandwidth_Bps: float
    latency_s: float
    worst: float


def fit_links(
    ranks: int | Sequence[int],
    sizes_bytes: Sequence[float],
    times_s: Sequence[float],
    passes: Sequence[int] | None = None,
) -> LinkFit:
    """Fit T = p (n-1) latency + p (n-1)/n bytes/bandwidth, relative errors alike.

    `ranks`: n of all collectives, or of each.
    `sizes_bytes`, `times_s`: of recorded collectives, each above zero.
    `passes`: p of each: 2 for all-reduces (default), 1 for all-gathers and reduce-scatters.
    """
    from scipy.optimize import nnls

    members = np.broadcast_to(np.asarray(ranks, dtype=float), (len(sizes_bytes),))
    steps = (2 if passes is None else np.asarray(passes)) * (members - 1)
    times, sizes = np.asarray(times_s) / steps, np.asarray(sizes_bytes) / members  # of one step
    if len(set(sizes.tolist())) > 1:
        (fixed, per_byte), _ = nnls(
            np.stack([1 / times, sizes / times], axis=1), np.ones(len(times))
        )
    else:
        fixed, per_byte = 0.0, float(np.median(times / sizes))
    per_byte = max(float(per_byte), LEAST_RATE_SHARE * float((times / sizes).min()))
    return LinkFit(
        bandwidth_Bps=1 / per_byte,
        latency_s=float(fixed),
        worst=float(np.abs((fixed + per_byte * sizes) / times - 1).max()),
    )


def node_document(ranks: int, gpu: str, fit: LinkFit | None, source: str) -> dict[str, Any]:
    """Write the machine as a node file.

    `fit`: None for one rank.
    `source`: where the numbers come from.
    """
    last = f"rank[0-{ranks - 1}]" if ranks > 1 else "rank0"
    return {
        "perfmodel": 1,
        "kind": "node",
        "description": f"{ranks} ranks as they were recorded, on one switch",
        "gpu": gpu,
        "sources": {"trace": source},
        "links": {
            "recorded": {
                "kind": "nvlink",
                "bandwidth": f"{fit.bandwidth_Bps / 1e9:.9g} GB/s" if fit else "1 TB/s",
                "source": "trace",
                "efficiency": 1.0,
                "efficiency_source": "trace",
                "latency": f"{fit.latency_s / 2 * 1e6:.9g} us" if fit else "0 s",
                "latency_source": "trace",
            }
        },
        "nodes": [
            {"id": last, "kind": "gpu"},
            {"id": "switch0", "kind": "nvswitch"},
            {"id": "cpu0", "kind": "cpu"},
        ],
        "edges": [
            {"from": last, "to": "switch0", "link": "recorded"},
            {"from": "switch0", "to": "cpu0", "link": "recorded"},
        ],
    }
