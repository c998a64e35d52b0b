"""Collectives of groups that differ in their hosts only are those of one, led over other hosts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perfmodel.arrays import RankGroup
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links, remove_links
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

FABRICS = {
    "rail-optimised": FabricSpec(kind="rail-optimised", hosts_per_leaf=4, radix=16),
    "leaf-spine": FabricSpec(kind="leaf-spine", hosts_per_leaf=1),
}
HOSTS, SIZE = 12, 8
GROUPS: dict[str, list[RankGroup]] = {
    "next hosts": [
        tuple(range(i, i + 3 * SIZE, SIZE))
        for h in range(0, HOSTS, 3)
        for i in range(h * SIZE, (h + 1) * SIZE)
    ],
    "far hosts": [tuple(range(i, HOSTS * SIZE, 4 * SIZE)) for i in range(4 * SIZE)],
    "two a host": [
        (i, i + 1, i + 2 * SIZE, i + 2 * SIZE + 1) for i in range(0, (HOSTS - 2) * SIZE, SIZE)
    ],
    "whole hosts": [
        tuple(r for h in (i, i + 4, i + 8) for r in range(h * SIZE, (h + 1) * SIZE))
        for i in range(4)
    ],
}


def machine_of(fabric: str, state: str) -> Machine:
    cluster = build_topology("dgx-a100", hosts=HOSTS, fabric=FABRICS[fabric])
    if state == "lost":
        cluster = remove_links(cluster, nodes=["n5/nic3"])
    if state == "uneven":  # links that two groups use: inside a host, and a cable
        timer = UncontendedTimer(Machine(cluster, load_library("nccl")))
        for group in GROUPS["far hosts"][3:5]:
            used = timer.best("all_reduce", 1 << 24, group)[0].stages[0].edges.arcs
            cluster = degrade_links(cluster, dict.fromkeys((used.min(), used.max()), 1e9))
    return Machine(cluster, load_library("nccl"))


def one_by_one(
    machine: Machine, op: str, nbytes: int, groups: Sequence[RankGroup]
) -> list[tuple[LoweredCollective, float]]:
    timer = UncontendedTimer(machine)
    return [timer.best(op, nbytes, group) for group in groups]


@pytest.mark.parametrize("state", ["whole", "uneven", "lost"])
@pytest.mark.parametrize("fabric", FABRICS)
def test_groups_lowered_at_once_are_those_lowered_one_by_one(fabric: str, state: str) -> None:
    machine = machine_of(fabric, state)
    sends = [(i, i + 3 * SIZE) for i in range((HOSTS - 3) * SIZE)]
    cases = [("all_reduce", 1 << 26, groups) for groups in GROUPS.values()]
    gathers = ("all_gather", 3 << 20, GROUPS["two a host"])
    for op, nbytes, groups in (*cases, gathers, ("send", 1 << 22, sends)):
        timer = UncontendedTimer(machine)
        together = timer.lower(op, nbytes, tuple(groups))
        alone = one_by_one(machine, op, nbytes, groups)
        for group, moved, (lowered, time_s) in zip(groups, together, alone, strict=True):
            root = 0 if op == "send" else group[0]
            assert timer.best(op, nbytes, group, root)[0] is moved
            assert timer.best(op, nbytes, group, root)[1] == pytest.approx(time_s, rel=1e-12)
            assert timer.time_s(moved) == pytest.approx(time_s, rel=1e-12)
            assert moved.protocol == lowered.protocol
            for stage, expected in zip(moved.stages, lowered.stages, strict=True):
                for name in ("src", "dst", "pointers", "arcs", "latency_s", "cap_Bps", "hop"):
                    mine, other = getattr(stage.edges, name), getattr(expected.edges, name)
                    assert np.array_equal(mine, other), (op, group, name)
