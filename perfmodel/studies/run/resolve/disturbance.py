"""Events and other jobs as the simulators need them: slow ranks, link faults, traffic, jobs.

So are processes of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.errors import Fault, InputError, TopologyError, allowed_names, describe_type
from perfmodel.files import collect_faults
from perfmodel.own_functions import check_function
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
from perfmodel.simulate.engine.own_processes import A_PROCESS, OwnProcess
from perfmodel.simulate.ranks.jitter import Jitter
from perfmodel.topology.faults import find_arcs, find_devices, no_device
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.units import format_bandwidth, format_bytes, format_time

ALWAYS_S = -math.inf
"""Start of a fault that is there before the job starts."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Links and devices that are degraded or dead from one time to another.

    `from_s`, `until_s`: since the settled state; seconds.
    `bandwidth_Bps`, `latency_s`: changed numbers by arc; at a bandwidth of 0 traffic waits.
    `arcs`: dead arcs.
    `nodes`: dead devices.
    """

    from_s: float
    until_s: float = math.inf
    bandwidth_Bps: Mapping[int, float] = field(default_factory=dict)
    latency_s: Mapping[int, float] = field(default_factory=dict)
    arcs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One event, group of other GPUs, other job, or process of the user's.

    `description`: as reports name it.
    `origin`: field of the scenario.
    `ranks`: ranks of the topology that are slow or have another GPU.
    `by`: how many times slower they are.
    `gpu`: the GPU that they have instead.
    `steps`: counted steps in which they are slow; default: all.
    `counted`: steps that are counted beside a process.
    """

    description: str
    origin: str
    ranks: tuple[int, ...] = ()
    by: float = 1.0
    gpu: str | None = None
    steps: frozenset[int] | None = None
    jitter: Jitter | None = None
    faults: tuple[LinkFault, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    background_job: BackgroundJob | None = None
    process: OwnProcess | None = None
    counted: int = 1

    @property
    def moments_s(self) -> tuple[float, ...]:
        """When faults begin and end and bursts begin, since the settled state; seconds."""
        edges = [at for fault in self.faults for at in (fault.from_s, fault.until_s)]
        edges += [flow.start_s for flow in self.traffic if flow.nbytes is not None]
        return tuple(at for at in edges if math.isfinite(at))

    @property
    def varies(self) -> bool:
        """Whether steps may differ from one another because of it."""
        bursts = any(flow.nbytes is not None for flow in self.traffic)
        others = self.background_job or self.process
        return bool(self.moments_s or self.steps or self.jitter or others or bursts)


def background_jobs(
    disturbances: Sequence[Disturbance], settled_s: float
) -> Iterator[BackgroundJob]:
    """List other jobs with their starts in seconds since the start of the run.

    A job that starts at 0 runs from the start of the run on, before the settled state.
    """
    for disturbance in disturbances:
        if (job := disturbance.background_job) is not None:
            yield replace(job, start_s=settled_s + job.start_s if job.start_s else 0.0)


def own_processes(disturbances: Sequence[Disturbance], settled_s: float) -> Iterator[OwnProcess]:
    """List processes of the user's, which begin with the settled state."""
    for disturbance in disturbances:
        if disturbance.process is not None:
            yield replace(disturbance.process, start_s=settled_s)


COUNTED_STEPS = 20
"""Steps that are counted beside a process of the user's, whose end nobody knows."""


def as_disturbances(processes: Any, steps: Any = None) -> tuple[Disturbance, ...]:
    """Check processes of the user's; one need not stand in a list.

    `steps`: that are counted beside them; None: `COUNTED_STEPS`.
    Raises `InputError`: what is no function of (env, network), or no number of steps; all faults.
    """
    single = callable(processes) or not isinstance(processes, Iterable)
    listed = [processes] if single else list(processes)
    faults: list[Fault] = []
    for number, function in enumerate(listed):
        with collect_faults(faults):
            check_function(f"processes.{number}", function, "(env, network)", A_PROCESS)
    counted = COUNTED_STEPS if steps is None else steps
    if isinstance(counted, bool) or not isinstance(counted, int) or counted < 1:
        faults.append(Fault("steps", describe_type(steps), "a whole number of steps, 1 or more"))
    if faults:
        raise InputError(faults)
    return tuple(
        Disturbance(f"process {own.name}", own.field, process=own, counted=counted)
        for own in (
            OwnProcess(function, f"processes.{number}") for number, function in enumerate(listed)
        )
    )


def process_at(disturbance: Disturbance, *, is_main: bool) -> Disturbance:
    """Return a process at one size; at smaller ones it may name devices that are not there."""
    assert disturbance.process is not None
    return replace(disturbance, process=replace(disturbance.process, strict=is_main))


def background_traffic(disturbances: Sequence[Disturbance], settled_s: float) -> Iterator[Traffic]:
    """List other traffic with its starts in seconds since the start of the run.

    A steady stream that starts at 0 runs from the start of the run on.
    """
    for disturbance in disturbances:
        for flow in disturbance.traffic:
            steady = flow.nbytes is None and flow.start_s == 0
            yield replace(flow, start_s=0.0 if steady else settled_s + flow.start_s)


def join_names(names: Sequence[str], most: int = 4) -> str:
    """List names for a description; of many the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# ---------------------------------------------------------------- events and mixed nodes


def resolve_events(
    scenario: Scenario,
    topology: Topology,
    ranks: Sequence[int],
    gpus_per_node: int,
    *,
    strict: bool = True,
) -> tuple[Disturbance, ...]:
    """Resolve the events of a scenario, and nodes with other GPUs, on a machine.

    `ranks`: ranks of the topology that are the job's, in its order.
    `strict`: whether a name that this machine does not have is an error. If not, its event is left
        out, as for the smaller sizes of a scaling curve.
    Raises `InputError`: with the faults of all events.
    """
    resolver = _EventResolver(scenario, topology, ranks, gpus_per_node)
    disturbances: list[Disturbance] = []
    faults: list[Fault] = []
    makers: list[tuple[str, Callable[[], Disturbance]]] = [
        (f"events.{at}.{event.kind}", lambda at=at, event=event: resolver.resolve(at, event))  # type: ignore[misc]
        for at, event in enumerate(scenario.events)
    ]
    makers += [
        (f"cluster.mixed.{at}", lambda at=at: resolver.resolve_mixed(at))  # type: ignore[misc]
        for at in range(len(scenario.cluster.mixed))
    ]
    for name, make in makers:
        try:
            disturbances.append(make())
        except InputError as error:
            faults += [
                scenario.origin.fault(f"{name}.{f.field}", f.found, f.allowed) for f in error.faults
            ]
    if faults and strict:
        raise InputError(faults)
    return tuple(disturbances)


@dataclass(frozen=True, slots=True)
class _EventResolver:
    """Makes disturbances of the sections of a scenario, for one job on one machine."""

    scenario: Scenario
    topology: Topology
    ranks: Sequence[int]
    gpus_per_node: int

    def resolve(self, at: int, event: EventSection) -> Disturbance:
        origin = f"events.{at}"
        if event.slow is not None:
            return self._resolve_slow(origin, event.slow)
        if event.jitter is not None:
            jitter = event.jitter
            seed = (self.scenario.seed if jitter.seed is None else jitter.seed) + 1_000_003 * at
            description = f"{jitter.kind} jitter of {100 * jitter.cv:g} % per {jitter.per}"
            return Disturbance(
                description, origin, jitter=Jitter(jitter.kind, jitter.cv, jitter.per, seed)
            )
        if event.degrade is not None:
            return self._resolve_degrade(origin, event.degrade)
        if event.down is not None:
            return self._resolve_down(origin, event.down)
        if event.lose is not None:
            return self._resolve_lose(origin, event.lose)
        assert event.traffic is not None
        return self._resolve_traffic(origin, event.traffic)

    # ------------------------------------------------------------ ranks

    def resolve_mixed(self, at: int) -> Disturbance:
        section = self.scenario.cluster.mixed[at]
        ranks = self._ranks_of(section.nodes)
        verb = "have" if len(section.nodes) > 1 else "has"
        description = f"{join_names(self._node_names(section.nodes))} {verb} {section.gpu}"
        return Disturbance(description, f"cluster.mixed.{at}", ranks, gpu=section.gpu)

    def _resolve_slow(self, origin: str, slow: SlowEvent) -> Disturbance:
        if slow.nodes is not None:
            ranks, names = self._ranks_of(slow.nodes), self._node_names(slow.nodes)
        else:
            assert slow.ranks is not None
            self._check_range("ranks", slow.ranks, len(self.ranks))
            ranks = tuple(self.ranks[rank] for rank in slow.ranks)
            names = [self.topology.ranks[rank] for rank in ranks]
        steps = None if slow.steps is None else frozenset(slow.steps)
        when = "" if steps is None else f" in step {join_names([str(s) for s in sorted(steps)])}"
        description = f"{join_names(names)} {slow.by:g} times slower{when}"
        return Disturbance(description, origin, ranks, slow.by, steps=steps)

    def _ranks_of(self, nodes: Sequence[int]) -> tuple[int, ...]:
        self._check_range("nodes", nodes, len(self.ranks) // self.gpus_per_node)
        each = self.gpus_per_node
        return tuple(self.ranks[node * each + gpu] for node in nodes for gpu in range(each))

    def _node_names(self, nodes: Sequence[int]) -> list[str]:
        firsts = [self.ranks[node * self.gpus_per_node] for node in nodes]
        return [self.topology.ranks[rank].partition("/")[0] for rank in firsts]

    def _check_range(self, field: str, numbers: Sequence[int], limit: int) -> None:
        faults = [
            Fault(f"{field}.{at}", str(number), f"0 to {limit - 1}, the {field} of this job")
            for at, number in enumerate(numbers)
            if number >= limit
        ]
        if faults:
            raise InputError(faults)

    # ------------------------------------------------------------ links

    def _resolve_degrade(self, origin: str, degrade: DegradeEvent) -> Disturbance:
        arcs = find_arcs(self.topology, degrade.link)
        numbers = self.topology.arcs
        rates = {}
        if degrade.to is not None:
            most_Bps = float(numbers.bandwidth_Bps[list(arcs)].min())
            if degrade.to >= most_Bps:
                allowed = f"less than {format_bandwidth(most_Bps)}, its undisturbed bandwidth"
                raise InputError(Fault("to", format_bandwidth(degrade.to), allowed))
        if degrade.to is not None or degrade.by is not None:
            rates = {
                arc: degrade.to or float(numbers.bandwidth_Bps[arc]) / (degrade.by or 1.0)
                for arc in arcs
            }
        delays = {} if degrade.latency is None else dict.fromkeys(arcs, degrade.latency)
        until_s = math.inf if degrade.until is None else degrade.until
        fault = LinkFault(ALWAYS_S if degrade.at is None else degrade.at, until_s, rates, delays)
        details = [] if degrade.to is None else [f"at {format_bandwidth(degrade.to)}"]
        details += [] if degrade.by is None else [f"{degrade.by:g} times slower"]
        if degrade.latency is not None:
            details.append(f"with {format_time(degrade.latency)} latency")
        when = _format_start(degrade.at)
        if degrade.until is not None:
            when += f" until {format_time(degrade.until)}"
        return Disturbance(f"{degrade.link} {' '.join(details)}{when}", origin, faults=(fault,))

    def _resolve_down(self, origin: str, down: DownEvent) -> Disturbance:
        arcs = find_arcs(self.topology, down.link)
        faults = _link_faults(down.at, down.reroute_after, arcs, LinkFault(0.0, arcs=arcs))
        description = f"{down.link} down{_format_failure(down.at, down.reroute_after)}"
        return Disturbance(description, origin, faults=faults)

    def _resolve_lose(self, origin: str, lose: LoseEvent) -> Disturbance:
        devices = self.topology.devices
        if lose.nic not in devices or devices[lose.nic].kind != "nic":
            fault = no_device(self.topology, lose.nic, "nic")
            nics = [name for name, device in devices.items() if device.kind == "nic"]
            is_device = lose.nic in devices
            allowed = f"a NIC: {allowed_names(nics, limit=8)}" if is_device else fault.allowed
            raise InputError(Fault("nic", repr(lose.nic), allowed))
        arcs = find_arcs(self.topology, lose.nic)
        faults = _link_faults(lose.at, lose.reroute_after, arcs, LinkFault(0.0, nodes=(lose.nic,)))
        description = f"{lose.nic} lost{_format_failure(lose.at, lose.reroute_after)}"
        return Disturbance(description, origin, faults=faults)

    # ------------------------------------------------------------ traffic

    def _resolve_traffic(self, origin: str, traffic: TrafficEvent) -> Disturbance:
        pairs = self._pair_devices(traffic)
        every = "" if traffic.every is None else f" every {format_time(traffic.every)}"
        amount = "" if traffic.nbytes is None else f"{_format_size(traffic.nbytes)}{every}"
        rate = "" if traffic.rate is None else f"at most {format_bandwidth(traffic.rate)}"
        flows = f" ({len(pairs)} of them)" if len(pairs) > 1 else ""
        details = ", ".join(part for part in (amount, rate) if part)
        return Disturbance(
            f"traffic {traffic.from_} to {traffic.to}{flows}: {details}",
            origin,
            traffic=tuple(
                Traffic(src, dst, traffic.rate, traffic.nbytes, traffic.every, traffic.at)
                for src, dst in pairs
            ),
        )

    def _pair_devices(self, traffic: TrafficEvent) -> list[tuple[str, str]]:
        """Pair senders with receivers in order, or all with the only one of the other side."""
        senders = find_devices(self.topology, traffic.from_, "from")
        receivers = find_devices(self.topology, traffic.to, "to")
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


def _format_size(nbytes: float) -> str:
    """Write a size with a decimal or a binary prefix, whichever is shorter."""
    return min(format_bandwidth(nbytes).removesuffix("/s"), format_bytes(nbytes), key=len)


def _link_faults(
    at_s: float | None, after_s: float, arcs: Sequence[int], dead: LinkFault
) -> tuple[LinkFault, ...]:
    """Faults of links that carry nothing at first, and are routed around later.

    `at_s`: when they fail; default: before the job starts.
    `after_s`: until they are routed around; seconds.
    `arcs`: the links.
    `dead`: names the dead arcs or devices.
    """
    if at_s is None:
        return (replace(dead, from_s=ALWAYS_S),)
    dead = replace(dead, from_s=at_s + after_s)
    if after_s == 0:
        return (dead,)
    return (LinkFault(at_s, at_s + after_s, dict.fromkeys(arcs, 0.0)), dead)


def _format_start(at_s: float | None) -> str:
    return "" if at_s is None else f" from {format_time(at_s)} on"


def _format_failure(at_s: float | None, after_s: float) -> str:
    rerouting = "" if at_s is None else f", routed around after {format_time(after_s)}"
    return f"{_format_start(at_s)}{rerouting}"
