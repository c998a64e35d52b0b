"""NVLink SHARP on real NVSwitches, and the trees of its heads between hosts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import IntArray, RankGroup
from perfmodel.collectives.algorithms import nvls
from perfmodel.collectives.algorithms.nvls import Switched, switched_nodes
from perfmodel.errors import Fault, InputError
from perfmodel.library.channels.rails import Rails
from perfmodel.library.lowering.edge_routing import reroute_edges, route_edges
from perfmodel.library.lowering.edges import HOP_KINDS, Edges, edges_over, merge_edges
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule
from perfmodel.library.machine import Machine
from perfmodel.library.nccl.chunk_sizes import nvls_bytes, nvls_tree_bytes, pieces_of_share
from perfmodel.library.nccl.lowering.trees import rails_of

MOST_HEADS = 32
"""NCCL_MAX_NVLS_ARITY; NVIDIA/nccl 2.30.7 ``src/include/device.h``."""

REDUCING = frozenset({"hopper", "blackwell"})
"""Generations whose NVSwitch can reduce; NVIDIA H100 white paper, third-generation NVSwitch."""


@dataclass(frozen=True, slots=True)
class LaidSwitched:
    """Edges through switches, and their links."""

    nodes: Switched
    edges: Edges
    heads: int
    """Of each node."""


def lay_nvls(
    machine: Machine, op: str, algorithm: str, nbytes: int, group: RankGroup, channels: int
) -> LaidSchedule:
    """Carry a collective through NVSwitches that reduce, and between hosts by trees.

    `channels`: of NCCL, that work side by side on the same links.

    Raises `InputError`: ranks that share no NVSwitch that reduces, or are on the wrong number of
    hosts.
    """
    key = (algorithm, op, group)
    laid = machine.laid(key, lambda: _lay(machine, op, algorithm, group))
    hosts, at_once = laid.nodes.nodes, channels * laid.heads
    chunk = nvls_bytes(nbytes, at_once) if hosts == 1 else nvls_tree_bytes(nbytes, at_once, hosts)
    pieces = pieces_of_share(nbytes, at_once, chunk)
    schedule = nvls.over_nodes(laid.nodes, nbytes, pieces=pieces, itemsize=ITEM_BYTES)
    return LaidSchedule(schedule, ((schedule.phases, laid.edges),))


def find_obstacle(machine: Machine, op: str, algorithm: str, group: RankGroup) -> str | None:
    """Why a group cannot use switches that reduce; None where it can."""
    rails, topology = rails_of(machine, group), machine.topology
    hosts, size = rails.hosts.shape
    if topology.gpu.generation not in REDUCING:
        return f"{topology.gpu.name}, whose NVSwitch does not reduce"
    if (algorithm == "nvls") != (hosts == 1):
        return f"{rails.hosts.size} ranks on {hosts} hosts"
    if size < 2 or _switch_of(machine, rails) is None:
        return f"{size} ranks of a host that share no NVSwitch"
    if op != "all_reduce" and size > MOST_HEADS:
        return f"{size} ranks, of which {MOST_HEADS} have a part"
    return None


def _lay(machine: Machine, op: str, algorithm: str, group: RankGroup) -> LaidSwitched:
    reason = find_obstacle(machine, op, algorithm, group)
    if reason is not None:
        allowed = "Hopper or later behind an NVSwitch, " + (
            "on one host" if algorithm == "nvls" else "on several hosts"
        )
        raise InputError(Fault("algorithm", f"{algorithm!r} for {reason}", allowed))
    rails = rails_of(machine, group)
    heads, nics = _heads(rails)
    return LaidSwitched(*_lay_heads(machine, rails, heads, nics, op), len(heads))


def _heads(rails: Rails) -> tuple[list[int], IntArray]:
    """Positions in a host of those who sum a part, and the NIC of each."""
    if len(rails.hosts) == 1:
        number = min(rails.hosts.shape[1], MOST_HEADS)
        return list(range(number)), np.zeros(number, dtype=np.int64)
    nic_of: dict[int, int] = {}
    for chain, nic in zip(rails.chains.tolist(), rails.nics.tolist(), strict=True):
        nic_of.setdefault(chain[0], nic)
    heads = list(nic_of)[:MOST_HEADS]
    return heads, np.array([nic_of[head] for head in heads])


def _lay_heads(
    machine: Machine, rails: Rails, heads: list[int], nics: IntArray, op: str
) -> tuple[Switched, Edges]:
    """Edges of some heads' parts over some hosts, and their links."""
    size = rails.hosts.shape[1]
    order = [*heads, *(place for place in range(size) if place not in heads)]
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
    gpus = [topology.ranks[g] for g in (rails.hosts[0] % topology.gpus_per_host).tolist()]
    shared = [
        {node for node in topology.links[gpu] if topology.devices[node].kind == "nvswitch"}
        for gpu in gpus
    ]
    return min(set.intersection(*shared), default=None)
