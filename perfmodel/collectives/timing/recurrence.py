"""How long a schedule takes when each edge has its own speed: a max-plus recurrence over edges.

A send may start when its data has arrived, when its edge has finished putting the send before
it on the wire, and when the edge has a credit: with c credits, when the send c before it has
been delivered. It occupies the edge for ``nbytes / rate`` and is delivered ``latency`` later.
With one credit a step costs alpha + nbytes beta (Hockney) and a ring with one slow edge takes
2(N-1) of that edge's steps; with more, latency is pipelined. What a send needs has come `Phase.lag`
repeats before it, and a phase may begin with nothing in flight (`Phase.drained`).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, digest, sending_s
from perfmodel.collectives.dependencies import unroll
from perfmodel.collectives.schedule import Phase, Round, Schedule
from perfmodel.collectives.timing.critical_path import chains_s, pipelines_s, rings_s
from perfmodel.collectives.timing.path_classes import EdgeClasses
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.unrolled import consecutive_rings, places_of, prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks, CompletionTimes
from perfmodel.errors import SimulationError

MOST_PLACES = 1 << 26
"""Copies of chunks on ranks whose times fit into memory (1 GiB)."""


@dataclass(frozen=True, slots=True)
class EdgePaces:
    """How quick the edges of a collective are, stage after stage; arrays of shape (edges,)."""

    stages: Sequence[Sequence[Phase]]
    """The phases of each stage, all over the same edges."""
    per_byte_s: FloatArray
    """Time of a byte of payload on the wire."""
    latency_s: FloatArray
    credits: int
    """Sends that an edge may have in flight."""


class _Pattern(NamedTuple):
    """Who sends to whom in a round: the edge of each message, and the message of each send."""

    columns: tuple[IntArray, IntArray, IntArray]
    edge: IntArray
    message: IntArray | None  # None: each send is one

    def is_of(self, part: Round) -> bool:
        return all(map(np.array_equal, self.columns, (part.channel, part.src, part.dst)))


def edges_of_sends(
    ascending: IntArray, edges: IntArray, keys: IntArray, columns: Sequence[IntArray]
) -> IntArray:
    """Return the edge of each send, by its key.

    `ascending`: keys of the `edges`. `columns`: channel, sender and receiver of each send.
    Raises `SimulationError`: a send over an edge that no phase of the schedule has.
    """
    at = np.searchsorted(ascending, keys, side="right") - 1
    is_unknown = (at < 0) | (ascending[at] != keys)
    if is_unknown.any():
        missing = tuple(int(column[np.argmax(is_unknown)]) for column in columns)
        raise SimulationError(f"a send over {missing} that no phase of the schedule has")
    return edges[at]


class _StageEdges:
    """The edges of one stage, numbered from `first`; finds those of a round."""

    def __init__(self, phase: Phase, first: int, ranks: int) -> None:
        self._ranks = ranks
        keys = self._keys(phase)
        order = np.argsort(keys, kind="stable")
        self._sorted, self._edge = keys[order], first + order
        self.span = slice(first, first + len(keys))
        self.sender, self.receiver = places_of(phase, ranks)

    def _keys(self, part: Phase | Round) -> IntArray:
        return np.asarray((part.channel * self._ranks + part.src) * self._ranks + part.dst)

    def pattern(self, part: Round) -> _Pattern:
        """Return who sends to whom in a round; several chunks over an edge are one message.

        Raises `SimulationError`: a send over an edge that no phase of the schedule has.
        """
        columns = (part.channel, part.src, part.dst)
        of_sends = edges_of_sends(self._sorted, self._edge, self._keys(part), columns)
        edge, message = np.unique(of_sends, return_inverse=True)
        is_one_each = len(edge) == len(of_sends)
        return _Pattern(columns, *((of_sends, None) if is_one_each else (edge, message)))


class _Clocks:
    """What has happened so far on edges, at ranks, and to each rank's copy of each chunk."""

    def __init__(self, schedule: Schedule, paces: EdgePaces, begin_s: float) -> None:
        edges, phases = len(paces.latency_s), [phase for part in paces.stages for phase in part]
        self._ranks = schedule.ranks + schedule.switches
        self._schedule, self._paces = schedule, paces
        self._chunks = len(schedule.chunk_bytes)
        self._written, self._read = np.zeros((2, self._ranks * self._chunks))  # read: since written
        self._free = np.full(edges, begin_s)
        self._credits = min(paces.credits, sum(phase.repeat for phase in phases))
        self._landed = np.zeros((self._credits, edges))  # of the last sends of each edge
        self._sent = np.zeros(edges, np.int64)
        channels = 1 + max((int(phase.channel.max(initial=0)) for phase in phases), default=0)
        self._busy = np.full(self._ranks * channels, begin_s)  # of each rank on each channel
        self.last_s = begin_s

    def begin_stage(self, phase: Phase, first: int) -> _StageEdges:
        """Let ranks begin a stage when all that they sent and were sent has landed."""
        edges = _StageEdges(phase, first, self._ranks)
        self._free[edges.span] = self._busy[edges.sender]
        return edges

    def end_stage(self, edges: _StageEdges) -> None:
        """Let each rank be busy until all that it sent and was sent in a stage has landed."""
        landed_s = self._landed[:, edges.span].max(axis=0, initial=0.0)
        np.maximum.at(self._busy, edges.sender, landed_s)
        np.maximum.at(self._busy, edges.receiver, landed_s)

    def send(self, pattern: _Pattern, part: Round) -> None:
        """Send a round.

        Raises `ScheduleError`: two sends that write the same chunk and do not both add.
        """
        edge, message, nbytes = pattern.edge, pattern.message, part.nbytes.astype(float)
        source = part.src * self._chunks + part.src_chunk
        target = part.dst * self._chunks + part.dst_chunk
        start_s = np.maximum(self._written[source], self._written[target])
        np.maximum(start_s, self._read[target], out=start_s)
        if message is not None:
            of_sends_s, start_s = start_s, np.zeros(len(edge))
            np.maximum.at(start_s, message, of_sends_s)
            nbytes = np.bincount(message, weights=nbytes)
        turn = self._sent[edge] % self._credits
        np.maximum(start_s, self._free[edge], out=start_s)
        np.maximum(start_s, self._landed[turn, edge], out=start_s)
        end_s = start_s + nbytes * self._paces.per_byte_s[edge]
        landed_s = end_s + self._paces.latency_s[edge]
        self._free[edge], self._landed[turn, edge] = end_s, landed_s
        self._sent[edge] += 1
        self.last_s = max(self.last_s, float(landed_s.max()))
        of_sends_s = landed_s if message is None else landed_s[message]
        np.maximum.at(self._read, source, of_sends_s)
        np.maximum.at(self._written, target, of_sends_s)
        numbers = np.arange(len(target))
        self._read[target] = numbers
        if not part.reduce.all() and (self._read[target] != numbers).any():
            unroll(self._schedule)  # raises, and says where
        self._read[target] = 0.0


