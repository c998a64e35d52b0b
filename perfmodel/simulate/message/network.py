"""Fidelity "message": every send of a collective is simulated. Up to some hundred ranks.

The sends run in a kernel of their own (`event_loop.py`); SimPy sees collectives begin and end,
streams, and changes of the machine. The kernel runs up to the next event of SimPy, or to the end of
a collective, whichever comes first.

Its times count from when the network was last empty. So a collective that runs alone takes the same
time whenever it begins, to the last bit, and what was simulated before is not simulated again.
Where no link can be overbooked, rounds are timed one after the other instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy

from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.simulate.message.kernel_runs import (
    BusyPeriod,
    KernelRuns,
    Run,
    Stream,
    unshared_ends_s,
)
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    call_at,
    count_collective,
    count_stream,
    schedule_last,
    stalled_text,
    waiting_text,
)

KnownEnds = dict[Hashable, list[float]]
"""When collectives ended that began together on an empty network, and remained alone: seconds from
their beginning, shared by all simulations of one machine."""
MOST_PERIODS = 1024
"""Busy periods of which the ends are kept."""


@dataclass
class MessageNetwork(Network):
    """The network at fidelity "message" (see the module and `Network`)."""

    compiled: bool | None = None
    """Whether to run the kernel compiled by numba. Default: where numba is installed and there is
    enough to do. The results are the same bits."""
    recalls: bool = True
    """Whether what was simulated before on this machine is not simulated again."""
    by_rounds: bool = True
    """Whether collectives on links that nobody shares are timed round by round, without events
    (`kernel_runs.unshared_ends_s`). They take the same time."""
    _runs: dict[Run, None] = field(default_factory=dict, init=False)  # in this order
    _wake: simpy.Event | None = field(default=None, init=False)
    _wake_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._kernel = KernelRuns(self.machine, self.compiled)
        self._period = BusyPeriod(self.env.now)

    @property
    def counted(self) -> LinkCounters:
        """Bytes over each directed link: of collectives begun, and of streams until now."""
        self._count_streams()
        return self._counted

    @property
    def counts(self) -> tuple[int, int]:
        """Sends that have arrived, and rates that were solved for it, where it was simulated."""
        clock = self._kernel.kernel.clock
        return int(clock.landed), int(clock.solved)

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        now = self._now(lowered)
        count_collective(self._counted, now)
        return self._start(now, lowered, now.launch_s)

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic over some arcs from now on, at most at `cap_Bps`."""
        stream = Stream(route, cap_Bps)
        return self._start(stream, stream, 0.0, nbytes)

    def become(self, machine: Machine) -> None:
        """Go on on this machine; bytes already sent stay sent.

        Raises `TopologyError`: no route is left between two ranks that have to communicate.
        """
        self._disturb()
        self._count_streams()
        self._note_change(machine)
        self._kernel.become(machine, self._elapsed_s, self._counted, [*self._runs])
        self._schedule(self.env.now)

    @property
    def _elapsed_s(self) -> float:
        return float(self.env.now) - self._period.begin_s

    def _start(
        self,
        transfer: LoweredCollective | Stream,
        original: LoweredCollective | Stream,
        delay_s: float,
        nbytes: float = 0.0,
    ) -> simpy.Event:
        """Begin a run some time from now."""
        if not self._runs:
            self._period = BusyPeriod(self.env.now)
            self._kernel.restart()
        run = Run(transfer, original, self._elapsed_s + delay_s, self.env.event(), nbytes)
        if self._period.has_begun:
            self._disturb()
            self._kernel.begin(run)
        else:
            self._period.runs.append(run)
        self._runs[run] = None
        self._schedule(self.env.now)
        return run.ended

    def _disturb(self) -> None:
        """Note that something else happens in a period; simulate it until now if it was not."""
        period = self._period
        if not self._runs:
            return
        period.is_undisturbed = False
        was_recalled, period.is_recalled = period.is_recalled, False
        if not period.has_begun or was_recalled:
            self._begin_period()
        if was_recalled:
            until_s = max(self._elapsed_s, *period.ends_s.values(), 0.0)
            while ended := self._kernel.advance(until_s):
                self._end(ended)

    def _begin_period(self) -> None:
        """Begin in the kernel what begins in the first instant of a period."""
        self._period.has_begun = True
        for run in self._period.runs:
            self._kernel.begin(run)

    def _recall(self) -> bool:
        """Let a period go as one that was simulated, or as its rounds do, if its links allow it."""
        period = self._period
        ends_s = (self.timer.keep(KnownEnds) if self.recalls else {}).get(self._period_key())
        if ends_s is None and self.by_rounds:
            ends_s = unshared_ends_s(self.machine, period.runs)
        if ends_s is None:
            return False
        self._keep_ends(ends_s)
        period.has_begun = period.is_recalled = True
        for run, end_s in zip(period.runs, ends_s, strict=True):
            call_at(self.env, period.begin_s + end_s, partial(self._end_recalled, run, end_s))
        return True

    def _end_recalled(self, run: Run, end_s: float, _: simpy.Event) -> None:
        if self._period.is_recalled and run in self._runs:
            self._period.ends_s[run] = end_s
            del self._runs[run]
            run.ended.succeed()

    def _schedule(self, at_s: float) -> None:
        """Run the kernel at a time, when everything else of that instant has happened."""
        if self._wake is not None and self._wake_s <= at_s:
            return
        wake = schedule_last(self.env, self._advance, max(0.0, at_s - self.env.now))
        self._wake, self._wake_s = wake, at_s

    def _advance(self, event: simpy.Event) -> None:
        """Run the kernel to the next event of SimPy, or until a collective ends."""
        if event is not self._wake:
            return
        self._wake = None
        if not self._period.has_begun:
            if self._recall():
                return
            self._begin_period()
        if self._period.is_recalled:
            return
        self._count_streams()
        next_s = self.env.peek()
        ended = self._kernel.advance(next_s - self._period.begin_s)
        self._end(ended)
        if self._runs:
            now_s = self._period.begin_s + float(self._kernel.kernel.clock.now_s)
            self._schedule_next(now_s if ended else next_s)

    def _end(self, ended: list[Run]) -> None:
        """Fire the events of runs that have ended in the kernel, at that time."""
        period, end_s = self._period, float(self._kernel.kernel.clock.now_s)
        for run in ended:
            if run in self._runs:  # else it has ended while the period was as one before
                del self._runs[run]
                period.ends_s[run] = end_s
                if isinstance(run.transfer, Stream):
                    self._count(run, run.transfer, run.nbytes)
                call_at(self.env, period.begin_s + end_s, partial(_succeed, run))
        is_alike = all(isinstance(run.transfer, LoweredCollective) for run in period.runs)
        if period.is_undisturbed and is_alike and not self._runs:
            self._keep_ends([period.ends_s[run] for run in period.runs])

    def _keep_ends(self, ends_s: list[float]) -> None:
        known = self.timer.keep(KnownEnds)
        if len(known) >= MOST_PERIODS:
            known.clear()
        known[self._period_key()] = ends_s

    def _period_key(self) -> Hashable:
        return self.machine, tuple([(run.transfer, run.begin_s) for run in self._period.runs])

    def _schedule_next(self, at_s: float) -> None:
        """Run the kernel again at a time.

        Raises `SimulationError`: a collective cannot end.
        """
        is_final = at_s == np.inf or self.changes_left == 0
        collectives = [
            (run.transfer, run.slot)
            for run in self._runs
            if isinstance(run.transfer, LoweredCollective) and run.slot is not None
        ]
        if is_final and collectives and self._kernel.kernel.clock.stalled:
            stalled = [
                (lowered, edges)
                for lowered, slot in collectives
                if (edges := self._kernel.kernel.stalled_edges(slot))
            ]
            if stalled:
                raise SimulationError(stalled_text(self.machine, stalled))
        if at_s < np.inf:
            self._schedule(at_s)
        elif collectives:
            kernel = self._kernel.kernel
            raise SimulationError(
                waiting_text([(lowered, kernel.sends_left(slot)) for lowered, slot in collectives])
            )

    def _count_streams(self) -> None:
        """Count what streams have sent until now."""
        for run in self._runs:
            if isinstance(run.transfer, Stream) and run.slot is not None:
                self._count(
                    run, run.transfer, self._kernel.kernel.sent_bytes(run.slot, self._elapsed_s)
                )

    def _count(self, run: Run, stream: Stream, sent_bytes: float) -> None:
        count_stream(self._counted, np.array(stream.route), sent_bytes - run.counted_bytes)
        run.counted_bytes = sent_bytes


def _succeed(run: Run, _: simpy.Event) -> None:
    run.ended.succeed()
