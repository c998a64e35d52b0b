"""Collectives that groups of ranks run at the same time, as one; and one after another, as one.

Each tensor-parallel group of a thousand runs the same collective on links of its own. One job with
the edges of all of them takes the time of each, at the cost of one. So does one job for several in
a row: times of a collective are homogeneous in its bytes and latencies together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup
from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage, join_edges
from perfmodel.library.lowering.rerouting import Placed
from perfmodel.library.machine import Machine
from perfmodel.memo import once
from perfmodel.simulate.flow.stream_network import Streams, joined_stage
from perfmodel.simulate.flow.transfers import Collective
from perfmodel.simulate.sharing.between_collectives import (
    SHORTEST_S,
    LinkSharings,
    Share,
    rates_in_turns,
    shared_rates,
)
from perfmodel.simulate.sharing.duty_cycle import is_steady
from perfmodel.simulate.uncontended import UncontendedTimer

Shares = tuple[FloatArray, list[tuple[FloatArray, float]]]
"""Rate of each stream; for each collective the rate of each edge, and by how much it is slower."""
Solve = Callable[[Machine, UncontendedTimer, Sequence[Streams], Sequence[Collective]], Shares]

MOST_KEPT = 1 << 23
"""Rates, or arrays of rates, that are kept of jobs that met before; 8 bytes each."""


@dataclass
class SharesMet:
    """Shares of jobs that met on their links before: jobs that repeat themselves meet again.

    Shared by all simulations of one machine.
    """

    solved: int = 0
    """How often shares were solved."""
    _kept: int = 0
    _shares: dict[Hashable, Shares] = field(default_factory=dict)

    def of(
        self,
        solve: Solve,
        machine: Machine,
        timer: UncontendedTimer,
        flows: Sequence[Streams],
        collectives: Sequence[Collective],
    ) -> Shares:
        """Return what `solve` returns for these jobs."""
        number_of: dict[Hashable, int] = {}  # which began together, whenever that was
        jobs = tuple(
            (job.lowered, job.stage, job.leg, number_of.setdefault(job.key(), len(number_of)))
            for job in collectives
        )
        routes = tuple(
            values.tobytes()
            for edges in (job.edges for job in flows)
            for values in (edges.cap_Bps, edges.pointers, edges.arcs)
        )
        if (machine, jobs, routes) in self._shares:
            return self._shares[machine, jobs, routes]
        shares = solve(machine, timer, flows, collectives)
        self.solved += 1
        own = flows and sum(len(rates_Bps) for rates_Bps, _ in shares[1])
        self._kept += len(shares[0]) + (own or len(jobs))  # `LinkSharings` has what is not its own
        if self._kept <= MOST_KEPT:
            self._shares[machine, jobs, routes] = shares
        return shares


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
    sharings = None if flows else timer.keep(LinkSharings)  # streams have edges of their own
    rates = shared_rates(machine.topology.arcs.bandwidth_Bps, shares, sharings)
    of_flows = rates.pop() if flows else np.zeros(0)
    return of_flows, [(rate_Bps, 1.0) for rate_Bps in rates]


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
    pairs = zip(collectives, shares, strict=True)
    return of_flows, [(timer.rates(job.stage), slower) for job, (_, slower) in pairs]


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
            return [
                in_a_row(each, times)
                for each in join_alike(timer.place(op, nbytes, groups, root), capacity_Bps, edges)
            ]

        return once(self._joined, (op, nbytes, number, root, times), join)


@dataclass
class JoinedEdges:
    """Edges of several collectives as one, found once for all sizes of these."""

    _joined: dict[tuple[Edges, ...], Edges] = field(default_factory=dict)
    _parts: dict[Hashable, list[list[int]]] = field(default_factory=dict)

    def of(self, parts: list[Edges]) -> Edges:
        """Return edges as one, in order."""
        return once(self._joined, tuple(parts), lambda: join_edges(parts))

    def parts(self, collectives: Sequence[Placed], capacity_Bps: FloatArray) -> list[list[int]]:
        """Return the positions of collectives that are joined, in few lists: see `join_alike`."""
        kinds = _kinds(collectives)
        find = partial(_parts_of, collectives, kinds, capacity_Bps)
        return once(self._parts, (*kinds, *(placed.edges for placed in collectives)), find)


def join_alike(
    collectives: Sequence[Placed],
    capacity_Bps: FloatArray,
    joined: JoinedEdges | None = None,
) -> list[LoweredCollective]:
    """Join collectives that begin together and are alike into as few as possible.

    Those are joined that share no link, or only links that carry all their edges at the highest
    rates that these have on their other links, as trunks between switches do. Times and bytes on
    links stay what they are: max-min fair rates of edges do not depend on each other then.

    Parameters
    ----------
    capacity_Bps : ndarray of float, shape (links,)
    joined : JoinedEdges, optional
        What was found before for other sizes.
    """
    if len(collectives) == 1:
        return [collectives[0].lower()]
    joined = JoinedEdges() if joined is None else joined
    parts = joined.parts(collectives, capacity_Bps)
    return [_join([collectives[at] for at in part], joined) for part in parts]


CAPACITY_TOLERANCE = 1e-9
"""Share by which the needs of edges may exceed a link that carries them: rounding."""


def _parts_of(
    collectives: Sequence[Placed], kinds: list[int], capacity_Bps: FloatArray
) -> list[list[int]]:
    of_kind: dict[int, list[int]] = {}
    for at, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(at)
    parts = list[list[int]]()
    for members in of_kind.values():
        same = [collectives[at] for at in members]
        if _all_fit(same, capacity_Bps):
            parts.append(members)
        else:
            parts += [[members[at] for at in part] for part in _fitting(same, capacity_Bps)]
    return sorted(parts)


def _all_fit(same: Sequence[Placed], capacity_Bps: FloatArray) -> bool:
    """Whether all collectives of a kind may be joined: looked at all at once, as they mostly do."""
    arcs = np.concatenate([each.arcs for placed in same for each in placed.edges])
    hops = np.concatenate([np.diff(each.pointers) for placed in same for each in placed.edges])
    if not len(arcs):
        return True
    owner = np.repeat(np.arange(len(same)), [sum(len(e.arcs) for e in p.edges) for p in same])
    order = np.lexsort((owner, arcs))
    ascending, of = arcs[order], owner[order]
    shared = ascending[1:][(ascending[1:] == ascending[:-1]) & (of[1:] != of[:-1])]
    if not len(shared):
        return True
    if not _are_steady_alike([placed.lowered for placed in same]):
        return False
    least_Bps = np.repeat(np.minimum.reduceat(capacity_Bps[arcs], np.cumsum(hops) - hops), hops)
    needed_Bps = np.bincount(arcs, least_Bps)[shared]
    return bool((needed_Bps <= capacity_Bps[shared] * (1 + CAPACITY_TOLERANCE)).all())


def _are_steady_alike(collectives: Iterable[LoweredCollective]) -> bool:
    """Whether collectives of a kind have the same latencies, and are active all the time.

    Those that are not share links by their bytes.
    """
    first, *others = dict.fromkeys(collectives)
    latencies = [[stage.latency_s for stage in lowered.stages] for lowered in (first, *others)]
    alike = all(all(map(np.array_equal, latencies[0], own)) for own in latencies)
    return alike and all(map(is_steady, first.stages))


def _fitting(same: Sequence[Placed], capacity_Bps: FloatArray) -> list[list[int]]:
    """Join collectives of a kind one by one to the first ones that they fit to."""
    parts: list[tuple[dict[int, float], list[int]]] = []
    for at, placed in enumerate(same):
        needs = _needs_Bps(placed.edges, capacity_Bps)
        for needed, members in parts:
            common = needed.keys() & needs.keys()
            both = (placed.lowered, same[members[0]].lowered)
            if not common or (
                _are_steady_alike(both)
                and all(
                    needs[link] + needed[link]
                    <= float(capacity_Bps[link]) * (1 + CAPACITY_TOLERANCE)
                    for link in common
                )
            ):
                for link, need_Bps in needs.items():
                    needed[link] = needed.get(link, 0.0) + need_Bps
                members.append(at)
                break
        else:
            parts.append((needs, [at]))
    return [members for _, members in parts]


def _needs_Bps(own: Iterable[Edges], capacity_Bps: FloatArray) -> dict[int, float]:
    """Return the most that all edges of a collective together may send over each of its links."""
    needs: dict[int, float] = {}
    for edges in own:
        if not len(edges.arcs):
            continue
        least_Bps = np.minimum.reduceat(capacity_Bps[edges.arcs], edges.pointers[:-1])
        links, place = np.unique(edges.arcs, return_inverse=True)
        of_links = np.bincount(place, np.repeat(least_Bps, np.diff(edges.pointers)))
        for link, need_Bps in zip(links.tolist(), of_links.tolist(), strict=True):
            needs[link] = needs.get(link, 0.0) + need_Bps
    return needs


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
    kind_of = {
        lowered: numbers.setdefault(_kind(lowered), len(numbers))
        for lowered in dict.fromkeys(placed.lowered for placed in collectives)
    }
    return [kind_of[placed.lowered] for placed in collectives]


def _kind(lowered: LoweredCollective) -> Hashable:
    schedule, phases = lowered.schedule, [stage.phases for stage in lowered.stages]
    costs = lowered.protocol, lowered.launch_s, lowered.wire_factor, lowered.credits
    sizes = schedule.nbytes, schedule.ranks, schedule.switches
    alike = tuple(tuple(map(_phase_likeness, part)) for part in phases)
    return schedule.collective, schedule.algorithm, *sizes, *costs, alike


def _phase_likeness(phase: Phase) -> Hashable:
    arrays = (phase.src, phase.dst, phase.channel, phase.nbytes, phase.first, phase.active)
    adds = phase.adds if isinstance(phase.adds, bool) else phase.adds.tobytes()
    numbers = (phase.repeat, phase.lag, phase.drained, phase.overwrites, adds)
    return (*(values.tobytes() for values in arrays), *numbers)


def _join(members: list[Placed], joined: JoinedEdges) -> LoweredCollective:
    """Join alike collectives; each has channels of its own, on which ranks have their places."""
    if len(members) == 1:
        return members[0].lower()
    first, edges = members[0].lowered, zip(*(each.of_stages() for each in members), strict=True)
    stages = zip(*(each.lowered.stages for each in members), strict=True)
    return replace(
        first,
        stages=tuple(
            _join_stages(own, joined.of(list(its))) for own, its in zip(stages, edges, strict=True)
        ),
    )


def _join_stages(stages: Sequence[Stage], edges: Edges) -> Stage:
    phases = zip(*(stage.phases for stage in stages), strict=True)
    columns = [
        np.concatenate([getattr(stage, name) for stage in stages])
        for name in ("latency_s", "cap_Bps", "load")
    ]
    return Stage(tuple(map(_join_phases, phases)), edges, *columns)


def _join_phases(phases: Sequence[Phase]) -> Phase:
    first = phases[0]
    channels = int(first.channel.max(initial=-1)) + 1
    return replace(
        first,
        src=np.concatenate([phase.src for phase in phases]),
        dst=np.concatenate([phase.dst for phase in phases]),
        channel=np.concatenate([p.channel + channels * at for at, p in enumerate(phases)]),
        nbytes=np.concatenate([phase.nbytes for phase in phases]),
        first=np.concatenate([phase.first for phase in phases]),
        active=np.concatenate([phase.active for phase in phases]),
        adds=first.adds
        if isinstance(first.adds, bool)
        else np.concatenate([np.asarray(phase.adds) for phase in phases]),
    )
