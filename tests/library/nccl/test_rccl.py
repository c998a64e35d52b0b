"""RCCL's estimates and what it takes by size, worked out by hand from its source.

Golden numbers: ROCm/rccl ``src/graph/tuning.cc`` (tuning_model_0, _5 and _6, base latencies of 12
and 17 us) and ``src/rccl_wrap.cc``, for the channels that are named. Of all-pairs
``tools/msccl-algorithms/allreduce-allpairs-8n-*.xml``: the LL files of 256 and 512 chunks for up to
64 KiB and up to where the Simple one begins (minBytes 524288, maxBytes 20971520, 512 chunks).
"""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library, protocols_of
from perfmodel.library.nccl.communicator import System
from perfmodel.library.nccl.dispatch import Prediction, predictions
from perfmodel.library.nccl.graphs import Graph
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.templates.build import build_topology

MIB = 1 << 20


def system(generation: str, nodes: int, channels: int, speed_GBps: float) -> System:
    graph = Graph(
        channels, speed_GBps, speed_GBps, "NVL", "PIX" if nodes > 1 else "LOC", same_channels=False
    )
    return System(nodes, 8 * nodes, 80, "amd", graph, graph, None, None, 8, generation=generation)


ONE_MI300X = system("cdna3", 1, 28, 12.0)
TWO_MI300X = system("cdna3", 2, 14, 24.0)
FOUR_MI300X = system("cdna3", 4, 14, 24.0)
FOUR_MI355X = system("cdna4", 4, 14, 24.0)
FOUR_MI250X = system("cdna2", 4, 4, 24.0)


def estimates(on: System, nbytes: float, op: str = "all_reduce", **env: str) -> list[Prediction]:
    return list(predictions(on, op, nbytes, LibrarySettings(env=env)))


def time_us(on: System, nbytes: float, algorithm: str, protocol: str) -> float:
    found = {(each.algorithm, each.protocol): each.time_s for each in estimates(on, nbytes)}
    return found[algorithm, protocol] * 1e6


@pytest.mark.parametrize(
    ("on", "algorithm", "protocol", "mebibytes", "latency_us", "rate_GBps"),
    [
        # 12 + 14 * 0.8, and 336 * 0.08 * 8 / 14
        (ONE_MI300X, "ring", "ll", 1, 23.2, 15.36),
        # 17 + 14 * 2.1, and 336 * 8 / 14: of rings on one host no size is corrected
        (ONE_MI300X, "ring", "simple", 1, 46.4, 192.0),
        # 12 + 2 * 7 * 0.9, and 336 * 0.06 / 2, of which 1.0 at 1 MiB
        (ONE_MI300X, "tree", "ll", 1, 24.6, 10.08),
        # 17 + 2 * (7 * 2.3 + 25), and 336 * 0.11 / 2
        (TWO_MI300X, "tree", "simple", 16, 99.2, 18.48),
        # 17 + 28 * 6 of proxies on an AMD host + 2 * 320, and 336 * 16 / 30, of which 0.1 at 16 MiB
        (TWO_MI300X, "ring", "simple", 16, 825.0, 17.92),
        # the last factor, 1.0, holds for all sizes from 4 GiB on
        (TWO_MI300X, "ring", "simple", 16384, 825.0, 179.2),
        # 12 + 2 * (7 * 1.4 + 2 * 18.2), and 96 * 0.22 / 2, of which 0.4 at 4 MiB
        (FOUR_MI250X, "tree", "ll128", 4, 104.4, 4.224),
    ],
)
def test_estimates(
    on: System,
    algorithm: str,
    protocol: str,
    mebibytes: int,
    latency_us: float,
    rate_GBps: float,
) -> None:
    took_us = time_us(on, mebibytes * MIB, algorithm, protocol)
    assert took_us == pytest.approx(latency_us + mebibytes * MIB / rate_GBps / 1e3)


def test_simple_does_not_run_over_trees_on_one_host_since_mi300x() -> None:
    assert time_us(ONE_MI300X, MIB, "tree", "simple") == float("inf")
    assert time_us(system("cdna2", 1, 12, 18.0), MIB, "tree", "simple") < 1000


@pytest.mark.parametrize(
    ("on", "op", "each_bytes", "protocol"),
    [
        (TWO_MI300X, "all_reduce", MIB, "ll"),
        (TWO_MI300X, "all_reduce", MIB + 1, "ll128"),
        (TWO_MI300X, "all_reduce", 9 * MIB, "ll128"),
        (TWO_MI300X, "all_reduce", 9 * MIB + 1, "simple"),
        (FOUR_MI300X, "all_reduce", 34 * MIB, "ll128"),
        (FOUR_MI300X, "all_reduce", 35 * MIB, "simple"),
        (FOUR_MI300X, "all_gather", 98304, "ll"),
        (FOUR_MI300X, "all_gather", 98305, "ll128"),
        (FOUR_MI300X, "reduce_scatter", 131072, "ll"),
        (FOUR_MI300X, "reduce_scatter", 655360, "ll128"),
        (FOUR_MI300X, "reduce_scatter", 3211265, "simple"),
        (ONE_MI300X, "reduce_scatter", 352128, "ll"),
        (FOUR_MI355X, "broadcast", 2049, "ll128"),
        (FOUR_MI355X, "all_gather", 8388609, "simple"),
    ],
)
def test_protocol_by_size(on: System, op: str, each_bytes: int, protocol: str) -> None:
    nbytes = each_bytes if op == "all_reduce" else each_bytes * on.ranks
    assert estimates(on, nbytes, op)[0].protocol == protocol


