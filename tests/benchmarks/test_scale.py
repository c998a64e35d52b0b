"""Speed at scale: ``pytest -m benchmarks``. Answers are checked, times are only measured.

``python reports/benchmarks/run.py`` makes the whole table, with its targets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))

from benchmarks.growth import fitted
from benchmarks.measures import contended_ring, odd_cluster, sends_of
from benchmarks.one_step import question
from oracle.peers_tables import MiB, cluster, ring_machine
from oracle.scenes import Launch, Scene, collective, play

from perfmodel.collectives.catalog import bus_factor
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import run_scenario

pytestmark = pytest.mark.benchmarks
Benchmark = Callable[..., float]


@pytest.mark.parametrize("gpus", [1024, 16384])
def test_ddp_step(benchmark: Benchmark, gpus: int) -> None:
    """GPT-2 XL in buckets of 25 MiB; cluster and plan built anew."""

    def answer() -> float:
        asked = question(gpus)
        return simulate(asked.plan, asked.machine).step_time_s

    assert benchmark(answer) > 0


@pytest.mark.parametrize("fabric", ["fat-tree", "rail-optimised"])
@pytest.mark.parametrize("nodes", [512, 513, 2048])
def test_a_slow_rank_leaves_the_network_alone(
    benchmark: Benchmark, nodes: int, fabric: str
) -> None:
    """Slower by a ten-millionth, on up to 16,384 GPUs: the same step, at every size."""
    changed = ("scale=null", f"cluster.nodes={nodes}", f"cluster.fabric={fabric}")
    event = "events=[{slow: {ranks: [3], by: 1.0000001}}]"

    def step_s(*more: str) -> float:
        scenario = load_scenario("resnet50-dgx-a100", (*changed, *more))
        return run_scenario(scenario).points[0].step_time_s

    assert benchmark(lambda: step_s(event)) == pytest.approx(step_s(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "algorithm", "wanted_us"),
    [(ring_machine, "ring", 5143.32), (cluster, "hierarchical", 1443.549)],
)
def test_4096_ranks(
    benchmark: Benchmark, make: Callable[[int], Machine], algorithm: str, wanted_us: float
) -> None:
    """All-reduce of 25 MiB; the answers are SimGrid's."""
    topology, library = make(4096).topology, make(4096).library

    def answer() -> float:
        machine = Machine(topology, library)
        way = collective(machine, "all_reduce", 25 * MiB, range(4096), algorithm)
        return play("flow", Scene("", "", machine, (Launch(0.0, way, "all_reduce", 4096),)))[0]

    assert benchmark(answer) * 1e6 == pytest.approx(wanted_us, rel=1e-6)


def test_1024_unlike_gpus(benchmark: Benchmark) -> None:
    topology, library = odd_cluster(1024), load_library("nccl")

    def answer() -> float:
        machine = Machine(topology, library)
        return UncontendedTimer(machine).best("all_reduce", 25 * MiB, range(1024))[1]

    eight_NICs_Bps = 8 * 2 * 25e9  # none is more than twice as quick as it was
    assert benchmark(answer) > bus_factor("all_reduce", 128) * 25 * MiB / eight_NICs_Bps


@pytest.mark.parametrize("ranks", [16, 48])
def test_messages_that_share_a_link(benchmark: Benchmark, ranks: int) -> None:
    scene = contended_ring(ranks)
    trunk_s = sends_of(ranks) * 4e4 / 2e11
    assert benchmark(lambda: play("message", scene)[0]) >= trunk_s


def test_an_exponent_is_found_again() -> None:
    sizes = np.array([10.0, 30, 100, 300, 1000])
    fit = fitted(sizes.tolist(), (3e-6 * sizes**1.5).tolist())
    assert fit.exponent == pytest.approx(1.5)
    assert fit.half_width < 1e-6
