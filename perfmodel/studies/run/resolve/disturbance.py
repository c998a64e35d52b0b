"""Events and other jobs as the simulators need them: slow ranks, link faults, traffic, jobs.

So are processes of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from perfmodel.errors import (
    Fault,
    InputError,
    TopologyError,
    allowed_names,
    describe_type,
    raise_faults,
    refuse_if,
)
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
from perfmodel.scenario.model import relocated_errors
from perfmodel.scenario.sections.events import JitterEvent
from perfmodel.simulate.engine.background import BackgroundJob, Traffic
from perfmodel.simulate.engine.jitter import Jitter
from perfmodel.simulate.engine.own_processes import A_PROCESS, OwnProcess
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
        of_faults = (at for fault in self.faults for at in (fault.from_s, fault.until_s))
        bursts = (flow.start_s for flow in self.traffic if flow.nbytes is not None)
        return tuple(filter(math.isfinite, (*of_faults, *bursts)))

    @property
    def varies(self) -> bool:
        """Whether steps may differ from one another because of it."""
        return bool(
            self.moments_s or self.steps or self.jitter or self.background_job or self.process
        )


def background_traffic(
    disturbances: Sequence[Disturbance], settled_s: float
) -> tuple[Traffic, ...]:
    """List other traffic with its starts in seconds since the start of the run.

    A steady stream that starts at 0 runs from the start of the run on.
    """
    return tuple(
        flow
        if flow.nbytes is None and flow.start_s == 0
        else replace(flow, start_s=settled_s + flow.start_s)
        for each in disturbances
        for flow in each.traffic
    )


COUNTED_STEPS = 20
"""Steps that are counted beside a process of the user's, whose end nobody knows."""


def as_disturbances(processes: Any, steps: Any = None) -> tuple[Disturbance, ...]:
    """Check processes of the user's; one need not stand in a list.

    `steps`: that are counted beside them; None: `COUNTED_STEPS`.
    Raises `InputError`: what is no function of (env, network), or no number of steps; all faults.
    """
    is_single = callable(processes) or not isinstance(processes, Iterable)
    listed = [processes] if is_single else list(processes)
    faults, counted = list[Fault](), COUNTED_STEPS if steps is None else steps
    for number, function in enumerate(listed):
        with collect_faults(faults):
            check_function(f"processes.{number}", function, "(env, network)", A_PROCESS)
    if isinstance(counted, bool) or not isinstance(counted, int) or counted < 1:
        faults.append(Fault("steps", describe_type(steps), "a whole number of steps, 1 or more"))
    raise_faults(faults)
    return tuple(
        Disturbance(f"process {own.name}", own.field, process=own, counted=counted)
        for own in [OwnProcess(each, f"processes.{number}") for number, each in enumerate(listed)]
    )