def test_a_protocol_that_a_user_names_goes_before_that_by_size() -> None:
    assert {e.protocol for e in estimates(TWO_MI300X, MIB, NCCL_PROTO="Simple")} == {"simple"}


def test_estimates_decide_where_no_size_is_stated() -> None:
    for on, nbytes in ((FOUR_MI250X, MIB), (ONE_MI300X, 16 * MIB)):
        each = estimates(on, nbytes)
        assert each == sorted(each, key=lambda estimate: estimate.time_s)


def test_the_algorithm_stays_what_is_estimated_to_be_quickest() -> None:
    """4 MiB on two hosts: trees with Simple are quickest, and run with LL128 by their size."""
    first, *others = estimates(TWO_MI300X, 4 * MIB)
    assert (first.algorithm, first.protocol) == ("tree", "ll128")
    assert (others[0].algorithm, others[0].protocol) == ("tree", "simple")
    assert len({(each.algorithm, each.protocol) for each in [first, *others]}) == len(others) + 1


def board(name: str, hosts: int = 1, **settings: Any) -> Machine:
    topology = (
        build_topology(name, hosts=hosts, fabric="rail-optimised")
        if hosts > 1
        else build_topology(name)
    )
    return make_machine(topology, load_library("nccl"), settings=LibrarySettings(**settings))


def runs(on: Machine, nbytes: int, ranks: int = 8, op: str = "all_reduce") -> tuple[str, str]:
    lowered = lower_collective(on, op, nbytes, range(ranks))[-1]
    return lowered.schedule.algorithm, lowered.protocol


@pytest.mark.parametrize(
    ("nbytes", "protocol"),
    [
        (512, None),  # 128 elements are no 256 chunks
        (1024, "ll"),
        (65536, "ll"),
        (66560, None),  # 16640 elements are 65 times 256, and no 512 chunks
        (67584, "ll"),
        (522240, "ll"),
        (524288, "simple"),
        (20971520, "simple"),
        (20971520 + 2048, None),
    ],
)
def test_all_pairs_by_size(nbytes: int, protocol: str | None) -> None:
    algorithm, own = runs(board("mi300x-x8"), nbytes)
    assert algorithm == ("all_pairs" if protocol else "ring")
    assert protocol is None or own == protocol


@pytest.mark.parametrize(
    ("name", "told", "pairs"),
    [
        ("mi325x-x8", {}, True),
        ("mi300x-x8", {"version": "2.22.3"}, True),
        ("mi300x-x8", {"version": "2.27.7"}, True),
        ("mi300x-x8", {"version": "2.28.3"}, False),
        ("mi300x-x8", {"env": {"RCCL_MSCCL_ENABLE": "0"}}, False),
        ("mi300x-x8", {"env": {"NCCL_ALGO": "Ring"}}, True),  # MSCCL is asked before the tuner
        ("mi300x-x8", {"one_process": True}, False),
        (
            "mi300x-x8",
            {"one_process": True, "env": {"RCCL_MSCCL_ENABLE_SINGLE_PROCESS": "1"}},
            True,
        ),
        ("mi355x-x8", {}, False),
        ("mi355x-x8", {"env": {"RCCL_MSCCL_FORCE_ENABLE": "1"}}, True),
        (
            "mi355x-x8",
            {"env": {"RCCL_MSCCL_FORCE_ENABLE": "1", "RCCL_MSCCL_ENABLE": "0"}},
            False,
        ),
        ("dgx-h100", {"env": {"RCCL_MSCCL_FORCE_ENABLE": "1"}}, False),
    ],
)
def test_where_all_pairs_run(name: str, told: dict[str, Any], pairs: bool) -> None:
    assert (runs(board(name, **told), MIB)[0] == "all_pairs") is pairs


def test_all_pairs_are_all_reduces_of_a_whole_board_alone() -> None:
    assert runs(board("mi300x-x8"), MIB, ranks=4)[0] != "all_pairs"
    two = board("mi300x-x8", hosts=2)
    for group in (range(16), (0, 1, 2, 3, 8, 9, 10, 11)):
        lowered = lower_collective(two, "all_reduce", MIB, group)[-1]
        assert lowered.schedule.algorithm != "all_pairs"
    assert runs(board("mi300x-x8"), MIB, op="reduce_scatter")[0] != "all_pairs"


def test_all_pairs_copy_what_their_blocks_receive_and_add() -> None:
    """Of 8 MiB, 64 blocks take 128 KiB to scratch, add 7 x 16 KiB and copy 128 KiB of results."""
    here = board("mi300x-x8")
    lowered = lower_collective(here, "all_reduce", 8 * MIB, range(8))[-1]
    protocol = protocols_of(here.library, "all_pairs")["simple"]
    assert protocol.copy_rate is not None
    copied_bytes = 128 * 1024 + 7 * 16 * 1024 + 128 * 1024
    assert lowered.uneven_s == pytest.approx(copied_bytes / protocol.copy_rate)


@pytest.mark.parametrize(
    ("name", "ll_us", "simple_us", "simple_step_us"),
    [("mi300x-x8", 12.0, 17.0, 1.3), ("mi250x-x8", 12.0, 17.0, 2.8)],
)
def test_times_that_rccl_states_are_those_of_its_gpus(
    name: str, ll_us: float, simple_us: float, simple_step_us: float
) -> None:
    """A step of Simple is 2.1 and 3.6 us, 0.8 of which the topology has (hwLat, NVLINK)."""
    protocols = board(name).library.protocols
    assert protocols["ll"].launch == pytest.approx(ll_us * 1e-6)
    assert protocols["simple"].launch == pytest.approx(simple_us * 1e-6)
    assert protocols["simple"].step.nvlink == pytest.approx(simple_step_us * 1e-6)
