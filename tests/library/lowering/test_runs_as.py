"""Operations that a library runs as another one."""

from __future__ import annotations

import pytest

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.topology.templates.build import build_topology, load_node


@pytest.mark.parametrize(("library", "is_same"), [("gloo", True), ("mpi", False), ("nccl", False)])
def test_gloo_reduces_and_scatters_by_an_all_reduce(library: str, is_same: bool) -> None:
    """Measured with torch 2.13, 4 processes: both send 1.50 of the buffer per rank."""
    machine = make_machine(build_topology(load_node("dgx1-v100")), load_library(library))
    scattered, reduced = (
        lower_collective(machine, op, 2**26, range(4))[0].schedule
        for op in ("reduce_scatter", "all_reduce")
    )
    assert (scattered.collective == "all_reduce") == is_same
    assert reduced.collective == "all_reduce"
    assert scattered.nbytes == reduced.nbytes