def join_names(names: Sequence[str], most: int = 4) -> str:
    """List names for a description; of many the first ones, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
    makers = {
        f"events.{at}.{event.kind}": partial(resolver.resolve, at, event)
        for at, event in enumerate(scenario.events)
    }
    makers |= {
        f"cluster.mixed.{at}": partial(resolver.resolve_mixed, at)
        for at in range(len(scenario.cluster.mixed))
    }
    disturbances: list[Disturbance] = []
    faults: list[Fault] = []
    for place, make in makers.items():
        with collect_faults(faults), relocated_errors(scenario, place):
            disturbances.append(make())
    raise_faults(faults if strict else ())
    return tuple(disturbances)


def _texts(*texts: tuple[object, str], joint: str = " ") -> str:
    """Join the texts of what is stated: each comes with a value, which is None where it is not."""
    return joint.join(text for value, text in texts if value is not None)


@dataclass(frozen=True, slots=True)
class _EventResolver:
    """Makes disturbances of the sections of a scenario, for one job on one machine."""

    scenario: Scenario
    topology: Topology
    ranks: Sequence[int]
    gpus_per_node: int

    def resolve(self, at: int, event: EventSection) -> Disturbance:
        makers: Mapping[str, Callable[[Any], Disturbance]] = {
            "slow": self._slow,
            "jitter": partial(self._jitter, at),
            "degrade": self._degrade,
            "down": self._down,
            "lose": self._lose,
            "traffic": self._traffic,
        }
        return replace(makers[event.kind](getattr(event, event.kind)), origin=f"events.{at}")

    # ------------------------------------------------------------ ranks

    def resolve_mixed(self, at: int) -> Disturbance:
        section = self.scenario.cluster.mixed[at]
        ranks, names = self._of_nodes(section.nodes)
        return Disturbance(
            f"{join_names(names)} {'have' if len(names) > 1 else 'has'} {section.gpu}",
            f"cluster.mixed.{at}",
            ranks,
            gpu=section.gpu,
        )

    def _slow(self, slow: SlowEvent) -> Disturbance:
        self._check_range("ranks", slow.ranks or (), len(self.ranks))
        ranks = tuple(self.ranks[rank] for rank in slow.ranks or ())
        names = [self.topology.ranks[rank] for rank in ranks]
        if slow.nodes is not None:
            ranks, names = self._of_nodes(slow.nodes)
        steps = None if slow.steps is None else frozenset(slow.steps)
        when = f" in step {join_names(list(map(str, sorted(steps))))}" if steps else ""
        return Disturbance(
            f"{join_names(names)} {slow.by:g} times slower{when}", "", ranks, slow.by, steps=steps
        )

    def _jitter(self, at: int, jitter: JitterEvent) -> Disturbance:
        seed = (self.scenario.seed if jitter.seed is None else jitter.seed) + 1_000_003 * at
        return Disturbance(
            f"{jitter.kind} jitter of {100 * jitter.cv:g} % per {jitter.per}",
            "",
            jitter=Jitter(jitter.kind, jitter.cv, jitter.per, seed),
        )

    def _of_nodes(self, nodes: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
        """Ranks of some nodes of the job, and what the nodes are called."""
        each = self.gpus_per_node
        self._check_range("nodes", nodes, len(self.ranks) // each)
        ranks = [tuple(self.ranks[node * each : (node + 1) * each]) for node in nodes]
        return tuple(chain.from_iterable(ranks)), [
            self.topology.ranks[own[0]].partition("/")[0] for own in ranks
        ]

    def _check_range(self, field: str, numbers: Sequence[int], limit: int) -> None:
        raise_faults(
            Fault(f"{field}.{at}", str(number), f"0 to {limit - 1}, the {field} of this job")
            for at, number in enumerate(numbers)
            if number >= limit
        )

    # ------------------------------------------------------------ links

    def _degrade(self, degrade: DegradeEvent) -> Disturbance:
        arcs = find_arcs(self.topology, degrade.link)
        now_Bps = {arc: float(self.topology.arcs.bandwidth_Bps[arc]) for arc in arcs}
        least_Bps = min(now_Bps.values())
        refuse_if(
            degrade.to is not None and degrade.to >= least_Bps,
            "to",
            format_bandwidth(degrade.to or 0.0),
            f"less than {format_bandwidth(least_Bps)}, its undisturbed bandwidth",
        )
        by, changes_rate = degrade.by or 1.0, degrade.to is not None or degrade.by is not None
        fault = LinkFault(
            ALWAYS_S if degrade.at is None else degrade.at,
            math.inf if degrade.until is None else degrade.until,
            {arc: degrade.to or rate / by for arc, rate in now_Bps.items() if changes_rate},
            {} if degrade.latency is None else dict.fromkeys(arcs, degrade.latency),
        )
        text = _texts(
            ("", degrade.link),
            (degrade.to, f"at {format_bandwidth(degrade.to or 0.0)}"),
            (degrade.by, f"{by:g} times slower"),
            (degrade.latency, f"with {format_time(degrade.latency or 0.0)} latency"),
            (degrade.at, f"from {format_time(degrade.at or 0.0)} on"),
            (degrade.until, f"until {format_time(degrade.until or 0.0)}"),
        )
        return Disturbance(text, "", faults=(fault,))

    def _down(self, down: DownEvent) -> Disturbance:
        arcs = find_arcs(self.topology, down.link)
        return _fail(f"{down.link} down", down, arcs, LinkFault(0.0, arcs=arcs))

    def _lose(self, lose: LoseEvent) -> Disturbance:
        devices = self.topology.devices
        nics = [name for name, device in devices.items() if device.kind == "nic"]
        if lose.nic not in devices:
            raise InputError(no_device(self.topology, lose.nic, "nic"))
        refuse_if(
            lose.nic not in nics, "nic", repr(lose.nic), f"a NIC: {allowed_names(nics, limit=8)}"
        )
        return _fail(
            f"{lose.nic} lost",
            lose,
            find_arcs(self.topology, lose.nic),
            LinkFault(0.0, nodes=(lose.nic,)),
        )

    # ------------------------------------------------------------ traffic

    def _traffic(self, traffic: TrafficEvent) -> Disturbance:
        pairs = self._pair_devices(traffic)
        nbytes = traffic.nbytes or 0.0
        # with a decimal or a binary prefix, whichever is shorter
        size = min(format_bandwidth(nbytes).removesuffix("/s"), format_bytes(nbytes), key=len)
        burst = _texts(
            (traffic.nbytes, size), (traffic.every, f"every {format_time(traffic.every or 0.0)}")
        )
        details = _texts(
            (traffic.nbytes, burst),
            (traffic.rate, f"at most {format_bandwidth(traffic.rate or 0.0)}"),
            joint=", ",
        )
        flows = f" ({len(pairs)} of them)" if len(pairs) > 1 else ""
        return Disturbance(
            f"traffic {traffic.from_} to {traffic.to}{flows}: {details}",
            "",
            traffic=tuple(
                Traffic(src, dst, traffic.rate, traffic.nbytes, traffic.every, traffic.at)
                for src, dst in pairs
            ),
        )

    def _pair_devices(self, traffic: TrafficEvent) -> list[tuple[str, str]]:
        """Pair senders with receivers in order, or all with the only one of the other side."""
        sides = [
            find_devices(self.topology, pattern, field)
            for field, pattern in (("from", traffic.from_), ("to", traffic.to))
        ]
        counts = list(map(len, sides))
        refuse_if(
            set(counts) - {1, max(counts)},
            "to",
            f"{traffic.to!r}, {counts[1]} devices",
            f"one device, or as many as the {counts[0]} of 'from'",
        )
        sides = [each * max(counts) if len(each) == 1 else each for each in sides]
        pairs = [(src, dst) for src, dst in zip(*sides, strict=True) if src != dst]
        refuse_if(not pairs, "to", repr(traffic.to), "another device than 'from'")
        router = Router(self.topology)
        try:
            for src, dst in pairs:
                router.route(src, dst)
        except TopologyError as error:
            raise InputError(
                Fault("to", repr(traffic.to), f"a device within reach: {error}")
            ) from None
        return pairs


def _fail(
    text: str, event: DownEvent | LoseEvent, arcs: Sequence[int], dead: LinkFault
) -> Disturbance:
    """Return the disturbance of links that fail: they carry nothing until they are routed around.

    `text`: what fails.
    `arcs`: the links.
    `dead`: the fault by which routes avoid them, of arcs or devices.
    """
    if event.at is None:  # before the job starts
        return Disturbance(text, "", faults=(replace(dead, from_s=ALWAYS_S),))
    around_s = event.at + event.reroute_after
    at, after = format_time(event.at), format_time(event.reroute_after)
    stands = LinkFault(event.at, around_s, dict.fromkeys(arcs, 0.0))
    return Disturbance(
        f"{text} from {at} on, routed around after {after}",
        "",
        faults=(*([stands] if event.reroute_after else []), replace(dead, from_s=around_s)),
    )
