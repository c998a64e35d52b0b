"""CollNet on real networks: chains or stars inside hosts, and reduction in the fabric's switches.

Leaf switches add what their hosts send, one spine switch what the leaves send, rail by rail.
Source: Graham et al., "Scalable hierarchical aggregation protocol (SHARP)", COMHPC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import IntArray, RankGroup
from perfmodel.collectives.algorithms.collnet import over_switches
from perfmodel.collectives.algorithms.pipelined_trees import ROOT, Forest, forest_of
from perfmodel.errors import Fault, InputError
from perfmodel.library.channels.rails import Rails
from perfmodel.library.lowering.edge_routing import reroute_edges, route_edges
from perfmodel.library.lowering.edges import HOP_KINDS, Edges, edges_over, merge_edges
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule
from perfmodel.library.machine import Machine
from perfmodel.library.nccl.chunk_sizes import collnet_bytes, pieces_of_share
from perfmodel.library.nccl.lowering.trees import rails_of
from perfmodel.library.transport import nic_path


@dataclass(frozen=True, slots=True)
class LaidCollnet:
    """Trees over ranks and, after them, switches; and the links of their edges."""

    trees: Forest
    switches: int
    edges: Edges
    depth: int


def lay_collnet(
    machine: Machine, algorithm: str, nbytes: int, group: RankGroup, channels: int
) -> LaidSchedule:
    """All-reduce in the fabric's switches.

    `channels`: of NCCL; each of those laid represents some of them.

    Raises `InputError`: one host, a network that does not reduce, or switches in more than two
    levels.
    """
    laid = machine.laid((algorithm, group), lambda: _lay(machine, algorithm, group))
    chunk = collnet_bytes(nbytes, channels, laid.depth)
    pieces = pieces_of_share(nbytes, max(channels, laid.trees.channels), chunk)
    schedule = over_switches(
        laid.trees, algorithm, laid.switches, nbytes, pieces=pieces, itemsize=ITEM_BYTES
    )
    return LaidSchedule(schedule, ((schedule.phases, laid.edges),))


def _lay(machine: Machine, algorithm: str, group: RankGroup) -> LaidCollnet:
    rails, topology = rails_of(machine, group), machine.topology
    hosts, size = rails.hosts.shape
    if hosts < 2 or topology.network != "infiniband":
        refused = f"{algorithm!r} for {hosts} hosts on a network of kind {topology.network!r}"
        raise InputError(
            Fault("algorithm", refused, "several hosts on InfiniBand, whose switches add")
        )
    fabric = _Fabric(machine, rails)
    parents = []
    for channel, chain in enumerate(rails.chains):
        parent = np.full(rails.hosts.size + len(fabric.names), ROOT, dtype=np.int64)
        table = rails.places[:, chain]
        if algorithm == "collnet":
            parent[table[:, 1:]] = table[:, :-1]
        else:
            parent[table] = table[:, [0]]
        parent[table[:, 0]] = rails.hosts.size + fabric.leaf[channel]
        above = fabric.root[channel]
        below = np.unique(fabric.leaf[channel])
        parent[rails.hosts.size + below[below != above]] = rails.hosts.size + above
        parents.append(parent)
    trees = forest_of(np.stack(parents))
    edges = _edges(machine, rails, fabric, trees)
    return LaidCollnet(trees, len(fabric.names), edges, size if algorithm == "collnet" else 2)


class _Fabric:
    """Switches that add: the leaf of each host and the root, rail by rail.

    ``names`` are the switches; ``leaf[channel]`` and ``root[channel]`` are places among them.
    """

    def __init__(self, machine: Machine, rails: Rails) -> None:
        self._topology = machine.topology
        self.names: list[str] = []
        self._places: dict[str, int] = {}
        numbers = rails.hosts[:, 0] // machine.topology.gpus_per_host
        self.nics = [
            [machine.router.nic_name(host, nic) for host in numbers.tolist()]
            for nic in rails.nics.tolist()
        ]
        self.leaf = [
            np.array([self._place(self._above(nic)[0]) for nic in nics]) for nics in self.nics
        ]
        self.root = [self._root(np.unique(leaves), rail) for rail, leaves in enumerate(self.leaf)]

    def _above(self, name: str) -> list[str]:
        topology = self._topology
        return [n for n in topology.links[name] if topology.devices[n].kind == "switch"]

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]

    def _root(self, leaves: IntArray, rail: int) -> int:
        if len(leaves) == 1:
            return int(leaves[0])
        above = [set(self._above(self.names[leaf])) for leaf in leaves.tolist()]
        shared = sorted(set.intersection(*above))
        if not shared:
            obstacle = f"leaf switches without a common switch above, {self.names[leaves[0]]} first"
            raise InputError(
                Fault("algorithm", obstacle, "a fabric of one or two levels of switches")
            )
        return self._place(shared[rail % len(shared)])

    def cable(self, src: str, dst: str, flow: int) -> int:
        """Arc between two neighbours; parallel ones by turns."""
        arcs = self._topology.links[src][dst]
        return arcs[flow % len(arcs)]


def _edges(machine: Machine, rails: Rails, fabric: _Fabric, trees: Forest) -> Edges:
    """Links of all edges: between GPUs, from them to leaf switches, and between switches."""
    ranks = rails.hosts.ravel()
    far = np.maximum(trees.src, trees.dst) >= len(ranks)
    at, inside = np.flatnonzero(far), np.flatnonzero(~far)
    nics = rails.nics[trees.channel[inside]]
    ends = ranks[trees.src[inside]], ranks[trees.dst[inside]]
    parts = [
        _to_fabric(machine, rails, fabric, trees, at),
        route_edges(machine.topology, machine.router, *ends, nics, nics),
    ]
    return merge_edges(parts, [at, inside])


def _to_fabric(
    machine: Machine, rails: Rails, fabric: _Fabric, trees: Forest, selection: IntArray
) -> Edges:
    topology, ranks = machine.topology, rails.hosts.ravel()
    router, total = machine.router.healthy, rails.hosts.size
    paths: list[tuple[int, ...]] = []
    staged = False
    for src, dst, rail in zip(
        *(ends[selection].tolist() for ends in (trees.src, trees.dst, trees.channel)), strict=True
    ):
        if min(src, dst) >= total:
            paths.append(
                (fabric.cable(fabric.names[src - total], fabric.names[dst - total], rail),)
            )
            continue
        rank, switch = min(src, dst), fabric.names[max(src, dst) - total]
        nic, gpu = fabric.nics[rail][rank // rails.hosts.shape[1]], topology.ranks[ranks[rank]]
        local = nic_path(topology, router, gpu, nic, outward=src < total)
        staged |= local.staged
        out = src < total
        cable = fabric.cable(*((nic, switch) if out else (switch, nic)), rail)
        paths.append((*local.arcs, cable) if out else (cable, *local.arcs))
    arcs = np.array([arc for path in paths for arc in path], dtype=np.int64)
    rank_of = np.append(ranks, -1)
    edges = edges_over(
        topology,
        rank_of[np.minimum(trees.src[selection], total)],
        rank_of[np.minimum(trees.dst[selection], total)],
        np.array([len(path) for path in paths], dtype=np.int64),
        arcs,
        np.full(len(selection), np.inf),
        np.full(len(selection), HOP_KINDS.index("network")),
        staged,
    )
    return reroute_edges(topology, machine.router, edges)
