"""From pairs of ranks to edges on real links, many at once.

Inside hosts there are few different paths (hosts are alike), so each is found once and shifted;
between hosts the fabric's structure gives the routes of all edges in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, distinct, first_of_each
from perfmodel.library.lowering.lowered import (
    HOP_KINDS,
    Edges,
    HostCopies,
    edges_over,
    join_copies,
    join_edges,
    ranges,
    select_edges,
)
from perfmodel.library.transport import (
    NVLINK_PATHS,
    Path,
    gdr_paths,
    hands_over,
    local_path,
    nic_path,
)
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.fabric_routes import NoRoute
from perfmodel.topology.routing.router import Router, no_rail

NEAREST = -1
"""In place of a NIC's number: the nearest one."""


AT_ONCE = 1 << 16
"""Edges that are laid at once: arrays of a million edges cost more to get than to fill."""


RELAYED = -2
"""In place of the NIC that a rank sends by: the like of the one by which its bytes arrive."""


def edges_between(
    topology: Topology, router: Router, src: IntArray, dst: IntArray, *, relayed: bool = False
) -> Edges:
    """Edges between given pairs of ranks, each by its nearest NICs.

    `relayed`: by the NIC on the rail on which the bytes arrive, if the sender reaches that over
    NVLink and another GPU (NCCL's PXN for single messages, NCCL_P2P_PXN_LEVEL 2).
    """
    nics = np.full(len(src), NEAREST)
    out = np.full(len(src), RELAYED) if relayed and _can_relay(topology, router) else nics
    return route_edges(topology, router, src, dst, out, nics)


def _can_relay(topology: Topology, router: Router) -> bool:
    """Whether any GPU of a host hands bytes to any other over NVLink, and NICs fetch them there."""
    gpus = topology.ranks[: topology.gpus_per_host]
    router = router.healthy
    linked = all(router.path_type(gpus[0], gpu) in NVLINK_PATHS for gpu in gpus[1:])
    return bool(gdr_paths(topology)) and topology.reach.relay and linked


def route_edges(
    topology: Topology,
    router: Router,
    src: IntArray,
    dst: IntArray,
    nic_out: IntArray,
    nic_in: IntArray,
) -> Edges:
    """Lay edges between pairs of ranks.

    On a machine that has lost something they are laid as on the machine before, and then those
    that cross what is lost are led around it (see `reroute_edges`).

    `src` and `dst`: ranks of the topology; shape (edges,). `nic_out` and `nic_in`: numbers of the
    NICs (in their host) by which an edge leaves one host and enters the other; `NEAREST` for the
    nearest. Unused inside a host; shape (edges,).

    Raises `TopologyError`: nothing connects two of the ranks.
    """
    ends = (np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))
    columns = (*ends, nic_out, nic_in, np.arange(len(src)))
    parts = [
        _lay(topology, router.healthy, *(column[begin : begin + AT_ONCE] for column in columns))
        for begin in range(0, max(1, len(src)), AT_ONCE)
    ]
    return reroute_edges(topology, router, parts[0] if len(parts) == 1 else join_edges(parts))


def edges_of_names(topology: Topology, router: Router, src: list[str], dst: list[str]) -> Edges:
    """Edges between devices of one host by name, a reducing NVSwitch among them."""
    number = {name: rank for rank, name in enumerate(topology.ranks)}
    ends = [np.array([number.get(name, -1) for name in names]) for names in (src, dst)]
    paths = [Path(router.route(a, b), "nvlink") for a, b in zip(src, dst, strict=True)]
    lengths = np.array([len(path.arcs) for path in paths], dtype=np.int64)
    arcs = np.array([arc for path in paths for arc in path.arcs], dtype=np.int64)
    hop = np.full(len(paths), HOP_KINDS.index("nvlink"))
    return edges_over(topology, ends[0], ends[1], lengths, arcs, np.full(len(paths), np.inf), hop)


# ---------------------------------------------------------------- around what is lost


