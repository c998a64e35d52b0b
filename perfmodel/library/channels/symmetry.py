"""One rail in place of all, on clusters too large to lay trees over every rail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.library.channels.rails import Rails
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.machine import Machine
from perfmodel.topology.model import Topology

MOST_RANKS = 512
"""Ranks up to which trees are laid over every rail. Beyond, on 500 to 1,000 GPUs of DGX A100 and
H100 hosts on a rail-optimised fabric, one rail took 0 to 10 % less time than all of them."""

MOST_SHARING = 4096
"""The same where rails share leaf switches: their flows collide by hash, and the slowest of all
decides. One rail took 1 to 38 % less time than all, on 64 DGX H100 on a fat tree."""


def rails_represented(machine: Machine, rails: Rails) -> int:
    """How many rails one of them represents: all of a large machine without faults or changes."""
    topology = machine.topology
    changed = machine.whole or topology.healthy is not None
    most = MOST_SHARING if _share_leaves(machine) else MOST_RANKS
    few = rails.hosts.size <= most or len(rails.hosts) < 2
    return 1 if changed or few else len(rails.chains)


def fold_rails(machine: Machine, edges: Edges, rails: int) -> Edges:
    """Lead the edges of one rail over so few links of each kind that they bear all rails' load.

    Rails visit the GPUs of a host in different orders, so that every link of a kind bears what one
    rail puts on all of them, times the rails, over the links. Of n links of a kind the rail is laid
    over n / `rails`, or over one, `rails` / n times. Between hosts each rail has cables of its own,
    and leaf switches, if the fabric is built by rails. Elsewhere other rails' flows are spread over
    the trunks by hash: each trunk is crossed so often that it bears their average.
    """
    topology = machine.topology
    inside = edges.arcs < topology.hosts * topology.host_arcs
    to, times = machine.cached(("folded", rails), lambda: _folds(topology, rails))
    local = edges.arcs % topology.host_arcs
    arcs = np.where(inside, edges.arcs - local + to[local], edges.arcs)
    crossed = np.where(inside, times[local], 1)
    trunks = np.flatnonzero(edges.arcs >= topology.first_cable + 2 * _ports(topology))
    if len(trunks) and _share_leaves(machine):
        users = np.bincount(edges.arcs[trunks], minlength=len(topology.arcs))
        mean = len(trunks) / (len(topology.arcs) - topology.first_cable - 2 * _ports(topology))
        others = (rails - 1) * mean / users[edges.arcs[trunks]]
        crossed[trunks] = np.rint(1 + others).astype(np.int64)
    lengths = np.add.reduceat(crossed, edges.pointers[:-1])
    return replace(
        edges,
        arcs=np.repeat(arcs, crossed),
        pointers=np.concatenate([[0], np.cumsum(lengths)]),
    )


def _ports(topology: Topology) -> int:
    """Ports of all hosts; a port has two arcs into the fabric, which come before all others."""
    if topology.tiers is not None:
        return len(topology.tiers.leaf_of)
    return sum(device.kind == "nic" for device in topology.devices.values())


def _share_leaves(machine: Machine) -> bool:
    """Whether NICs of one host meet the fabric at the same leaf switch."""
    tiers = machine.topology.tiers
    if tiers is None:
        return True
    leaves = tiers.leaf_of[: tiers.nics]
    return len(np.unique(leaves)) < len(leaves)


def _folds(topology: Topology, rails: int) -> tuple[IntArray, IntArray]:
    """For each link of a host: the link used in its place, and how often that is crossed."""
    arcs, devices = topology.arcs, topology.devices
    kinds: dict[tuple[object, ...], list[int]] = {}
    for arc in range(topology.host_arcs):
        ends = (devices[name].kind for name in arcs.names[arc])
        key = (*ends, arcs.kinds[arc], float(arcs.bandwidth_Bps[arc]))
        kinds.setdefault(key, []).append(arc)
    to, times = np.zeros(topology.host_arcs, np.int64), np.ones(topology.host_arcs, np.int64)
    for same in kinds.values():
        links = max(1, len(same) // rails)
        for at, arc in enumerate(same):
            to[arc] = same[at % links]
            times[arc] = max(1, round(rails / len(same)))
    return to, times
