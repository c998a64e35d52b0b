"""Fidelity "flow": each stage of a collective is one fluid job; rates change as jobs come and go.

A job's edges share links max-min fairly with all other edges on the move. At given rates the
job would take `takes_s` from end to end; when the rates change, what is left of it is scaled. So
the cost is a few events per collective, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.library.carry import Carried, Group, Machine, Stage, carry_message
from perfmodel.library.edges import joined
from perfmodel.simulate.estimate import Estimator, add_traffic, stage_s
from perfmodel.simulate.fairness import max_min_rates

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Job:
    """A stage of a collective on the move."""

    way: Carried
    stage: Stage
    done: simpy.Event
    since_s: float  # when `left` was right
    left: float = 1.0  # fraction still to do
    takes_s: float = 0.0  # from end to end at the present rates
    version: int = 0  # counts rate changes, so that an outdated end is ignored
    links: frozenset[int] = frozenset()


@dataclass
class FlowNetwork:
    """The network at fidelity "flow" (see the module)."""

    env: simpy.Environment
    estimator: Estimator
    machine: Machine = field(init=False)
    bytes_on_arc: Floats = field(init=False)
    _active: list[_Job] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.machine = self.estimator.machine
        self.bytes_on_arc = np.zeros(len(self.machine.topology.arcs))

    def collective(self, op: str, nbytes: int, groups: tuple[Group, ...], root: int) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        real = [group for group in groups if len(group) > 1]
        return self.launch([self.estimator.best(op, nbytes, group, root)[0] for group in real])

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self.launch([carry_message(self.machine, src, dst, nbytes)])

    def launch(self, ways: list[Carried]) -> simpy.Event:
        """Start collectives now, each as it is carried; the event fires when all have ended."""
        for way in ways:
            add_traffic(self.bytes_on_arc, way)
        if len(ways) == 1:
            return self.env.process(self._travel(ways[0]))
        return self.env.all_of([self.env.process(self._travel(way)) for way in ways])

    def _travel(self, way: Carried) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(way.launch_s)
        for stage in way.stages:
            job = _Job(way, stage, self.env.event(), since_s=self.env.now)
            self._active.append(job)
            self._resolve(job)
            yield job.done

    def _resolve(self, changed: _Job) -> None:
        """Solve again the rates of every job that shares links, directly or not, with this one."""
        touched = self._touched(changed)
        if len(touched) == 1:
            self._set(touched[0], self.estimator.alone_s(touched[0].way, touched[0].stage))
        if len(touched) < 2:
            return
        edges = joined([job.stage.edges for job in touched])
        caps = np.concatenate([job.stage.cap_Bps for job in touched])
        capacity = self.machine.topology.arcs.bandwidth_Bps
        rates = max_min_rates(capacity, edges.pointers, edges.arcs, caps)
        ends = np.cumsum([len(job.stage.edges) for job in touched])
        for job, part in zip(touched, np.split(rates, ends[:-1]), strict=True):
            self._set(job, stage_s(job.way, job.stage, part))

    def _touched(self, changed: _Job) -> list[_Job]:
        """Jobs connected to one through shared links, itself included while it is active."""
        if len(self._active) == 1 and self._active[0] is changed:
            return [changed]
        found, links = [changed], set(_links(changed))
        rest = [job for job in self._active if job is not changed]
        while near := [job for job in rest if not links.isdisjoint(_links(job))]:
            found += near
            rest = [job for job in rest if job not in near]
            links.update(*(_links(job) for job in near))
        return [job for job in found if job in self._active]

    def _set(self, job: _Job, takes_s: float) -> None:
        """Give a job its new duration, and with it its new end."""
        now = self.env.now
        if job.takes_s > 0:
            job.left = max(0.0, job.left - (now - job.since_s) / job.takes_s)
        job.takes_s, job.since_s, job.version = takes_s, now, job.version + 1
        self.env.timeout(job.left * takes_s).callbacks.append(self._ending(job))

    def _ending(self, job: _Job) -> Callable[[simpy.Event], None]:
        version = job.version

        def end(_: simpy.Event) -> None:
            if version != job.version:
                return
            self._active.remove(job)
            if self._active:
                self._resolve(job)
            job.done.succeed()

        return end


def _links(job: _Job) -> frozenset[int]:
    """Links of a job; worked out only when there is another job to compare with."""
    if not job.links:
        job.links = frozenset(np.unique(job.stage.edges.arcs).tolist())
    return job.links
