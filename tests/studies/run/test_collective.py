"""Rows of nccl-tests: published times, repetitions that overlap, intervals."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Literal

import pytest

import perfmodel as pm
from perfmodel.calibrate import read_profile
from perfmodel.calibrate.apply import apply
from perfmodel.collectives.algorithms.ring import PIECE_BYTES
from perfmodel.errors import InputError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import settings_of
from perfmodel.simulate.uncontended import UncontendedTimer, hidden_s
from perfmodel.studies.run.collective import collective_rows, network_notes, nominal_timer
from perfmodel.studies.tune.surrogate import AllReduceTimes
from perfmodel.topology.templates.build import build_topology

MIB, GIB = 1 << 20, 1 << 30


def hidden(op: str, ranks: int, nbytes: int = GIB) -> float:
    machine = make_machine(build_topology("dgx-a100", gpus_per_host=ranks), load_library("plain"))
    timer = UncontendedTimer(machine)
    (lowered,) = lower_collective(machine, op, nbytes, range(ranks))
    return hidden_s(timer, lowered, op, range(ranks))


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_the_way_of_a_piece_down_the_chain_is_hidden(op: str) -> None:
    """Seven hops, each its latency and a piece on the wire; the first of them is not hidden."""
    machine = make_machine(build_topology("dgx-a100"), load_library("plain"))
    (lowered,) = lower_collective(machine, op, GIB, range(8))
    (stage,) = lowered.stages
    hop_s = stage.latency_s[0] + PIECE_BYTES * lowered.wire_factor / 240e9
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


@pytest.mark.slow
@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_unlike_links_never_hide_more_than_there_is(op: str) -> None:
    """A single piece crosses slow links alone; what is left holds the bytes of the busiest."""
    topology = build_topology("gb200-nvl72", hosts=2, fabric="one-switch")
    for row in collective_rows(topology, op=op, sizes=[1 << 20, 64 << 20]):
        assert row["time_s"] > row["nbytes"] / 721.8e9


def test_a_row_is_one_of_many() -> None:
    """What nccl-tests prints is shorter than a single broadcast by what is hidden."""
    machine = make_machine(build_topology("dgx-a100"), load_library("nccl"))
    timer = UncontendedTimer(machine)
    lowered, alone_s = timer.best("broadcast", GIB, range(8))
    (row,) = collective_rows(machine.topology, op="broadcast", sizes=[GIB])
    overlap_s = hidden_s(timer, lowered, "broadcast", range(8))
    assert overlap_s > 5e-6
    assert row["time_s"] == pytest.approx(alone_s - overlap_s, rel=1e-6)


@pytest.mark.slow
def test_all_reduce_times_beside_published_ones() -> None:
    """23 published nccl-tests runs, 1 MiB to 1 GiB, on the nearest template.

    Some of them are among those that NCCL's constants were fitted to
    (perfmodel/validate/fitted.yaml). The bounds catch a relapse.
    """
    table = Path(__file__).with_name("published_all_reduce.csv")
    errors = []
    for row in csv.DictReader(table.read_text().splitlines()):
        hosts = int(row["nodes"])
        fabric = "rail-optimised" if hosts > 1 else None
        machine = build_topology(
            row["node"], hosts=hosts, fabric=fabric, gpus_per_host=int(row["gpus_per_node"])
        )
        (predicted,) = collective_rows(machine, sizes=[int(row["nbytes"])])
        errors.append(abs(predicted["time_s"] * 1e6 / float(row["time_us"]) - 1))
    assert statistics.median(errors) < 0.11
    assert statistics.quantiles(errors, n=10)[-1] < 0.42


def test_collective_rows_are_what_nccl_tests_prints() -> None:
    progress: list[tuple[int, int]] = []
    rows = collective_rows(
        build_topology("dgx-a100"),
        sizes=[1 << 20, 1 << 30],
        progress=lambda *at: progress.append(at),
    )
    assert progress == [(1, 2), (2, 2)]
    for row in rows:
        assert row["algbw_Bps"] == pytest.approx(row["nbytes"] / row["time_s"])
        assert row["busbw_Bps"] == pytest.approx(row["algbw_Bps"] * 2 * 7 / 8)
        assert row["busbw_Bps"] <= 240e9  # NVLink of an A100 as NCCL counts it
    assert rows[1]["busbw_Bps"] > rows[0]["busbw_Bps"]


def test_schedules_of_a_size_are_dropped_after_it() -> None:
    """Those of all sizes of an all-to-all over 1,024 GPUs took 2.1 GiB, a size's take 0.3."""
    topology = build_topology("dgx-h100", hosts=2, fabric="rail-optimised")
    timer, ranks = nominal_timer(topology), range(16)
    laid, alone_s = timer.best("all_to_all", MIB, ranks)
    rows = collective_rows(topology, op="all_to_all", sizes=[MIB, GIB], nominal=timer)
    again, again_s = timer.best("all_to_all", MIB, ranks)
    assert again is not laid
    assert again_s == alone_s
    assert collective_rows(topology, op="all_to_all", sizes=[GIB]) == rows[1:]


