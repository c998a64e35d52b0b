"""Rings over real hardware: in which order each parallel ring visits the GPUs, and by which NICs.

The rules follow NVIDIA/nccl 2.30.7 ``src/graph/search.cc`` and ``connect.cc``: behind an NVSwitch
any order serves; on a mesh of direct NVLinks, rings are edge-disjoint Hamiltonian cycles; between
hosts each ring uses one NIC to enter a host and one to leave it, starting at the GPU nearest the
first and ending at the GPU nearest the second, so that traffic stays on its rail.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfmodel.library.transport import GDR_PATHS, NVLINK_PATHS, nic_path, path_type_between
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.routing.shortest_paths import PATH_TYPES

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostRing:
    """One ring's path through a host."""

    order: Order
    """Local GPU numbers, first to last."""
    nic_in: int | None = None
    nic_out: int | None = None
    """`nic_in` and `nic_out`: local NIC numbers by which the ring enters and leaves; None when it
    stays in the host."""

    def reverse(self) -> HostRing:
        """The same path from its end to its beginning."""
        return HostRing(self.order[::-1], self.nic_out, self.nic_in)


MOST_MESHED = 64
"""GPUs of a mesh up to which rings over its links are searched, a second at most; beyond, a ring
goes in the order of the ranks. NVIDIA's hosts without a switch have eight."""


def local_rings(router: Router, gpus: Sequence[str]) -> tuple[Order, ...]:
    """Rings inside one host, as positions into `gpus`."""
    dumped = dumped_rings(router.topology, gpus)
    if dumped:
        return tuple(dict.fromkeys(ring.order for ring in dumped))
    lanes = direct_nvlinks(router.topology, gpus)
    if lanes is not None and _is_whole_mesh(router.topology, gpus, lanes):
        return hamiltonian_cycles(len(gpus), dict.fromkeys(lanes, 2))
    if 2 < len(gpus) <= MOST_MESHED and lanes is not None:
        cycles = hamiltonian_cycles(len(gpus), lanes) or relayed_cycles(router, gpus, lanes)
        if cycles:
            return cycles
    return (tuple(range(len(gpus))),)


def _is_whole_mesh(
    topology: Topology, gpus: Sequence[str], lanes: Mapping[tuple[int, int], int]
) -> bool:
    """Whether GPUs are all of a board of AMD's, each linked to each, for which RCCL knows rings.

    Two of them share each link, so that all are used both ways; NCCL's search packs rings that
    share none (ROCm/rccl ``src/graph/rome_models.cc``: seven and their reverses on 8 MI300X).
    """
    count = len(gpus)
    is_whole = topology.gpu.amd and count == topology.gpus_per_host > 2
    return is_whole and Counter(lanes.values()) == {1: count * (count - 1)}