def reroute_edges(topology: Topology, router: Router, edges: Edges) -> Edges:
    """Route edges that cross something lost around it; the others stay.

    An edge keeps a NIC that is left, or else takes the nearest one, which it may have to share.
    All others stay where they are, as a switch that rehashes only the flows of a dead cable does.

    Raises `TopologyError`: no path is left between the ends of an edge; names both and what was
    lost.
    """
    if not topology.dead:
        return edges
    dead = np.zeros(len(topology.arcs), dtype=np.bool_)
    dead[list(topology.dead)] = True
    cut = distinct(np.repeat(np.arange(len(edges)), np.diff(edges.pointers))[dead[edges.arcs]])
    if not len(cut):
        return edges
    switched = (edges.src[cut] < 0) | (edges.dst[cut] < 0)
    if switched.any():
        rerouted = _reroute_by_name(topology, router, select_edges(edges, cut[switched]))
        edges = _replace_edges(topology, edges, cut[switched], rerouted)
        cut = cut[~switched]
    out, into = _nics_used(topology, router, edges, cut)
    again = _lay(topology, router, edges.src[cut], edges.dst[cut], out, into, cut)
    return _replace_edges(topology, edges, cut, again)


def _nics_used(
    topology: Topology, router: Router, edges: Edges, selection: IntArray
) -> tuple[IntArray, IntArray]:
    """Numbers of the NICs by which edges leave and enter hosts; `NEAREST` inside a host."""
    names, first = topology.arcs.names, topology.first_cable
    nics = np.full((2, len(selection)), NEAREST)
    for at, edge in enumerate(selection.tolist()):
        arcs = edges.arcs[edges.pointers[edge] : edges.pointers[edge + 1]].tolist()
        cables = [arc for arc in arcs if arc >= first]
        if cables:
            nics[:, at] = [router.nic_number(names[cables[end]][end]) for end in (0, -1)]
    return nics[0], nics[1]


def _reroute_by_name(topology: Topology, router: Router, edges: Edges) -> Edges:
    """Edges between ranks and a switch that takes part; they stay in their host."""
    names = topology.arcs.names
    src = [names[arc][0] for arc in edges.arcs[edges.pointers[:-1]].tolist()]
    dst = [names[arc][1] for arc in edges.arcs[edges.pointers[1:] - 1].tolist()]
    return replace(edges_of_names(topology, router, src, dst), hop=edges.hop)


def _replace_edges(topology: Topology, edges: Edges, selection: IntArray, others: Edges) -> Edges:
    """Edges, some of them replaced by others."""
    lengths, cap_Bps, hop = np.diff(edges.pointers), edges.cap_Bps.copy(), edges.hop.copy()
    lengths[selection] = np.diff(others.pointers)
    cap_Bps[selection], hop[selection] = others.cap_Bps, others.hop
    starts = np.cumsum(lengths) - lengths
    arcs = np.empty(int(lengths.sum()), dtype=np.int64)
    unchanged = np.setdiff1d(np.arange(len(edges)), selection)
    arcs[ranges(starts[unchanged], lengths[unchanged])] = edges.arcs[
        ranges(edges.pointers[:-1][unchanged], lengths[unchanged])
    ]
    arcs[ranges(starts[selection], lengths[selection])] = others.arcs
    staged = edges.staged or others.staged
    copies = join_copies([edges, others])
    if copies is not None:
        domain = copies.domain[: len(edges)].copy()
        domain[selection] = copies.domain[len(edges) :]
        copies = replace(copies, domain=domain)
    return edges_over(topology, edges.src, edges.dst, lengths, arcs, cap_Bps, hop, staged, copies)


# ---------------------------------------------------------------- many at once


@dataclass(frozen=True, slots=True)
class _HostPaths:
    """Paths inside hosts, by number, as arcs of the first host.

    `of` is the number of each edge's path; ``arcs[starts[p] : starts[p] + lengths[p]]`` is path p.
    """

    of: IntArray
    starts: IntArray
    lengths: IntArray
    arcs: IntArray
    cap_Bps: FloatArray
    together_Bps: FloatArray
    domain: IntArray
    hop: IntArray
    staged: bool

    def put(self, arcs: IntArray, at: IntArray, shift: IntArray) -> None:
        """Write each edge's path at its place, shifted to its host."""
        lengths = self.lengths[self.of]
        shifted = self.arcs[ranges(self.starts[self.of], lengths)] + np.repeat(shift, lengths)
        arcs[ranges(at, lengths)] = shifted


