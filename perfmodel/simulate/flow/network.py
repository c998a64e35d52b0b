"""Fidelity "flow": each stage of a collective is a set of fluid edges; rates change as jobs come.

Edges share links max-min fairly with all other edges on the move, those of their own collective and
those of others. At given rates the times of all sends follow from a recurrence over edges
(`perfmodel.collectives.timing.variable_rate`), which ranks hand on from stage to stage one by one; when rates
change, what is sent stays sent. So the cost is a few events per collective, whatever the number of
ranks, and two simplifications remain: an edge has one rate while it sends, whoever else sends at
that moment, and others meet it at its average.

It equals fidelity "message" for one collective on links that no two of its edges share, whatever
their speeds, the library's credits and the algorithm. Elsewhere see decision 0002.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.arrays import RankGroup
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.approximation import NOTES, ApproximationNote, Why, approximated
from perfmodel.simulate.flow.transfers import Collective, Flow, sort_key, stream_stage
from perfmodel.simulate.network import (
    LinkCounters,
    count_collective,
    count_stream,
    nothing_counted,
    stage_text,
)
from perfmodel.simulate.sharing.between_collectives import (
    SHORTEST_S,
    Meeting,
    Share,
    in_turns,
    shared_rates,
)
from perfmodel.simulate.uncontended import Adapted, Timed, UncontendedTimer

Floats = NDArray[np.float64]
Job = Collective | Flow

LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): everything that starts at one time shares from the start."""


