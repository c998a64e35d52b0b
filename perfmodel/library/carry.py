"""From "all-reduce these bytes among these ranks" to a schedule on real edges.

The result (`Carried`) is what both simulators time: a schedule, the links of its edges, and what
the library adds to each step. Which protocol is best for a size is for the simulator to see: it
times the candidates and takes the quickest, as NCCL's tuner does with its own predictor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from perfmodel.collectives import chain, ring, star
from perfmodel.collectives.schedule import Floats, Phase, Schedule
from perfmodel.errors import ScheduleError
from perfmodel.library.edges import HOPS, Edges, Rings, chosen, edges_between, rings_over
from perfmodel.library.model import Library, Protocol
from perfmodel.library.transport import NVLINK_PATHS
from perfmodel.topology.model import Topology
from perfmodel.topology.routes import Router

Group = range | tuple[int, ...]

ITEM_BYTES = 4
"""Chunks are cut at 4-byte elements; a size that is not whole elements is rounded up."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive phases of a schedule over the same edges; stages follow one another.

    Parameters
    ----------
    phases : tuple of Phase
    edges : Edges
        The links of each edge, in the phases' order.
    latency_s : ndarray of float, shape (edges,)
        Links' latency and the library's own time per step.
    cap_Bps : ndarray of float, shape (edges,)
        Most that an edge may carry (of wire bytes).
    """

    phases: tuple[Phase, ...]
    edges: Edges
    latency_s: Floats
    cap_Bps: Floats


@dataclass(frozen=True, slots=True)
class Carried:
    """One collective as it travels.

    Parameters
    ----------
    schedule : Schedule
        Over positions 0 ... N-1 of the group.
    stages : tuple of Stage
    protocol : str
    launch_s : float
        Time before the first byte moves.
    wire_factor : float
        Bytes on the wire per byte of payload.
    credits : int
    """

    schedule: Schedule
    stages: tuple[Stage, ...]
    protocol: str
    launch_s: float
    wire_factor: float
    credits: int


@dataclass(frozen=True)
class Machine:
    """What executors see: hardware and the library that drives it.

    Parameters
    ----------
    topology : Topology
    library : Library
    channels : int, optional
        Use no more than this many parallel rings.
    """

    topology: Topology
    library: Library
    channels: int | None = None
    router: Router = field(init=False)
    _rings: dict[Group, Rings] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "router", Router(self.topology))

    def rings(self, group: Group) -> Rings:
        """Rings over a group of ranks; laid once."""
        if group not in self._rings:
            self._rings[group] = rings_over(
                self.topology, self.router, group, at_most=self.channels
            )
        return self._rings[group]


def carry(
    machine: Machine,
    op: str,
    nbytes: int,
    group: Group,
    *,
    root: int = 0,
    algorithm: str | None = None,
) -> tuple[Carried, ...]:
    """Return the ways in which the library could carry a collective, one per protocol.

    Parameters
    ----------
    machine : Machine
    op : str
        A `training.plan.Op`.
    nbytes : int
    group : range or tuple of int
        Ranks of the topology, at least two.
    root : int
        Rank of the topology, for rooted operations.
    algorithm : str, optional
        Default: the library's own (rings and chains around them).

    Raises
    ------
    ScheduleError
        An operation without such an algorithm.
    """
    if algorithm not in {None, "auto", "ring"}:
        raise ScheduleError(f"algorithm {algorithm!r}; allowed: 'auto', 'ring'")
    size = -(-int(nbytes) // ITEM_BYTES) * ITEM_BYTES
    schedule, laid = _on_edges(machine, op, size, group, root)
    return tuple(
        _with_protocol(schedule, laid, name, protocol)
        for name, protocol in _usable(machine, group).items()
    )


def carry_message(machine: Machine, src: int, dst: int, nbytes: int) -> Carried:
    """Return how the library carries one point-to-point message: by its bulk protocol."""
    edges = edges_between(machine.topology, machine.router, np.array([src]), np.array([dst]))
    name, protocol = list(machine.library.protocols.items())[-1]
    schedule = star.send(nbytes)
    return _with_protocol(schedule, ((schedule.phases, edges),), name, protocol)


Laid = tuple[tuple[tuple[Phase, ...], Edges], ...]
"""Phases and the links of their edges, stage by stage."""


def _on_edges(
    machine: Machine, op: str, nbytes: int, group: Group, root: int
) -> tuple[Schedule, Laid]:
    ranks = len(group)
    place = {rank: position for position, rank in enumerate(group)}
    at = place.get(root, 0)
    if op in {"scatter", "gather"}:
        make = star.scatter if op == "scatter" else star.gather
        return _directly(machine, make(ranks, nbytes, root=at, itemsize=ITEM_BYTES), group)
    rings = machine.rings(group)
    orders = [[place[rank] for rank in order] for order in rings.orders.tolist()]
    if op in RING_ALGORITHMS:
        schedule = RING_ALGORITHMS[op](ranks, nbytes, itemsize=ITEM_BYTES, orders=orders)
        return schedule, ((schedule.phases, rings.edges),)
    if op not in CHAIN_ALGORITHMS:
        known = [*RING_ALGORITHMS, *CHAIN_ALGORITHMS, "scatter", "gather"]
        raise ScheduleError(f"no algorithm for {op!r}; allowed: {', '.join(known)}")
    chained = CHAIN_ALGORITHMS[op](ranks, nbytes, root=at, itemsize=ITEM_BYTES, orders=orders)
    return chained, ((chained.phases, _along(rings, orders, chained)),)


def _directly(machine: Machine, schedule: Schedule, group: Group) -> tuple[Schedule, Laid]:
    """Any schedule, each pair of ranks over its nearest links."""
    members = np.asarray(group, dtype=np.int64)
    laid = []
    for phases in stages_of(schedule):
        ends = members[phases[0].src], members[phases[0].dst]
        laid.append((phases, edges_between(machine.topology, machine.router, *ends)))
    return schedule, tuple(laid)


def stages_of(schedule: Schedule) -> tuple[tuple[Phase, ...], ...]:
    """Consecutive phases over the same edges belong together."""
    stages: list[list[Phase]] = []
    for phase in schedule.phases:
        if stages and _same_edges(stages[-1][0], phase):
            stages[-1].append(phase)
        else:
            stages.append([phase])
    return tuple(tuple(stage) for stage in stages)


def _same_edges(one: Phase, other: Phase) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("src", "dst", "channel")
    )


def _along(rings: Rings, orders: list[list[int]], chained: Schedule) -> Edges:
    """The rings' own edges that a chain's phase goes over, in the phase's order."""
    phase, ranks = chained.phases[0], len(orders[0])
    number = {
        (ring, rank): ring * ranks + at
        for ring, order in enumerate(orders)
        for at, rank in enumerate(order)
    }
    pairs = zip(phase.channel.tolist(), phase.src.tolist(), strict=True)
    return chosen(rings.edges, [number[pair] for pair in pairs])


