"""Scenes for SimGrid: flows on shared links, and collectives whose edges share them.

`native`: SimGrid delays each flow by its links' own latency, before its bytes. Otherwise latency
comes after the bytes, as here, and SimGrid is told so by a sleep after each send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oracle.machines import crossbar, two_level_node, wires, with_credits
from oracle.scenes import Launch, Route, Scene, Stream, collective, flow, ring_way
from perfmodel.files import validate_document
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

NO_DELAY = validate_document(
    FabricSpec, {"kind": "one-switch", "switch_latency": "0 s", "cable_latency": "0 s"}
)
NARROW_SPINE = validate_document(
    FabricSpec,
    {
        "kind": "leaf-spine",
        "switch_latency": "130 ns",
        "cable_latency": "25 ns",
        "radix": 8,
        "oversubscription": 2,
        "hosts_per_leaf": 2,
    },
)


@dataclass(frozen=True, slots=True)
class Case:
    """Scenes to put to SimGrid.

    Parameters
    ----------
    make : callable
    count : int
    native : bool
        SimGrid delays flows by its own rule.
    message_differs, flow_differs : str
        Why fidelity "message" ("flow") need not be SimGrid's answer; empty where it must be.
    """

    make: Callable[[str, np.random.Generator], Scene]
    count: int
    native: bool = False
    message_differs: str = ""
    flow_differs: str = ""


def scenes(cases: Mapping[str, Case], only: str | None = None) -> Iterator[tuple[Scene, Case]]:
    """All scenes of some cases, or of the one called `only`; each has its own seed."""
    for number, (name, case) in enumerate(cases.items()):
        for index in range(case.count if only in {None, name} else 0):
            rng = np.random.default_rng([404, number, index])
            yield case.make(f"{name} {index}", rng), case


# ---------------------------------------------------------------- single flows


def _flows(
    name: str,
    family: str,
    topology: Topology,
    routes: Sequence[Route],
    rng: np.random.Generator,
    *,
    latency_s: Sequence[float] | float = 0.0,
    caps_Bps: Sequence[float] | float = np.inf,
    together: bool = False,
) -> Scene:
    """Flows of 1 to 100 MB that start within the time that such flows take."""
    count = len(routes)
    late = [latency_s] * count if isinstance(latency_s, float) else latency_s
    caps = [caps_Bps] * count if isinstance(caps_Bps, float) else caps_Bps
    starts = np.zeros(count) if together else rng.uniform(0, 5e-3, count)
    sizes = (10 ** rng.uniform(6, 8, count)).astype(int)
    launches = tuple(
        Launch(float(at_s), flow(route, int(nbytes), float(cap), float(delay)))
        for at_s, route, nbytes, cap, delay in zip(starts, routes, sizes, caps, late, strict=True)
    )
    return Scene(name, family, Machine(topology, with_credits(1)), launches)


def _one_link(name: str, rng: np.random.Generator) -> Scene:
    count = int(rng.integers(2, 13))
    together = bool(rng.integers(2))
    topology = wires([float(rng.uniform(1e9, 5e10))])
    return _flows(name, "one link", topology, [(0,)] * count, rng, together=together)


def _parking_lot(name: str, rng: np.random.Generator) -> Scene:
    """One flow over all links, some over a stretch of them, one on each."""
    links = int(rng.integers(2, 7))
    stretches = [np.sort(rng.integers(0, links + 1, 2)) for _ in range(links)]
    routes = [
        tuple(range(links)),
        *(tuple(range(a, b)) for a, b in stretches if b > a),
        *((link,) for link in range(links)),
    ]
    return _flows(name, "parking lot", wires(rng.uniform(5e9, 5e10, links)), routes, rng)


def _star(name: str, rng: np.random.Generator) -> Scene:
    """Random pairs behind one switch; links 2i lead to it and 2i + 1 away from it."""
    hosts = int(rng.integers(3, 9))
    pairs = [rng.permutation(hosts)[:2] for _ in range(int(rng.integers(4, 17)))]
    routes = [(2 * int(a), 2 * int(b) + 1) for a, b in pairs]
    return _flows(name, "star", wires(rng.uniform(5e9, 5e10, 2 * hosts)), routes, rng)


def _spine(name: str, rng: np.random.Generator) -> Scene:
    """Four leaves of four hosts; each leaf's uplink is narrower than its hosts together."""
    speed = float(rng.uniform(5e9, 2e10))
    uplink = 4 * speed / float(rng.choice([2, 4, 8]))
    topology = wires([speed] * 32 + [uplink] * 8)
    routes = []
    for _ in range(int(rng.integers(8, 25))):
        a, b = (int(host) for host in rng.permutation(16)[:2])
        across = (32 + 2 * (a // 4), 33 + 2 * (b // 4)) if a // 4 != b // 4 else ()
        routes.append((2 * a, *across, 2 * b + 1))
    return _flows(name, "oversubscribed spine", topology, routes, rng)


def _capped(name: str, rng: np.random.Generator) -> Scene:
    links, count = int(rng.integers(2, 5)), int(rng.integers(3, 13))
    routes = [
        tuple(rng.permutation(links)[: int(rng.integers(1, links + 1))].tolist())
        for _ in range(count)
    ]
    caps = np.where(rng.random(count) < 0.6, 10 ** rng.uniform(8.5, 10, count), np.inf)
    topology = wires(rng.uniform(5e9, 5e10, links))
    return _flows(name, "capped flows", topology, routes, rng, caps_Bps=caps.tolist())


def _twice(name: str, rng: np.random.Generator) -> Scene:
    """Some flows cross a link twice, as bytes staged in host memory do."""
    routes: list[Route] = [(0, 1, 0), (0, 0), (1,), (0,), (1, 1)]
    topology = wires(rng.uniform(5e9, 5e10, 2))
    return _flows(name, "a link crossed twice", topology, routes, rng)


def _with_latency(name: str, rng: np.random.Generator) -> Scene:
    """Latencies of milliseconds, as long as the transfers, unlike for every flow."""
    count = int(rng.integers(3, 9))
    topology = wires(rng.uniform(5e9, 5e10, 3))
    routes = [tuple(rng.permutation(3)[: int(rng.integers(1, 4))].tolist()) for _ in range(count)]
    late = rng.uniform(0, 2e-3, count).tolist()
    return _flows(name, "unlike latencies", topology, routes, rng, latency_s=late)


def _native_same(name: str, rng: np.random.Generator) -> Scene:
    """All routes cross two links of one latency: before or after the bytes is then the same."""
    late, count = float(rng.uniform(1e-5, 1e-3)), int(rng.integers(3, 9))
    topology = wires(rng.uniform(5e9, 5e10, 4), late)
    routes = [tuple(rng.permutation(4)[:2].tolist()) for _ in range(count)]
    return _flows(name, "SimGrid's own latency, alike", topology, routes, rng, latency_s=2 * late)


def _native_unlike(name: str, rng: np.random.Generator) -> Scene:
    """One flow over three links meets flows over one: their latencies are 3 to 1."""
    late = float(rng.uniform(1e-4, 1e-3))
    topology = wires([1e10, 1e10, 1e10], late)
    routes: list[Route] = [(0, 1, 2), (0,), (1,), (2,)]
    delays = [late * len(route) for route in routes]
    return _flows(
        name,
        "SimGrid's own latency, unlike",
        topology,
        routes,
        rng,
        latency_s=delays,
        together=True,
    )


# ---------------------------------------------------------------- collectives


def _ring_over_trunk(name: str, rng: np.random.Generator) -> Scene:
    ranks = int(rng.integers(3, 9))
    speeds, late = rng.uniform(5e9, 5e10, ranks), rng.uniform(0, 5e-6, ranks)
    topology = crossbar(speeds, late, trunk_Bps=float(rng.uniform(1e10, 1e11)))
    machine = Machine(topology, with_credits(int(rng.choice([1, 2, 4]))))
    way = ring_way(machine, ranks * 4 * int(rng.integers(10**4, 10**6)), range(ranks))
    launch = Launch(0.0, way, "all_reduce", ranks)
    return Scene(name, "ring over one trunk", machine, (launch,))


def _two_rings(name: str, rng: np.random.Generator) -> Scene:
    topology = build_topology(two_level_node(2), hosts=4, fabric=NARROW_SPINE)
    machine = Machine(topology, with_credits(1))
    launches = []
    for at_s in (0.0, float(rng.uniform(0, 1e-3))):
        order = rng.permutation(8)[: int(rng.integers(3, 9))].tolist()
        way = ring_way(machine, len(order) * 4 * int(rng.integers(10**5, 10**6)), order)
        launches.append(Launch(at_s, way, "all_reduce", len(order)))
    return Scene(name, "two rings on an oversubscribed spine", machine, tuple(launches))


def _stages(name: str, rng: np.random.Generator) -> Scene:
    topology = crossbar(
        rng.uniform(5e9, 5e10, 8),
        rng.uniform(0, 5e-6, 8),
        down_Bps=rng.uniform(5e9, 5e10, 8).tolist(),
    )
    machine = Machine(topology, with_credits(1))
    algorithm = str(rng.choice(["halving_doubling", "torus", "tree", "hierarchical"]))
    nbytes = 8 * 4 * int(rng.integers(10**4, 10**6))
    way = collective(machine, "all_reduce", nbytes, range(8), algorithm)
    launch = Launch(0.0, way, "all_reduce", 8)
    return Scene(name, "several stages on unequal ports", machine, (launch,))


def _slower(name: str, rng: np.random.Generator) -> Scene:
    """Flows on three links, one of which slows down on the way."""
    routes = [tuple(rng.permutation(3)[: int(rng.integers(1, 4))].tolist()) for _ in range(6)]
    topology = wires(rng.uniform(5e9, 2e10, 3))
    scene = _flows(name, "a link slows down", topology, routes, rng)
    speed = float(topology.arcs.bandwidth_Bps[0] * rng.uniform(0.1, 0.5))
    worse = Machine(degrade_links(topology, {0: speed}), scene.machine.library)
    return replace(scene, changes=((2e-3, worse),))


def _recovers(name: str, rng: np.random.Generator) -> Scene:
    """The same, and the link recovers."""
    slow = _slower(name, rng)
    back = (6e-3, slow.machine)
    return replace(slow, family="a link slows down and recovers", changes=(*slow.changes, back))


def _ring_meets(name: str, rng: np.random.Generator) -> Scene:
    """A ring over a trunk, a stream that comes and may go, and a link that slows down."""
    ranks = int(rng.integers(3, 7))
    speeds, late = rng.uniform(5e9, 5e10, ranks), rng.uniform(0, 5e-6, ranks)
    topology = crossbar(speeds, late, trunk_Bps=float(rng.uniform(1e10, 1e11)))
    machine = Machine(topology, with_credits(int(rng.choice([1, 2]))))
    way = ring_way(machine, ranks * 4 * int(rng.integers(10**4, 10**6)), range(ranks))
    whole_s = UncontendedTimer(machine).time_s(way)
    at_s = rng.uniform(0, 0.8, 2) * whole_s
    link = int(rng.integers(ranks))
    arcs = topology.arcs
    speed = float(arcs.bandwidth_Bps[2 * link] * rng.uniform(0.1, 0.5))
    worse = Machine(degrade_links(topology, {2 * link: speed}), machine.library)
    route = (2 * link, len(arcs) - 1)
    cap_Bps = 0.5 * float(arcs.bandwidth_Bps[list(route)].min())
    nbytes = float(rng.choice([np.inf, 0.2 * whole_s * cap_Bps // 1]))
    return Scene(
        name,
        "ring beside a stream, on a link that slows down",
        machine,
        (Launch(0.0, way, "all_reduce", ranks),),
        ((float(at_s[0]), worse),),
        (Stream(float(at_s[1]), route, cap_Bps, nbytes),),
    )


FLUID = "a fluid is not exact where unlike edges meet: see fidelities.md"

BY_LATENCY = (
    "CM02 shares a link in inverse proportion to the flows' latencies, as TCP tends to; here, as "
    "on InfiniBand and NVLink, shares do not depend on latency"
)
STARTED_SLOW = (
    "SimGrid 3.32 caps a flow for good at what its narrowest link carries when it starts, so that "
    "one that starts on a slow link does not gain when the link recovers"
)

CASES: Mapping[str, Case] = {
    "one link": Case(_one_link, 6),
    "parking lot": Case(_parking_lot, 6),
    "star": Case(_star, 6),
    "oversubscribed spine": Case(_spine, 6),
    "capped flows": Case(_capped, 6),
    "a link crossed twice": Case(_twice, 4),
    "unlike latencies": Case(_with_latency, 6),
    "SimGrid's own latency, alike": Case(_native_same, 4, native=True),
    "SimGrid's own latency, unlike": Case(
        _native_unlike,
        2,
        native=True,
        message_differs=BY_LATENCY,
        flow_differs=BY_LATENCY,
    ),
    "ring over one trunk": Case(_ring_over_trunk, 6, flow_differs=FLUID),
    "two rings on an oversubscribed spine": Case(_two_rings, 6, flow_differs=FLUID),
    "several stages on unequal ports": Case(_stages, 6, flow_differs=FLUID),
    "a link slows down": Case(_slower, 6),
    "a link slows down and recovers": Case(
        _recovers, 2, message_differs=STARTED_SLOW, flow_differs=STARTED_SLOW
    ),
    "ring beside a stream, on a link that slows down": Case(_ring_meets, 6, flow_differs=FLUID),
}
