"""Collectives and streams in the message kernel: begun, rerouted and ended.

All times count from the beginning of a busy period, in which the network is never empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import simpy

from perfmodel.arrays import FloatArray
from perfmodel.collectives.dependencies import messages, unroll
from perfmodel.collectives.timing.recurrence import EdgePaces, fits, last_landing_s
from perfmodel.library.lowering.lowered import Edges, LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine
from perfmodel.simulate.message import numba_kernel
from perfmodel.simulate.message.compile import (
    Columns,
    columns_of,
    limits_Bps,
    routes_of,
    stream_columns,
    wire_shares,
)
from perfmodel.simulate.message.kernel_state import Kernel, Slot
from perfmodel.simulate.message.link_sharing import SAME_RATE
from perfmodel.simulate.network import LinkCounters, move_counts, reroute_stream, stream_edges

SENDS_TO_COMPILE = 20_000
"""Sends from which on loading numba (about a second) costs less than it saves: the interpreter
needs 10 us for a send that shares no link, 70 us where a dozen rates change with each."""
SENDS_TO_BUILD = 150_000
"""Those from which on compiling the kernel (12 s) pays, where numba's cache on disk has it not."""


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
    _sends: int = field(default=0, init=False)
    _of_slot: dict[int, Run] = field(default_factory=dict, init=False)
    _spare: dict[LoweredCollective | Stream, list[Slot]] = field(
        default_factory=partial(defaultdict, list), init=False
    )

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
        spare = self._spare[transfer]
        run.slot = spare.pop() if spare else self._add(self._columns(transfer))
        self._of_slot[run.slot.run] = run
        self.kernel.begin(
            run.slot, run.begin_s, run.nbytes if isinstance(transfer, Stream) else None
        )
        self._sends += len(run.slot.spans["sends"])

    def advance(self, until_s: float) -> list[Run]:
        """Go on to a time, or to the end of the instant in which some runs end; return these."""
        self._compile_for(self._sends)
        ended = [self._of_slot.pop(number) for number in self.kernel.advance(until_s)]
        for run in ended:
            if run.slot is not None and not run.is_moved:
                self._spare[run.transfer].append(run.slot)
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
                run.transfer = replace(
                    run.original, route=reroute_stream(machine, run.original.route)
                )
            routes.append((run.slot, _routes(run.transfer)))
        self.kernel.become(machine.topology.arcs.bandwidth_Bps, at_s, routes)

    def _add(self, columns: Columns) -> Slot:
        """Add a collective to the kernel; compile that first if it pays, as it joins arrays."""
        self._compile_for(self._sends + len(columns["sends.nbytes"]))
        return self.kernel.add(columns)

    def _compile_for(self, sends: int) -> None:
        if self.compiled is None and sends > SENDS_TO_COMPILE:
            try:
                if sends > SENDS_TO_BUILD or numba_kernel.is_on_disk():
                    self.kernel.compile()
                    self.compiled = True
            # numba is missing, does not work, or has no folder that it may write to
            except (ImportError, RuntimeError):
                self.compiled = False

    def _columns(self, transfer: LoweredCollective | Stream) -> Columns:
        capacity_Bps = self.machine.topology.arcs.bandwidth_Bps
        if isinstance(transfer, Stream):
            return stream_columns(transfer.route, transfer.cap_Bps, capacity_Bps)
        columns = columns_of(transfer, messages(unroll(transfer.schedule)), capacity_Bps)
        if self.machine.library.in_order:
            columns["edges.connection"] = self.kernel.connections(columns)
        return columns


def _routes(transfer: LoweredCollective | Stream) -> Edges:
    if isinstance(transfer, Stream):
        return stream_edges([transfer.route], [transfer.cap_Bps])
    return routes_of(transfer)


@dataclass
class BusyPeriod:
    """From when the network begins to carry something until it is empty again."""

    begin_s: float
    runs: list[Run] = field(default_factory=list)  # all that began in its first instant
    ends_s: dict[Run, float] = field(default_factory=dict)  # of those, from `begin_s`
    has_begun: bool = False  # the first instant is over
    is_recalled: bool = False  # its ends are known; the kernel is idle
    is_undisturbed: bool = True  # nothing has begun or changed since the first instant


def unshared_ends_s(machine: Machine, runs: Sequence[Run]) -> list[float] | None:
    """Return when each run ends, in their own time; seconds.

    None where a link cannot carry all edges over it at their limits, where sends queue for
    connections, and for background traffic: the kernel simulates these.

    Raises `SimulationError` and `ScheduleError`: as `last_landing_s`.
    """
    carried = [run.transfer for run in runs if isinstance(run.transfer, LoweredCollective)]
    is_fit = all(fits(lowered.schedule, lowered.credits) for lowered in carried)
    if machine.library.in_order or len(carried) < len(runs) or not is_fit:
        return None
    capacity_Bps = machine.topology.arcs.bandwidth_Bps
    routes = [routes_of(lowered) for lowered in carried]
    limits = [limits_Bps(each, capacity_Bps) for each in routes]
    is_cut = any((limit_Bps <= 0.0).any() for limit_Bps in limits)
    if is_cut or _is_overbooked(routes, limits, capacity_Bps):
        return None
    return [
        last_landing_s(lowered.schedule, _paces(lowered, each, limit_Bps), run.begin_s)
        for run, lowered, each, limit_Bps in zip(runs, carried, routes, limits, strict=True)
    ]


def _is_overbooked(
    routes: Sequence[Edges], limits: Sequence[FloatArray], capacity_Bps: FloatArray
) -> bool:
    """Whether any link cannot carry all edges that cross it at their limits."""
    demand_Bps = np.zeros(len(capacity_Bps))
    for each, limit_Bps in zip(routes, limits, strict=True):
        demand_Bps += np.bincount(
            each.arcs,
            weights=np.repeat(limit_Bps, np.diff(each.pointers)),
            minlength=len(demand_Bps),
        )
    return bool((demand_Bps > capacity_Bps * (1.0 + SAME_RATE)).any())


def _paces(lowered: LoweredCollective, routes: Edges, limit_Bps: FloatArray) -> EdgePaces:
    return EdgePaces(
        [stage.phases for stage in lowered.stages],
        wire_shares(lowered) / limit_Bps,
        routes.latency_s,
        lowered.credits,
    )
