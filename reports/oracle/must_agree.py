"""Scenes where a fluid must be right.

Every edge has its links to itself; or all who share a link are alike and start together; or speeds
change between two rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from oracle.family import Family
from oracle.machines import crossbar, two_level_node, uneven, with_credits
from oracle.scenes import Launch, Scene, collective
from perfmodel.library.machine import Machine
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.templates.build import build_topology

RING_OPS = ("all_reduce", "reduce_scatter", "all_gather")


def _own_links(name: str, rng: np.random.Generator) -> Scene:
    ranks = int(rng.integers(2, 10))
    topology = crossbar(rng.uniform(1e9, 9e10, ranks), rng.uniform(0, 1e-5, ranks))
    machine = Machine(topology, with_credits(int(rng.choice([1, 2, 5]))))
    op = str(rng.choice([*RING_OPS, "broadcast", "reduce"]))
    nbytes = ranks * int(rng.integers(1, 8)) * (1 << int(rng.integers(3, 20)))  # whole pieces
    way = collective(machine, op, nbytes, range(ranks))
    return Scene(name, "own links", machine, (Launch(0.0, way, op, ranks),))


def _own_levels(name: str, rng: np.random.Generator) -> Scene:
    gpus, hosts = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    plain = build_topology(two_level_node(gpus), hosts=hosts, fabric="one-switch")
    machine = Machine(uneven(plain, rng), with_credits(int(rng.choice([1, 3]))))
    ranks = gpus * hosts
    nbytes = ranks * 4 * int(rng.integers(10, 10**5))
    way = collective(machine, "all_reduce", nbytes, range(ranks), "hierarchical")
    return Scene(name, "own links, two levels", machine, (Launch(0.0, way, "all_reduce", ranks),))


def _one_trunk(name: str, rng: np.random.Generator) -> Scene:
    ranks = int(rng.integers(2, 9))
    latency = float(rng.choice([0.0, rng.uniform(0, 1e-5)]))
    speed, trunk = rng.uniform(1e9, 9e10, 2)
    topology = crossbar([speed] * ranks, [latency] * ranks, trunk_Bps=trunk)
    machine = Machine(topology, with_credits(1 if latency else int(rng.choice([1, 2, 4]))))
    op = str(rng.choice(RING_OPS))
    way = collective(machine, op, ranks * 4 * int(rng.integers(10, 10**5)), range(ranks))
    return Scene(name, "alike edges on one link", machine, (Launch(0.0, way, op, ranks),))


def _alike_jobs(name: str, rng: np.random.Generator) -> Scene:
    ranks, jobs = int(rng.integers(2, 7)), int(rng.integers(2, 5))
    speed, latency = rng.uniform(1e9, 9e10), rng.uniform(0, 1e-5)
    apart = bool(rng.integers(2))  # neighbours in the rack on one trunk, or the same ranks
    total = ranks * jobs if apart else ranks
    trunk = float(rng.uniform(1e9, 9e10)) if apart else None
    topology = crossbar([speed] * total, [latency] * total, trunk_Bps=trunk)
    machine = Machine(topology, with_credits(1))
    nbytes, op = ranks * 4 * int(rng.integers(10, 10**5)), str(rng.choice(RING_OPS))
    groups = [range(j * ranks, (j + 1) * ranks) if apart else range(ranks) for j in range(jobs)]
    launches = tuple(
        Launch(1e-4, collective(machine, op, nbytes, group), op, ranks) for group in groups
    )
    return Scene(name, "alike jobs together", machine, launches)


def _between_rounds(name: str, rng: np.random.Generator) -> Scene:
    """A uniform ring; after some rounds all links, or one, change, and later change back."""
    ranks, rounds = int(rng.integers(3, 9)), rng.integers(1, 4, 2)
    speed, latency = float(rng.uniform(1e9, 9e10)), float(rng.uniform(0, 1e-5))
    topology = crossbar([speed] * ranks, [latency] * ranks)
    machine = Machine(topology, with_credits(1))
    chunk = 4 * int(rng.integers(1000, 10**5))
    factor = float(rng.uniform(0.2, 0.9))
    up = [arc for arc, (src, _) in enumerate(topology.arcs.names) if "gpu" in src]
    slow = up if rng.integers(2) else [int(rng.choice(up))]
    worse = Machine(degrade_links(topology, dict.fromkeys(slow, speed * factor)), machine.library)
    first_s = rounds[0] * (latency + chunk / speed)
    changes = [(first_s, worse)]
    if rng.integers(2):
        changes.append((first_s + rounds[1] * (latency + chunk / (speed * factor)), machine))
    way = collective(machine, "all_reduce", chunk * ranks, range(ranks))
    launch = Launch(0.0, way, "all_reduce", ranks)
    return Scene(name, "speed changes between rounds", machine, (launch,), tuple(changes))


MUST_AGREE: Mapping[str, Family] = {
    "own links": Family(_own_links, 35, "no two edges share a link"),
    "own links, two levels": Family(_own_levels, 20, "no two edges share a link"),
    "alike edges on one link": Family(_one_trunk, 25, "all edges are alike and start together"),
    "alike jobs together": Family(_alike_jobs, 25, "all jobs are alike and start together"),
    "speed changes between rounds": Family(
        _between_rounds, 25, "no send is under way on a link whose speed changes"
    ),
}
