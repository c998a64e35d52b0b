"""SimPy processes of the user's beside a run: what they see of the network, and do to it.

A process is a generator function of the environment and a `NetworkView`. It begins with the steps
that count, shares links with everything else, and ends with the run if not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

import simpy

from perfmodel.errors import InputError, SimulationError, TopologyError, describe_type, refuse_if
from perfmodel.library.machine import Machine
from perfmodel.own_functions import call_function, name_of
from perfmodel.simulate.network import Network
from perfmodel.topology.faults import degrade_links, find_arcs, no_device, remove_links
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import Task
from perfmodel.units import format_time, parse_bandwidth, parse_bytes, parse_time

if TYPE_CHECKING:
    import networkx as nx

MOST_IDLE_EVENTS: Final = 500_000
"""Events without any task of the job ending, after which a run is given up: a second or two."""

A_PROCESS: Final = "a generator function of (env, network) that yields events"

AN_EVENT: Final = "an event, such as env.timeout(1e-3) or network.send(...)"

Events = Generator[simpy.Event, Any, Any]


Process = Callable[[simpy.Environment, "NetworkView"], Events]


class MissingPartError(InputError):
    """A device or a link that this machine does not have; a larger one may."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A process of the user's.

    `start_s`: seconds since the start of the run.
    `strict`: whether a device that there is not is an error. If not the process ends there, as for
        the smaller sizes of a scaling curve.
    """

    function: Process
    field: str = "processes"
    start_s: float = 0.0
    strict: bool = True

    @property
    def name(self) -> str:
        """Name of its function."""
        return name_of(self.function)


class ProcessEnvironment(simpy.Environment):
    """An environment that names the process that fails, and ends a run that gets nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.progress: Callable[[], int] = int
        """How far the job is: a number that grows."""
        self._idle_events, self._progress = 0, 0

    def process(self, generator: Events) -> simpy.Process:
        """Start a process."""
        return self.start(getattr(generator, "__name__", "process"), generator)

    def start(self, name: str, generator: Events, *, strict: bool = True) -> simpy.Process:
        """Start a process under a name; see `OwnProcess.strict`."""
        return super().process(_guarded(self, name, generator, strict=strict))

    def step(self) -> None:
        """Process the next event.

        Raises `SimulationError`: events go on and on while the job does not.
        """
        self._idle_events += 1
        if self._idle_events > MOST_IDLE_EVENTS:
            progress = self.progress()
            if progress == self._progress:
                raise SimulationError(
                    f"{MOST_IDLE_EVENTS:,} events of processes, and no task of the job has ended "
                    f"since; it is {format_time(self.now)} after the start of the run"
                )
            self._idle_events, self._progress = 0, progress
        super().step()


def _guarded(env: simpy.Environment, name: str, generator: Events, *, strict: bool) -> Events:
    """Run a generator; whatever it raises names the process and the time."""
    resume, value = generator.send, None
    while True:
        try:
            event = resume(value)
        except StopIteration as done:
            return done.value
        except SimulationError:
            raise
        except MissingPartError as error:
            if not strict:
                return None
            raise SimulationError(f"process {name}: {error}") from error
        except Exception as error:
            at = format_time(float(env.now))
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            raise SimulationError(f"process {name} raised at {at}: {kind}{error}") from error
        if not isinstance(event, simpy.Event):
            raise SimulationError(
                f"process {name} yielded {describe_type(event)}; allowed: {AN_EVENT}"
            )
        try:
            value, resume = (yield event), generator.send
        except BaseException as error:  # noqa: BLE001  (the generator's own to deal with)
            value, resume = error, generator.throw


def start_process(env: ProcessEnvironment, network: NetworkView, own: OwnProcess) -> None:
    """Start a process of the user's at its time.

    Raises `InputError`: its function takes other arguments, or is no generator function.
    """
    generator = call_function(own.field, own.function, (env, network), "(env, network)", A_PROCESS)
    refuse_if(
        not isinstance(generator, GeneratorType),
        own.field,
        f"{own.name}, which returned {describe_type(generator)}",
        A_PROCESS,
    )

    def begin() -> Events:
        if own.start_s:  # else it begins before the plan does
            yield env.timeout(own.start_s)
        return (yield from generator)

    env.start(own.name, begin(), strict=own.strict)


@dataclass
class LinkState:
    """The machine of a network, as events have it and with what processes change of its links."""

    network: Network
    base: Machine
    bandwidth_Bps: dict[int, float] = field(default_factory=dict)
    latency_s: dict[int, float] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    lost: dict[str, None] = field(default_factory=dict)

    def become(self, machine: Machine) -> None:
        """Go on on another machine, whose links processes have changed alike."""
        self.base = machine
        self.apply()

    def apply(self) -> None:
        """Let the network see the links as they are now.

        Raises `TopologyError`: no route is left between two ranks that have to communicate.
        """
        machine = self.base
        if self.bandwidth_Bps or self.latency_s or self.dead or self.lost:
            topology = degrade_links(machine.topology, self.bandwidth_Bps, self.latency_s)
            if self.dead or self.lost:
                topology = remove_links(topology, arcs=self.dead, nodes=tuple(self.lost))
            machine = replace(machine, topology=topology)
        self.network.become(machine)


