"""Figures of a run of loops: throughput, staleness, how busy servers are, where time goes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from perfmodel.simulate.engine.loop_records import LoopRun
from perfmodel.studies.run.loop_job import LoopBounds, LoopJob, loop_bounds, tracked_workers
from perfmodel.studies.run.steps.step_parts import PARTS, summed
from perfmodel.studies.run.usage import CommunicationUse, Staleness
from perfmodel.timeline import Span, covered_s

MOST_BARS = 24
"""Bars of a histogram at most."""
DRAWN_SERVERS = 2
"""Servers whose work is drawn."""


@dataclass(frozen=True)
class LoopMetrics:
    """What a run tells, after its warm-up.

    `job`: that was simulated; it says which rounds count.
    """

    job: LoopJob
    run: LoopRun

    @cached_property
    def ends_s(self) -> list[float]:
        """When rounds end: those of the warm-up, and those that count."""
        return self.run.round_ends_s()

    @cached_property
    def from_s(self) -> float:
        """When the counted rounds begin."""
        return self.ends_s[self.job.warm_up - 1]

    @cached_property
    def bounds(self) -> LoopBounds:
        """What the throughput cannot exceed on the machine as it is at the start."""
        bounds = loop_bounds(self.run.plan, self.job.machine)
        return replace(bounds, links_per_s=math.inf, link=None) if self.job.is_free else bounds

    def rounds_s(self) -> tuple[float, ...]:
        """Durations of the counted rounds."""
        return tuple(
            after - before
            for before, after in itertools.pairwise(self.ends_s[self.job.warm_up - 1 :])
        )

    @property
    def varies(self) -> bool:
        """Whether rounds differ by what happens, and not only by how workers interleave."""
        return any(each.varies for each in self.job.disturbances)

    @cached_property
    def rates_per_s(self) -> list[float]:
        """Updates per second of each worker.

        From the first to the last of its updates that count: exact where its cycle is always the
        same, wherever the counted time begins.
        """
        length_s = self.run.length_s - self.from_s
        counted = [[at for at in own_s if at >= self.from_s] for own_s in self.run.updates_s]
        return [
            (len(own_s) - 1) / (own_s[-1] - own_s[0])
            if len(own_s) > 2 and own_s[-1] > own_s[0]
            else len(own_s) / length_s
            for own_s in counted
        ]

    def step_s(self) -> float:
        """Time in which as many updates are made as there are workers; seconds.

        What was on its way as the counted time began may make it seem shorter than it can be.
        """
        if self.varies:
            return fmean(self.rounds_s())
        return len(self.run.plan.workers) / min(self.bounds.least_per_s, sum(self.rates_per_s))

    # ------------------------------------------------------------ time of workers

    @cached_property
    def breakdown_s(self) -> dict[str, float]:
        """Where the mean worker's time goes, scaled to a step; the parts add up to it."""
        step_s, shares = self.step_s(), self._shares
        parts = dict.fromkeys(PARTS, 0.0) | summed(
            (name, share * step_s / len(shares)) for own in shares for name, share in own.items()
        )
        parts["idle"] = max(0.0, step_s - sum(parts.values()))
        return parts

    @cached_property
    def _shares(self) -> list[dict[str, float]]:
        """Shares of each worker's time by part; those of its complete iterations that count."""
        shares = []
        for worker, rate in enumerate(self.rates_per_s):
            done = len(self.run.work_s[worker])
            first = min(
                sum(at < self.from_s for at in self.run.updates_s[worker]), max(0, done - 1)
            )
            work, waits_s = self.run.work_s[worker][first:], self.run.waits_s[worker][first:done]
            own = {
                kind: rate * fmean(each.get(kind, 0.0) for each in work)
                for kind in dict.fromkeys(kind for each in work for kind in each)
            }
            shares.append(own | {"exposed communication": rate * fmean(waits_s)})
        return shares

    def worker_wait(self) -> float:
        """Mean share of a worker's time in which it waits for answers."""
        return min(1.0, fmean(each["exposed communication"] for each in self._shares))

    def communication(self, exposed_s: float) -> tuple[CommunicationUse, ...]:
        """Messages of an iteration by direction; waiting is shared out by their times under way."""
        exchanges = self.run.plan.exchanges
        pushed = sum(each.push_bytes for each in exchanges)
        rows = (
            ("push", pushed, pushed, self.comm_s((True,))),
            ("pull", sum(each.pull_bytes for each in exchanges), 0.0, self.comm_s((False,))),
        )
        total_s = sum(busy_s for *_, busy_s in rows) or 1.0
        return tuple(
            CommunicationUse(
                op, len(exchanges), round(nbytes), sent, busy_s, exposed_s * busy_s / total_s
            )
            for op, nbytes, sent, busy_s in rows
        )

    def comm_s(self, directions: tuple[bool, ...] = (True, False)) -> float:
        """Time per iteration in which a usual worker has messages under way; seconds.

        `directions`: True for pushes, False for pulls.
        """
        usual = tracked_workers(self.run.plan)[0]
        under_way = [
            (message.start_s, message.end_s)
            for message in self.run.messages
            if message.worker == usual
            and message.is_push in directions
            and message.start_s >= self.from_s
        ]
        iterations = {m.iteration for m in self.run.messages if m.worker == usual}
        return min(covered_s(under_way) / max(1, len(iterations) - self.job.warm_up), self.step_s())

    # ------------------------------------------------------------ servers

    @cached_property
    def server_busy(self) -> tuple[float, ...]:
        """Share of the counted time in which each server updates."""
        from_s, until_s = self.from_s, self.run.length_s
        busy_s = summed(
            (each.server, max(0.0, min(each.end_s, until_s) - max(each.start_s, from_s)))
            for each in self.run.services
        )
        return tuple(busy_s[at] / (until_s - from_s) for at in range(len(self.run.plan.servers)))

    def queue_wait_s(self) -> float:
        """Mean time of a push in the queue of its server; seconds."""
        waits = [e.start_s - e.arrived_s for e in self.run.services if e.arrived_s >= self.from_s]
        return fmean(waits) if waits else 0.0

    def staleness(self) -> Staleness:
        """How late gradients were, of those applied while rounds count."""
        weights = summed(
            (updates, nbytes) for at, updates, nbytes in self.run.staleness if at >= self.from_s
        )
        total, most = sum(weights.values()), max(weights)
        return Staleness(
            mean=sum(updates * weights[updates] for updates in sorted(weights)) / total,
            p50=_percentile(weights, 0.5),
            p90=_percentile(weights, 0.9),
            p99=_percentile(weights, 0.99),
            most=most,
            histogram=_histogram(weights, most),
            most_ahead=max(self.run.leads, default=None),
        )

    # ------------------------------------------------------------ timeline

    def spans(self) -> tuple[Span, ...]:
        """One iteration of a usual worker and what others do meanwhile; times from its start."""
        plan, tracked = self.run.plan, tracked_workers(self.run.plan)
        starts_s = [
            start_s
            for worker, _, index, start_s, _ in self.run.items
            if worker == tracked[0] and index == 0 and start_s >= self.from_s
        ]
        start_s, end_s = [*starts_s[-2:], self.run.length_s, math.inf][:2]
        servers = {server.name for server in plan.servers}
        drawn = {plan.workers[number].name for number in tracked}
        drawn |= {server.name for server in plan.servers[:DRAWN_SERVERS]}
        return tuple(
            span._replace(
                step=0,
                start_s=span.start_s - start_s,
                end_s=span.end_s - start_s,
                ready_s=span.ready_s - start_s,
                stream="update" if span.rank_class in servers else span.stream,
            )
            for span in self.run.spans()
            if start_s <= span.start_s < end_s and span.rank_class in drawn
        )


def _percentile(weights: dict[int, float], share: float) -> int:
    """Smallest number of updates that at least this share of gradients does not exceed."""
    updates = sorted(weights)
    sums = np.cumsum([weights[at] for at in updates])
    return updates[int(np.searchsorted(sums, share * sum(weights.values()) * (1 - 1e-9)))]


def _histogram(weights: dict[int, float], most: int) -> tuple[tuple[int, int, float], ...]:
    """Shares by ranges of updates, of the same width."""
    width, total = max(1, math.ceil((most + 1) / MOST_BARS)), sum(weights.values())
    bars = [range(first, min(most + 1, first + width)) for first in range(0, most + 1, width)]
    return tuple((bar[0], bar[-1], sum(weights.get(at, 0.0) for at in bar) / total) for bar in bars)
