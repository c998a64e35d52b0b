"""Fidelity "flow": a collective is one fluid job; its rates change when other jobs come or go.

A job's edges share links max-min fairly with all other edges on the move. At given rates the
job would take `takes_s` from end to end; when the rates change, what is left of it is scaled. So
the cost is a few events per collective, whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.library.carry import Carried, Group, Machine, carry_message
from perfmodel.library.edges import Edges, joined
from perfmodel.simulate.estimate import Estimator, add_traffic, takes_s
from perfmodel.simulate.fairness import max_min_rates

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class _Job:
    """A collective (in all its groups) or a message on the move."""

    parts: tuple[Carried, ...]
    edges: Edges
    caps_Bps: Floats
    links: frozenset[int]
    done: simpy.Event
    since_s: float  # when `left` was right
    left: float = 1.0  # fraction still to do
    takes_s: float = 0.0  # from end to end at the present rates
    version: int = 0  # counts rate changes, so that an outdated end is ignored


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
        return self._launch(
            tuple(self.estimator.best(op, nbytes, group, root)[0] for group in real)
        )

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self._launch((carry_message(self.machine, src, dst, nbytes),))

    def _launch(self, parts: tuple[Carried, ...]) -> simpy.Event:
        done = self.env.event()
        if not parts:
            return done.succeed()
        for part in parts:
            add_traffic(self.bytes_on_arc, part)
        launch = self.env.timeout(max(part.launch_s for part in parts))
        launch.callbacks.append(lambda _: self._start(parts, done))
        return done

    def _start(self, parts: tuple[Carried, ...], done: simpy.Event) -> None:
        edges = parts[0].edges if len(parts) == 1 else joined([part.edges for part in parts])
        caps = np.concatenate([part.cap_Bps for part in parts])
        links = frozenset(np.unique(edges.arcs).tolist()) if self._active else frozenset()
        job = _Job(parts, edges, caps, links, done, since_s=self.env.now)
        self._active.append(job)
        self._resolve(job)

    def _resolve(self, changed: _Job) -> None:
        """Solve again the rates of every job that shares links, directly or not, with this one."""
        touched = self._touched(changed)
        if not touched:
            return
        if len(touched) == 1 and len(touched[0].parts) == 1:
            self._set(touched[0], self.estimator.alone_s(touched[0].parts[0]))
            return
        edges = joined([job.edges for job in touched])
        caps = np.concatenate([job.caps_Bps for job in touched])
        capacity = self.machine.topology.arcs.bandwidth_Bps
        rates = max_min_rates(capacity, edges.pointers, edges.arcs, caps)
        ends = np.cumsum([len(job.edges) for job in touched])
        for job, part in zip(touched, np.split(rates, ends[:-1]), strict=True):
            self._set(job, _takes_s(job, part))

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

    def _set(self, job: _Job, takes: float) -> None:
        """Give a job its new duration, and with it its new end."""
        now = self.env.now
        if job.takes_s > 0:
            job.left = max(0.0, job.left - (now - job.since_s) / job.takes_s)
        job.takes_s = takes
        job.since_s, job.version = now, job.version + 1
        version = job.version
        end = self.env.timeout(job.left * job.takes_s)
        end.callbacks.append(lambda _: self._finish(job, version))

    def _finish(self, job: _Job, version: int) -> None:
        if version != job.version:
            return
        self._active.remove(job)
        if self._active:
            self._resolve(job)
        job.done.succeed()


def _takes_s(job: _Job, rates: Floats) -> float:
    """Time of a whole job at given rates: that of its slowest group; seconds."""
    ends = np.cumsum([len(part.edges) for part in job.parts])
    pieces = np.split(rates, ends[:-1])
    return max(takes_s(part, rate) for part, rate in zip(job.parts, pieces, strict=True))


def _links(job: _Job) -> frozenset[int]:
    """Links of a job; worked out only when there is another job to compare with."""
    if not job.links:
        job.links = frozenset(np.unique(job.edges.arcs).tolist())
    return job.links
