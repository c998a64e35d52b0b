"""Fidelity "message": every send of a collective is simulated. Up to some hundred ranks.

The sends run in a kernel of their own (`event_loop.py`); SimPy sees collectives begin and end,
streams, and changes of the machine. The kernel runs up to the next event of SimPy, or to the end of
a collective, whichever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import simpy

from perfmodel.collectives.message_arrays import flat_messages
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.message.compile import (
    Columns,
    Routes,
    columns_of,
    routes_of,
    stream_columns,
    stream_routes,
    wire_shares,
)
from perfmodel.simulate.message.kernel_state import Kernel, Slot
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    call_at,
    count_collective,
    count_stream,
    move_counts,
    reroute_stream,
    schedule_last,
    stalled_text,
    waiting_text,
)

COMPILED_PAYS = 100_000
"""Sends from which on loading numba (about a second) costs less than it saves."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Background traffic."""

    route: tuple[int, ...]
    cap_Bps: float


@dataclass(slots=True)
class _Run:
    """A collective, or a stream of background traffic, in progress."""

    transfer: LoweredCollective | Stream
    original: LoweredCollective | Stream  # whose routes are used again when links come back
    slot: Slot
    ended: simpy.Event
    key: Any  # of like runs, which may use its slot again; None: none
    nbytes: float  # of a stream
    counted_bytes: float = 0.0  # those of a stream that are in `counted`


