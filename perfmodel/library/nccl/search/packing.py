"""How many rings or chains of one speed fit on a host's links at once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from perfmodel.library.channels.ring_search import hamiltonian_cycles
from perfmodel.library.nccl.search.host_graph import RANK, Host, Way

_TRIES = 400
"""Steps of one search for a path; NCCL's own budget is larger, but its hosts are no harder."""

_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """What a channel asks for.

    Parameters
    ----------
    intra_GBps, inter_GBps : float
    type_intra : str
        Farthest path type between GPUs.
    type_inter : str or None
        Farthest path type to a NIC; None for a chain that stays in the host.
    cross : {0, 1, 2}
        Whether a ring may leave by another NIC than it entered by.
    same : bool
        Whether all channels pass the GPUs in one order.
    """

    intra_GBps: float
    inter_GBps: float
    type_intra: str
    type_inter: str | None
    cross: int
    same: bool


@dataclass
class _Room:
    """What is left of the links while channels are laid."""

    host: Host
    demand: Demand
    arcs: dict[int, float]
    nic_in: list[float]
    nic_out: list[float]
    begun: list[int]
    tries: int = 0
    order: tuple[int, ...] = ()
    _near: dict[int, list[tuple[int, int, Way]]] = field(default_factory=dict)

    def near(self, gpu: int) -> list[tuple[int, int, Way]]:
        """Rank of the path type, number and way of each GPU near enough to go on to."""
        if gpu not in self._near:
            limit, host = RANK[self.demand.type_intra], self.host
            ways = ((peer, host.peers[gpu, peer]) for peer in range(host.gpus) if peer != gpu)
            ranked = ((RANK[way.type], peer, way) for peer, way in ways)
            self._near[gpu] = [one for one in ranked if one[0] <= limit]
        return self._near[gpu]

    def take(self, way: Way, speed: float) -> bool:
        """Reserve a way, or leave all as it was."""
        charge = speed * way.cost
        for at, arc in enumerate(way.arcs):
            self.arcs[arc] -= charge
            if self.arcs[arc] < -_SLACK:
                for done in way.arcs[: at + 1]:
                    self.arcs[done] += charge
                return False
        return True

    def give_back(self, way: Way, speed: float) -> None:
        """Undo `take`."""
        for arc in way.arcs:
            self.arcs[arc] += speed * way.cost


def at_most(host: Host, demand: Demand, *, most: int) -> int:
    """Channels that no packing exceeds: what the links out of all GPUs, and the NICs, carry.

    A channel goes on from every GPU but perhaps its last, each time over the first link of some
    way that is near enough.
    """
    is_ring = demand.type_inter is not None
    with_nics = is_ring and bool(host.nic_GBps)
    if with_nics:
        most = min(most, sum(_times(rate, demand.inter_GBps) for rate in host.nic_GBps))
    hops = host.gpus if is_ring and not with_nics and host.gpus > 1 else host.gpus - 1
    if not hops:
        return most
    room = _outgoing_GBps(host, max(RANK[demand.type_intra], RANK["NVL"]))
    return most if math.isinf(room) else min(most, _times(room, demand.intra_GBps * hops))


def _times(room: float, charge: float) -> int:
    """How often a charge fits at the very most; a hundredth covers the slack of all links."""
    return math.floor(room / charge + 0.01)


@lru_cache(maxsize=16)
def _outgoing_GBps(host: Host, limit: int) -> float:
    """What all GPUs together can send each other over ways of these types."""
    ways = [way for way in host.peers.values() if RANK[way.type] <= limit]
    if not all(way.arcs for way in ways):
        return math.inf
    return sum(host.arc_GBps[arc] for arc in {way.arcs[0] for way in ways})


def packed(host: Host, demand: Demand, *, most: int) -> int:
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
    if demand.same and not (is_ring and host.nic_GBps):
        return _alike(room, most) if _lay(room) else 0
    count = 0
    while count < most and _lay(room):
        count += 1
    return count


def _alike(room: _Room, most: int) -> int:
    """How often the one channel that is laid fits, at most so often."""
    used = {arc: room.host.arc_GBps[arc] - left for arc, left in room.arcs.items()}
    times = (room.host.arc_GBps[arc] / use for arc, use in used.items() if use > 0)
    return math.floor(min(most, min(times, default=math.inf) + _SLACK))


def _on_mesh(host: Host, demand: Demand) -> int:
    """Rings over direct NVLinks, as edge-disjoint cycles that are run both ways."""
    speed = demand.intra_GBps
    lanes = {pair: math.floor(rate / speed + _SLACK) for pair, rate in (host.mesh or {}).items()}
    lanes = {pair: number for pair, number in lanes.items() if number}
    return len(hamiltonian_cycles(host.gpus, lanes)) if lanes else 0


