"""Two clusters on which simulators of training were compared, and their closed forms.

A flat ring of 50 GB/s and 500 ns; and hosts of eight GPUs on a 300 GB/s switch (500 ns), each GPU
with a 25 GB/s NIC (1 us), whose all-reduce is hierarchical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from oracle.machines import one_gpu_node, two_level_node, with_credits
from oracle.scenes import Launch, Scene, collective
from oracle.shared_links import NO_DELAY
from perfmodel.library.machine import Machine
from perfmodel.topology.templates.build import build_topology
from reports.oracle import closed_forms

MiB = 1 << 20
SIZES = (MiB, 25 * MiB, 100 * MiB, 1024 * MiB)
RANKS = (8, 64, 512, 4096)
FEASIBLE = 512
"""Ranks up to which SimGrid is run: 4,096 ranks take it 33 million sends."""
AT_MESSAGE = 64
"""Ranks up to which fidelity "message" is run."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    table: str
    ranks: int
    nbytes: int
    closed_form_s: float
    make: Callable[[], Scene]


def cells() -> Iterator[Cell]:
    """All cells of both tables."""
    for ranks in RANKS:
        for nbytes in SIZES:
            made = partial(_scene, "flat ring", "ring", ring_machine, ranks, nbytes)
            yield Cell("flat ring", ranks, nbytes, _flat_s(ranks, nbytes), made)
    for ranks in RANKS:
        for nbytes in SIZES:
            made = partial(_scene, "two levels", "hierarchical", cluster, ranks, nbytes)
            yield Cell("two levels", ranks, nbytes, _two_s(ranks, nbytes), made)


def _flat_s(ranks: int, nbytes: int) -> float:
    return closed_forms.closed_form_s(
        "all_reduce", "ring", ranks, nbytes, alpha_s=500e-9, beta_s_per_B=1 / 50e9
    )


def _two_s(ranks: int, nbytes: int) -> float:
    hosts = ranks // 8
    inside_s = 2 * 7 * (500e-9 + nbytes / 8 / 300e9)
    return inside_s + 2 * (hosts - 1) * (1e-6 + nbytes / ranks / 25e9)


@cache
def ring_machine(ranks: int) -> Machine:
    """Hosts of one GPU, each with a 50 GB/s port to one switch, 500 ns from GPU to GPU."""
    topology = build_topology(one_gpu_node(), hosts=ranks, fabric=NO_DELAY)
    return Machine(topology, with_credits(1))


@cache
def cluster(ranks: int) -> Machine:
    """Hosts of eight GPUs; see the module."""
    topology = build_topology(
        two_level_node(), hosts=ranks // 8, fabric=NO_DELAY if ranks > 8 else None
    )
    return Machine(topology, with_credits(1))


def _scene(
    table: str, algorithm: str, machine_of: Callable[[int], Machine], ranks: int, nbytes: int
) -> Scene:
    machine = machine_of(ranks)
    way = collective(machine, "all_reduce", nbytes, range(ranks), algorithm)
    launch = Launch(0.0, way, "all_reduce", ranks)
    name = f"{table}, {ranks} ranks, {nbytes // MiB} MiB"
    return Scene(name, table, machine, (launch,))
