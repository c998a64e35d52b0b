"""NVLS and CollNet on links: collectives in which switches add and copy."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import IntArray, RankGroup
from perfmodel.collectives.algorithms import sharp
from perfmodel.collectives.algorithms.sharp import Switched, over_switches, switched_nodes
from perfmodel.collectives.algorithms.tree import NO_PARENT, Forest, forest_of
from perfmodel.errors import refuse_if
from perfmodel.library.channels import Rails
from perfmodel.library.compute_capability import capability_of
from perfmodel.library.lowering.edge_routing import reroute_edges, route_edges
from perfmodel.library.lowering.lowered import (
    HOP_KINDS,
    ITEM_BYTES,
    Edges,
    LaidSchedule,
    edges_over,
    merge_edges,
)
from perfmodel.library.machine import Machine
from perfmodel.library.nccl.host_graph import hardware
from perfmodel.library.nccl.trees import (
    collnet_bytes,
    nvls_bytes,
    pieces_of_share,
    rails_of,
)
from perfmodel.library.transport import nic_path


def lay_collnet(
    machine: Machine, algorithm: str, nbytes: int, group: RankGroup, channels: int
) -> LaidSchedule:
    """All-reduce in the fabric's switches.

    `channels`: of NCCL; each of those laid represents some of them.

    Raises `InputError`: one host, a network that does not reduce, or switches in more than two
    levels.
    """
    trees, edges, depth = machine.laid(
        (algorithm, group), lambda: _lay_collnet(machine, algorithm, group)
    )
    chunk = collnet_bytes(nbytes, channels, depth)
    pieces = pieces_of_share(nbytes, max(channels, trees.channels), chunk)
    switches = trees.ranks - len(group)
    schedule = over_switches(trees, algorithm, switches, nbytes, pieces=pieces, itemsize=ITEM_BYTES)
    return LaidSchedule(schedule, ((schedule.phases, edges),))


def _lay_collnet(machine: Machine, algorithm: str, group: RankGroup) -> tuple[Forest, Edges, int]:
    """Trees over ranks and, after them, switches; the links of their edges; steps in a node."""
    rails, topology = rails_of(machine, group), machine.topology
    hosts, size = rails.hosts.shape
    refuse_if(
        hosts < 2 or topology.network != "infiniband",
        "algorithm",
        f"{algorithm!r} for {hosts} hosts on a network of kind {topology.network!r}",
        "several hosts on InfiniBand, whose switches add",
    )
    fabric = _Fabric(machine, rails)
    parents = []
    for channel, chain in enumerate(rails.chains):
        parent = np.full(rails.hosts.size + len(fabric.names), NO_PARENT, dtype=np.int64)
        table = rails.places[:, chain]
        if algorithm == "collnet":
            parent[table[:, 1:]] = table[:, :-1]
        else:
            parent[table] = table[:, [0]]
        parent[table[:, 0]] = rails.hosts.size + fabric.leaf[channel]
        above, below = fabric.root[channel], np.unique(fabric.leaf[channel])
        parent[rails.hosts.size + below[below != above]] = rails.hosts.size + above
        parents.append(parent)
    trees = forest_of(np.stack(parents))
    return trees, _edges(machine, rails, fabric, trees), size if algorithm == "collnet" else 2


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
        refuse_if(
            not shared,
            "algorithm",
            f"leaf switches without a common switch above, {self.names[leaves[0]]} first",
            "a fabric of one or two levels of switches",
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


REDUCING_FROM = 90
"""Compute capability of the first GPUs whose NVSwitch can reduce; NVIDIA H100 white paper,
third-generation NVSwitch."""


def lay_nvls(
    machine: Machine, op: str, algorithm: str, nbytes: int, group: RankGroup, channels: int
) -> LaidSchedule:
    """Carry a collective through NVSwitches that reduce, and between hosts by trees.

    `channels`: of NCCL, that work side by side on the same links.

    Raises `InputError`: ranks that share no NVSwitch that reduces, or are on the wrong number of
    hosts.
    """
    nodes, edges = machine.laid((algorithm, op, group), lambda: _lay(machine, op, algorithm, group))
    hosts, at_once = nodes.nodes, channels * nodes.heads
    pieces = pieces_of_share(nbytes, at_once, nvls_bytes(nbytes, at_once, hosts))
    schedule = sharp.over_nodes(nodes, nbytes, pieces=pieces, itemsize=ITEM_BYTES)
    return LaidSchedule(schedule, ((schedule.phases, edges),))


def find_obstacle(machine: Machine, op: str, algorithm: str, group: RankGroup) -> str | None:
    """Why a group cannot use switches that reduce; None where it can."""
    rails, topology = rails_of(machine, group), machine.topology
    hosts, size = rails.hosts.shape
    old, most_heads = capability_of(topology) < REDUCING_FROM, hardware().most_heads
    alone = size < 2 or _switch_of(machine, rails) is None
    obstacles = (
        (old, f"{topology.gpu.name}, whose NVSwitch does not reduce"),
        ((algorithm == "nvls") != (hosts == 1), f"{rails.hosts.size} ranks on {hosts} hosts"),
        (alone, f"{size} ranks of a host that share no NVSwitch"),
        (
            op != "all_reduce" and size > most_heads,
            f"{size} ranks, of which {most_heads} have a part",
        ),
    )
    return next((text for is_one, text in obstacles if is_one), None)


def _lay(machine: Machine, op: str, algorithm: str, group: RankGroup) -> tuple[Switched, Edges]:
    """Edges through switches, and their links."""
    reason = find_obstacle(machine, op, algorithm, group)
    where = "on one host" if algorithm == "nvls" else "on several hosts"
    refuse_if(
        reason is not None,
        "algorithm",
        f"{algorithm!r} for {reason}",
        f"Hopper or later behind an NVSwitch, {where}",
    )
    rails = rails_of(machine, group)
    return _lay_heads(machine, rails, *_heads(rails), op)


def _heads(rails: Rails) -> tuple[list[int], IntArray]:
    """Positions in a host of those who sum a part, and the NIC of each."""
    if len(rails.hosts) == 1:
        number = min(rails.hosts.shape[1], hardware().most_heads)
        return list(range(number)), np.zeros(number, dtype=np.int64)
    nic_of: dict[int, int] = {}
    for chain, nic in zip(rails.chains.tolist(), rails.nics.tolist(), strict=True):
        nic_of.setdefault(chain[0], nic)
    heads = list(nic_of)[: hardware().most_heads]
    return heads, np.array([nic_of[head] for head in heads])


def _lay_heads(
    machine: Machine, rails: Rails, heads: list[int], nics: IntArray, op: str
) -> tuple[Switched, Edges]:
    """Edges of some heads' parts over some hosts, and their links."""
    order = [*heads, *(place for place in range(rails.hosts.shape[1]) if place not in heads)]
    nodes = switched_nodes(rails.places[:, order], len(heads), op)
    at = np.flatnonzero(np.maximum(nodes.src, nodes.dst) >= nodes.ranks)
    between = np.flatnonzero(np.maximum(nodes.src, nodes.dst) < nodes.ranks)
    ranks = rails.hosts.ravel()
    rail = nics[nodes.head[between]]
    ends = ranks[nodes.src[between]], ranks[nodes.dst[between]]
    parts = [
        _to_switches(machine, rails, nodes, at),
        route_edges(machine.topology, machine.router, *ends, rail, rail),
    ]
    return nodes, merge_edges(parts, [at, between])