def zigzags(count: int) -> list[Order]:
    """Return paths over all places of a circle to and fro, one from each.

    Of an even number each two places are neighbours in two of them, once each way; of an odd
    number, closed over one more place, they are rings in which all are neighbours twice.

    Examples
    --------
    >>> zigzags(4)
    [(0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1)]
    """
    offsets = [-(at // 2) if at % 2 == 0 else at // 2 + 1 for at in range(count)]
    return [tuple((begin + each) % count for each in offsets) for begin in range(count)]


def dumped_rings(
    topology: Topology, gpus: Sequence[str], nics: Sequence[str] = ()
) -> tuple[HostRing, ...]:
    """Rings that a dump of NCCL's own names for just these GPUs; empty where there is none.

    With `nics`, those whose ends are among them.
    """
    if not topology.channel_graphs:
        return ()
    devices = topology.devices
    number = {
        devices[gpu].local: at for at, gpu in enumerate(topology.ranks[: topology.gpus_per_host])
    }
    places = [number[devices[gpu].local] for gpu in gpus]
    dump = topology.graph_of("ring", places)
    at_nic = {
        int(devices[nic].local.removeprefix("nic")): at
        for at, nic in enumerate(nics)
        if devices[nic].local.removeprefix("nic").isdigit()
    }
    return tuple(
        HostRing(
            tuple(places.index(gpu) for gpu in path.gpus),
            at_nic.get(-1 if path.nic_in is None else path.nic_in),
            at_nic.get(-1 if path.nic_out is None else path.nic_out),
        )
        for path in (dump.paths if dump is not None else ())
        if not nics or {path.nic_in, path.nic_out} <= at_nic.keys()
    )


def direct_nvlinks(topology: Topology, gpus: Sequence[str]) -> dict[tuple[int, int], int] | None:
    """NVLink lanes between GPUs, as positions into `gpus`; None behind an NVSwitch or without."""
    built, place = topology.built, {gpu: position for position, gpu in enumerate(gpus)}
    links = [
        (gpu, peer, arc)
        for gpu in gpus
        for peer, arcs in topology.links[gpu].items()
        for arc in arcs
        if built.kinds[arc] == "nvlink"
    ]
    if any(topology.devices[peer].kind != "gpu" for _, peer, _ in links):
        return None
    joined = ((gpu, peer, arc) for gpu, peer, arc in links if peer in place)
    return {(place[gpu], place[peer]): built.lanes[arc] for gpu, peer, arc in joined} or None


def hamiltonian_cycles(count: int, lanes: Mapping[tuple[int, int], int]) -> tuple[Order, ...]:
    """Pack as many directed rings as the lanes carry; each takes one lane of each of its links.

    A cycle and its reverse use the two directions of the same links, so cycles are packed on
    undirected lanes and each is run both ways. Two lanes between any two GPUs carry a cycle less
    than there are GPUs; else a short search takes the widest links first, once for the parts into
    which all lanes are divided alike.
    """
    pairs, free, cycles = 0, dict(lanes), list[Order]()
    if len(lanes) == count * (count - 1) > 2:
        pairs, last = min(lanes.values()) // 2, count - 1
        cycles = [(last, *path) for path in zigzags(last)] * int(pairs)
        free = {link: number - 2 * pairs for link, number in lanes.items()}
    parts = math.gcd(*map(int, free.values())) or 1
    part = {link: number // parts for link, number in free.items()}
    cycles += parts * _search_cycles(count, part, _most_cycles(count, part))
    return tuple(ring for cycle in cycles for ring in (cycle, (cycle[0], *cycle[:0:-1])))


def _search_cycles(count: int, lanes: Mapping[tuple[int, int], int], most: int) -> list[Order]:
    """Return cycles that share no lane: the first `most`, or as many as are found."""
    best: list[Order] = []
    steps = iter(range(_SEARCH_STEPS))

    def pack(free: Counter[tuple[int, int]], chosen: list[Order]) -> bool:
        if len(chosen) > len(best):
            best[:] = chosen
        if len(best) >= most:
            return True
        floor = chosen[-1] if chosen else ()
        for cycle in _paths(count, free, steps):
            if cycle < floor or cycle[1] > cycle[-1]:  # each set of cycles once, each cycle one way
                continue
            taken = [*_links(cycle), *_links(cycle[::-1])]
            free.subtract(taken)
            done = pack(free, [*chosen, cycle])
            free.update(taken)
            if done:
                return True
        return False

    pack(Counter(lanes), [])
    return best


_MOST_CUTS = 10
"""GPUs up to which all cuts of a mesh bound its cycles; beyond, the links of single GPUs do."""


def _most_cycles(count: int, lanes: Mapping[tuple[int, int], int]) -> int:
    """Cycles through all GPUs that no packing exceeds.

    Each crosses any cut of the GPUs into two parts twice at least, over lanes of its own.
    """
    all_cuts, single = range(1, 1 << (count - 1)), [1 << gpu for gpu in range(count)]
    crossing = (
        sum(number for (a, b), number in lanes.items() if mask >> a & 1 and not mask >> b & 1)
        for mask in (all_cuts if count <= _MOST_CUTS else single)
    )
    return min(crossing) // 2


_SEARCH_STEPS = 1 << 14
"""Steps from GPU to GPU of one search, after which it takes the best that it has met, as NCCL's own
does (NVIDIA/nccl 2.30.7 ``src/graph/search.cc``, NCCL_SEARCH_TIMEOUT)."""


def relayed_cycles(
    router: Router, gpus: Sequence[str], lanes: Mapping[tuple[int, int], int]
) -> tuple[Order, ...]:
    """Rings where not every hop has a link: some pass through a third GPU of the group (NVB).

    Both directions at once; rings that cross the fewest links come first, and each takes one lane
    of every link that it crosses.
    """
    count, place = len(gpus), {gpu: position for position, gpu in enumerate(gpus)}
    if count > _MOST_RELAYED:
        return ()
    names = router.topology.arcs.names
    crossed = {
        (a, b): [
            (place.get(names[arc][0], -1), place.get(names[arc][1], -1))
            for arc in router.route(gpus[a], gpus[b])
        ]
        for a, b in itertools.permutations(range(count), 2)
        if router.path_type(gpus[a], gpus[b]) in NVLINK_PATHS
    }
    use: dict[Order, Counter[tuple[int, int]]] = {}
    for middle in itertools.permutations(range(1, count)):
        ring = (0, *middle)
        hops = [*_links(ring), *_links((0, *middle[::-1]))]
        if middle[0] < middle[-1] and all(hop in crossed for hop in hops):
            use[ring] = Counter(link for hop in hops for link in crossed[hop])
    free, rings = Counter(lanes), list[Order]()
    for ring, links in sorted(use.items(), key=lambda item: (item[1].total(), item[0])):
        while all(free[link] >= number for link, number in links.items()):
            free.subtract(links)
            rings += [ring, (0, *ring[:0:-1])]
    return tuple(rings)


_MOST_RELAYED = 8
"""GPUs on a mesh whose rings are tried one by one."""


def _links(cycle: Order) -> Iterator[tuple[int, int]]:
    return zip(cycle, (*cycle[1:], cycle[0]), strict=True)


def _paths(
    count: int,
    lanes: Mapping[tuple[int, int], int],
    steps: Iterator[int],
    start: int = 0,
    end: int | None = None,
) -> Iterator[Order]:
    """Hamiltonian paths over links with lanes left, widest link first: to an end, or cycles.

    `steps`: those that the search may still take.
    """

    def extend(path: list[int]) -> Iterator[Order]:
        if next(steps, None) is None:
            return
        if len(path) == count:
            if end is not None or lanes.get((path[-1], start), 0) > 0:
                yield tuple(path)
            return
        last = path[-1]
        options = [
            node
            for node in range(count)
            if node not in path
            and lanes.get((last, node), 0) > 0
            and (node != end or len(path) == count - 1)
        ]
        for node in sorted(options, key=lambda node: (-lanes[last, node], node)):
            yield from extend([*path, node])

    return extend([start])


def rail_rings(
    router: Router, gpus: Sequence[str], nics: Sequence[str]
) -> tuple[tuple[HostRing, HostRing], ...]:
    """Ways through an even and an odd host, one pair per ring, one ring per NIC.

    Where two GPUs share a NIC's PCIe switch the ring enters and leaves by that NIC. Where each GPU
    has a NIC of its own, two rings swap a pair of NICs, and odd hosts run them
    backwards, so that both ends of every cable are on the same rail. GPUs that are linked directly
    have no more rings than their links carry, whatever the number of NICs.
    """
    dumped = dumped_rings(router.topology, gpus, nics)
    if dumped:
        return tuple((r, r if r.nic_in == r.nic_out else r.reverse()) for r in dumped)
    lanes = direct_nvlinks(router.topology, gpus)
    free = dict(lanes) if lanes else {}
    if len(gpus) == 1:
        return tuple((HostRing((0,), nic, nic),) * 2 for nic in range(len(nics)))
    near = [_sort_by_distance(router, nic, gpus) for nic in nics]
    own = {order[0]: nic for nic, order in enumerate(near)}
    if len(own) == len(gpus) and lanes and _is_whole_mesh(router.topology, gpus, lanes):
        rings = [HostRing(path, own[path[0]], own[path[-1]]) for path in zigzags(len(gpus))]
        return tuple((ring, ring.reverse()) for ring in rings)
    result: list[tuple[HostRing, HostRing]] = []
    for nic, (first, last, out) in enumerate(_ring_ends(router, gpus, nics, near)):
        order = _take_path(len(gpus), free, first, last)
        if order is None and free and len(gpus) > 2 and result:  # it would only slow the others
            continue
        between = (gpu for gpu in range(len(gpus)) if gpu not in (first, last))
        ring = HostRing(order or (first, *between, last), nic, out)
        result.append((ring, ring if out == nic else ring.reverse()))
    return tuple(result)


def _sort_by_distance(router: Router, nic: str, gpus: Sequence[str]) -> list[int]:
    """GPUs from near to far; a GPU whose own nearest NIC this is comes before its equals."""

    def distance(position: int) -> tuple[int, int, int]:
        path_type = path_type_between(router, gpus[position], nic)
        worth = PATH_TYPES.index(path_type) if path_type in PATH_TYPES else len(PATH_TYPES)
        return (worth, int(router.nearest_nics(gpus[position])[0] != nic), position)

    return sorted(range(len(gpus)), key=distance)


def _ring_ends(
    router: Router, gpus: Sequence[str], nics: Sequence[str], near: list[list[int]]
) -> Iterator[tuple[int, int, int]]:
    """For each NIC: the first GPU, the last GPU and the NIC by which the ring leaves."""
    load: Counter[int] = Counter()
    for nic, order in enumerate(near):
        if nic_path(router.topology, router, gpus[order[0]], nics[nic], outward=True).staged:
            yield *_staged_ends(router, gpus, nics[nic], order, load), nic
            continue
        siblings = [g for g in order if path_type_between(router, gpus[g], nics[nic]) in GDR_PATHS]
        partner = nic ^ max(1, len(nics) // len(gpus))  # of the next GPU, which may have several
        if len(siblings) >= 2 or partner >= len(nics):
            first, last = (siblings if len(siblings) >= 2 else order)[:2]
            reached = path_type_between(router, gpus[last], nics[nic]) != "DIS"
            yield first, last, nic if reached else nics.index(router.nearest_nics(gpus[last])[0])
            continue
        last = near[partner][0] if near[partner][0] != order[0] else near[partner][1]
        yield order[0], last, partner


def _staged_ends(
    router: Router, gpus: Sequence[str], nic: str, order: list[int], load: Counter[int]
) -> tuple[int, int]:
    """First and last GPU whose paths through host memory crowd each other least.

    Staged traffic crosses PCIe on its way to and from the host: a GPU behind the NIC's own switch
    would send up the very link over which the NIC's arrivals go up. `load` counts the flows that
    earlier rings put on each arc, and grows.
    """
    topology = router.topology
    capacity = topology.arcs.bandwidth_Bps

    def arcs(first: int, last: int) -> Counter[int]:
        into = nic_path(topology, router, gpus[first], nic, outward=False).arcs
        return Counter(into + nic_path(topology, router, gpus[last], nic, outward=True).arcs)

    def crowding(ends: tuple[int, int]) -> tuple[float, int]:
        rate = min(float(capacity[arc]) / (load[arc] + count) for arc, count in arcs(*ends).items())
        return -rate, order.index(ends[0]) + order.index(ends[1])

    best = min(itertools.permutations(order, 2), key=crowding)
    load.update(arcs(*best))
    return best


def _take_path(count: int, free: dict[tuple[int, int], int], first: int, last: int) -> Order | None:
    """A path from the first to the last GPU over free NVLink lanes, which it takes."""
    if count <= 2:
        return None
    path = next(_paths(count, free, iter(range(_SEARCH_STEPS)), first, last), None)
    for link in itertools.pairwise(path or ()):
        free[link] -= 1
    return path
