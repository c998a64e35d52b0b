"""Schedules laid on links: what a machine keeps is what a new machine would lay."""

import numpy as np
import pytest

from perfmodel.library.lowering import rings
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.topology.templates.build import build_topology

ALGORITHMS = [
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "ring"),
    ("all_reduce", "rabenseifner"),
    ("all_to_all", "pairwise"),
    ("all_gather", "bruck"),
    ("broadcast", "binomial"),
]


@pytest.mark.parametrize("name", ["gloo", "nccl", "plain"])
def test_kept_edges_are_those_of_a_new_machine(name):
    topology = build_topology("dgx1-v100", hosts=2, fabric="one-switch")
    kept = Machine(topology, load_library(name))
    tried = 0
    for op, algorithm in ALGORITHMS * 2:
        try:
            fresh = lower_collective(
                Machine(topology, kept.library), op, 1 << 20, range(16), algorithm=algorithm
            )
        except ValueError:  # not an algorithm of this library
            continue
        again = lower_collective(kept, op, 1 << 20, range(16), algorithm=algorithm)
        for new, old in zip(fresh, again, strict=True):
            for a, b in zip(new.stages, old.stages, strict=True):
                np.testing.assert_array_equal(a.edges.arcs, b.edges.arcs)
                np.testing.assert_array_equal(a.edges.pointers, b.edges.pointers)
                tried += 1
    assert tried > 10


def test_a_machine_keeps_so_many_edges_and_lays_others_again():
    machine = Machine(build_topology("dgx1-v100"), load_library("plain"))

    def laid(name: str, count: int) -> object:
        return machine.kept_edges(name, count, 5, object)

    first = laid("first", 3)
    assert laid("too many", 3) is not laid("too many", 3)
    assert laid("few", 2) is laid("few", 2)
    assert laid("first", 3) is first


def test_sizes_of_an_all_to_all_go_over_the_same_edges():
    """Those of 2,048 ranks are kept, too: laid again for each size they took 600 MB each."""
    machine = Machine(
        build_topology("dgx1-v100", hosts=2, fabric="one-switch"), load_library("plain")
    )
    first, again, part = (
        lower_collective(machine, "all_to_all", nbytes, ranks, algorithm="direct")[-1].stages[0]
        for nbytes, ranks in ((1 << 20, range(16)), (1 << 26, range(16)), (1 << 20, range(1, 16)))
    )
    assert first.edges is again.edges
    assert first.edges is not part.edges
    assert rings.MOST_KEPT >= 2048 * 2047