RING_ALGORITHMS = {
    "all_reduce": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
}
CHAIN_ALGORITHMS = {"broadcast": chain.broadcast, "reduce": chain.reduce}


def _usable(machine: Machine, group: Group) -> Mapping[str, Protocol]:
    """Protocols that this group may use."""
    size = machine.topology.gpus_per_host
    first = group[0] // size
    gpus = [machine.topology.ranks[rank] for rank in group if rank // size == first]
    nvlink = all(
        machine.router.path_type(a, b) in NVLINK_PATHS for a, b in itertools.pairwise(gpus)
    )
    return {
        name: protocol
        for name, protocol in machine.library.protocols.items()
        if nvlink or not protocol.nvlink_only
    }


def _with_protocol(schedule: Schedule, laid: Laid, name: str, protocol: Protocol) -> Carried:
    steps = np.array([getattr(protocol.step, hop) for hop in HOPS])
    channels = 1 + max((int(p.channel.max()) for p in schedule.phases), default=0)
    limit = np.inf if protocol.max_rate is None else protocol.max_rate / channels
    return Carried(
        schedule=schedule,
        stages=tuple(
            Stage(
                phases=phases,
                edges=edges,
                latency_s=edges.latency_s + steps[edges.hop],
                cap_Bps=np.minimum(edges.cap_Bps, limit),
            )
            for phases, edges in laid
        ),
        protocol=name,
        launch_s=protocol.launch,
        wire_factor=1.0 / protocol.wire_efficiency,
        credits=protocol.credits,
    )