def test_collectives_of_a_measured_machine_have_intervals() -> None:
    machine = build_topology("cpu-loopback", gpus_per_host=4)
    profile = read_profile("epyc-2-cores-gloo")
    (row,) = collective_rows(machine, sizes=[1 << 24], library="gloo", profile=profile)
    low, high = row["interval_s"]
    assert low < row["time_s"] < high
    two = build_topology("cpu-loopback", gpus_per_host=2)  # not what the profile was measured on
    (row,) = collective_rows(two, sizes=[1 << 24], library="gloo", profile=profile)
    assert row["interval_s"] is None


@pytest.mark.parametrize(
    ("op", "rows", "algorithm", "told"),
    [
        ("all_reduce", "library", "auto", True),
        ("broadcast", "library", "auto", False),  # only all-reduces were measured
        ("all_reduce", "schedule", "ring", True),
        ("all_reduce", "schedule", "auto", False),  # Gloo's own is not the schedule that ran
    ],
)
def test_what_was_not_measured_has_no_interval(
    op: str, rows: Literal["library", "schedule"], algorithm: str, told: bool
) -> None:
    (row,) = collective_rows(
        build_topology("cpu-loopback", gpus_per_host=4),
        op=op,
        sizes=[1 << 20],
        algorithm=algorithm,
        library="gloo",
        profile=read_profile("epyc-2-cores-gloo"),
        profile_rows=rows,
    )
    assert (row["interval_s"] is not None) == told


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_with_a_profile_run_tune_and_collective_answer_as_it_was_fitted(ranks: int) -> None:
    """On sockets, which have no rates of ranks, 64 MiB between two took 28 % less than the fit."""
    profile = read_profile("epyc-2-cores-gloo-2-ranks" if ranks == 2 else "epyc-2-cores-gloo")
    topology = build_topology("cpu-loopback", gpus_per_host=ranks)
    timer = UncontendedTimer(apply(profile, make_machine(topology, load_library("gloo"))))
    for nbytes in (1 << 10, MIB, 16 * MIB, 256 * MIB):
        fitted_s = timer.best("all_reduce", nbytes, range(ranks))[1]
        (row,) = collective_rows(topology, sizes=[nbytes], library="gloo", profile=profile)
        times = [row["time_s"], AllReduceTimes(timer, range(ranks)).compute(nbytes)]
        assert times == pytest.approx([fitted_s] * 2, rel=1e-6)


def test_a_row_lies_inside_its_interval() -> None:
    for row in collective_rows(build_topology("dgx-h100"), sizes=[8, MIB, 64 * MIB]):
        low, high = row["interval_s"]
        assert low < row["time_s"] < high


def test_a_named_algorithm_was_not_validated() -> None:
    (row,) = collective_rows(build_topology("dgx-h100"), sizes=[MIB], algorithm="tree")
    assert row["interval_s"] is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"sizes": [8], "fidelity": "x"}, "fidelity"),
        ({"sizes": [8, -1]}, "sizes.1"),
        ({"sizes": [0]}, "sizes.0"),
        ({"sizes": [1.5]}, "sizes.0"),
        ({"sizes": [8], "op": "all_redoce"}, "op"),
        ({"sizes": [8], "algorithm": "rign"}, "algorithm"),
    ],
)
def test_arguments_from_python_are_checked(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        collective_rows(build_topology("dgx-a100"), **arguments)  # type: ignore[arg-type]
    assert field in {fault.field for fault in caught.value.faults}


def test_send_recv_is_what_the_slowest_link_of_the_ring_carries() -> None:
    """Each of 16 ranks sends to the next: from host to host by one adapter of 50 GB/s."""
    topology = build_topology("dgx-h100", hosts=2, fabric="rail-optimised")
    small, large = collective_rows(topology, op="send_recv", sizes=[8, GIB])
    assert (small["protocol"], large["protocol"]) == ("ll", "simple")
    assert large["busbw_Bps"] == large["algbw_Bps"] < 50e9
    assert large["busbw_Bps"] > 0.8 * 50e9
    inside = collective_rows(build_topology("dgx-h100"), op="send_recv", sizes=[GIB])[0]
    assert 5 < inside["busbw_Bps"] / large["busbw_Bps"] < 9


@pytest.mark.parametrize(
    ("template", "env", "said"),
    [
        ("gcp-a3-high", {}, ["NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "NCCL_CROSS_NIC=0"]),
        ("gcp-a3-high", {"NCCL_ALGO": "Tree"}, ["NCCL_PROTO=Simple"]),
        ("gcp-a3-ultra", {}, None),
    ],
)
def test_what_a_cloud_requires_is_said(
    template: str, env: dict[str, str], said: list[str] | None
) -> None:
    """Google Cloud documentation, GPUDirect-TCPX on A3 High; what the user sets is not repeated."""
    topology = build_topology(template, hosts=2, fabric="rail-optimised")
    settings = settings_of(env=env)
    nominal = nominal_timer(topology, "nccl", settings)
    notes = network_notes(nominal, settings, op="all_reduce", nbytes=MIB)
    assert len(notes) == (said is not None)
    assert all(text in notes[0] for text in said or ())
    assert not any(name in " ".join(notes) for name in env)


def test_an_algorithm_that_cannot_have_so_many_ranks_is_named() -> None:
    """Recursive doubling takes a power of two."""
    with pytest.raises(InputError, match=r"found 'recursive_doubling'; allowed: one for"):
        pm.collective(
            "dgx-h100",
            nodes=3,
            fabric="rail-optimised",
            op="all_gather",
            sizes=[1024],
            algorithm="recursive_doubling",
            library="mpi",
        )
