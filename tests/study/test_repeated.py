"""What benchmarks see of collectives that follow one another."""

from __future__ import annotations

import pytest

from perfmodel.collectives.algorithms.chain import PIECE_BYTES
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import collective_rows
from perfmodel.studies.run.collective import hidden_s
from perfmodel.topology.templates.build import build_topology

GIB = 1 << 30


def hidden(op: str, ranks: int, nbytes: int = GIB) -> float:
    machine = make_machine(build_topology("dgx-a100", gpus_per_host=ranks), load_library("plain"))
    known = UncontendedTimer(machine)
    (way,) = lower_collective(machine, op, nbytes, range(ranks))
    return hidden_s(known, way, op, range(ranks))


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_the_way_of_a_piece_down_the_chain_is_hidden(op: str) -> None:
    """Seven hops, each its latency and a piece on the wire; the first of them is not hidden."""
    machine = make_machine(build_topology("dgx-a100"), load_library("plain"))
    (way,) = lower_collective(machine, op, GIB, range(8))
    (stage,) = way.stages
    hop_s = stage.latency_s[0] + PIECE_BYTES * way.wire_factor / 240e9
    assert hidden(op, 8) == pytest.approx(6 * hop_s, rel=1e-6)


def test_nothing_else_is_hidden() -> None:
    assert hidden("broadcast", 2) == 0
    assert hidden("all_reduce", 8) == 0
    assert hidden("all_gather", 8) == 0


def test_no_row_beats_the_bytes_of_a_link() -> None:
    for op in ("broadcast", "reduce"):
        for row in collective_rows(
            build_topology("dgx-a100"), op=op, sizes=[1 << 10, 1 << 20, GIB]
        ):
            assert row["time_s"] > row["nbytes"] / 240e9


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_unlike_links_never_hide_more_than_there_is(op: str) -> None:
    """A single piece crosses slow links alone; what is left holds the bytes of the busiest."""
    topology = build_topology("gb200-nvl72", hosts=2, fabric="one-switch")
    for row in collective_rows(topology, op=op, sizes=[1 << 20, 64 << 20]):
        assert row["time_s"] > row["nbytes"] / 721.8e9


def test_a_row_is_one_of_many() -> None:
    """What nccl-tests prints is shorter than a single broadcast by what is hidden."""
    machine = make_machine(build_topology("dgx-a100"), load_library("nccl"))
    known = UncontendedTimer(machine)
    way, alone_s = known.best("broadcast", GIB, range(8))
    (row,) = collective_rows(machine.topology, op="broadcast", sizes=[GIB])
    gone_s = hidden_s(known, way, "broadcast", range(8))
    assert gone_s > 5e-6
    assert row["time_s"] == pytest.approx(alone_s - gone_s, rel=1e-6)
