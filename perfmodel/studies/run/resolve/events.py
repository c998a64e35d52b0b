"""From the words of ``events:`` to what the simulators know: parts, factors, changes, traffic.

One thing that happens around a job, as the report names it and as the simulators see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from perfmodel.errors import Fault, InputError, TopologyError, allowed_names
from perfmodel.scenario import (
    DegradeEvent,
    DownEvent,
    EventSection,
    LoseEvent,
    Scenario,
    SlowEvent,
    TrafficEvent,
)
from perfmodel.simulate.engine.background import BackgroundJob, Traffic
from perfmodel.simulate.ranks.jitter import Jitter
from perfmodel.topology.faults import arcs_named, no_device
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.units import format_bandwidth, format_bytes, format_time

BEFORE = -math.inf
"""A time before the start of the run."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What is wrong with some links from one time to another; seconds since the settled state.

    Parameters
    ----------
    from_s, until_s : float
    bandwidth_Bps, latency_s : mapping of int to float
        New numbers by arc; a bandwidth of 0 lets traffic stand still.
    arcs : tuple of int
        Dead arcs.
    nodes : tuple of str
        Dead devices.
    """

    from_s: float
    until_s: float = math.inf
    bandwidth_Bps: Mapping[int, float] = field(default_factory=dict)
    latency_s: Mapping[int, float] = field(default_factory=dict)
    arcs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One event or other job, as the report names it and as the simulators see it.

    Parameters
    ----------
    what : str
        In words.
    place : str
        Field of the scenario.
    ranks : tuple of int
        Ranks of the topology that are slow or have another GPU.
    by : float
        How much slower they are.
    gpu : str, optional
        The GPU that they have instead.
    steps : frozenset of int, optional
        Counted steps in which they are slow; default: all.
    """

    what: str
    place: str
    ranks: tuple[int, ...] = ()
    by: float = 1.0
    gpu: str | None = None
    steps: frozenset[int] | None = None
    jitter: Jitter | None = None
    faults: tuple[LinkFault, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    beside: BackgroundJob | None = None

    @property
    def moments_s(self) -> tuple[float, ...]:
        """When something begins or ends, since the settled state; seconds."""
        edges = [at for fault in self.faults for at in (fault.from_s, fault.until_s)]
        edges += [one.start_s for one in self.traffic if one.nbytes is not None]
        return tuple(at for at in edges if math.isfinite(at))

    @property
    def varies(self) -> bool:
        """Whether one step may be unlike another because of it."""
        bursts = any(one.nbytes is not None for one in self.traffic)
        return bool(self.moments_s or self.steps or self.jitter or self.beside or bursts)


def background_jobs(active: Sequence[Disturbance], settled_s: float) -> Iterator[BackgroundJob]:
    """Other jobs of some incidents, in seconds since the start of the run.

    One without a start of its own has been there before.
    """
    for incident in active:
        if (one := incident.beside) is not None:
            yield replace(one, start_s=settled_s + one.start_s if one.start_s else 0.0)


def background_traffic(active: Sequence[Disturbance], settled_s: float) -> Iterator[Traffic]:
    """Traffic of some incidents, in seconds since the start of the run.

    A steady stream from the start has been there before.
    """
    for incident in active:
        for one in incident.traffic:
            steady = one.nbytes is None and one.start_s == 0
            yield Traffic(
                one.src, one.dst, one.rate_Bps, one.nbytes, one.every_s,
                0.0 if steady else settled_s + one.start_s,
            )  # fmt: skip


def incidents(
    scenario: Scenario,
    topology: Topology,
    ranks: Sequence[int],
    gpus_per_node: int,
    *,
    strict: bool = True,
) -> tuple[Disturbance, ...]:
    """Resolve the events of a scenario, and its other GPUs, on a machine.

    Parameters
    ----------
    ranks : sequence of int
        Ranks of the topology that are the job's, in its order.
    gpus_per_node : int
    strict : bool
        Whether a name that this machine does not have is an error, or its event is left out (for
        the smaller sizes of a scaling curve).

    Raises
    ------
    InputError
        With the faults of all events.
    """
    words = _Words(scenario, topology, ranks, gpus_per_node)
    found: list[Disturbance] = []
    faults: list[Fault] = []
    makers: list[tuple[str, Callable[[], Disturbance]]] = [
        (f"events.{at}.{event.kind}", lambda at=at, event=event: words.incident(at, event))  # type: ignore[misc]
        for at, event in enumerate(scenario.events)
    ]
    makers += [
        (f"cluster.mixed.{at}", lambda at=at: words.mixed(at))  # type: ignore[misc]
        for at in range(len(scenario.cluster.mixed))
    ]
    for place, make in makers:
        try:
            found.append(make())
        except InputError as error:
            faults += [
                scenario.origin.fault(f"{place}.{f.field}", f.found, f.allowed)
                for f in error.faults
            ]
    if faults and strict:
        raise InputError(faults)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Words:
    """What the words of events mean for one job on one machine."""

    scenario: Scenario
    topology: Topology
    ranks: Sequence[int]
    gpus_per_node: int

    def incident(self, at: int, event: EventSection) -> Disturbance:
        place = f"events.{at}"
        if event.slow is not None:
            return self._slow(place, event.slow)
        if event.jitter is not None:
            jitter = event.jitter
            seed = (self.scenario.seed if jitter.seed is None else jitter.seed) + 1_000_003 * at
            words = f"{jitter.kind} jitter of {100 * jitter.cv:g} % per {jitter.per}"
            return Disturbance(
                words, place, jitter=Jitter(jitter.kind, jitter.cv, jitter.per, seed)
            )
        if event.degrade is not None:
            return self._degrade(place, event.degrade)
        if event.down is not None:
            return self._down(place, event.down)
        if event.lose is not None:
            return self._lose(place, event.lose)
        assert event.traffic is not None
        return self._traffic(place, event.traffic)

    # ------------------------------------------------------------ ranks

    def mixed(self, at: int) -> Disturbance:
        section = self.scenario.cluster.mixed[at]
        ranks = self._of_nodes(section.nodes)
        whose = "have" if len(section.nodes) > 1 else "has"
        words = f"{_listed(self._node_names(section.nodes))} {whose} {section.gpu}"
        return Disturbance(words, f"cluster.mixed.{at}", ranks, gpu=section.gpu)

    def _slow(self, place: str, slow: SlowEvent) -> Disturbance:
        if slow.nodes is not None:
            ranks, names = self._of_nodes(slow.nodes), self._node_names(slow.nodes)
        else:
            assert slow.ranks is not None
            self._check("ranks", slow.ranks, len(self.ranks))
            ranks = tuple(self.ranks[rank] for rank in slow.ranks)
            names = [self.topology.ranks[rank] for rank in ranks]
        steps = None if slow.steps is None else frozenset(slow.steps)
        when = "" if steps is None else f" in step {_listed([str(s) for s in sorted(steps)])}"
        words = f"{_listed(names)} {slow.by:g} times slower{when}"
        return Disturbance(words, place, ranks, slow.by, steps=steps)

    def _of_nodes(self, nodes: Sequence[int]) -> tuple[int, ...]:
        self._check("nodes", nodes, len(self.ranks) // self.gpus_per_node)
        each = self.gpus_per_node
        return tuple(self.ranks[node * each + gpu] for node in nodes for gpu in range(each))

    def _node_names(self, nodes: Sequence[int]) -> list[str]:
        firsts = [self.ranks[node * self.gpus_per_node] for node in nodes]
        return [self.topology.ranks[rank].partition("/")[0] for rank in firsts]

    def _check(self, what: str, numbers: Sequence[int], limit: int) -> None:
        faults = [
            Fault(f"{what}.{at}", str(number), f"0 to {limit - 1}, the {what} of this job")
            for at, number in enumerate(numbers)
            if number >= limit
        ]
        if faults:
            raise InputError(faults)

    # ------------------------------------------------------------ links

    def _degrade(self, place: str, degrade: DegradeEvent) -> Disturbance:
        arcs = arcs_named(self.topology, degrade.link)
        numbers = self.topology.arcs
        rates = {}
        if degrade.to is not None:
            most_Bps = float(numbers.bandwidth_Bps[list(arcs)].min())
            if degrade.to >= most_Bps:
                allowed = f"less than {format_bandwidth(most_Bps)}, what it carries when it is well"
                raise InputError(Fault("to", format_bandwidth(degrade.to), allowed))
        if degrade.to is not None or degrade.by is not None:
            rates = {
                arc: degrade.to or float(numbers.bandwidth_Bps[arc]) / (degrade.by or 1.0)
                for arc in arcs
            }
        delays = {} if degrade.latency is None else dict.fromkeys(arcs, degrade.latency)
        until_s = math.inf if degrade.until is None else degrade.until
        fault = LinkFault(_from(degrade.at), until_s, rates, delays)
        how = [] if degrade.to is None else [f"at {format_bandwidth(degrade.to)}"]
        how += [] if degrade.by is None else [f"{degrade.by:g} times slower"]
        how += [] if degrade.latency is None else [f"with {format_time(degrade.latency)} latency"]
        when = _when(degrade.at)
        if degrade.until is not None:
            when += f" until {format_time(degrade.until)}"
        return Disturbance(f"{degrade.link} {' '.join(how)}{when}", place, faults=(fault,))

    def _down(self, place: str, down: DownEvent) -> Disturbance:
        arcs = arcs_named(self.topology, down.link)
        faults = _lost(down.at, down.reroute_after, arcs, LinkFault(0.0, arcs=arcs))
        words = f"{down.link} down{_when(down.at)}{_rerouted(down.at, down.reroute_after)}"
        return Disturbance(words, place, faults=faults)

    def _lose(self, place: str, lose: LoseEvent) -> Disturbance:
        nodes = self.topology.graph.nodes
        if lose.nic not in nodes or nodes[lose.nic]["kind"] != "nic":
            fault = no_device(self.topology, lose.nic, "nic")
            nics = [name for name, data in nodes(data=True) if data["kind"] == "nic"]
            allowed = (
                fault.allowed if lose.nic not in nodes else f"a NIC: {allowed_names(nics, limit=8)}"
            )
            raise InputError(Fault("nic", repr(lose.nic), allowed))
        arcs = arcs_named(self.topology, lose.nic)
        faults = _lost(lose.at, lose.reroute_after, arcs, LinkFault(0.0, nodes=(lose.nic,)))
        words = f"{lose.nic} lost{_when(lose.at)}{_rerouted(lose.at, lose.reroute_after)}"
        return Disturbance(words, place, faults=faults)

    # ------------------------------------------------------------ traffic

    def _traffic(self, place: str, traffic: TrafficEvent) -> Disturbance:
        pairs = self._pairs(traffic)
        every = "" if traffic.every is None else f" every {format_time(traffic.every)}"
        amount = "" if traffic.nbytes is None else f"{_size(traffic.nbytes)}{every}"
        rate = "" if traffic.rate is None else f"at most {format_bandwidth(traffic.rate)}"
        flows = f" ({len(pairs)} of them)" if len(pairs) > 1 else ""
        how = ", ".join(part for part in (amount, rate) if part)
        return Disturbance(
            f"traffic {traffic.from_} to {traffic.to}{flows}: {how}",
            place,
            traffic=tuple(
                Traffic(src, dst, traffic.rate, traffic.nbytes, traffic.every, traffic.at)
                for src, dst in pairs
            ),
        )

    def _pairs(self, traffic: TrafficEvent) -> list[tuple[str, str]]:
        """Senders and receivers: one by one, or all with the only one of the other side."""
        sides = {
            "from": self._devices("from", traffic.from_),
            "to": self._devices("to", traffic.to),
        }
        senders, receivers = sides["from"], sides["to"]
        if len(senders) == 1:
            pairs = [(senders[0], dst) for dst in receivers]
        elif len(receivers) == 1:
            pairs = [(src, receivers[0]) for src in senders]
        elif len(senders) == len(receivers):
            pairs = list(zip(senders, receivers, strict=True))
        else:
            allowed = f"one device, or as many as the {len(senders)} of 'from'"
            raise InputError(Fault("to", f"{traffic.to!r}, {len(receivers)} devices", allowed))
        pairs = [(src, dst) for src, dst in pairs if src != dst]
        if not pairs:
            raise InputError(Fault("to", repr(traffic.to), "another device than 'from'"))
        router = Router(self.topology)
        try:
            for src, dst in pairs:
                router.route(src, dst)
        except TopologyError as error:
            allowed = f"a device within reach: {error}"
            raise InputError(Fault("to", repr(traffic.to), allowed)) from None
        return pairs

    def _devices(self, side: str, name: str) -> list[str]:
        graph = self.topology.graph
        if name in graph:
            return [name]
        is_pattern = any(sign in name for sign in "*?[")
        found = [node for node in graph if is_pattern and fnmatchcase(node, name)]
        if not found:
            raise InputError(no_device(self.topology, name, side))
        return found


def _size(nbytes: float) -> str:
    """Write a size with a decimal or a binary prefix, whichever is shorter."""
    return min(format_bandwidth(nbytes).removesuffix("/s"), format_bytes(nbytes), key=len)


def _from(at_s: float | None) -> float:
    return BEFORE if at_s is None else at_s


def _lost(
    at_s: float | None, after_s: float, arcs: Sequence[int], gone: LinkFault
) -> tuple[LinkFault, ...]:
    """Links that carry nothing at first, and are routed around later."""
    if at_s is None:
        return (LinkFault(BEFORE, arcs=gone.arcs, nodes=gone.nodes),)
    dead = LinkFault(at_s + after_s, arcs=gone.arcs, nodes=gone.nodes)
    if after_s == 0:
        return (dead,)
    return (LinkFault(at_s, at_s + after_s, dict.fromkeys(arcs, 0.0)), dead)


def _when(at_s: float | None) -> str:
    return "" if at_s is None else f" from {format_time(at_s)} on"


def _rerouted(at_s: float | None, after_s: float) -> str:
    return "" if at_s is None else f", routed around after {format_time(after_s)}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
