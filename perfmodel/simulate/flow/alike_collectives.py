"""Collectives that groups of ranks run at the same time, as one; and one after another, as one.

Each tensor-parallel group of a thousand runs the same collective on links of its own. One job with
the edges of all of them takes the time of each, at the cost of one. So does one job for several in
a row: times of a collective are homogeneous in its bytes and latencies together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup, digest
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.variable_rate import CompletionTimes
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage
from perfmodel.library.lowering.rerouting import Placed
from perfmodel.library.machine import Machine
from perfmodel.memo import grouped, once
from perfmodel.simulate.flow.joined_edges import JoinedEdges
from perfmodel.simulate.flow.stream_network import Streams, joined_stage
from perfmodel.simulate.flow.transfers import Collective
from perfmodel.simulate.sharing.between_collectives import (
    SHORTEST_S,
    LinkSharings,
    Share,
    rates_in_turns,
    shared_rates,
)
from perfmodel.simulate.sharing.duty_cycle import TimedLeg, is_steady, joined_stages
from perfmodel.simulate.uncontended import UncontendedTimer

Shares = tuple[FloatArray, list[tuple[FloatArray, float]]]
"""Rate of each stream; for each collective the rate of each edge, and by how much it is slower."""
Solve = Callable[[Machine, UncontendedTimer, Sequence[Streams], Sequence[Collective]], Shares]

MOST_KEPT = 1 << 22
"""Rates, or arrays of rates, that are kept of jobs that met before; 8 bytes each."""


@dataclass
class SharesMet:
    """Shares of jobs that met on their links before: jobs that repeat themselves meet again.

    Shared by all simulations of one machine. In which order jobs began changes no share.
    """

    solved: int = 0
    """How often shares were solved."""
    _kept: int = 0
    _shares: dict[Hashable, Shares] = field(default_factory=dict)
    _numbers: dict[LoweredCollective, int] = field(default_factory=dict)
    _rates: dict[bytes, FloatArray] = field(default_factory=dict)
    """Rates that are alike once: of jobs that others do not slow, and of layers that are alike."""

    def of(
        self,
        solve: Solve,
        machine: Machine,
        timer: UncontendedTimer,
        flows: Sequence[Streams],
        collectives: Sequence[Collective],
    ) -> Shares:
        """Return what `solve` returns for these jobs."""
        ordered, number_of = sorted(collectives, key=self._order), dict[Hashable, int]()
        jobs = tuple(  # and which of them began together, whenever that was
            (job.lowered, job.stage, job.leg, number_of.setdefault(job.key(), len(number_of)))
            for job in ordered
        )
        routes = tuple(
            values.tobytes()
            for edges in (job.edges for job in flows)
            for values in (edges.cap_Bps, edges.pointers, edges.arcs)
        )
        shares = self._shares.get((machine, jobs, routes))
        if shares is None:
            shares = solve(machine, timer, flows, ordered)
            self.solved += 1
            if self._kept <= MOST_KEPT:
                shares = shares[0], [(self._once(rates), slower) for rates, slower in shares[1]]
                self._kept += len(shares[0])
                self._shares[machine, jobs, routes] = shares
        own = dict(zip(ordered, shares[1], strict=True))
        return shares[0], [own[job] for job in collectives]

    def _once(self, rates_Bps: FloatArray) -> FloatArray:
        before = len(self._rates)
        kept = once(self._rates, digest(rates_Bps), rates_Bps.copy)  # no part of a larger array
        self._kept += len(rates_Bps) if len(self._rates) > before else 1
        return kept

    def _order(self, job: Collective) -> tuple[int, int, float]:
        return self._numbers.setdefault(job.lowered, len(self._numbers)), job.leg, job.start_s


def solve_at_once(
    machine: Machine,
    timer: UncontendedTimer,
    flows: Sequence[Streams],
    collectives: Sequence[Collective],
) -> Shares:
    """Solve jobs whose messages share links at the same time."""
    shares = [Share(job.stage, job.wire_bytes(), job.takes_s, job.key()) for job in collectives]
    if flows:  # streams send all the time, so that one share can stand for all of them
        stage = joined_stage(flows)
        shares.append(Share(stage, np.full(len(stage.edges), np.inf), lambda _: 1.0, "streams"))
    sharings = None if flows else timer.keep_rated(LinkSharings)  # streams have edges of their own
    rates = shared_rates(machine.topology.arcs.bandwidth_Bps, shares, sharings)
    return rates.pop() if flows else np.zeros(0), [(rate_Bps, 1.0) for rate_Bps in rates]


def solve_in_turns(
    machine: Machine,
    timer: UncontendedTimer,
    flows: Sequence[Streams],
    collectives: Sequence[Collective],
) -> Shares:
    """Solve jobs of libraries that send one message after another on a connection."""
    stages = [job.stage for job in collectives]
    needed_Bps = [job.wire_bytes() / max(job.alone_s(), SHORTEST_S) for job in collectives]
    if flows:
        stages.append(joined_stage(flows))
        needed_Bps.append(alone_Bps(machine, stages[-1]))
    shares = rates_in_turns(machine.topology.arcs.bandwidth_Bps, stages, needed_Bps)
    of_flows = shares.pop()[0] if flows else np.zeros(0)
    return of_flows, [
        (timer.rates(job.stage), slower)
        for job, (_, slower) in zip(collectives, shares, strict=True)
    ]


def alone_Bps(machine: Machine, stage: Stage) -> FloatArray:
    """Rate of each edge of streams without other traffic; bytes per second, shape (edges,)."""
    capacity_Bps = machine.topology.arcs.bandwidth_Bps[stage.edges.arcs]
    return np.minimum(stage.cap_Bps, np.minimum.reduceat(capacity_Bps, stage.edges.pointers[:-1]))


@dataclass
class JoinedCollectives:
    """Collectives of several groups as few, found once for all simulations of a machine."""

    _joined: dict[Hashable, list[LoweredCollective]] = field(default_factory=dict)
    _numbers: dict[tuple[RankGroup, ...], int] = field(default_factory=dict)

    def number_of(self, groups: tuple[RankGroup, ...]) -> int:
        """Return the number of equal groups: plans of one job name them in tuples of their own."""
        return self._numbers.setdefault(groups, len(self._numbers))

    def of(
        self,
        timer: UncontendedTimer,
        op: str,
        nbytes: int,
        groups: tuple[RankGroup, ...],
        root: int,
        *,
        number: int,
        times: int,
    ) -> list[LoweredCollective]:
        """Return `times` collectives of each group in a row, those of alike groups as one.

        `number`: of the groups.
        """

        def join() -> list[LoweredCollective]:
            capacity_Bps = timer.machine.topology.arcs.bandwidth_Bps
            edges = timer.keep_laid(JoinedEdges)
            parts = _parts_of(timer.place(op, nbytes, groups, root), capacity_Bps, edges)
            return [_in_a_row(timer, members, edges, times) for members in parts]

        return once(self._joined, (op, nbytes, number, root, times), join)


def _in_a_row(
    timer: UncontendedTimer, members: Sequence[Placed], joined: JoinedEdges, times: int
) -> LoweredCollective:
    """Return `times` collectives of each member as one, which takes the time of the longest."""
    lowered = in_a_row(_join(members, joined), times)
    stages, alone = joined_stages(lowered.stages), dict.fromkeys(each.lowered for each in members)
    legs = {each: timer.timed_legs(each) for each in alone}
    if lowered not in legs and all(len(own) == len(stages) for own in legs.values()):
        together = zip(*(legs[each.lowered] for each in members), strict=True)
        joint = tuple(_joined_leg(*each, times) for each in zip(stages, together, strict=True))
        timer.know(lowered, joint, times * max(map(timer.busiest_link_bound_s, alone)))
    return lowered


def _joined_leg(stage: Stage, legs: Sequence[TimedLeg], times: int) -> TimedLeg:
    """Time a leg of joined collectives, `times` in a row, by those of the members."""

    def expand() -> tuple[Stage, FloatArray]:
        latency_s = times * np.concatenate([leg.stage.latency_s for leg in legs])
        return replace(stage, latency_s=latency_s), np.concatenate([leg.rates_Bps for leg in legs])

    begins_s = [leg.begin_s for leg in legs if leg.begin_s is not None]
    landed_s = times * np.concatenate([leg.ends.landed_s for leg in legs])
    return TimedLeg(
        stage.edges,
        expand,
        times * np.concatenate(begins_s) if begins_s else None,
        CompletionTimes(times * max(leg.ends.wire_s for leg in legs), landed_s),
    )


def _parts_of(
    collectives: Sequence[Placed], capacity_Bps: FloatArray, joined: JoinedEdges
) -> list[list[Placed]]:
    """Return collectives that begin together and are alike, in as few lists as can be one each.

    Those are joined that share no link, or only links that carry all their edges at the highest
    rates that these have on their other links, as trunks between switches do. Times and bytes on
    links stay what they are: max-min fair rates of edges do not depend on each other then.
    """
    of_kind = grouped(zip(_kinds(collectives), enumerate(collectives), strict=True))
    parts = list[list[tuple[int, Placed]]]()
    for members in of_kind.values():
        edges = tuple(placed.edges for _, placed in members)
        if len(members) == 1 or joined.are_apart(edges):
            parts.append(members)
        else:
            marks = _marks([placed.lowered for _, placed in members])
            fitting = joined.fitting(edges, marks, capacity_Bps)
            parts += [[members[at] for at in part] for part in fitting]
    return [[placed for _, placed in part] for part in sorted(parts, key=lambda part: part[0][0])]


def _marks(collectives: Sequence[LoweredCollective]) -> tuple[int | None, ...]:
    """Numbers that are equal for equal latencies of collectives of a kind.

    None where they are not active all the time: those share links by their bytes.
    """
    if not all(map(is_steady, collectives[0].stages)):
        return (None,) * len(collectives)
    numbers: dict[bytes, int] = {}
    mark_of = {
        each: numbers.setdefault(digest(*(stage.latency_s for stage in each.stages)), len(numbers))
        for each in dict.fromkeys(collectives)
    }
    return tuple(mark_of[each] for each in collectives)


def in_a_row(lowered: LoweredCollective, times: int) -> LoweredCollective:
    """Return `times` collectives, each begun when the one before has ended, as one."""
    if times == 1:
        return lowered
    return replace(
        lowered,
        launch_s=times * lowered.launch_s,
        uneven_s=times * lowered.uneven_s,
        stages=tuple(
            replace(
                stage,
                latency_s=times * stage.latency_s,
                phases=tuple(replace(p, nbytes=times * p.nbytes) for p in stage.phases),
            )
            for stage in lowered.stages
        ),
    )


def _kinds(collectives: Sequence[Placed]) -> list[int]:
    """Number of the kind of each: those of a kind differ in their links only."""
    numbers: dict[Hashable, int] = {}
    all_lowered = dict.fromkeys(placed.lowered for placed in collectives)
    kind_of = dict.fromkeys(all_lowered, 0)
    if len(all_lowered) > 1:
        kind_of = {each: numbers.setdefault(_kind(each), len(numbers)) for each in all_lowered}
    return [kind_of[placed.lowered] for placed in collectives]


def _kind(lowered: LoweredCollective) -> Hashable:
    schedule, phases = lowered.schedule, [stage.phases for stage in lowered.stages]
    return (
        schedule.collective,
        schedule.algorithm,
        schedule.nbytes,
        schedule.ranks,
        schedule.switches,
        lowered.protocol,
        lowered.launch_s,
        lowered.wire_factor,
        lowered.credits,
        tuple(tuple(phase.likeness() for phase in part) for part in phases),
    )


def _join(members: Sequence[Placed], joined: JoinedEdges) -> LoweredCollective:
    """Join alike collectives; each has channels of its own, on which ranks have their places."""
    if len(members) == 1:
        return members[0].lower()
    stages = zip(*(each.lowered.stages for each in members), strict=True)
    edges = zip(*(each.of_stages() for each in members), strict=True)
    return replace(
        members[0].lowered,
        stages=tuple(
            _join_stages(own, joined.of(its)) for own, its in zip(stages, edges, strict=True)
        ),
    )


def _join_stages(stages: Sequence[Stage], edges: Edges) -> Stage:
    columns = [
        np.concatenate([getattr(stage, name) for stage in stages])
        for name in ("latency_s", "cap_Bps", "load")
    ]
    return Stage(
        tuple(_repeat_phase(phase, len(stages)) for phase in stages[0].phases), edges, *columns
    )


def _repeat_phase(phase: Phase, times: int) -> Phase:
    """Return phases that are alike as one, each on channels of its own."""
    channels, each = int(phase.channel.max(initial=-1)) + 1, len(phase.channel)
    return replace(
        phase,
        src=np.tile(phase.src, times),
        dst=np.tile(phase.dst, times),
        nbytes=np.tile(phase.nbytes, times),
        first=np.tile(phase.first, times),
        active=np.tile(phase.active, times),
        channel=np.tile(phase.channel, times) + channels * np.repeat(np.arange(times), each),
        adds=phase.adds if isinstance(phase.adds, bool) else np.tile(phase.adds, times),
    )