def _to_switches(machine: Machine, rails: Rails, nodes: Switched, selection: IntArray) -> Edges:
    """Links between ranks and the NVSwitch of their host."""
    topology, switch = machine.topology, _switch_of(machine, rails)
    assert switch is not None
    up = nodes.src[selection] < nodes.ranks
    rank = rails.hosts.ravel()[np.where(up, nodes.src[selection], nodes.dst[selection])]
    gpus = [topology.ranks[g] for g in (rails.hosts[0] % topology.gpus_per_host).tolist()]
    router = machine.router.healthy
    arcs = np.full((2, topology.gpus_per_host), -1)
    for gpu in gpus:
        arcs[:, topology.ranks.index(gpu)] = (
            router.route(gpu, switch)[0],
            router.route(switch, gpu)[0],
        )
    local = rank % topology.gpus_per_host
    arc = arcs[np.where(up, 0, 1), local] + rank // topology.gpus_per_host * topology.host_arcs
    edges = edges_over(
        topology,
        np.where(up, rank, -1),
        np.where(up, -1, rank),
        np.ones(len(arc), dtype=np.int64),
        arc,
        np.full(len(arc), np.inf),
        np.full(len(arc), HOP_KINDS.index("nvlink")),
    )
    return reroute_edges(topology, machine.router, edges)


def _switch_of(machine: Machine, rails: Rails) -> str | None:
    """NVSwitch of the first host of the machine to which all local GPUs of a group are linked."""
    topology = machine.topology
    shared = [
        {node for node in topology.links[gpu] if topology.devices[node].kind == "nvswitch"}
        for gpu in [topology.ranks[g] for g in (rails.hosts[0] % topology.gpus_per_host).tolist()]
    ]
    return min(set.intersection(*shared), default=None)
