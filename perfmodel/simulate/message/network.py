"""Fidelity "message": every send of a collective is simulated. Up to some hundred ranks.

The sends run in a kernel of their own (`kernel.py`); SimPy sees collectives begin and end, streams,
and changes of the machine. The kernel runs ahead to the next event that SimPy has, or to the end of
a collective, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.arrays import RankGroup
from perfmodel.collectives.message_arrays import flat_messages
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.message.compile import (
    Columns,
    Routes,
    columns_of,
    routes_of,
    stream_columns,
    stream_routes,
    wire_shares,
)
from perfmodel.simulate.message.kernel_state import Place, Sending
from perfmodel.simulate.network import (
    LinkCounters,
    count_collective,
    count_elsewhere,
    count_stream,
    nothing_counted,
    standing_text,
    waiting_text,
)
from perfmodel.simulate.uncontended import Adapted, UncontendedTimer

LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): everything that starts at one time shares from the start."""
COMPILED_PAYS = 100_000
"""Sends from which on loading numba (about a second) costs less than it saves."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Somebody else's bytes."""

    route: tuple[int, ...]
    cap_Bps: float


@dataclass(slots=True)
class _Run:
    """A collective, or somebody else's stream, on the move."""

    what: LoweredCollective | Stream
    laid: LoweredCollective | Stream  # at first: links that come back are used again
    place: Place
    ended: simpy.Event
    key: Any  # under which its place may be used again; None: not
    nbytes: float  # of a stream
    counted_bytes: float = 0.0  # those of a stream that are in `counted`