def fits(schedule: Schedule, credits: int) -> bool:
    """Return whether `last_landing_s` can time a schedule: it has credits and few enough chunks."""
    places = (schedule.ranks + schedule.switches) * len(schedule.chunk_bytes)
    return credits > 0 and places <= MOST_PLACES


def last_landing_s(schedule: Schedule, paces: EdgePaces, begin_s: float) -> float:
    """Return when the last send of a collective lands that begins at a time; seconds.

    Raises `SimulationError`: a send over an edge that no phase of the schedule has;
    `ScheduleError`: two sends of a round that write the same chunk and do not both add.
    """
    clocks = _Clocks(schedule, paces, begin_s)
    rounds, first = schedule.rounds(), 0
    for stage in paces.stages:
        edges = clocks.begin_stage(stage[0], first)
        pattern: _Pattern | None = None
        for part in itertools.islice(rounds, sum(phase.repeat for phase in stage)):
            if pattern is None or not pattern.is_of(part):
                pattern = edges.pattern(part)
            if len(pattern.edge):
                clocks.send(pattern, part)
        clocks.end_stage(edges)
        first = edges.span.stop
    return clocks.last_s


LONG_RING_EDGES = 256
"""Edges of a ring or chain from which on `critical_path` is tried before stepping."""


@dataclass(frozen=True, slots=True)
class TimedPhases:
    """Phases that share their edges, and what these can do.

    Parameters
    ----------
    phases : tuple of Phase
    rate_Bps : ndarray of float, shape (edges,)
        Payload rate of each edge while it sends.
    latency_s : ndarray of float, shape (edges,)
    classes : EdgeClasses or None
        Edges that may be alike in all this; None where none are sought.
    """

    phases: tuple[Phase, ...]
    rate_Bps: FloatArray
    latency_s: FloatArray
    classes: EdgeClasses | None = None

    def likeness(self) -> Hashable:
        """Return a value that phases have in common which take the same times."""
        return digest(self.rate_Bps, self.latency_s), *(each.likeness() for each in self.phases)


@dataclass
class ReadyTimes:
    """When each edge may begin the next leg.

    A rank begins when its sends and receives before have landed; sends that add to what the
    receiver was sent before, or replace it, wait for that too (`Phase.adds`, `Phase.overwrites`).

    Parameters
    ----------
    ranks : int
        Ranks, and switches that take part, of the whole schedule.
    """

    ranks: int
    _open_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    _came_s: FloatArray = field(default_factory=lambda: np.zeros(0))

    def begin_s(self, phase: Phase) -> FloatArray:
        """Return when each edge of a phase may send at the earliest; shape (edges,)."""
        self._grow(phase)
        starts, ends = places_of(phase, self.ranks)
        begin_s = self._open_s[starts]
        waits = np.logical_or(phase.adds, phase.overwrites)
        return np.maximum(begin_s, np.where(waits, self._came_s[ends], 0.0))

    def land(self, phase: Phase, landed_s: FloatArray) -> None:
        """Record when the last sends over the edges of a leg have landed."""
        self._grow(phase)
        starts, ends = places_of(phase, self.ranks)
        np.maximum.at(self._came_s, ends, landed_s)
        np.maximum.at(self._open_s, starts, landed_s)
        np.maximum(self._open_s, self._came_s, out=self._open_s)

    def _grow(self, phase: Phase) -> None:
        more = (int(phase.channel.max()) + 1) * self.ranks - len(self._open_s)
        if more > 0:
            self._open_s = np.append(self._open_s, np.zeros(more))
            self._came_s = np.append(self._came_s, np.zeros(more))


