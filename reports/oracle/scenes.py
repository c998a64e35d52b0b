"""What the checks simulate: collectives and messages on small machines, and what happens to them.

A `Scene` is data; `play` runs it on a network of perfmodel. Every number in a scene comes from the
scene's own seed, so that a scene has a name and needs no file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from perfmodel.collectives.algorithms import linear, ring
from perfmodel.collectives.schedule import Schedule
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.lower import lower_collective, lower_message
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage, add_traffic
from perfmodel.library.lowering.rings import stages_of
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.engine import network_class
from perfmodel.simulate.uncontended import UncontendedTimer
from reports.oracle import closed_forms

Floats = NDArray[np.float64]
Route = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A collective (or a message) and when it starts.

    `group` is how many ranks take part; 0 stands for a message, which is not itself measured.
    """

    at_s: float
    way: LoweredCollective
    op: str = ""
    group: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """Background traffic on a route; `nbytes` may be infinite."""

    at_s: float
    route: Route
    cap_Bps: float
    nbytes: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Something to simulate.

    Parameters
    ----------
    name, family : str
    machine : Machine
    launches : tuple of Launch
    changes : tuple of (float, Machine)
        From this time on, the machine is that one.
    streams : tuple of Stream
    """

    name: str
    family: str
    machine: Machine
    launches: tuple[Launch, ...]
    changes: tuple[tuple[float, Machine], ...] = ()
    streams: tuple[Stream, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """Methods that a network needs for this scene, beyond `launch`."""
        wanted = (("become", self.changes), ("stream", self.streams))
        return frozenset(name for name, what in wanted if what)


def missing(fidelity: str, scene: Scene) -> frozenset[str]:
    """Methods that a scene needs and a network does not have (yet)."""
    return frozenset(name for name in scene.needs if not hasattr(network_class(fidelity), name))


def play(fidelity: str, scene: Scene, order: Sequence[int] | None = None) -> tuple[float, ...]:
    """Simulate a scene.

    Parameters
    ----------
    fidelity : {"flow", "message"}
    scene : Scene
    order : sequence of int, optional
        In which order launches of one instant reach the network; default: as they stand.

    Returns
    -------
    tuple of float
        When each launch ended; seconds.
    """
    env = simpy.Environment()
    network: Any = network_class(fidelity)(env, UncontendedTimer(scene.machine))
    ends = [0.0] * len(scene.launches)
    for at_s, machine in scene.changes:
        env.process(_change(env, network, at_s, machine))
    for stream in scene.streams:
        env.process(_pour(env, network, stream))
    chosen = range(len(ends)) if order is None else order
    started = [env.process(_start(env, network, scene.launches, at, ends)) for at in chosen]
    env.run(until=env.all_of(started))
    return tuple(ends)


Steps = Generator[simpy.Event, Any, None]


def _start(
    env: simpy.Environment, network: Any, launches: Sequence[Launch], at: int, ends: list[float]
) -> Steps:
    yield env.timeout(launches[at].at_s)
    yield network.launch([launches[at].way])
    ends[at] = env.now


def _pour(env: simpy.Environment, network: Any, stream: Stream) -> Steps:
    yield env.timeout(stream.at_s)
    yield network.stream(stream.route, stream.cap_Bps, stream.nbytes)


def _change(env: simpy.Environment, network: Any, at_s: float, machine: Machine) -> Steps:
    yield env.timeout(at_s)
    network.become(machine)


# ---------------------------------------------------------------- bounds


def least_s(scene: Scene) -> tuple[float, ...]:
    """Time that no simulation of each launch may beat: its narrowest cut, its chain of latencies.

    A link is taken at the best speed that it has in the scene. Where links are lost, traffic may
    leave the fabric's links, so that only those of the hosts count.
    """
    machines = [scene.machine, *(machine for _, machine in scene.changes)]
    best = np.max([machine.topology.arcs.bandwidth_Bps for machine in machines], axis=0)
    if any(machine.topology.dead for machine in machines):
        best[scene.machine.topology.hosts * scene.machine.topology.host_arcs :] = np.inf
    return tuple(max(_cut_s(launch.way, best), _chain_s(launch)) for launch in scene.launches)


def _cut_s(way: LoweredCollective, bandwidth_Bps: Floats) -> float:
    """Time that the busiest link needs for the bytes of one collective."""
    nbytes = np.zeros(len(bandwidth_Bps))
    add_traffic(nbytes, way)
    return way.launch_s + float((nbytes / bandwidth_Bps).max(initial=0.0))


def _chain_s(launch: Launch) -> float:
    alpha_s = min(float(stage.latency_s.min()) for stage in launch.way.stages)
    if not launch.group:
        return alpha_s
    return launch.way.launch_s + closed_forms.lower_bound_s(
        launch.op,
        launch.way.schedule.algorithm,
        launch.group,
        0.0,
        alpha_s=alpha_s,
        beta_s_per_B=0.0,
    )


# ---------------------------------------------------------------- ways


def ring_way(
    machine: Machine, nbytes: int, order: Sequence[int], op: str = "all_reduce"
) -> LoweredCollective:
    """One ring through ranks in any order, whatever the machine's own rings are."""
    make: Mapping[str, Callable[..., Schedule]] = {
        "all_reduce": ring.all_reduce,
        "reduce_scatter": ring.reduce_scatter,
        "all_gather": ring.all_gather,
    }
    return laid(machine, make[op](len(order), nbytes), order)


def laid(machine: Machine, schedule: Schedule, members: Sequence[int]) -> LoweredCollective:
    """A schedule over the nearest links of its members."""
    ranks = np.asarray(members, dtype=np.int64)
    stages = []
    for phases in stages_of(schedule):
        src, dst = ranks[phases[0].src], ranks[phases[0].dst]
        edges = edges_between(machine.topology, machine.router, src, dst)
        load = np.ones(len(edges))
        stages.append(Stage(phases, edges, edges.latency_s, edges.cap_Bps, load))
    credits = next(iter(machine.library.protocols.values())).credits
    return LoweredCollective(schedule, tuple(stages), "simple", 0.0, 1.0, credits)


def collective(
    machine: Machine, op: str, nbytes: int, group: Sequence[int], algorithm: str | None = None
) -> LoweredCollective:
    """How the library carries a collective: by its bulk protocol."""
    return lower_collective(
        machine, op, nbytes, tuple(group), root=next(iter(group)), algorithm=algorithm
    )[-1]


def message(machine: Machine, src: int, dst: int, nbytes: int) -> LoweredCollective:
    """One message between two ranks."""
    return lower_message(machine, src, dst, nbytes)


def flow(
    route: Route, nbytes: int, cap_Bps: float = np.inf, latency_s: float = 0.0
) -> LoweredCollective:
    """Bytes on any route, as a collective of one send."""
    schedule = linear.send(2, nbytes)
    latency, cap = np.array([latency_s]), np.array([cap_Bps])
    edges = Edges(
        src=np.array([0]),
        dst=np.array([1]),
        pointers=np.array([0, len(route)]),
        arcs=np.array(route, dtype=np.int64),
        latency_s=latency,
        cap_Bps=cap,
        hop=np.array([0]),
        staged=False,
    )
    return LoweredCollective(
        schedule,
        (Stage(schedule.phases, edges, latency, cap, np.ones(len(edges))),),
        "simple",
        0.0,
        1.0,
        1,
    )
