"""How many rings or chains of one speed fit on a host's links at once."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from perfmodel.library.nccl.host_graph import RANK, Host, HostPath
from perfmodel.library.ring_search import hamiltonian_cycles

_MOST_SEARCH_STEPS = 400
"""Steps of one search for a path; NCCL's own budget is larger, but its hosts are no harder."""

_LANE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """Requirements of a channel."""

    intra_GBps: float
    inter_GBps: float
    type_intra: str
    """Farthest path type between GPUs."""
    type_inter: str | None
    """Farthest path type to a NIC; None for a chain that stays in the host."""
    cross: int
    """Whether a ring may leave by another NIC than it entered by (``NCCL_CROSS_NIC``, 0 to 2)."""
    same: bool
    """Whether all channels pass the GPUs in one order."""


@dataclass
class _Room:
    """Free capacity of the links while channels are laid."""

    host: Host
    demand: Demand
    arcs: dict[int, float]
    nic_in: list[float]
    nic_out: list[float]
    begun: list[int]
    tries: int = 0
    order: tuple[int, ...] = ()
    _near: dict[int, list[tuple[int, int, HostPath]]] = field(default_factory=dict)

    def near(self, gpu: int) -> list[tuple[int, int, HostPath]]:
        """Rank of the path type, number and path of each GPU near enough to go on to."""
        if gpu not in self._near:
            limit, host = RANK[self.demand.type_intra], self.host
            paths = ((peer, host.peers[gpu, peer]) for peer in range(host.gpus) if peer != gpu)
            ranked = ((RANK[path.type], peer, path) for peer, path in paths)
            self._near[gpu] = [option for option in ranked if option[0] <= limit]
        return self._near[gpu]

    def take(self, path: HostPath, speed: float) -> bool:
        """Reserve a path; change nothing where it does not fit."""
        charge = speed * path.cost
        for at, arc in enumerate(path.arcs):
            self.arcs[arc] -= charge
            if self.arcs[arc] < -_LANE_TOLERANCE:
                for done in path.arcs[: at + 1]:
                    self.arcs[done] += charge
                return False
        return True

    def give_back(self, path: HostPath, speed: float) -> None:
        """Undo `take`."""
        for arc in path.arcs:
            self.arcs[arc] += speed * path.cost


def channel_bound(host: Host, demand: Demand, *, most: int) -> int:
    """Channels that no packing exceeds: what the links out of all GPUs, and the NICs, carry.

    A channel goes on from every GPU but perhaps its last, each time over the first link of some
    path that is near enough.
    """
    is_ring = demand.type_inter is not None
    with_nics = is_ring and bool(host.nic_GBps)
    if with_nics:
        most = min(most, sum(_fit_count(rate, demand.inter_GBps) for rate in host.nic_GBps))
    hops = host.gpus if is_ring and not with_nics and host.gpus > 1 else host.gpus - 1
    if not hops:
        return most
    room = _outgoing_GBps(host, max(RANK[demand.type_intra], RANK["NVL"]))
    return most if math.isinf(room) else min(most, _fit_count(room, demand.intra_GBps * hops))


def _fit_count(room: float, charge: float) -> int:
    """How often a charge fits at the very most; a hundredth covers the slack of all links."""
    return math.floor(room / charge + 0.01)


@lru_cache(maxsize=16)
def _outgoing_GBps(host: Host, limit: int) -> float:
    """What all GPUs together can send each other over paths of these types."""
    paths = [path for path in host.peers.values() if RANK[path.type] <= limit]
    if not all(path.arcs for path in paths):
        return math.inf
    return sum(host.arc_GBps[arc] for arc in {path.arcs[0] for path in paths})


def pack_channels(host: Host, demand: Demand, *, most: int) -> int:
    """Channels that fit, at most so many."""
    is_ring = demand.type_inter is not None
    if is_ring and not host.nic_GBps and host.mesh and host.gpus > 2 and not demand.same:
        cycles = _on_mesh(host, demand)
        if cycles:
            return min(most, cycles)
    room = _Room(
        host,
        demand,
        dict(host.arc_GBps),
        list(host.nic_GBps),
        list(host.nic_GBps),
        [0] * host.gpus,
    )
    if not demand.same or (is_ring and host.nic_GBps):
        return sum(1 for _ in itertools.takewhile(lambda _: _lay(room), range(most)))
    if not _lay(room):
        return 0
    # How often the one channel that is laid fits.
    used = {arc: host.arc_GBps[arc] - free for arc, free in room.arcs.items()}
    times = (host.arc_GBps[arc] / use for arc, use in used.items() if use > 0)
    return math.floor(min(most, min(times, default=math.inf) + _LANE_TOLERANCE))


def _on_mesh(host: Host, demand: Demand) -> int:
    """Rings over direct NVLinks, as edge-disjoint cycles that are run both ways."""
    speed = demand.intra_GBps
    lanes = {
        pair: math.floor(rate / speed + _LANE_TOLERANCE) for pair, rate in (host.mesh or {}).items()
    }
    lanes = {pair: number for pair, number in lanes.items() if number}
    return len(hamiltonian_cycles(host.gpus, lanes)) if lanes else 0