def legs_ends(
    legs: Sequence[TimedPhases], ranks: int, *, credits: int
) -> Iterator[tuple[FloatArray | None, CompletionTimes]]:
    """Time the legs of a collective, each begun rank by rank.

    Yields
    ------
    tuple of (ndarray of float, shape (edges,), or None) and Ends
        When each edge of a leg may send (None: at once), and how the leg ends.
    """
    if len(legs) == 1:
        yield None, leg_ends(legs[0], credits)
        return
    ready = ReadyTimes(ranks)
    for leg in legs:
        begin_s = ready.begin_s(leg.phases[0])
        ends = _step_through(leg, begin_s, credits)
        ready.land(leg.phases[0], ends.landed_s)
        yield begin_s, ends


def schedule_s(
    phases: Sequence[Phase], rate_Bps: FloatArray, latency_s: FloatArray, *, credits: int
) -> float:
    """Time of phases that share their edges; seconds.

    Parameters
    ----------
    phases : sequence of Phase
        In order, all with the same edges.
    rate_Bps : ndarray of float, shape (edges,)
        Rate of each edge while it sends.
    latency_s : ndarray of float, shape (edges,)
    credits : int
        Sends that an edge may have in flight.

    Returns
    -------
    float
        When the last send is delivered.
    """
    return (
        leg_ends(TimedPhases(tuple(phases), rate_Bps, latency_s), credits).last_s if phases else 0.0
    )


def leg_ends(leg: TimedPhases, credits: int) -> CompletionTimes:
    """Return how a leg ends that all edges may begin at once.

    Of legs that have a closed form, `landed_s` holds the last arrival of all.
    """
    phases, late = leg.phases, leg.latency_s
    busy = [sending_s(phase.nbytes, leg.rate_Bps) for phase in phases]
    if any(
        np.isinf(hold[phase.active > 0]).any() for phase, hold in zip(phases, busy, strict=True)
    ):
        return CompletionTimes(np.inf, np.array([np.inf]))  # over a dead link it never ends
    rings = consecutive_rings(phases) is not None
    blocking = credits == 1 or (rings and all(phase.lag == 1 for phase in phases))
    if blocking and all(bool((values == values[0]).all()) for values in (late, *busy)):
        # Every send waits for a whole step of the one before it: around a ring for its data, at
        # the head of a chain for its only credit.
        end_s = sum(
            float(phase.repeat * (hold[0] + late[0]))
            for phase, hold in zip(phases, busy, strict=True)
        )
        return CompletionTimes(end_s - float(late[0]), np.array([end_s]))
    if credits == 1 and all((p.active == p.repeat).all() for p in phases):
        # Staying on the slowest edge costs its whole step each time, and no path through the
        # recurrence can cost more than the largest step at every repeat.
        total = sum(p.repeat * (b + late) for p, b in zip(phases, busy, strict=True))
        slowest = int(np.argmax(total))
        end_s = float(np.asarray(total)[slowest])
        return CompletionTimes(end_s - float(late[slowest]), np.array([end_s]))
    ends = _long_ends(leg, rings, credits)
    return _step_through(leg, np.zeros(len(late)), credits) if ends is None else ends


def _long_ends(leg: TimedPhases, rings: bool, credits: int) -> CompletionTimes | None:
    """Return how long rings, chains or trees end, if it is known without stepping."""
    first = leg.phases[0]
    channels = int(first.channel[-1]) + 1
    is_long = len(leg.latency_s) >= LONG_RING_EDGES * channels
    if rings and credits > 1 and is_long:
        times = rings_s(leg.phases, channels, leg.rate_Bps, leg.latency_s, credits)
        return None if times is None else CompletionTimes(times[0], np.array([times[1]]))
    if len(leg.phases) == 1 and first.first.any():
        chains = chains_s(first, leg.rate_Bps, leg.latency_s, credits) if is_long else None
        times_of_edges = chains or pipelines_s(
            first, leg.rate_Bps, leg.latency_s, credits, leg.classes
        )
        return None if times_of_edges is None else CompletionTimes(*times_of_edges)
    return None


def _step_through(leg: TimedPhases, begin_s: FloatArray, credits: int) -> CompletionTimes:
    return Clocks(
        prepare_phases(leg.phases, credits),
        begin_s,
        LinkRates(-np.inf, leg.rate_Bps, leg.latency_s),
    ).ends()
