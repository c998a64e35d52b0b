"""A collective is its sends; a send waits for its turn, then holds the links of its path.

Rounds and dependencies are those of the schedule; paths, latencies, credits and the costs of
protocols those of the lowering, which is the same at all fidelities.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, partial

import simpy

from perfmodel.collectives.dependencies import messages, messages_in, unroll
from perfmodel.library.lowering.lowered import Edge, LoweredCollective, Path, paths_of
from perfmodel.library.machine import Machine
from perfmodel.simulate.network import LinkCounters, Network, UnsuitedNetworkError
from perfmodel.simulate.reference.shared_links import Flow, Process, SharedLinks

MOST_SENDS = 200_000
"""Sends that take about a minute at 0.3 ms each; 0.04 ms where few meet, 3 ms where 4,000 do."""


@dataclass(slots=True, eq=False)
class Send:
    """A message over an edge, which sends one at a time, and has so many credits."""

    path: Path
    nbytes: int
    turns: simpy.Resource
    credits: simpy.Resource
    landed: simpy.Event
    after: list[simpy.Event]


@dataclass
class ReferenceNetwork(Network):
    """The network at fidelity "reference" (see the module and `Network`)."""

    sends: int = field(default=0, init=False)
    _links: SharedLinks = field(init=False)
    _connections: dict[tuple[int, ...], simpy.Resource] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        arcs = self.machine.topology.arcs
        self._links = SharedLinks(self.env, arcs.bandwidth_Bps, self._counted)
        cores = self.machine.topology.sockets.cores
        if self.machine.library.in_order and cores and cores < len(self.machine.topology.ranks):
            raise UnsuitedNetworkError("fidelity 'reference' has no ranks that share cores")
        at_once = 1 if self.machine.library.in_order else sys.maxsize
        self._connections = defaultdict(partial(simpy.Resource, self.env, at_once))

    def _launch(self, lowered: LoweredCollective) -> simpy.Event:
        self._refuse_many(messages_in(lowered.schedule))
        return self.env.process(self._collective(lowered))

    def _collective(self, lowered: LoweredCollective) -> Process:
        """Begin all sends at once; each waits for its turn. It ends when all have landed."""
        yield self.env.timeout(lowered.launch_s)
        sends = sends_of(self.env, lowered)
        for send in sends:
            self.env.process(self._send(send))
        for send in sends:
            yield send.landed

    def _send(self, send: Send) -> Process:
        """Send when all that it waits for is there; arrive a latency later."""
        with send.turns.request() as turn:
            yield turn
            for event in send.after:  # noqa: UP028  # a list takes no values of events
                yield event
            yield (credit := send.credits.request())
            with self._connections[send.path.links].request() as connection:
                yield connection
                yield from self._links.carry(Flow(send.path, send.nbytes * send.path.wire_share))
        yield self.env.timeout(send.path.latency_s)
        send.credits.release(credit)
        send.landed.succeed()

    def stream(self, route: tuple[int, ...], cap_Bps: float, nbytes: float) -> simpy.Event:
        """Send background traffic, or a message between a worker and a server, from now on."""
        self._refuse_many(1)
        return self.env.process(self._links.carry(Flow(Path(route, cap_Bps, 0.0), nbytes)))

    def become(self, machine: Machine) -> None:
        """Go on with other bandwidths; other paths and latencies are not simulated."""
        before, now = self.machine.topology, machine.topology
        if before.dead != now.dead or (before.arcs.latency_s != now.arcs.latency_s).any():
            raise UnsuitedNetworkError("fidelity 'reference' with links that are lost or get late")
        self._note_change(machine)
        self._links.become(now.arcs.bandwidth_Bps)

    @property
    def counted(self) -> LinkCounters:
        """Bytes that each directed link has carried until now."""
        self._links.count_until_now()
        return self._counted

    def _refuse_many(self, sends: int) -> None:
        self.sends += sends
        if self.sends > MOST_SENDS:
            request = f"{self.sends:,} sends with fidelity 'reference'"
            raise UnsuitedNetworkError(f"{request}; allowed: at most {MOST_SENDS:,}, or 'message'")


def sends_of(env: simpy.Environment, lowered: LoweredCollective) -> list[Send]:
    """List the sends of a collective, round after round, with what each waits for.

    That is: those that wrote or read its chunks; in later stages all of its rank in those before.
    """
    unrolled, paths = messages(unroll(lowered.schedule)), paths_of(lowered)
    repeats = [sum(phase.repeat for phase in stage.phases) for stage in lowered.stages]
    stage_of = [stage for stage, count in enumerate(repeats) for _ in range(count)]
    stages = [stage_of[number] for number in unrolled.round.tolist()]
    ends = (column.tolist() for column in (unrolled.channel, unrolled.src, unrolled.dst))
    edges: list[Edge] = list(zip(stages, *ends, strict=True))
    turns = {edge: simpy.Resource(env) for edge in paths}
    credits = {edge: simpy.Resource(env, lowered.credits) for edge in paths}
    landed = [env.event() for _ in edges]
    of_rank = defaultdict[tuple[int, int], list[tuple[int, simpy.Event]]](list)
    for (stage, channel, src, dst), event in zip(edges, landed, strict=True):
        of_rank[channel, src].append((stage, event))
        of_rank[channel, dst].append((stage, event))

    @cache
    def landed_before(stage: int, channel: int, rank: int) -> simpy.Event:
        return env.all_of([event for at, event in of_rank[channel, rank] if at < stage])

    sends = list[Send]()
    for number, (edge, nbytes) in enumerate(zip(edges, unrolled.nbytes.tolist(), strict=True)):
        after = [landed[before] for before in unrolled.after[number]]
        after.append(landed_before(*edge[:3]))
        sends.append(Send(paths[edge], nbytes, turns[edge], credits[edge], landed[number], after))
    return sends