@dataclass
class MessageNetwork(Network):
    """The network at fidelity "message" (see the module and `Network`)."""

    compiled: bool | None = None
    """Whether to run the kernel compiled by numba. Default: where numba is installed and there is
    enough to do. The results are the same bits."""
    _kernel: Kernel = field(init=False)
    _sends: int = field(default=0, init=False)
    _runs: dict[int, _Run] = field(default_factory=dict, init=False)
    _spare: dict[Any, tuple[Any, list[Slot]]] = field(default_factory=dict, init=False)
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kernel = Kernel(self.machine.topology.arcs.bandwidth_Bps)
        if self.compiled:
            self._kernel.compile()

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        self._count_streams()
        return self._counted

    @property
    def counts(self) -> tuple[int, int]:
        """Sends that have arrived, and rates that were solved for it."""
        return self._kernel.landed, self._kernel.solved

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        now = self._rerouted.now(lowered)
        count_collective(self._counted, now)
        begin_s = self.env.now + lowered.launch_s
        return self._start(now, id(lowered), begin_s, original=lowered)

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic over some arcs from now on, at most at `cap_Bps`."""
        stream = Stream(route, cap_Bps)
        return self._start(stream, stream, self.env.now, nbytes)

    def become(self, machine: Machine) -> None:
        """Go on on this machine; bytes already sent stay sent.

        Raises `TopologyError`: no route is left between two ranks that have to communicate.
        """
        self._count_streams()
        self._note_change(machine)
        self._spare.clear()
        routes = []
        for run in self._runs.values():
            old, run.key = _routes(run.transfer), None
            if isinstance(run.original, LoweredCollective):
                run.transfer = reroute(run.original, machine)
                unsent_bytes = self._kernel.unsent_bytes(run.slot, self.env.now)
                move_counts(
                    self._counted,
                    old,
                    _routes(run.transfer),
                    unsent_bytes,
                    wire_shares(run.original),
                )
            else:
                route = reroute_stream(machine, run.original.route)
                run.transfer = replace(run.original, route=route)
            routes.append((run.slot, _routes(run.transfer)))
        self._kernel.become(machine.topology.arcs.bandwidth_Bps, self.env.now, routes)
        self._schedule(self.env.now)

    def _start(
        self,
        transfer: LoweredCollective | Stream,
        key: Any,
        at_s: float,
        nbytes: float | None = None,
        original: LoweredCollective | None = None,
    ) -> simpy.Event:
        """Begin a run at a time, in the slot of a like run that has ended or in a new one."""
        first, spare = self._spare.setdefault(key, (original or transfer, []))
        slot = spare.pop() if spare else self._add(self._columns(transfer))
        run = _Run(transfer, first, slot, self.env.event(), key, nbytes or 0.0)
        self._runs[slot.run] = run
        self._kernel.begin(slot, at_s, nbytes)
        self._sends += len(slot.spans["sends"])
        self._schedule(self.env.now)
        return run.ended

    def _add(self, columns: Columns) -> Slot:
        """Add a collective to the kernel; compile that first if it pays, as it joins arrays."""
        self._compile_for(self._sends + len(columns["sends.nbytes"]))
        return self._kernel.add(columns)

    def _compile_for(self, sends: int) -> None:
        if self.compiled is None and sends > COMPILED_PAYS:
            self.compiled = self._kernel.try_compile()

    def _columns(self, transfer: LoweredCollective | Stream) -> Columns:
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        if isinstance(transfer, Stream):
            return stream_columns(transfer.route, transfer.cap_Bps, capacity_Bps)
        columns = columns_of(transfer, flat_messages(transfer.schedule), capacity_Bps)
        if self.machine.library.in_order:
            columns["edges.connection"] = self._kernel.connections(columns)
        return columns

    def _schedule(self, at_s: float) -> None:
        """Run the kernel at a time, when everything else of that instant has happened."""
        if self._wake is not None and self._wake_s <= at_s:
            return
        delay_s = max(0.0, at_s - self.env.now)
        wake = schedule_last(self.env, self._advance, delay_s)
        self._wake, self._wake_s = wake, at_s

    def _advance(self, event: simpy.Event) -> None:
        """Run the kernel to the next event of SimPy, or until a collective ends."""
        if event is not self._wake:
            return
        self._wake = None
        self._compile_for(self._sends)
        self._count_streams()
        next_s = self.env.peek()
        ended = self._kernel.advance(next_s)
        for number in ended:
            self._end(self._runs.pop(number), self._kernel.now_s)
        if self._runs:
            self._schedule_next(self._kernel.now_s if ended else next_s)

    def _end(self, run: _Run, at_s: float) -> None:
        """Fire the event of a run at the time at which it has ended."""
        if isinstance(run.transfer, Stream):
            self._count(run, run.transfer, run.nbytes)
        if run.key is not None:
            self._spare[run.key][1].append(run.slot)
        call_at(self.env, at_s, lambda _: run.ended.succeed())

    def _schedule_next(self, at_s: float) -> None:
        """Run the kernel again at a time.

        Raises `SimulationError`: a collective cannot end.
        """
        is_final = at_s == np.inf or self.changes_left == 0
        collectives = [
            (run.transfer, run.slot)
            for run in self._runs.values()
            if isinstance(run.transfer, LoweredCollective)
        ]
        if is_final and collectives and self._kernel.may_be_stalled:
            stalled = [
                (lowered, edges)
                for lowered, slot in collectives
                if (edges := self._kernel.stalled_edges(slot))
            ]
            if stalled:
                raise SimulationError(stalled_text(self.machine, stalled))
        if at_s < np.inf:
            self._schedule(at_s)
        elif collectives:
            waiting = [(lowered, self._kernel.sends_left(slot)) for lowered, slot in collectives]
            raise SimulationError(waiting_text(waiting))

    def _count_streams(self) -> None:
        """Count what streams have sent until now."""
        for run in self._runs.values():
            if isinstance(run.transfer, Stream):
                self._count(run, run.transfer, self._kernel.sent_bytes(run.slot, self.env.now))

    def _count(self, run: _Run, stream: Stream, sent_bytes: float) -> None:
        count_stream(self._counted, np.array(stream.route), sent_bytes - run.counted_bytes)
        run.counted_bytes = sent_bytes


def _routes(transfer: LoweredCollective | Stream) -> Routes:
    if isinstance(transfer, LoweredCollective):
        return routes_of(transfer)
    return stream_routes(transfer.route, transfer.cap_Bps)
