"""Scenes where a fluid need not be right: sends of unlike edges meet for parts of their time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from oracle.family import Family
from oracle.machines import crossbar, two_level_node, uneven, with_credits
from oracle.scenes import Launch, Scene, Stream, collective, message, ring_way
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links, remove_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec


def _clusters(rng: np.random.Generator) -> Topology:
    """A small cluster or host whose links are shared; in every other one no two are alike."""
    topology = _even_cluster(rng)
    return uneven(topology, rng) if rng.integers(2) else topology


def _even_cluster(rng: np.random.Generator) -> Topology:
    """A fabric that may have less than full bandwidth, or a host without an NVSwitch."""
    kind = int(rng.integers(4))
    if kind == 0:
        return build_topology(str(rng.choice(["rtx4090-x8-p2p", "rtx4090-x8", "dgx1-v100"])))
    spine = FabricSpec(
        kind="leaf-spine", oversubscription=float(rng.choice([1, 2, 4])), hosts_per_leaf=2
    )
    if kind == 1:
        return build_topology(
            "ethernet-10g", hosts=int(rng.integers(4, 9)), fabric=spine, gpus_per_host=1
        )
    if kind == 2:
        return build_topology(two_level_node(2), hosts=4, fabric=spine)
    count = int(rng.integers(4, 9))
    speeds, late = rng.uniform(5e9, 5e10, count), rng.uniform(0, 5e-6, count)
    return crossbar(speeds, late, trunk_Bps=float(rng.uniform(1e10, 1e11)))


def _machine(rng: np.random.Generator) -> Machine:
    return Machine(_clusters(rng), with_credits(int(rng.choice([1, 2, 8]))))


def _shuffled_ring(
    machine: Machine, rng: np.random.Generator, ranks: int | None = None
) -> LoweredCollective:
    total = len(machine.topology.ranks)
    order = rng.permutation(total)[: ranks or total].tolist()
    return ring_way(machine, _size(rng, len(order)), order)


def _size(rng: np.random.Generator, ranks: int) -> int:
    """From 64 KiB to 32 MiB, in whole chunks."""
    return ranks * 4 * int(2 ** rng.uniform(14, 23) / ranks)


def _alone_s(machine: Machine, way: LoweredCollective) -> float:
    return UncontendedTimer(machine).time_s(way)


def _crossing(name: str, rng: np.random.Generator) -> Scene:
    machine = _machine(rng)
    way = _shuffled_ring(machine, rng)
    launch = Launch(0.0, way, "all_reduce", way.schedule.ranks)
    return Scene(name, "ring crosses a link twice", machine, (launch,))


def _unlike_jobs(name: str, rng: np.random.Generator) -> Scene:
    machine = _machine(rng)
    total = len(machine.topology.ranks)
    ways = [_shuffled_ring(machine, rng, int(rng.integers(2, total + 1))) for _ in range(2)]
    late_s = float(rng.uniform(0, 1)) * _alone_s(machine, ways[0])
    starts = (0.0, float(rng.choice([0.0, late_s])))
    launches = tuple(
        Launch(at_s, way, "all_reduce", way.schedule.ranks)
        for at_s, way in zip(starts, ways, strict=True)
    )
    return Scene(name, "two jobs, unlike rings", machine, launches)


def _bursts(name: str, rng: np.random.Generator) -> Scene:
    """A collective, and messages between its ranks that come and go."""
    machine = _machine(rng)
    total = len(machine.topology.ranks)
    way = collective(machine, "all_reduce", _size(rng, total), range(total))
    whole_s = _alone_s(machine, way)
    src, dst = (int(rank) for rank in rng.permutation(total)[:2])
    share, count = rng.uniform(0.1, 1.0), int(rng.integers(1, 5))
    burst = message(machine, src, dst, max(4, int(share / count * _busiest_bytes(way))))
    times = rng.uniform(0, 1, count) * whole_s
    launches = (
        Launch(0.0, way, "all_reduce", total),
        *(Launch(float(at_s), burst, "send") for at_s in times),
    )
    return Scene(name, "bursts against a collective", machine, launches)


def _busiest_bytes(way: LoweredCollective) -> float:
    return max(
        float(sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(stage.edges))).max())
        for stage in way.stages
    )


def _streams(name: str, rng: np.random.Generator) -> Scene:
    """A collective beside a stream of somebody else that never ends, or ends on the way."""
    machine = _machine(rng)
    total = len(machine.topology.ranks)
    way = collective(machine, "all_reduce", _size(rng, total), range(total))
    crossed = way.stages[0].edges
    edge = int(rng.integers(len(crossed)))
    route = tuple(crossed.arcs[crossed.pointers[edge] : crossed.pointers[edge + 1]].tolist())
    narrow_Bps = float(machine.topology.arcs.bandwidth_Bps[list(route)].min())
    cap_Bps = float(rng.uniform(0.1, 1.0)) * narrow_Bps
    whole_s = _alone_s(machine, way)
    nbytes = float(rng.choice([np.inf, rng.uniform(0.1, 1.0) * cap_Bps * whole_s]))
    stream = Stream(float(rng.uniform(0, 0.8)) * whole_s, route, cap_Bps, nbytes)
    launch = Launch(0.0, way, "all_reduce", total)
    return Scene(name, "stream beside a collective", machine, (launch,), streams=(stream,))


def _faults(name: str, rng: np.random.Generator) -> Scene:
    """A link of the collective slows down on the way, at any moment, and may recover."""
    machine = _machine(rng)
    total = len(machine.topology.ranks)
    way = collective(machine, "all_reduce", _size(rng, total), range(total))
    arc = int(rng.choice(way.stages[0].edges.arcs))
    topology = machine.topology
    speed = float(topology.arcs.bandwidth_Bps[arc]) * float(rng.uniform(0.1, 0.9))
    worse = Machine(degrade_links(topology, {arc: speed}), machine.library)
    at_s, back_s = np.sort(rng.uniform(0, 1, 2)) * _alone_s(machine, way)
    changes = [(float(at_s), worse), *([(float(back_s), machine)] if rng.integers(2) else [])]
    launch = Launch(0.0, way, "all_reduce", total)
    return Scene(name, "link slows down in mid-transfer", machine, (launch,), tuple(changes))


def _lost(name: str, rng: np.random.Generator) -> Scene:
    """A cable between leaf and spine is lost on the way; its traffic takes another."""
    spine = FabricSpec(kind="leaf-spine", hosts_per_leaf=2)
    gpus = int(rng.integers(1, 3))
    topology = build_topology(two_level_node(gpus), hosts=int(rng.integers(3, 7)), fabric=spine)
    machine = Machine(topology, with_credits(int(rng.choice([1, 2, 8]))))
    way = _shuffled_ring(machine, rng)
    names = topology.arcs.names
    used = [a for a in set(way.stages[0].edges.arcs.tolist()) if _is_uplink(names[a])]
    arc = int(rng.choice(sorted(used)))
    left = Machine(remove_links(topology, arcs=[arc]), machine.library)
    at_s = float(rng.uniform(0, 1)) * _alone_s(machine, way)
    launch = Launch(0.0, way, "all_reduce", way.schedule.ranks)
    return Scene(name, "cable lost in mid-transfer", machine, (launch,), ((at_s, left),))


def _is_uplink(ends: tuple[str, str]) -> bool:
    return all(end.startswith("fabric/") for end in ends)


STAGED = ("hierarchical", "halving_doubling", "tree", "torus", "binomial", "recursive_doubling")


def _staged(name: str, rng: np.random.Generator) -> Scene:
    """Algorithms of several stages on unequal ports that their edges share."""
    if rng.integers(2):
        speeds, late = rng.uniform(5e9, 5e10, 8), rng.uniform(0, 5e-6, 8)
        topology = crossbar(speeds, late, down_Bps=rng.uniform(5e9, 5e10, 8).tolist())
    else:
        spine = FabricSpec(kind="leaf-spine", oversubscription=2, hosts_per_leaf=2)
        topology = uneven(build_topology(two_level_node(2), hosts=4, fabric=spine), rng)
    machine = Machine(topology, with_credits(int(rng.choice([1, 2]))))
    algorithm = str(rng.choice(STAGED))
    way = collective(machine, "all_reduce", _size(rng, 8), range(8), algorithm)
    return Scene(name, "several stages", machine, (Launch(0.0, way, "all_reduce", 8),))


NEED_NOT: Mapping[str, Family] = {
    "ring crosses a link twice": Family(
        _crossing,
        30,
        "edges that share a link send by turns where latency or other links hold "
        "them up; a fluid edge keeps its share meanwhile",
    ),
    "two jobs, unlike rings": Family(
        _unlike_jobs,
        30,
        "a ring pauses for its slowest edge; the other takes the pause",
    ),
    "bursts against a collective": Family(
        _bursts,
        25,
        "a burst slows the sends that it meets, not the mean of all",
    ),
    "stream beside a collective": Family(
        _streams,
        20,
        "a stream fills the pauses of the edge that it meets",
    ),
    "link slows down in mid-transfer": Family(
        _faults,
        25,
        "as in the first line: the worst scenes differ as much without the change",
    ),
    "cable lost in mid-transfer": Family(
        _lost,
        15,
        "as for a slow link; the new way is shared with others",
    ),
    "several stages": Family(
        _staged,
        25,
        "edges of two stages meet where some ranks are ahead of others",
    ),
}