def _lay(
    topology: Topology,
    router: Router,
    src: IntArray,
    dst: IntArray,
    nic_out: IntArray,
    nic_in: IntArray,
    flow: IntArray,
) -> Edges:
    size, block = topology.gpus_per_host, topology.host_arcs
    src_host, dst_host = src // size, dst // size
    inside = src_host == dst_host
    near, far = np.flatnonzero(inside), np.flatnonzero(~inside)
    local = _host_paths(
        topology, router, "local", src_host[near], src[near] % size, dst[near] % size
    )
    out, into = _nics(topology, router, src[far], dst[far], nic_out[far], nic_in[far])
    head = _host_paths(topology, router, "out", src_host[far], src[far] % size, out)
    tail = _host_paths(topology, router, "in", dst_host[far], into, dst[far] % size)
    hops, fabric = _fabric_paths(
        router, src[far], dst[far], src_host[far], out, dst_host[far], into, flow[far]
    )

    lengths = np.empty(len(src), dtype=np.int64)
    lengths[near] = local.lengths[local.of]
    lengths[far] = head.lengths[head.of] + hops + tail.lengths[tail.of]
    starts = np.cumsum(lengths) - lengths
    arcs = np.empty(int(lengths.sum()), dtype=np.int64)
    local.put(arcs, starts[near], src_host[near] * block)
    head.put(arcs, starts[far], src_host[far] * block)
    middle = starts[far] + head.lengths[head.of]
    arcs[ranges(middle, hops)] = fabric
    tail.put(arcs, middle + hops, dst_host[far] * block)

    cap_Bps, hop = np.full(len(src), np.inf), np.full(len(src), HOP_KINDS.index("network"))
    cap_Bps[near], hop[near] = local.cap_Bps[local.of], local.hop[local.of]
    cap_Bps[far] = np.minimum(head.cap_Bps[head.of], tail.cap_Bps[tail.of])
    staged = local.staged or head.staged or tail.staged
    copies = None
    shared = np.isfinite(local.together_Bps)
    if shared.any():
        domain = np.full(len(src), -1)
        shifted = local.domain[local.of] + src_host[near] * block
        domain[near] = np.where(shared[local.of], shifted, -1)
        copies = HostCopies(domain, float(local.together_Bps[shared].min()))
    return edges_over(topology, src, dst, lengths, arcs, cap_Bps, hop, staged, copies)


def _host_paths(
    topology: Topology, router: Router, kind: str, host: IntArray, a: IntArray, b: IntArray
) -> _HostPaths:
    """Paths from device a to device b of each host; each different one is found once."""
    find: Callable[[str, int, int], Path] = {
        "local": lambda h, i, j: local_path(topology, router, gpu(h, i), gpu(h, j)),
        "out": lambda h, i, j: nic_path(topology, router, gpu(h, i), nic(h, j), outward=True),
        "in": lambda h, i, j: nic_path(topology, router, gpu(h, j), nic(h, i), outward=False),
    }[kind]

    def gpu(h: int, i: int) -> str:
        return topology.ranks[h * topology.gpus_per_host + i]

    def nic(h: int, i: int) -> str:
        return router.nic_name(h, i)

    wide = 1 + max(int(a.max(initial=0)), int(b.max(initial=0)))
    first, of = first_of_each(((router.variants[host] + 1) * wide + a) * wide + b)
    ends = list(zip(host[first].tolist(), a[first].tolist(), b[first].tolist(), strict=True))
    paths = [find(*end) for end in ends]
    lengths = np.array([len(path.arcs) for path in paths], dtype=np.int64)
    return _HostPaths(
        of=of,
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        arcs=np.array(
            [
                arc - end[0] * topology.host_arcs
                for path, end in zip(paths, ends, strict=True)
                for arc in path.arcs
            ],
            dtype=np.int64,
        ),
        cap_Bps=np.array([path.cap_Bps for path in paths], dtype=float),
        together_Bps=np.array([path.together_Bps for path in paths], dtype=float),
        domain=np.array(
            [
                path.domain - end[0] * topology.host_arcs
                for path, end in zip(paths, ends, strict=True)
            ],
            dtype=np.int64,
        ),
        hop=np.array([HOP_KINDS.index(path.hop) for path in paths], dtype=np.int64),
        staged=any(path.staged for path in paths),
    )