@dataclass
class FlowNetwork:
    """The network at fidelity "flow" (see the module).

    Parameters
    ----------
    env : simpy.Environment
    estimator : UncontendedTimer
    changes_left : int, optional
        How often the machine will still change, if that is known: then traffic that stands still
        after the last time is an error at once.
    """

    env: simpy.Environment
    estimator: UncontendedTimer
    changes_left: int | None = None
    machine: Machine = field(init=False)
    _counted: LinkCounters = field(init=False)
    _uncounted: dict[int, tuple[LoweredCollective, int]] = field(default_factory=dict, init=False)
    _meeting: Meeting[Job] = field(default_factory=Meeting, init=False)
    _active: dict[Job, None] = field(default_factory=dict, init=False)
    _stirred: list[Job | frozenset[int]] = field(default_factory=list, init=False)
    _present: UncontendedTimer = field(init=False)  # of the machine as it is now
    _adapted: Adapted = field(init=False)
    _why: dict[Why, None] = field(default_factory=dict, init=False)
    _sent: dict[tuple[int, ...], tuple[Timed, ...]] = field(default_factory=dict, init=False)
    _links: dict[int, tuple[Edges, frozenset[int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.machine, self._present = self.estimator.machine, self.estimator
        self._adapted = Adapted(self.estimator, self.machine)
        self._counted = nothing_counted(len(self.machine.topology.arcs))

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        self._count_streams()
        for way, times in self._uncounted.values():
            count_collective(self._counted, way, times)
        self._uncounted.clear()
        return self._counted

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation (see `perfmodel.simulate.flow.approximation`)."""
        alone = (
            approximated(tuple(t.stage for t in legs), tuple(t.rates_Bps for t in legs))
            for legs in self._sent.values()
        )
        why = {*self._why, *alone}
        return tuple(note for name, note in NOTES.items() if name in why)

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int
    ) -> simpy.Event:
        """Start a collective in every group now; the event fires when the last has ended."""
        return self.launch(self.estimator.ways(op, nbytes, groups, root))

    def message(self, src: int, dst: int, nbytes: int) -> simpy.Event:
        """Start a point-to-point message now; the event fires when it is delivered."""
        return self.launch([self._adapted.message(src, dst, nbytes)])

    def launch(self, ways: list[LoweredCollective]) -> simpy.Event:
        """Start collectives now, each as it is carried; the event fires when all have ended."""
        ended = []
        for way in ways:
            now = self._adapted.now(way)
            self._uncounted[id(now)] = (now, self._uncounted.get(id(now), (now, 0))[1] + 1)
            ended.append(self.env.event())
            self._at(self.env.now + way.launch_s, self._beginning(way, ended[-1]))
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    def occupy(self, _work_s: float, _ranks: int) -> None:
        """Hold up nobody: here, messages need no cores."""

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send somebody else's bytes over some arcs from now on, at most at `cap_Bps`."""
        job = Flow(stream_stage(route, cap_Bps), nbytes, self.env.now, self.env.event())
        self._enter(job)
        return job.done

    def become(self, machine: Machine) -> None:
        """From now on the machine is this one; what is sent stays sent.

        Raises
        ------
        TopologyError
            No route is left between two that have to talk.
        SimulationError
            A collective stands still, and the machine will not change any more.
        """
        self._count_streams()
        self.changes_left = None if self.changes_left is None else max(0, self.changes_left - 1)
        same = machine is self.estimator.machine
        self.machine, self._present = machine, self.estimator if same else UncontendedTimer(machine)
        self._adapted.become(machine)
        for job in self._active:
            if isinstance(job, Flow):
                job.stage = _around(machine, job.stage)
            else:
                stages = self._adapted.legs(job.laid)[job.leg :]
                job.recount(self.env.now, self._counted, stages)
                job.move(stages[0])
        if any(isinstance(job, Collective) for job in self._active):
            self._why["changed"] = None
        self._meeting = Meeting()
        self._stirred += self._active
        self._settle()

    def _beginning(
        self, way: LoweredCollective, done: simpy.Event
    ) -> Callable[[simpy.Event], None]:
        def begin(_: simpy.Event) -> None:
            now = self._adapted.now(way)
            if not now.stages:
                done.succeed()
                return
            job = Collective(way, now, self._present, self.env.now, done)
            self._sent.setdefault(tuple(id(leg.stage.edges) for leg in job.legs), job.legs)
            self._enter(job)

        return begin

    def _enter(self, job: Job) -> None:
        """Put a job on its links."""
        self._active[job] = None
        self._stir(job)

    def _leave(self, job: Job) -> None:
        """Take a job off its links."""
        del self._active[job]
        if job in self._meeting:
            self._stir(self._meeting.leave(job))

    def _stir(self, what: Job | frozenset[int]) -> None:
        """See to it that rates are solved when everything else of an instant has happened."""
        if not self._stirred:
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._settle())
            self.env.schedule(event, LAST_IN_INSTANT)  # type: ignore[arg-type]
        self._stirred.append(what)

    def _settle(self) -> None:
        """Solve the rates of all jobs that share links with what has come, gone or changed."""
        stirred, self._stirred = self._stirred, []
        if len(self._active) == 1:
            self._solve(list(self._active))
            return
        for job in self._active:
            if job not in self._meeting:
                self._meeting.enter(job, self._links_of(job.stage.edges))
        solved: set[Job] = set()
        for what in stirred:
            if isinstance(what, frozenset) or (what in self._active and what not in solved):
                links = what if isinstance(what, frozenset) else self._meeting.links(what)
                for near in self._meeting.apart(links):
                    if solved.isdisjoint(near):
                        self._solve(sorted(near, key=sort_key))
                        solved |= near

    def _solve(self, jobs: list[Job]) -> None:
        """Give jobs that share links with each other, and with no other, their rates."""
        if len(jobs) == 1:
            job = jobs[0]
            if isinstance(job, Flow):
                self._set(job, np.array([self._alone_Bps(job)]))
            elif self._present is job.known and not job.is_disturbed:
                self._set(job, job.rates_Bps)
            else:
                self._set(job, self._present.rates(job.stage))
        elif self.machine.library.in_order:
            self._why["met"] = None
            self._take_turns(jobs)
        else:
            capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
            shares = [self._share(job) for job in jobs]
            if len({share.together for share in shares}) > 1:
                self._why["met"] = None
            rates = shared_rates(capacity_Bps, shares)
            for job, part in zip(jobs, rates, strict=True):
                self._set(job, part)

    def _share(self, job: Job) -> Share:
        if isinstance(job, Flow):
            return Share(job.stage, np.array([np.inf]), lambda _: 1.0, job)
        return Share(job.stage, job.wire_bytes(), job.takes_s, job.together())

    def _take_turns(self, jobs: list[Job]) -> None:
        """Solve jobs whose messages follow one another on their connections, each at full rate."""
        asked = [
            np.array([self._alone_Bps(job)])
            if isinstance(job, Flow)
            else job.wire_bytes() / max(job.alone_s(), SHORTEST_S)
            for job in jobs
        ]
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        found = in_turns(capacity_Bps, [job.stage for job in jobs], asked)
        for job, (rate_Bps, slower) in zip(jobs, found, strict=True):
            if isinstance(job, Flow):
                self._set(job, rate_Bps)
            else:
                self._set(job, self._present.rates(job.stage), slower)

    def _set(self, job: Job, rates_Bps: Floats, slower: float = 1.0) -> None:
        """Give a job its rates, and with them its new end."""
        now_s = self.env.now
        if isinstance(job, Flow):
            self._count(job)
            job.rate_Bps = float(rates_Bps[0])
            wire_s = now_s + job.nbytes / job.rate_Bps if job.rate_Bps else np.inf
        else:
            changed = job.set_rates(now_s, rates_Bps, slower)
            if not changed and job.version:
                return
            wire_s = job.start_s + self._ends_s(job)[0]
            if np.isinf(wire_s) and self.changes_left == 0:
                raise SimulationError(stage_text(self.machine, job.way, job.stage))
        job.version += 1
        if wire_s < np.inf:
            self._at(wire_s, self._ending(job))

    def _ends_s(self, job: Collective) -> tuple[float, float]:
        """When the last byte of a collective's leg leaves, and when all so far has landed."""
        ends = job.ends()
        landed_s = max(job.landed_s, ends.last_s)
        if not job.is_last or self._present is not job.known:
            return ends.wire_s, landed_s
        least_s = job.known.cut_s(job.way)
        return max(ends.wire_s, least_s), max(landed_s, least_s)

    def _ending(self, job: Job) -> Callable[[simpy.Event], None]:
        version = job.version

        def end(_: simpy.Event) -> None:
            if version != job.version:
                return
            self._leave(job)
            if isinstance(job, Flow):
                self._count(job)
                job.done.succeed()
            elif job.is_last:
                self._at(job.start_s + self._ends_s(job)[1], _saying(job.done))
            else:
                self._go_on(job)

        return end

    def _go_on(self, job: Collective) -> None:
        """Begin the next leg of a collective."""
        stage = job.stage
        if job.is_disturbed:
            stage = self._adapted.legs(job.laid)[job.leg + 1]
        job.next_leg(stage, self._present.rates(stage))
        job.version = 0
        self._enter(job)

    def _at(self, time_s: float, callback: Callable[[simpy.Event], None]) -> None:
        timer = self.env.timeout(max(0.0, time_s - self.env.now))
        timer.callbacks.append(callback)

    def _alone_Bps(self, job: Flow) -> float:
        """Rate of a stream with the network for itself."""
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps[job.stage.edges.arcs]
        return float(min(job.stage.cap_Bps[0], capacity_Bps.min()))

    def _links_of(self, edges: Edges) -> frozenset[int]:
        if id(edges) not in self._links:
            self._links[id(edges)] = (edges, frozenset(np.unique(edges.arcs).tolist()))
        return self._links[id(edges)][1]

    def _count_streams(self) -> None:
        """Count what streams have sent since their rates changed last."""
        for job in self._active:
            if isinstance(job, Flow):
                self._count(job)

    def _count(self, job: Flow) -> None:
        count_stream(self._counted, job.stage.edges.arcs, job.send(self.env.now))


def _saying(done: simpy.Event) -> Callable[[simpy.Event], None]:
    def say(_: simpy.Event) -> None:
        done.succeed()

    return say


def _around(machine: Machine, stage: Stage) -> Stage:
    """Lead a stream around links that are lost."""
    topology, arcs = machine.topology, stage.edges.arcs
    if topology.dead.isdisjoint(arcs.tolist()):
        return stage
    names = topology.arcs.names
    route = machine.router.route(names[int(arcs[0])][0], names[int(arcs[-1])][1])
    return stream_stage(route, float(stage.cap_Bps[0]))
