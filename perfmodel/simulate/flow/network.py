"""Fidelity "flow": each stage of a collective is a set of fluid edges with rates.

Edges share links max-min fairly with all other active edges, of their own collective and of others.
At given rates the times of all sends follow from a recurrence over edges
(`perfmodel.collectives.timing.variable_rate`); each rank proceeds from stage to stage by
itself.
When rates change, bytes already sent stay sent. The cost is a few events per collective, whatever
the number of ranks, at two simplifications: an edge has one rate while it sends, whatever else is
active at that moment, and other collectives share links with its average rate.

It equals fidelity "message" for one collective on links that no two of its edges share, whatever
their speeds, the library's credits and the algorithm. Elsewhere see decision 0002.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, RankGroup
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.memo import once
from perfmodel.simulate.flow.alike_collectives import (
    JoinedCollectives,
    SharesMet,
    alone_Bps,
    solve_at_once,
    solve_in_turns,
)
from perfmodel.simulate.flow.approximation import NOTES, ApproximationNote, Why, why_approximate
from perfmodel.simulate.flow.stream_network import Arrival, Streams, begin_streams, stream_stage
from perfmodel.simulate.flow.transfers import Collective, sort_key
from perfmodel.simulate.network import (
    CollectiveCall,
    LinkCounters,
    Network,
    call_at,
    count_bytes,
    count_collective,
    reroute_stream,
    schedule_last,
    stage_text,
    succeed_at,
)
from perfmodel.simulate.sharing.between_collectives import (
    LinkSet,
    LinkSets,
    LinkUsers,
)
from perfmodel.simulate.sharing.duty_cycle import TimedLeg
from perfmodel.simulate.uncontended import UncontendedTimer

Job = Collective | Streams

BOUND_TOLERANCE = 1e-9
"""By how much a bound on a time is lowered, so that rounding does not put it behind the time."""


@dataclass
class FlowNetwork(Network):
    """The network at fidelity "flow" (see the module and `Network`)."""

    instead_of_sockets: bool = False
    """Whether messages on sockets would be nearer to what the library does."""
    _uncounted: Counter[LoweredCollective] = field(default_factory=Counter, init=False)
    _link_users: LinkUsers[Job] = field(default_factory=LinkUsers, init=False)
    _launching: dict[int, Sequence[LoweredCollective]] = field(default_factory=dict, init=False)
    """Collectives that have not sent anything yet, by the number of their launch."""
    _launched: int = field(default=0, init=False)
    _arrived: list[Arrival] = field(default_factory=list, init=False)
    """Streams that begin in this instant."""
    _active: dict[Job, None] = field(default_factory=dict, init=False)
    _changed: list[Job | LinkSet] = field(default_factory=list, init=False)
    _approximated: dict[Why, None] = field(default_factory=dict, init=False)
    _groups: dict[tuple[RankGroup, ...], int] = field(default_factory=dict, init=False)
    """Groups with their numbers."""
    _sent: dict[tuple[Edges, ...], tuple[TimedLeg, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._timer = self.timer  # of the machine as it is now

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        self._count_streams()
        for lowered, times in self._uncounted.items():
            if self.machine is self.timer.machine:
                count_bytes(self._counted, self.timer.link_bytes(lowered), times)
            else:
                count_collective(self._counted, lowered, times)
        self._uncounted.clear()
        return self._counted

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation (see `approximation.py`)."""
        reasons = {
            *self._approximated,
            *(self.timer.of_legs(legs, _why_alone) for legs in self._sent.values()),
        }
        if self.instead_of_sockets and self._sent:
            reasons.add("sockets")
        return tuple(note for why, note in NOTES.items() if why in reasons)

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        return self.launch([lowered])

    def launch(self, collectives: Sequence[LoweredCollective]) -> simpy.Event:
        """Start lowered collectives now; the event fires when all have ended."""
        landing = _Landing(self.env, self.env.event(), len(collectives))
        if not collectives:
            landing.ended.succeed()
        by_delay_s: dict[float, list[LoweredCollective]] = {}
        for lowered in collectives:
            self._now(lowered)  # raises where no route is left
            by_delay_s.setdefault(lowered.launch_s, []).append(lowered)
        for delay_s, together in by_delay_s.items():
            self._launched += 1
            self._launching[self._launched] = together
            self.env.timeout(delay_s).callbacks.append(
                partial(self._begin, self._launched, landing)
            )
        return landing.ended

    def _number(self, groups: tuple[RankGroup, ...]) -> int:
        joined = self.timer.keep(JoinedCollectives)
        return once(self._groups, groups, lambda: joined.number_of(groups))

    def collective(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int, times: int = 1
    ) -> simpy.Event:
        """Start a collective in every group; groups on links of their own are one job."""
        joined, number = self.timer.keep(JoinedCollectives), self._number(groups)
        return self.launch(
            joined.of(self.timer, op, nbytes, groups, root, number=number, times=times)
        )

    def count_alone(self, calls: Iterable[CollectiveCall]) -> None:
        """Count collectives that have their links for themselves, without simulating them."""
        joined = self.timer.keep(JoinedCollectives)
        for (op, nbytes, groups, root, times), number in Counter(calls).items():
            of_groups = self._number(groups)
            for lowered in joined.of(
                self.timer, op, nbytes, groups, root, number=of_groups, times=times
            ):
                self._uncounted[lowered] += number
                legs = self.timer.timed_legs(lowered)
                self._sent.setdefault(tuple([leg.edges for leg in legs]), legs)

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic over some arcs from now on, at most at `cap_Bps`."""
        arrival = Arrival(route, cap_Bps, nbytes, self.env.event())
        self._schedule_update()
        self._arrived.append(arrival)
        return arrival.done

    def become(self, machine: Machine) -> None:
        """Go on on this machine; bytes already sent stay sent.

        Raises `TopologyError`: no route is left between two ranks that have to communicate. Raises
        `SimulationError`: a collective stalls, and the machine will not change any more.
        """
        self._enter_streams()
        self._count_streams()
        self._note_change(machine)
        self._timer = self.timer if machine is self.timer.machine else UncontendedTimer(machine)
        for together in self._launching.values():
            for lowered in together:
                self._now(lowered)  # raises where no route is left
        for job in self._active:
            if isinstance(job, Streams):
                job.stage = stream_stage(
                    [reroute_stream(machine, route) for route in job.routes],
                    job.stage.cap_Bps.tolist(),
                )
            else:
                stages = self._legs_now(job.original)[job.leg :]
                job.recount(self.env.now, self._counted, stages)
                job.reroute(stages[0])
        if any(isinstance(job, Collective) for job in self._active):
            self._approximated["changed"] = None
        self._link_users = LinkUsers()
        for job in self._active:
            self._link_users.enter(job, self._links(job))
        self._changed += self._active
        self._update_rates()

    def _begin(self, number: int, landing: _Landing, _: simpy.Event) -> None:
        """Begin collectives that were launched together."""
        for lowered in self._launching.pop(number):
            now = self._now(lowered)
            self._uncounted[now] += 1
            if not now.stages:
                landing.land(self.env.now)
                continue
            job = Collective(lowered, now, self._timer, self.env.now, landing.land)
            self._sent.setdefault(tuple([leg.edges for leg in job.legs]), job.legs)
            self._enter(job)

    def _enter(self, job: Job) -> None:
        """Put a job on its links; rates are solved at once where it shares them with no other."""
        self._active[job] = None
        self._link_users.enter(job, self._links(job))
        if isinstance(job, Collective) and not self._link_users.shares(job):
            self._solve([job])
        else:
            self._schedule_update()
            self._changed.append(job)

    def _leave(self, job: Job) -> None:
        """Take a job off its links."""
        del self._active[job]
        shared = self._link_users.leave(job)
        if shared:
            self._schedule_update()
            self._changed += shared

    def _links(self, job: Job) -> LinkSet:
        edges = job.edges  # those of streams are made anew for each burst
        return once(
            self.timer.keep_laid(LinkSets),
            edges if isinstance(job, Collective) else edges.arcs.tobytes(),
            lambda: LinkSet(edges.arcs),
        )

    def _schedule_update(self) -> None:
        """Solve rates again when everything else of this instant has happened."""
        if not self._changed and not self._arrived:
            schedule_last(self.env, lambda _: self._update_rates())

    def _enter_streams(self) -> None:
        """Put the streams that begin in this instant on their links."""
        arrived, self._arrived = self._arrived, []
        for job in begin_streams(arrived, self.env.now):
            self._active[job] = None
            self._link_users.enter(job, self._links(job))
            self._changed.append(job)

    def _update_rates(self) -> None:
        """Solve the rates of all jobs that share links with one that started, ended or changed."""
        self._enter_streams()
        changed, self._changed = self._changed, []
        if len(self._active) == 1:
            self._solve(list(self._active))
            return
        users, solved = self._link_users, set[LinkSet]()
        for each in changed:
            if isinstance(each, LinkSet):
                links = each
            elif each in self._active:
                links = users.links(each)
            else:
                continue
            if links in solved or not users.are_used(links):
                continue
            for component in users.components(links):
                self._solve(sorted(component, key=lambda job: sort_key(job, users.links(job).mark)))
                solved.update(users.links(job) for job in component)

    def _solve(self, jobs: list[Job]) -> None:
        """Give jobs that share links with each other, and with no other, their rates."""
        job = jobs[0]
        if isinstance(job, Streams) and len(jobs) == len(job) == 1:
            self._set_streams([job], alone_Bps(self.machine, job.stage))
            return
        if isinstance(job, Collective) and len(jobs) == 1:
            is_as_begun = self._timer is job.timer and not job.is_disturbed
            self._set(job, None if is_as_begun else self._timer.rates(job.stage))
            return
        flows = [job for job in jobs if isinstance(job, Streams)]
        collectives = [job for job in jobs if isinstance(job, Collective)]
        solve = solve_in_turns if self.machine.library.in_order else solve_at_once
        if self.machine.library.in_order or flows or len({job.key() for job in collectives}) > 1:
            self._approximated["met"] = None
        flow_rates_Bps, shares = self._timer.keep(SharesMet).of(
            solve, self.machine, self._timer, flows, collectives
        )
        for job, share in zip(collectives, shares, strict=True):
            self._set(job, *share)
        if flows:
            self._set_streams(flows, flow_rates_Bps)

    def _set(self, job: Collective, rates_Bps: FloatArray | None, slower: float = 1.0) -> None:
        """Give a collective its rates, and with them its new end; None: those that it has."""
        changed = rates_Bps is not None and job.set_rates(self.env.now, rates_Bps, slower)
        if job.timed and not changed:
            return
        job.timed = True
        job.version += 1
        least_s = 0.0
        if job.is_disturbed and (rates_Bps is None or rates_Bps.all()):
            # Most rates change again before the leg ends, which is worked out when it may be near.
            least_s = job.start_s + (1 - BOUND_TOLERANCE) * job.least_wire_s()
        if least_s <= self.env.now:
            self._schedule_end(job, job.version)
        else:
            call_at(self.env, least_s, partial(self._schedule_end, job, job.version))

    def _schedule_end(self, job: Collective, version: int, _: simpy.Event | None = None) -> None:
        """Work out when the leg of a collective ends, and end it then, unless it has changed."""
        if version != job.version:
            return
        wire_s = job.start_s + self._ends_s(job)[0]
        if np.isinf(wire_s) and self.changes_left == 0:
            raise SimulationError(stage_text(self.machine, job.lowered, job.stage))
        if wire_s < np.inf:
            call_at(self.env, wire_s, partial(self._end, job, version))

    def _set_streams(self, jobs: Sequence[Streams], rates_Bps: FloatArray) -> None:
        """Give streams their rates, and with them their new ends."""
        ends = np.cumsum([len(job) for job in jobs])[:-1]
        for job, part in zip(jobs, np.split(rates_Bps, ends), strict=True):
            if job.set_rates(self.env.now, part, self._counted):
                self._schedule_first_end(job)

    def _schedule_first_end(self, job: Streams) -> None:
        """End those of some streams that end first, unless their rates change before."""
        first_s = job.first_s()
        if first_s < np.inf:
            call_at(self.env, first_s, partial(self._end_streams, job, job.version))

    def _end_streams(self, job: Streams, version: int, _: simpy.Event) -> None:
        """End those of some streams that end now; they leave together, and rates change once."""
        if version != job.version:
            return
        self._leave(job)
        for event in job.finish(self.env.now, self._counted):
            event.succeed()
        job.version += 1
        if len(job):
            self._enter(job)
            self._schedule_first_end(job)

    def _ends_s(self, job: Collective) -> tuple[float, float]:
        """When the last byte of a collective's leg leaves, and when all so far has landed."""
        ends = job.ends()
        landed_s = max(job.landed_s, ends.last_s)
        if not job.is_last or self._timer is not job.timer:
            return ends.wire_s, landed_s
        least_s = job.timer.busiest_link_bound_s(job.lowered)
        return max(ends.wire_s, least_s), max(landed_s, least_s)

    def _end(self, job: Collective, version: int, _: simpy.Event) -> None:
        """End the leg of a collective, unless its rates have changed, and begin the next."""
        if version != job.version:
            return
        self._leave(job)
        if job.is_last:
            job.land(job.start_s + self._ends_s(job)[1])
            job.release()
            return
        if job.is_disturbed:
            stage = self._legs_now(job.original)[job.leg + 1]
            job.next_leg(stage, self._timer.rates(stage))
        else:
            job.next_leg()
        job.timed = False  # the version goes on: ends of the leg before are still scheduled
        self._enter(job)

    def _count_streams(self) -> None:
        """Count what streams have sent since their rates changed last."""
        for job in self._active:
            if isinstance(job, Streams):
                job.send(self.env.now, self._counted)


@dataclass(slots=True)
class _Landing:
    """Collectives that were started together: `ended` fires when all of them have landed."""

    env: simpy.Environment
    ended: simpy.Event
    under_way: int
    landed_s: float = 0.0

    def land(self, landed_s: float) -> None:
        """Note when the bytes of one will have landed; all of them have left."""
        self.under_way -= 1
        self.landed_s = max(self.landed_s, landed_s)
        if not self.under_way:
            succeed_at(self.env, self.ended, self.landed_s)


def _why_alone(legs: tuple[TimedLeg, ...]) -> Why | None:
    """Return why a collective without other traffic is approximated; None if it is not."""
    stages, rates = zip(
        *(leg.expand() for leg in legs), strict=True
    )  # which may be large: not kept
    return why_approximate(stages, rates)