@dataclass
class MessageNetwork:
    """The network at fidelity "message" (see the module); one to an environment.

    Parameters
    ----------
    env : simpy.Environment
    estimator : UncontendedTimer
    compiled : bool, optional
        Whether to run the kernel compiled by numba. Default: where numba is installed and there is
        enough to do. The results are the same bits.
    changes_left : int, optional
        How often the machine will still change, if that is known; then traffic that stands still
        after the last time is an error at once, and not only when nothing else moves.
    """

    env: simpy.Environment
    estimator: UncontendedTimer
    compiled: bool | None = None
    changes_left: int | None = None
    notes: tuple[ApproximationNote, ...] = ()
    machine: Machine = field(init=False)
    _bytes: NDArray[np.float64] = field(init=False)
    _sending: Sending = field(init=False)
    _sends: int = field(default=0, init=False)
    _runs: dict[int, _Run] = field(default_factory=dict, init=False)
    _spare: dict[Any, tuple[Any, list[Place]]] = field(default_factory=dict, init=False)
    _adapted: Adapted = field(init=False)
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.machine = self.estimator.machine
        self._adapted = Adapted(self.estimator, self.machine)
        arcs = self.machine.topology.arcs
        self._counted = nothing_counted(len(arcs))
        self._sending = Sending(arcs.bandwidth_Bps)
        if self.compiled:
            self._sending.compile()

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        self._count_streams()
        return self._counted

    @property
    def counts(self) -> tuple[int, int]:
        """Sends that have arrived, and rates that were solved for it."""
        return self._sending.landed, self._sending.solved

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
            count_collective(self._counted, now)
            ended.append(self._start(now, id(way), self.env.now + way.launch_s, laid=way))
        return ended[0] if len(ended) == 1 else self.env.all_of(ended)

    def occupy(self, _work_s: float, _ranks: int) -> None:
        """Hold up nobody: here, messages need no cores."""

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send somebody else's bytes over some arcs from now on, at most at `cap_Bps`.

        They share links max-min fairly with everything else. The event fires when `nbytes` have
        been sent: never, if they are infinite.
        """
        stream = Stream(route, cap_Bps)
        return self._start(stream, stream, self.env.now, nbytes)

    def become(self, machine: Machine) -> None:
        """From now on the machine is this one: other rates, latencies and dead arcs.

        What is on the move keeps the bytes that it has sent; edges over dead arcs take other
        routes.

        Raises
        ------
        TopologyError
            No route is left between two that have to talk.
        """
        self._count_streams()
        self.machine = machine
        self._adapted.become(machine)
        self.changes_left = None if self.changes_left is None else max(0, self.changes_left - 1)
        self._spare.clear()
        routes = []
        for run in self._runs.values():
            old, run.key = _routes(run.what), None
            if isinstance(run.laid, LoweredCollective):
                run.what = reroute(run.laid, machine)
                left_bytes = self._sending.left_bytes(run.place, self.env.now)
                count_elsewhere(
                    self._counted, old, _routes(run.what), left_bytes, wire_shares(run.laid)
                )
            else:
                run.what = _around(machine, run.laid)
            routes.append((run.place, _routes(run.what)))
        self._sending.become(machine.topology.arcs.bandwidth_Bps, self.env.now, routes)
        self._stir(self.env.now)

    def _start(
        self,
        what: LoweredCollective | Stream,
        key: Any,
        at_s: float,
        nbytes: float | None = None,
        laid: LoweredCollective | None = None,
    ) -> simpy.Event:
        """Let a run begin at a time, in a place that a like one has left or in a new one."""
        known, spare = self._spare.setdefault(key, (laid or what, []))
        place = spare.pop() if spare else self._sending.place(self._columns(what))
        run = _Run(what, known, place, self.env.event(), key, nbytes or 0.0)
        self._runs[place.run] = run
        self._sending.begin(place, at_s, nbytes)
        self._sends += len(place.at["sends"])
        self._stir(self.env.now)
        return run.ended

    def _columns(self, what: LoweredCollective | Stream) -> Columns:
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        if isinstance(what, Stream):
            return stream_columns(what.route, what.cap_Bps, capacity_Bps)
        columns = columns_of(what, flat_messages(what.schedule), capacity_Bps)
        if self.machine.library.in_order:
            columns["edges.line"] = self._sending.lines(columns)
        return columns

    def _stir(self, at_s: float) -> None:
        """See to it that the kernel runs on when everything else of an instant has happened."""
        if self._wake is not None and self._wake_s <= at_s:
            return
        wake = self.env.event()
        wake._ok, wake._value = True, None
        wake.callbacks.append(self._advance)
        delay_s = max(0.0, at_s - self.env.now)
        self.env.schedule(wake, LAST_IN_INSTANT, delay_s)  # type: ignore[arg-type]
        self._wake, self._wake_s = wake, at_s

    def _advance(self, event: simpy.Event) -> None:
        """Run on to the next event that SimPy has, or until a collective ends."""
        if event is not self._wake:
            return
        self._wake = None
        if self.compiled is None and self._sends > COMPILED_PAYS:
            self.compiled = self._sending.try_compile()
        self._count_streams()
        next_s = self.env.peek()
        ended = self._sending.advance(next_s)
        for number in ended:
            self._end(self._runs.pop(number), self._sending.now_s)
        if self._runs:
            self._go_on(self._sending.now_s if ended else next_s)

    def _end(self, run: _Run, at_s: float) -> None:
        """Let everyone know, at its time, that a run has ended."""
        if isinstance(run.what, Stream):
            self._count(run, run.what, run.nbytes)
        if run.key is not None:
            self._spare[run.key][1].append(run.place)
        timer = self.env.timeout(max(0.0, at_s - self.env.now))
        timer.callbacks.append(lambda _: _succeed(run.ended))

    def _go_on(self, at_s: float) -> None:
        """Come back at a time.

        Raises
        ------
        SimulationError
            Nothing will ever make a collective go on.
        """
        for_ever = at_s == np.inf or self.changes_left == 0
        ways = [
            (run.what, run.place)
            for run in self._runs.values()
            if isinstance(run.what, LoweredCollective)
        ]
        if for_ever and ways and self._sending.may_stand:
            found = [(way, self._sending.standing(place)) for way, place in ways]
            standing = [(way, edges) for way, edges in found if edges]
            if standing:
                raise SimulationError(standing_text(self.machine, standing))
        if at_s < np.inf:
            self._stir(at_s)
        elif ways:
            left = [(way, self._sending.sends_left(place)) for way, place in ways]
            raise SimulationError(waiting_text(left))

    def _count_streams(self) -> None:
        """Count what streams have sent until now."""
        for run in self._runs.values():
            if isinstance(run.what, Stream):
                self._count(run, run.what, self._sending.sent_bytes(run.place, self.env.now))

    def _count(self, run: _Run, stream: Stream, sent_bytes: float) -> None:
        count_stream(self._counted, np.array(stream.route), sent_bytes - run.counted_bytes)
        run.counted_bytes = sent_bytes


def _succeed(event: simpy.Event) -> None:
    event.succeed()


def _routes(what: LoweredCollective | Stream) -> Routes:
    return (
        routes_of(what)
        if isinstance(what, LoweredCollective)
        else stream_routes(what.route, what.cap_Bps)
    )


def _around(machine: Machine, stream: Stream) -> Stream:
    """Lead a stream around links that are lost."""
    topology = machine.topology
    if topology.dead.isdisjoint(stream.route):
        return stream
    names = topology.arcs.names
    route = machine.router.route(names[stream.route[0]][0], names[stream.route[-1]][1])
    return replace(stream, route=tuple(route))
