"""Times of collectives with no other traffic.

`UncontendedTimer` times the lowered candidates of a collective and takes the fastest.
`UncorrectedCollectives` is what is the same on machines that differ in measured corrections only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup, sending_s
from perfmodel.collectives.algorithms.ring import PIECE_BYTES
from perfmodel.collectives.timing.recurrence import TimedPhases, legs_ends
from perfmodel.library.lowering.lower import (
    Algorithm,
    correct,
    lower_collective,
    lower_message,
    lower_without_corrections,
)
from perfmodel.library.lowering.lowered import (
    Crossings,
    LinkBytes,
    LoweredCollective,
    Stage,
    add_traffic,
    alike_bytes,
    count_crossings,
    stage_bytes,
)
from perfmodel.library.lowering.rerouting import Placed
from perfmodel.library.machine import Machine
from perfmodel.memo import T, once
from perfmodel.simulate.alike_groups import (
    AlikeGroups,
    Best,
    CollectiveKey,
    GroupFinder,
    Sample,
    laid_on,
)
from perfmodel.simulate.sharing.duty_cycle import (
    StageRates,
    TimedLeg,
    UseOrders,
    classed_leg,
    fill_and_drain_rates,
    is_steady,
    joined_stages,
    sooner_s,
    tells_apart,
)

MESSAGES = frozenset({"send", "send_recv"})
"""Operations that are messages between pairs of ranks, all at once."""


def message_pairs(op: str, group: RankGroup) -> list[tuple[int, int]]:
    """Return who sends to whom in "send", and in "send_recv" around the group."""
    around = [(group[at - 1], group[at]) for at in range(len(group))]
    return around if op == "send_recv" else around[1:2]


def root_in(group: RankGroup, groups: tuple[RankGroup, ...], root: int) -> int:
    """Return the root of one of several groups: the rank at the same place as in its own."""
    if root in group:
        return root
    return next((group[own.index(root)] for own in groups if root in own), root)


MOST_COUNTED_LINKS = 1 << 18
"""Links of collectives whose bytes are kept; 24 bytes each."""


@dataclass
class UncorrectedCollectives:
    """What machines have in common that differ in measured corrections only.

    Parameters
    ----------
    machine : Machine
        One of them.
    """

    machine: Machine
    kept: dict[Callable[[], Any], Any] = field(default_factory=dict)
    _link_bytes: dict[LoweredCollective, LinkBytes] = field(default_factory=dict)
    _counted_links: int = 0
    _crossed: dict[Hashable, list[Crossings]] = field(default_factory=dict)
    _lowered: dict[CollectiveKey, tuple[LoweredCollective, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        capacity_Bps, own = self.machine.topology.arcs.bandwidth_Bps, UseOrders()
        used_at, orders = self.machine.shared.setdefault("uses of links", (capacity_Bps, own))
        if used_at is not capacity_Bps:
            orders = UseOrders(orders if tells_apart(used_at, capacity_Bps) else None)
        self.rates = StageRates(capacity_Bps, orders)

    def lower(self, key: CollectiveKey) -> tuple[LoweredCollective, ...]:
        """Return the candidates of the library for a collective, without corrections."""
        op, nbytes, group, root, algorithm = key
        lower = partial(lower_without_corrections, self.machine, op, nbytes, group)
        return once(self._lowered, key, partial(lower, root=root, algorithm=algorithm))

    def forget(self) -> None:
        """Drop what is cached of each collective."""
        for cache in (self._link_bytes, self._crossed, self._lowered):
            cache.clear()

    def link_bytes(self, lowered: LoweredCollective) -> LinkBytes:
        """Return the bytes of a collective on the links that it uses."""
        if lowered in self._link_bytes:
            return self._link_bytes[lowered]
        wire_bytes, payload_bytes = self.traffic(lowered), self.traffic(lowered, payload=True)
        links = np.flatnonzero(wire_bytes)
        found = LinkBytes(links, wire_bytes[links], payload_bytes[links])
        self._counted_links += len(links)
        if self._counted_links <= MOST_COUNTED_LINKS:
            self._link_bytes[lowered] = found
        return found

    def traffic(self, lowered: LoweredCollective, *, payload: bool = False) -> FloatArray:
        """Bytes of a collective on each link: on the wire, or of payload; shape (links,)."""
        total = np.zeros(len(self.machine.topology.arcs))
        each = alike_bytes(lowered)
        if each is None:
            add_traffic(total, lowered, payload=payload)
            return total
        stage, schedule = lowered.stages[0], lowered.schedule
        # What edges carry per byte of payload follows from the operation and how it runs.
        key = stage.edges, schedule.collective, schedule.algorithm, lowered.protocol
        for load, links, crossings in once(self._crossed, key, partial(count_crossings, stage)):
            total[links] += (each if payload else each * load * lowered.wire_factor) * crossings
        return total


@dataclass
class UncontendedTimer:
    """Times collectives alone on a machine, with a cache."""

    machine: Machine
    _best: dict[CollectiveKey, tuple[LoweredCollective, float]] = field(default_factory=dict)
    _samples: dict[Hashable, list[Sample]] = field(default_factory=dict)
    _found: dict[LoweredCollective, dict[str, Any]] = field(
        default_factory=partial(defaultdict, dict)
    )
    """What was found of each collective, by name."""
    _ends: dict[Hashable, Any] = field(default_factory=dict)
    """When legs end that are alike, wherever they are."""
    _of_legs: dict[tuple[TimedLeg, ...], Any] = field(default_factory=dict)
    _shared: dict[Callable[[], Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._common, self._laid = UncorrectedCollectives(self.machine), laid_on(self.machine)

    def on(self, machine: Machine) -> UncontendedTimer:
        """Return a timer of another machine.

        Of one that differs in measured corrections only, it shares schedules, routes and rates
        with this timer, and works out times alone.
        """
        timer = UncontendedTimer(machine)
        if machine.differs_in_corrections_only(self.machine):
            timer._common = self._common
        return timer

    def best(
        self,
        op: str,
        nbytes: int,
        group: RankGroup,
        root: int = 0,
        algorithm: Algorithm | None = None,
    ) -> tuple[LoweredCollective, float]:
        """Return the fastest of the candidates of the library, and its time in seconds.

        Of messages between several pairs, the slowest of them.
        """
        key = (op, nbytes, group, root, algorithm)
        if op in MESSAGES and len(pairs := message_pairs(op, group)) > 1:
            return max((self.best("send", nbytes, pair) for pair in pairs), key=itemgetter(1))
        if key not in self._best:
            candidates = self._candidates(key)
            self._best[key] = min(
                [(lowered, self.time_s(lowered)) for lowered in candidates], key=itemgetter(1)
            )
            for lowered in candidates:
                if lowered is not self._best[key][0]:  # arrays of those not chosen may be large
                    self._found.pop(lowered, None)
        return self._best[key]

    def _candidates(self, key: CollectiveKey) -> list[LoweredCollective]:
        op, nbytes, group, _, _ = key
        if op in MESSAGES:
            return [lower_message(self.machine, group[0], group[1], nbytes)]
        return [correct(self.machine, each, nbytes, group) for each in self._common.lower(key)]

    def lower(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int = 0
    ) -> list[LoweredCollective]:
        """Return the fastest lowered collective of each group of two ranks or more."""
        alike, best = self._find_alike(op, nbytes, groups, root)
        op = "send" if op in MESSAGES else op
        return [
            once(
                self._best,
                (op, nbytes, *group, None),
                lambda: (Placed(best[at][0], edges).lower(), best[at][1]),  # noqa: B023  # called at once
            )[0]
            for group, at, edges in zip(alike.groups, alike.sample_of, alike.edges, strict=True)
        ]

    def place(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int = 0
    ) -> list[Placed]:
        """Return the fastest collective of each group of two ranks or more, alike ones as one."""
        alike, best = self._find_alike(op, nbytes, groups, root)
        return [Placed(best[n][0], e) for n, e in zip(alike.sample_of, alike.edges, strict=True)]

    def times_s(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int = 0
    ) -> list[float]:
        """Return the time of each group of two ranks or more if it is alone; seconds.

        Of messages between several pairs, that of the slowest of them.
        """
        alike, best = self._find_alike(op, nbytes, groups, root)
        times_s = (best[sample][1] for sample in alike.sample_of)
        parts = [len(message_pairs(op, g)) if op in MESSAGES else 1 for g in groups if len(g) > 1]
        return [max(islice(times_s, part)) for part in parts]

    def _find_alike(
        self, op: str, nbytes: int, groups: tuple[RankGroup, ...], root: int
    ) -> tuple[AlikeGroups, list[Best]]:
        several = [group for group in groups if len(group) > 1]

        def calls() -> Iterator[tuple[RankGroup, int]]:
            for group in several:
                if op in MESSAGES:
                    yield from ((pair, 0) for pair in message_pairs(op, group))
                else:
                    yield group, root_in(group, groups, root)

        finder = GroupFinder(self.machine, self._laid, self._samples, self.best, self._common.lower)
        key = op in MESSAGES and op, groups, root
        return finder.find("send" if op in MESSAGES else op, nbytes, key, calls)

    def forget(self) -> None:
        """Drop what is cached of each collective; what sizes share stays.

        That is arrays of every edge, a million of an all-to-all over 1,024 ranks.
        """
        for cache in (self._best, self._samples, self._found, self._ends, self._of_legs):
            cache.clear()
        self._common.forget()

    def time_s(self, lowered: LoweredCollective) -> float:
        """Return the time of a whole collective without other traffic; seconds."""
        last_s = max((leg.ends.last_s for leg in self.timed_legs(lowered)), default=0.0)
        return lowered.launch_s + max(last_s, self.busiest_link_bound_s(lowered))

    def timed_legs(self, lowered: LoweredCollective) -> tuple[TimedLeg, ...]:
        """Return the legs of a collective without other traffic, each begun rank by rank."""
        return once(self._found[lowered], "timed legs", partial(self._time_legs, lowered))

    def know(self, lowered: LoweredCollective, legs: tuple[TimedLeg, ...], bound_s: float) -> None:
        """Take the legs of a collective, and its `busiest_link_bound_s`, from those of others."""
        self._found[lowered] |= {"timed legs": legs, "bound": bound_s}

    def _time_legs(self, lowered: LoweredCollective) -> tuple[TimedLeg, ...]:
        leg = classed_leg(lowered, self._common.rates)
        if leg is not None:
            return (leg,)
        stages = self.legs(lowered)
        rates = [self.rates(stage) for stage in stages]
        parts = [
            replace(timed_phases(lowered, s, r), classes=self._common.rates.orders.classes(s))
            for s, r in zip(stages, rates, strict=True)
        ]
        ranks, credits = participants(lowered), lowered.credits
        key = ranks, credits, tuple(part.likeness() for part in parts)
        ends = once(self._ends, key, lambda: list(legs_ends(parts, ranks, credits=credits)))
        return tuple(
            TimedLeg(s.edges, partial(_as_is, s, r), *e)
            for s, r, e in zip(stages, rates, ends, strict=True)
        )

    def link_bytes(self, lowered: LoweredCollective) -> LinkBytes:
        """Return the bytes of one of this timer's collectives on the links that it uses.

        Found once for all machines that differ in measured corrections only.
        """
        return self._common.link_bytes(lowered)

    def of_legs(self, legs: tuple[TimedLeg, ...], find: Callable[[tuple[TimedLeg, ...]], T]) -> T:
        """Return what `find` returns for some legs of this timer; found once."""
        return once(self._of_legs, legs, partial(find, legs))

    def keep(self, make: Callable[[], T]) -> T:
        """What `make` returned the first time: what all simulations on this machine share."""
        return once(self._shared, make, make)

    def keep_rated(self, make: Callable[[], T]) -> T:
        """As `keep`, for all machines that differ in measured corrections only: same rates."""
        return once(self._common.kept, make, make)

    def keep_laid(self, make: Callable[[], T]) -> T:
        """As `keep`, for all machines on whose links the same groups are alike (`laid_on`)."""
        return once(self._laid, make, make)

    def busiest_link_bound_s(self, lowered: LoweredCollective) -> float:
        """Return the least time in which the busiest link carries its bytes; seconds.

        Zero where the rates of edges imply it. They do not where edges are active in some repeats
        only, which get an average share, nor between legs that overlap, whose rates are solved one
        by one.
        """

        def find() -> float:
            if len(joined_stages(lowered.stages)) < 2 and all(map(is_steady, lowered.stages)):
                return 0.0
            nbytes = self._common.traffic(lowered)
            used = np.flatnonzero(nbytes)
            capacity_Bps = self.machine.topology.arcs.bandwidth_Bps[used]
            return float(sending_s(nbytes[used], capacity_Bps).max(initial=0.0))

        return once(self._found[lowered], "bound", find)

    def legs(self, lowered: LoweredCollective) -> tuple[Stage, ...]:
        """Return the stages of a collective, successive ones over the same edges joined.

        Their phases say what a rank waits for in between (`Phase.drained`).
        """

        def find() -> tuple[Stage, ...]:
            return tuple(
                self._with_early_arrivals(lowered, stage) for stage in joined_stages(lowered.stages)
            )

        return once(self._found[lowered], "legs", find)

    def _with_early_arrivals(self, lowered: LoweredCollective, stage: Stage) -> Stage:
        """Lower the latencies of a stage by what pieces gain while the pipeline fills and drains.

        A fluid edge has one rate, its share when all edges are active. The few pieces that travel
        while the pipeline fills or drains share links with fewer others and arrive earlier; the
        edge is busy for as long.
        """
        if len(stage.phases) != 1 or is_steady(stage) or not stage.phases[0].first.any():
            return stage
        ends_Bps = self._common.rates.of_classes(fill_and_drain_rates, stage).of_edges()
        ends_Bps, usual_Bps = np.minimum(stage.cap_Bps, ends_Bps), self.rates(stage)
        gained_s = sooner_s(stage.phases[0].nbytes * lowered.wire_factor, usual_Bps, ends_Bps)
        return replace(stage, latency_s=stage.latency_s - gained_s)

    def rates(self, stage: Stage) -> FloatArray:
        """Return the rate of each edge without other traffic; wire bytes per second."""
        return self._common.rates.of(stage)


def _as_is(stage: Stage, rates_Bps: FloatArray) -> tuple[Stage, FloatArray]:
    return stage, rates_Bps


def timed_phases(lowered: LoweredCollective, stage: Stage, rates_Bps: FloatArray) -> TimedPhases:
    """Return a stage with its edges at given wire rates."""
    return TimedPhases(stage.phases, rates_Bps / lowered.wire_factor, stage.latency_s)


def participants(lowered: LoweredCollective) -> int:
    """Return the ranks of a collective, and the switches that take part."""
    return lowered.schedule.ranks + lowered.schedule.switches


def hidden_s(
    timer: UncontendedTimer, lowered: LoweredCollective, op: str, group: RankGroup
) -> float:
    """Time of a broadcast or a reduction that overlaps with the next repetition; seconds.

    nccl-tests starts the next one without waiting for the last, and divides the time of 20 by 20.
    A rank of a chain is done when it has passed its last piece on, before the end of the chain is.
    So the time in which a single piece passes along the chain counts once, not in each repetition.
    """
    schedule = lowered.schedule
    hops = schedule.ranks - 1
    if schedule.algorithm != "chain" or op not in {"broadcast", "reduce"} or hops < 2:
        return 0.0
    chains = 1 + max(int(phase.channel.max()) for phase in schedule.phases)
    pieces = lower_collective(
        timer.machine, op, min(schedule.nbytes, PIECE_BYTES * chains), group, algorithm="chain"
    )
    first = next((each for each in pieces if each.protocol == lowered.protocol), None)
    if first is None:
        return 0.0
    travel_s = (timer.time_s(first) - first.launch_s) * (1 - 1 / hops)
    busiest_s = max(
        float(np.max(stage_bytes(lowered, s) / timer.rates(s))) for s in timer.legs(lowered)
    )
    return max(0.0, min(travel_s, timer.time_s(lowered) - lowered.launch_s - busiest_s))