def _nics(
    topology: Topology, router: Router, src: IntArray, dst: IntArray, out: IntArray, into: IntArray
) -> tuple[IntArray, IntArray]:
    """NICs that edges between hosts use: those requested, or the nearest where these are lost."""
    arriving = _usable_nics(topology, router, dst, into)
    if router.by_rails:  # the sender passes its bytes to the rail on which they arrive
        out = np.where((out == NEAREST) & (into == NEAREST), arriving, out)
    out = np.where(out == RELAYED, arriving, out)
    leaving = _usable_nics(topology, router, src, out)
    return _joined_nics(topology, router, src, dst, leaving, arriving), arriving


def _joined_nics(
    topology: Topology,
    router: Router,
    src: IntArray,
    dst: IntArray,
    out: IntArray,
    into: IntArray,
) -> IntArray:
    """NICs to leave by, others where no cable leads from those requested to where edges arrive.

    Where rails have no cable between them, a GPU hands bytes to one on the rail on which they
    arrive (NCCL's PXN).

    Raises `TopologyError`: it reaches none over NVLink.
    """
    parts = router.parts
    if parts is None:
        return out
    size = topology.gpus_per_host
    ports = router.ports(src // size, out), router.ports(dst // size, into)
    apart = np.flatnonzero(parts[ports[0]] != parts[ports[1]])
    code = (router.variants[src[apart] // size] + 1) * size + src[apart] % size
    first, of = first_of_each(code * (int(parts.max()) + 1) + parts[ports[1][apart]])
    nics = []
    for at in apart[first].tolist():
        gpu, nic = topology.ranks[src[at]], router.nic_name(int(src[at]) // size, int(out[at]))
        arrival = router.nic_name(int(dst[at]) // size, int(into[at]))
        joined = (name for name in router.nearest_nics(gpu) if router.joined(name, arrival))
        rail = next((name for name in joined if hands_over(topology, router, gpu, name)), None)
        if rail is None:
            raise router.unreachable(gpu, topology.ranks[dst[at]], no_rail(gpu, nic, arrival))
        nics.append(router.nic_number(rail))
    leaving = out.copy()
    leaving[apart] = np.array(nics, dtype=np.int64)[of]
    return leaving


def _usable_nics(topology: Topology, router: Router, rank: IntArray, nic: IntArray) -> IntArray:
    """NICs by number; the nearest one of a rank where none is requested or it is lost."""
    size = topology.gpus_per_host
    variant, local = router.variants[rank // size], rank % size
    wide = 2 + int(nic.max(initial=0))
    first, of = first_of_each(((variant + 1) * size + local) * wide + nic + 1)
    nics = [
        _usable_nic(topology, router, int(rank[at]), int(nic[at]), whole=bool(variant[at] < 0))
        for at in first.tolist()
    ]
    return np.array(nics, dtype=np.int64)[of]


def _usable_nic(topology: Topology, router: Router, rank: int, nic: int, *, whole: bool) -> int:
    if nic != NEAREST and whole:
        return nic
    gpu = topology.ranks[rank]
    usable = router.nearest_nics(gpu)
    host = rank // topology.gpus_per_host
    if nic != NEAREST and router.nic_name(host, nic) in usable:
        return nic
    if not usable:
        other = next(name for name in topology.ranks if not name.startswith(f"n{host}/"))
        raise router.unreachable(other, gpu, f"{gpu} reaches no NIC")
    return router.nic_number(usable[0])


def _fabric_paths(
    router: Router,
    src: IntArray,
    dst: IntArray,
    src_host: IntArray,
    out: IntArray,
    dst_host: IntArray,
    into: IntArray,
    flow: IntArray,
) -> tuple[IntArray, IntArray]:
    """Lengths and arcs of the paths over the fabric."""
    if not len(src):
        return src, src
    try:
        return router.across(router.ports(src_host, out), router.ports(dst_host, into), flow)
    except NoRoute as lost:
        ranks = router.topology.ranks
        raise router.unreachable(ranks[src[lost.flow]], ranks[dst[lost.flow]], str(lost)) from None