def _lay(room: _Room) -> bool:
    """Lay one more channel."""
    host, demand = room.host, room.demand
    room.tries = 0
    if demand.type_inter is not None and host.nic_GBps:
        return any(_from_nic(room, nic) for nic in range(len(host.nic_GBps)))
    closed = demand.type_inter is not None
    starts = [room.order[0]] if room.order and demand.same else _by_use(room)
    for start in starts[:1] if closed else starts:
        order = _through(room, [start], start if closed else None)
        if order:
            room.order = order
            room.begun[start] += 1
            return True
    return False


def _by_use(room: _Room) -> list[int]:
    return sorted(range(room.host.gpus), key=lambda gpu: (room.begun[gpu], gpu))


def _from_nic(room: _Room, nic: int) -> bool:
    """Lay one channel that enters by this NIC."""
    host, demand = room.host, room.demand
    speed = demand.inter_GBps
    if room.nic_in[nic] < speed - _SLACK:
        return False
    limit = RANK[demand.type_inter or "SYS"]
    near = sorted(
        range(host.gpus), key=lambda gpu: (RANK[host.inward[gpu, nic].type], room.begun[gpu], gpu)
    )
    best = RANK[host.inward[near[0], nic].type]
    starts = [gpu for gpu in near if RANK[host.inward[gpu, nic].type] == best]
    if room.order and demand.same:
        starts = [room.order[0]]
    for start in starts:
        way = host.inward[start, nic]
        if RANK[way.type] > limit or not room.take(way, speed):
            continue
        room.nic_in[nic] -= speed
        order = _through(room, [start], None, nic)
        if order:
            room.order = order
            room.begun[start] += 1
            return True
        room.nic_in[nic] += speed
        room.give_back(way, speed)
    return False


def _through(
    room: _Room, path: list[int], back_to: int | None, nic: int | None = None
) -> tuple[int, ...]:
    """Continue a path through all GPUs and to its end; the order, or nothing where none fits."""
    exits = frozenset(range(room.host.gpus)) if nic is None else _exits(room, nic)
    return _onward(room, path, back_to, nic, exits)


def _onward(
    room: _Room, path: list[int], back_to: int | None, nic: int | None, exits: frozenset[int]
) -> tuple[int, ...]:
    room.tries += 1
    if room.tries > _TRIES:
        return ()
    if len(path) == room.host.gpus:
        return tuple(path) if _ends(room, path[-1], back_to, nic) else ()
    speed = room.demand.intra_GBps
    for gpu, way in _next(room, path, exits):
        if not room.take(way, speed):
            continue
        found = _onward(room, [*path, gpu], back_to, nic, exits)
        if found:
            return found
        room.give_back(way, speed)
    return ()


def _exits(room: _Room, nic: int) -> frozenset[int]:
    """GPUs from which a ring that entered by this NIC may leave the host."""
    host, demand = room.host, room.demand
    limit = RANK[demand.type_inter or "SYS"]
    outs = [
        n
        for n in (range(len(host.nic_GBps)) if demand.cross else (nic,))
        if room.nic_out[n] >= demand.inter_GBps - _SLACK
    ]
    return frozenset(
        gpu
        for gpu in range(host.gpus)
        if any(RANK[host.outward[gpu, out].type] <= limit for out in outs)
    )


def _next(room: _Room, path: list[int], exits: frozenset[int]) -> Iterator[tuple[int, Way]]:
    """GPUs to go on to: that of the order where it is given, or else near and little used ones.

    Those from which the path may leave are kept for its end.
    """
    host, here = room.host, path[-1]
    if room.order and room.demand.same:
        gpu = room.order[len(path)]
        yield gpu, host.peers[here, gpu]
        return
    taken, arcs = set(path), room.arcs
    last, left = exits - taken, host.gpus - len(path)
    if not last:
        return
    kept = next(iter(last)) if len(last) == 1 and left > 1 else -1
    early = len(last) < left
    options = [
        (
            early and gpu in exits,
            rank,
            -min(map(arcs.__getitem__, way.arcs), default=0.0),
            gpu,
            way,
        )
        for rank, gpu, way in room.near(here)
        if gpu not in taken and gpu != kept
    ]
    heapq.heapify(options)  # the first is nearly always taken
    while options:
        *_, gpu, way = heapq.heappop(options)
        yield gpu, way


def _ends(room: _Room, last: int, back_to: int | None, nic: int | None) -> bool:
    """Close a ring, or leave the host by a NIC."""
    host, demand = room.host, room.demand
    if nic is None:
        if back_to is None or host.gpus == 1:
            return True
        way = host.peers[last, back_to]
        return RANK[way.type] <= RANK[demand.type_intra] and room.take(way, demand.intra_GBps)
    for out in range(len(host.nic_GBps)) if demand.cross else (nic,):
        way = host.outward[last, out]
        if RANK[way.type] > RANK[demand.type_inter or "SYS"]:
            continue
        if room.nic_out[out] >= demand.inter_GBps - _SLACK and room.take(way, demand.inter_GBps):
            room.nic_out[out] -= demand.inter_GBps
            return True
    return False
