"""From "all-reduce these bytes among these ranks" to a schedule on real edges.

The result (`Carried`) is what both simulators time: a schedule, the links of its edges, and what
the library adds to each step. Which protocol is best for a size is for the simulator to see: it
times the candidates and takes the quickest, as NCCL's tuner does with its own predictor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.collectives import chain, ring, star
from perfmodel.collectives.catalog import ROOTED, make
from perfmodel.collectives.schedule import Floats, Ints, Phase, Schedule
from perfmodel.errors import Fault, InputError, ScheduleError
from perfmodel.library.channels import Rings, rings_over
from perfmodel.library.costs import (
    chunk_bytes,
    credits_of,
    launch_s,
    rate_limit_Bps,
    step_latency_s,
    wire_factor,
)
from perfmodel.library.edges import Edges, chosen
from perfmodel.library.laying import edges_between, edges_of_names
from perfmodel.library.model import Library, Protocol
from perfmodel.library.settings import Settings
from perfmodel.library.transport import GDR_PATHS, NVLINK_PATHS
from perfmodel.topology.model import Topology
from perfmodel.topology.routes import Router

Group = range | tuple[int, ...]

ITEM_BYTES = 4
"""Chunks are cut at 4-byte elements; a size that is not whole elements is rounded up."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive phases of a schedule over the same edges; stages follow one another.

    A rank begins a stage when its sends and receives of the stage before have landed.

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
    settings : Settings
        What the user told the library: its version and environment.
    """

    topology: Topology
    library: Library
    channels: int | None = None
    settings: Settings = field(default_factory=Settings)
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
        Name in `perfmodel.collectives.catalog`. Default: the library's own. Rings, and chains
        around them, are laid over the machine's channels.

    Raises
    ------
    InputError
        An operation without such an algorithm, or one that these ranks do not allow.
    """
    size = -(-int(nbytes) // ITEM_BYTES) * ITEM_BYTES
    usual = OWN_ALGORITHM.get(op, "")
    name = algorithm or machine.library.algorithms.get(op, usual)
    if name == usual and name in LAID:
        schedule, laid = _on_edges(machine, op, size, group, root)
    else:
        schedule, laid = _other(machine, op, name, size, group, root)
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


def members(group: Group) -> Ints:
    """Ranks of a group as an array."""
    if isinstance(group, range):
        return np.arange(group.start, group.stop, group.step, dtype=np.int64)
    return np.asarray(group, dtype=np.int64)


Laid = tuple[tuple[tuple[Phase, ...], Edges], ...]
"""Phases and the links of their edges, stage by stage."""


def _on_edges(
    machine: Machine, op: str, nbytes: int, group: Group, root: int
) -> tuple[Schedule, Laid]:
    ranks = len(group)
    at = _root(group, root) if op in ROOTED else 0
    if op in {"scatter", "gather"}:
        make = star.scatter if op == "scatter" else star.gather
        return _directly(machine, make(ranks, nbytes, root=at, itemsize=ITEM_BYTES), group)
    rings = machine.rings(group)
    orders = _places(group)[rings.orders]
    if op in RING_ALGORITHMS:
        schedule = RING_ALGORITHMS[op](ranks, nbytes, itemsize=ITEM_BYTES, orders=orders)
        return schedule, ((schedule.phases, rings.edges),)
    if op not in CHAIN_ALGORITHMS:
        known = [*RING_ALGORITHMS, *CHAIN_ALGORITHMS, "scatter", "gather"]
        raise ScheduleError(f"no algorithm for {op!r}; allowed: {', '.join(known)}")
    chained = CHAIN_ALGORITHMS[op](ranks, nbytes, root=at, itemsize=ITEM_BYTES, orders=orders)
    return chained, ((chained.phases, _along(rings, orders, chained)),)


def _other(
    machine: Machine, op: str, algorithm: str, nbytes: int, group: Group, root: int
) -> tuple[Schedule, Laid]:
    """An algorithm by name, with what it needs to know of the machine."""
    own: dict[str, Any] = {"root": _root(group, root)} if op in ROOTED else {}
    if algorithm == "hierarchical":
        own["groups"] = _by_host(members(group) // machine.topology.gpus_per_host)
    schedule = make(op, algorithm, len(group), nbytes, itemsize=ITEM_BYTES, **own)
    return _directly(machine, schedule, group)


def _root(group: Group, root: int) -> int:
    """Position of the root in its group."""
    if root not in group:
        raise ScheduleError(f"root {root}; allowed: a rank of the group, which it is not in")
    return group.index(root)


def _places(group: Group) -> Ints:
    """Position in its group of each rank of the topology; -1 for those that are not in it."""
    ranks = members(group)
    places = np.full(int(ranks.max()) + 1, -1)
    places[ranks] = np.arange(len(ranks))
    return places


def _by_host(hosts: Ints) -> list[Ints]:
    """Positions of the ranks of each host, in the order in which the hosts come."""
    order = np.argsort(hosts, kind="stable")
    begins = np.flatnonzero(np.diff(hosts[order], prepend=-1))
    groups = np.split(order, begins[1:])
    return sorted(groups, key=lambda group: int(group[0]))


def _directly(machine: Machine, schedule: Schedule, group: Group) -> tuple[Schedule, Laid]:
    """Any schedule, each pair of ranks over its nearest links."""
    ranks = members(group)
    laid: list[tuple[tuple[Phase, ...], Edges]] = []
    for phases in stages_of(schedule):
        if phases[0].drained:  # over the edges of the stage before
            laid.append((phases, laid[-1][1]))
            continue
        src, dst = phases[0].src, phases[0].dst
        if schedule.switches:
            names = _names(machine, group, src, dst)
            edges = edges_of_names(machine.topology, machine.router, *names)
        else:
            edges = edges_between(machine.topology, machine.router, ranks[src], ranks[dst])
        laid.append((phases, edges))
    return schedule, tuple(laid)


def _names(machine: Machine, group: Group, src: Ints, dst: Ints) -> tuple[list[str], list[str]]:
    """Devices by name, of ranks and of the switch that reduces for them."""
    topology = machine.topology
    hosts = {rank // topology.gpus_per_host for rank in group}
    kinds = topology.graph.nodes
    switches = [
        node
        for node in topology.graph.adj[topology.ranks[group[0]]]
        if kinds[node]["kind"] == "nvswitch"
    ]
    if len(hosts) > 1 or not switches:
        found = f"{len(group)} ranks on {len(hosts)} hosts of {topology.template}"
        raise InputError(
            Fault("algorithm", f"'switch' for {found}", "ranks that share an NVSwitch")
        )
    names = [*(topology.ranks[rank] for rank in group), switches[0]]
    return [names[at] for at in src.tolist()], [names[at] for at in dst.tolist()]


OWN_ALGORITHM: Mapping[str, str] = {
    "all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring", "broadcast": "chain",
    "reduce": "chain", "scatter": "star", "gather": "star", "all_to_all": "pairwise",
}  # fmt: skip
"""What a library runs unless it (`Library.algorithms`) or the user says otherwise."""

LAID = frozenset({"ring", "chain", "star"})
"""Algorithms laid over the machine's own rings and channels; others go by the nearest links."""


def stages_of(schedule: Schedule) -> tuple[tuple[Phase, ...], ...]:
    """Consecutive phases over the same edges belong together, up to one that begins drained."""
    stages: list[list[Phase]] = []
    for phase in schedule.phases:
        if stages and not phase.drained and _same_edges(stages[-1][0], phase):
            stages[-1].append(phase)
        else:
            stages.append([phase])
    return tuple(tuple(stage) for stage in stages)


def _same_edges(one: Phase, other: Phase) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("src", "dst", "channel")
    )


def _along(rings: Rings, orders: Ints, chained: Schedule) -> Edges:
    """The rings' own edges that a chain's phase goes over, in the phase's order."""
    phase, ranks = chained.phases[0], orders.shape[1]
    at = np.empty_like(orders)
    np.put_along_axis(at, orders, np.arange(ranks)[None, :], axis=1)
    return chosen(rings.edges, phase.channel * ranks + at[phase.channel, phase.src])


RING_ALGORITHMS = {
    "all_reduce": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
}
CHAIN_ALGORITHMS = {"broadcast": chain.broadcast, "reduce": chain.reduce}


def _usable(machine: Machine, group: Group) -> Mapping[str, Protocol]:
    """Protocols that this group may use.

    Raises
    ------
    InputError
        None of those that the library is left with.
    """
    protocols = machine.library.protocols
    fast = _ordered_writes(machine, group)
    usable = {name: p for name, p in protocols.items() if fast or not p.nvlink_only}
    if not usable:
        found = ", ".join(repr(name) for name in protocols)
        allowed = "'simple' or 'll': between these GPUs not every path is NVLink or GPUDirect"
        raise InputError(Fault("protocol", found, allowed))
    return usable


def _ordered_writes(machine: Machine, group: Group) -> bool:
    """Whether all paths keep 128-byte writes whole: NVLink inside hosts, GPUDirect between them.

    Source: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc``, where LL128 is enabled.
    """
    router, size = machine.router, machine.topology.gpus_per_host
    ranks = members(group)
    hosts = ranks // size
    first, last = int(hosts.min()), int(hosts.max())
    gpus = [machine.topology.ranks[rank] for rank in ranks[hosts == first].tolist()]
    inside = all(router.path_type(a, b) in NVLINK_PATHS for a, b in itertools.pairwise(gpus))
    if first == last or not inside:
        return inside
    reach = all(router.path_type(gpu, router.nearest_nics(gpu)[0]) in GDR_PATHS for gpu in gpus)
    return machine.topology.gpudirect_rdma and reach


def _with_protocol(schedule: Schedule, laid: Laid, name: str, protocol: Protocol) -> Carried:
    return Carried(
        schedule=schedule,
        stages=tuple(
            Stage(
                phases=phases,
                edges=edges,
                latency_s=step_latency_s(protocol, edges, schedule),
                cap_Bps=rate_limit_Bps(protocol, edges, schedule),
            )
            for phases, edges in laid
        ),
        protocol=name,
        launch_s=launch_s(protocol, schedule.nbytes),
        wire_factor=wire_factor(protocol, chunk_bytes(schedule)),
        credits=credits_of(protocol, schedule),
    )