@dataclass
class CollectiveStarts:
    """Who waits for the next collective of the job."""

    waiting: list[simpy.Event] = field(default_factory=list)

    def announce(self, task: Task) -> None:
        """Let the events of all that wait fire."""
        waiting, self.waiting = self.waiting, []
        for event in waiting:
            event.succeed(task)


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The network as a process of the user's sees it.

    Devices and links have the names of ``perfmodel topology show``: "n0/gpu3", "n0/nic0",
    "fabric/leaf0". Quantities are numbers in bytes, seconds and bytes per second, or text with a
    unit: "25 MiB", "1.3 us", "400 Gbit/s".
    """

    _env: simpy.Environment
    _network: Network
    _links: LinkState
    _starts: CollectiveStarts
    _in_progress: Callable[[], list[str]]
    _start_s: float

    @property
    def now(self) -> float:
        """Seconds since the process began; ``env.now`` counts from the start of the run."""
        return float(self._env.now) - self._start_s

    @property
    def machine(self) -> Topology:
        """The machine as it is now: its devices, links and ranks."""
        return self._network.machine.topology

    @property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The machine as a NetworkX graph."""
        return self.machine.graph

    @property
    def collectives(self) -> tuple[str, ...]:
        """Names of the job's collectives in progress, each with the first of its rank classes."""
        return tuple(self._in_progress())

    def next_collective(self) -> simpy.Event:
        """Return an event that fires when the job starts its next collective.

        Its value is the `Task`: name, bucket, and in `work` operation and bytes.
        """
        event = self._env.event()
        self._starts.waiting.append(event)
        return event

    def send(
        self, src: str, dst: str, nbytes: float | str, *, cap: float | str | None = None
    ) -> simpy.Event:
        """Send bytes from a device to another from now on, over the route of this moment.

        They share every link max-min fairly with all else. The event fires when the last has left;
        of `nbytes` without end never.

        Parameters
        ----------
        src, dst : str
            Devices by name.
        nbytes : float or str
        cap : float or str, optional
            Rate at most; default: what the links give.
        """
        size = parse_bytes(nbytes, "nbytes") if isinstance(nbytes, str) else nbytes
        rate_Bps = parse_bandwidth(cap, "cap") if isinstance(cap, str) else cap
        _check_positive({"nbytes": size, "cap": math.inf if rate_Bps is None else rate_Bps})
        for name, device in (("src", src), ("dst", dst)):
            refuse_if(
                not isinstance(device, str),
                name,
                describe_type(device),
                "a device by name, such as 'n0/gpu0' (a node of a graph is 'n0/NAME')",
            )
            if device not in self.machine.devices:
                raise MissingPartError(no_device(self.machine, str(device), name))
        refuse_if(src == dst, "dst", repr(dst), "another device than src")
        try:
            route = self._network.machine.router.route(src, dst)
        except TopologyError as error:
            raise SimulationError(f"traffic from {src} to {dst}: {error}") from error
        return self._network.stream(
            tuple(route), math.inf if rate_Bps is None else float(rate_Bps), float(size)
        )

    def set_link(
        self,
        link: str,
        other: str | None = None,
        *,
        bandwidth: float | str | None = None,
        latency: float | str | None = None,
    ) -> None:
        """Give links another bandwidth or latency from now on; of 0 bytes per second traffic waits.

        Parameters
        ----------
        link : str
            As in `events:`: "n0/nic0 -- fabric/leaf0" (both directions), "n0/nic0 -> fabric/leaf0"
            (one), or a device, all of whose links are meant.
        other : str, optional
            The device at the other end, where `link` is a device.
        bandwidth, latency : float or str, optional
        """
        arcs, links = self._arcs(link, other), self._links
        refuse_if(
            bandwidth is None and latency is None,
            "set_link",
            "neither",
            "a bandwidth, a latency, or both",
        )
        for name, value, parse, changed in (
            ("bandwidth", bandwidth, parse_bandwidth, links.bandwidth_Bps),
            ("latency", latency, parse_time, links.latency_s),
        ):
            if value is not None:
                number = parse(value, name) if isinstance(value, str) else value
                _check_positive({name: number}, or_zero=True)
                changed.update(dict.fromkeys(arcs, float(number)))
        self._apply(f"links {link} changed")

    def fail(self, part: str, other: str | None = None) -> None:
        """Lose links, named as in `set_link`, or a device with all its links, from now on.

        What crosses them takes another way; where none is left the run ends with an error.
        """
        if other is None and part in self.machine.devices:
            self._links.lost[part] = None
        else:
            self._links.dead |= set(self._arcs(part, other))
        self._apply(f"{part} failed")

    def restore(self, part: str | None = None, other: str | None = None) -> None:
        """Give links, or a device, back what `set_link` and `fail` took; by default all of them."""
        links = self._links
        if part is None:
            for changed in (links.bandwidth_Bps, links.latency_s, links.dead, links.lost):
                changed.clear()
        else:
            links.lost.pop(part, None)
            for arc in self._arcs(part, other):
                links.bandwidth_Bps.pop(arc, None)
                links.latency_s.pop(arc, None)
                links.dead.discard(arc)
        self._apply("links restored")

    def _arcs(self, link: str, other: str | None) -> tuple[int, ...]:
        try:
            return find_arcs(self.machine, link if other is None else f"{link} -- {other}")
        except InputError as error:
            raise MissingPartError(error.faults) from None

    def _apply(self, cause: str) -> None:
        try:
            self._links.apply()
        except TopologyError as error:
            names = ", ".join(self.collectives[:8]) or "nothing"
            raise SimulationError(f"{cause}: {error}; under way: {names}") from error


def _check_positive(numbers: dict[str, Any], *, or_zero: bool = False) -> None:
    """Refuse what is no number above zero."""
    least = "zero or more" if or_zero else "above zero"
    for name, value in numbers.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = f"a number {least}"
        refuse_if(not is_number, name, describe_type(value), f"{number}, or text with a unit")
        refuse_if(not (value > 0 or (or_zero and value == 0)), name, repr(value), number)
