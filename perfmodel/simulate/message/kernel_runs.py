"""Collectives and streams in the message kernel: begun, rerouted and ended.

All times count from the beginning of a busy period, in which the network is never empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import simpy

from perfmodel.collectives.message_arrays import flat_messages
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
from perfmodel.simulate.message.kernel.kernel_state import Kernel, Slot
from perfmodel.simulate.network import LinkCounters, move_counts, reroute_stream

COMPILED_PAYS = 20_000
"""Sends from which on loading numba (about a second) costs less than it saves: the interpreter
needs 10 us for a send that shares no link, 70 us where a dozen rates change with each."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Background traffic."""

    route: tuple[int, ...]
    cap_Bps: float


@dataclass(slots=True, eq=False)
class Run:
    """A collective, or a stream of background traffic, in progress."""

    transfer: LoweredCollective | Stream
    original: LoweredCollective | Stream  # whose routes are used again when links come back
    begin_s: float
    ended: simpy.Event
    nbytes: float = 0.0  # of a stream
    slot: Slot | None = None  # once the kernel has it
    is_moved: bool = False  # over other links than its slot was made for
    counted_bytes: float = 0.0  # those of a stream that were counted


@dataclass
class KernelRuns:
    """The kernel, and which of its entries are whose.

    `compiled`: see `MessageNetwork`.
    """

    machine: Machine
    compiled: bool | None
    kernel: Kernel = field(init=False)
    _sends: int = field(default=0, init=False)
    _of_slot: dict[int, Run] = field(default_factory=dict, init=False)
    _spare: dict[Any, tuple[object, list[Slot]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.kernel = Kernel(self.machine.topology.arcs.bandwidth_Bps)
        if self.compiled:
            self.kernel.compile()

    def restart(self) -> None:
        """Begin a busy period, at time 0."""
        self._of_slot.clear()
        self.kernel.restart()

    def begin(self, run: Run) -> None:
        """Begin a run in the slot of a like one that has ended, or in a new one."""
        transfer = run.transfer
        _, spare = self._spare.setdefault(_key(run), (transfer, []))
        run.slot = spare.pop() if spare else self._add(self._columns(transfer))
        self._of_slot[run.slot.run] = run
        is_stream = isinstance(transfer, Stream)
        self.kernel.begin(run.slot, run.begin_s, run.nbytes if is_stream else None)
        self._sends += len(run.slot.spans["sends"])

    def advance(self, until_s: float) -> list[Run]:
        """Go on to a time, or to the end of the instant in which some runs end; return these."""
        self._compile_for(self._sends)
        ended = [self._of_slot.pop(number) for number in self.kernel.advance(until_s)]
        for run in ended:
            if run.slot is not None and not run.is_moved:
                self._spare[_key(run)][1].append(run.slot)
        return ended

    def become(self, machine: Machine, at_s: float, counted: LinkCounters, runs: list[Run]) -> None:
        """Go on with some runs, which are all, on this machine; move counts of unsent bytes."""
        self.machine = machine
        self._spare.clear()
        routes = []
        for run in runs:
            assert run.slot is not None  # nothing waits to begin when the machine changes
            old, run.is_moved = _routes(run.transfer), True
            if isinstance(run.original, LoweredCollective):
                run.transfer = reroute(run.original, machine)
                new, unsent_bytes = _routes(run.transfer), self.kernel.unsent_bytes(run.slot, at_s)
                move_counts(counted, old, new, unsent_bytes, wire_shares(run.original))
            else:
                route = reroute_stream(machine, run.original.route)
                run.transfer = replace(run.original, route=route)
            routes.append((run.slot, _routes(run.transfer)))
        self.kernel.become(machine.topology.arcs.bandwidth_Bps, at_s, routes)

    def sent_bytes(self, run: Run, at_s: float) -> float:
        """Return the bytes that a stream has sent by a time."""
        return 0.0 if run.slot is None else self.kernel.sent_bytes(run.slot, at_s)

    def stalled_edges(self, run: Run) -> list[int]:
        """Return the edges of a run that are sending over a link that carries nothing."""
        return [] if run.slot is None else self.kernel.stalled_edges(run.slot)

    def sends_left(self, run: Run) -> int:
        """Return how many sends of a run have not landed."""
        return 0 if run.slot is None else self.kernel.sends_left(run.slot)

    def _add(self, columns: Columns) -> Slot:
        """Add a collective to the kernel; compile that first if it pays, as it joins arrays."""
        self._compile_for(self._sends + len(columns["sends.nbytes"]))
        return self.kernel.add(columns)

    def _compile_for(self, sends: int) -> None:
        if self.compiled is None and sends > COMPILED_PAYS:
            self.compiled = self.kernel.try_compile()

    def _columns(self, transfer: LoweredCollective | Stream) -> Columns:
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        if isinstance(transfer, Stream):
            return stream_columns(transfer.route, transfer.cap_Bps, capacity_Bps)
        columns = columns_of(transfer, flat_messages(transfer.schedule), capacity_Bps)
        if self.machine.library.in_order:
            columns["edges.connection"] = self.kernel.connections(columns)
        return columns


def _key(run: Run) -> object:
    """What runs have in common that can use each other's slots; kept with its object."""
    return run.transfer if isinstance(run.transfer, Stream) else id(run.transfer)


def _routes(transfer: LoweredCollective | Stream) -> Routes:
    if isinstance(transfer, LoweredCollective):
        return routes_of(transfer)
    return stream_routes(transfer.route, transfer.cap_Bps)
