"""When a collective ends whose edges share no link: send by send, round by round.

A send starts when what it waits for has landed (as `message_arrays.flat_messages` derives it from
the chunks), its edge has sent its predecessor and has a credit, and its sender has finished the
earlier stages. Nothing else can happen where no link is shared, so that no queue of events is
needed. `recurrence.py` times the phases of a schedule in the same way without looking at chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives.dependencies import unroll
from perfmodel.collectives.schedule import Phase, Round, Schedule
from perfmodel.collectives.timing.unrolled import places_of
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
        columns = (part.channel, part.src, part.dst)
        return all(map(np.array_equal, self.columns, columns))


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
        keys: IntArray = (part.channel * self._ranks + part.src) * self._ranks + part.dst
        return keys

    def pattern(self, part: Round) -> _Pattern:
        """Return who sends to whom in a round; several chunks over an edge are one message.

        Raises `SimulationError`: a send over an edge that no phase of the schedule has.
        """
        keys = self._keys(part)
        at = np.searchsorted(self._sorted, keys, side="right") - 1
        unknown = np.flatnonzero((at < 0) | (self._sorted[at] != keys))
        columns = (part.channel, part.src, part.dst)
        if len(unknown):
            missing = tuple(int(column[unknown[0]]) for column in columns)
            raise SimulationError(f"a send over {missing} that no phase of the schedule has")
        edge, message = np.unique(self._edge[at], return_inverse=True)
        if len(edge) == len(keys):
            return _Pattern(columns, self._edge[at], None)
        return _Pattern(columns, edge, message)


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
        """Note when all that ranks sent and were sent in a stage has landed."""
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
    """Whether `last_landing_s` can time a schedule: edges have credits, and chunks fit."""
    places = (schedule.ranks + schedule.switches) * len(schedule.chunk_bytes)
    return credits > 0 and places <= MOST_PLACES


def last_landing_s(schedule: Schedule, paces: EdgePaces, begin_s: float) -> float:
    """When the last send of a collective lands that begins at a time; seconds.

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