def _lay(room: _Room) -> bool:
    """Lay one more channel."""
    host, demand = room.host, room.demand
    room.tries = 0
    if demand.type_inter is not None and host.nic_GBps:
        return any(_lay_from_nic(room, nic) for nic in range(len(host.nic_GBps)))
    closed = demand.type_inter is not None
    by_use = sorted(range(host.gpus), key=lambda gpu: (room.begun[gpu], gpu))
    starts = [room.order[0]] if room.order and demand.same else by_use
    ends = [(starts[0], starts[0])] if closed else [(start, None) for start in starts]
    return any(_complete(room, start, end) for start, end in ends)


def _lay_from_nic(room: _Room, nic: int) -> bool:
    """Lay one channel that enters by this NIC."""
    host, demand = room.host, room.demand
    speed = demand.inter_GBps
    if room.nic_in[nic] < speed - _LANE_TOLERANCE:
        return False
    limit = RANK[demand.type_inter or "SYS"]
    near = sorted(
        range(host.gpus), key=lambda gpu: (RANK[host.inward[gpu, nic].type], room.begun[gpu], gpu)
    )
    best = RANK[host.inward[near[0], nic].type]
    nearest = [gpu for gpu in near if RANK[host.inward[gpu, nic].type] == best]
    for start in room.order[:1] if demand.same and room.order else nearest:
        path = host.inward[start, nic]
        if RANK[path.type] > limit or not room.take(path, speed):
            continue
        room.nic_in[nic] -= speed
        if _complete(room, start, None, nic):
            return True
        room.nic_in[nic] += speed
        room.give_back(path, speed)
    return False


def _complete(room: _Room, start: int, back_to: int | None, nic: int | None = None) -> bool:
    """Lay a path from one GPU through all others and to its end, if one fits."""
    exits = frozenset(range(room.host.gpus)) if nic is None else _exits(room, nic)
    order = _extend(room, [start], back_to, nic, exits)
    if order:
        room.order = order
        room.begun[start] += 1
    return bool(order)


def _extend(
    room: _Room, gpus: list[int], back_to: int | None, nic: int | None, exits: frozenset[int]
) -> tuple[int, ...]:
    room.tries += 1
    if room.tries > _MOST_SEARCH_STEPS:
        return ()
    if len(gpus) == room.host.gpus:
        return tuple(gpus) if _close(room, gpus[-1], back_to, nic) else ()
    speed = room.demand.intra_GBps
    for gpu, path in _next_gpus(room, gpus, exits):
        if not room.take(path, speed):
            continue
        order = _extend(room, [*gpus, gpu], back_to, nic, exits)
        if order:
            return order
        room.give_back(path, speed)
    return ()


def _exits(room: _Room, nic: int) -> frozenset[int]:
    """GPUs from which a ring that entered by this NIC may leave the host."""
    host, demand = room.host, room.demand
    limit = RANK[demand.type_inter or "SYS"]
    outs = [
        n
        for n in (range(len(host.nic_GBps)) if demand.cross else (nic,))
        if room.nic_out[n] >= demand.inter_GBps - _LANE_TOLERANCE
    ]
    return frozenset(
        gpu
        for gpu in range(host.gpus)
        if any(RANK[host.outward[gpu, out].type] <= limit for out in outs)
    )


def _next_gpus(
    room: _Room, gpus: list[int], exits: frozenset[int]
) -> Iterator[tuple[int, HostPath]]:
    """GPUs to go on to: that of the order where it is given, or else near and little used ones.

    Those from which the path may leave are kept for its end.
    """
    host, current = room.host, gpus[-1]
    if room.order and room.demand.same:
        gpu = room.order[len(gpus)]
        yield gpu, host.peers[current, gpu]
        return
    visited, arcs = set(gpus), room.arcs
    last, remaining = exits - visited, host.gpus - len(gpus)
    if not last:
        return
    reserved = next(iter(last)) if len(last) == 1 and remaining > 1 else -1
    early = len(last) < remaining
    options = [
        (
            early and gpu in exits,
            rank,
            -min(map(arcs.__getitem__, path.arcs), default=0.0),
            gpu,
            path,
        )
        for rank, gpu, path in room.near(current)
        if gpu not in visited and gpu != reserved
    ]
    heapq.heapify(options)  # the first is nearly always taken
    while options:
        *_, gpu, path = heapq.heappop(options)
        yield gpu, path


def _close(room: _Room, last: int, back_to: int | None, nic: int | None) -> bool:
    """Close a ring, or leave the host by a NIC."""
    host, demand = room.host, room.demand
    if nic is None:
        if back_to is None or host.gpus == 1:
            return True
        path = host.peers[last, back_to]
        return RANK[path.type] <= RANK[demand.type_intra] and room.take(path, demand.intra_GBps)
    for out in range(len(host.nic_GBps)) if demand.cross else (nic,):
        path = host.outward[last, out]
        if RANK[path.type] > RANK[demand.type_inter or "SYS"]:
            continue
        if room.nic_out[out] >= demand.inter_GBps - _LANE_TOLERANCE and room.take(
            path, demand.inter_GBps
        ):
            room.nic_out[out] -= demand.inter_GBps
            return True
    return False
