"""Rates of streams and collectives that share links with each other, and with no other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.lowering.lowered import Stage
from perfmodel.library.machine import Machine
from perfmodel.simulate.flow.streams import Streams, joined_stage
from perfmodel.simulate.flow.transfers import Collective
from perfmodel.simulate.sharing.between_collectives import (
    SHORTEST_S,
    LinkSharings,
    Share,
    rates_in_turns,
    shared_rates,
)
from perfmodel.simulate.uncontended.timer import UncontendedTimer

Shares = tuple[FloatArray, list[tuple[FloatArray, float]]]
"""Rate of each stream; for each collective the rate of each edge, and by how much it is slower."""
Solve = Callable[[Machine, UncontendedTimer, Sequence[Streams], Sequence[Collective]], Shares]


MOST_KEPT = 1 << 23
"""Rates that are kept of jobs that met before; 8 bytes each."""


@dataclass
class SharesMet:
    """Shares of jobs that met on their links before: jobs that repeat themselves meet again.

    Shared by all simulations of one machine.
    """

    solved: int = 0
    """How often shares were solved."""
    _kept: int = 0
    _shares: dict[Hashable, tuple[tuple[object, ...], Shares]] = field(default_factory=dict)

    def of(
        self,
        solve: Callable[
            [Machine, UncontendedTimer, Sequence[Streams], Sequence[Collective]], Shares
        ],
        machine: Machine,
        timer: UncontendedTimer,
        flows: Sequence[Streams],
        collectives: Sequence[Collective],
    ) -> Shares:
        """Return what `solve` returns for these jobs."""
        number_of: dict[Hashable, int] = {}  # which began together, whenever that was
        key = (
            id(machine),
            tuple(
                (
                    id(job.lowered),
                    id(job.stage),
                    job.leg,
                    number_of.setdefault(job.key(), len(number_of)),
                )
                for job in collectives
            ),
            tuple(
                values.tobytes()
                for edges in (job.edges for job in flows)
                for values in (edges.cap_Bps, edges.pointers, edges.arcs)
            ),
        )
        if key in self._shares:
            return self._shares[key][1]
        shares = solve(machine, timer, flows, collectives)
        self.solved += 1
        self._kept += len(shares[0]) + sum(len(rates_Bps) for rates_Bps, _ in shares[1])
        if self._kept <= MOST_KEPT:  # with what the key names by id, so that no id is used again
            holds = (machine, *((job.lowered, job.stage) for job in collectives))
            self._shares[key] = holds, shares
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
    least_Bps = np.minimum.reduceat(capacity_Bps, stage.edges.pointers[:-1])
    return np.minimum(stage.cap_Bps, least_Bps)
