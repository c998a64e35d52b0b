"""Speed of fidelity "message" and of fair sharing (``pytest -m benchmarks``); no time is asserted.

Every figure says what was contended for. `extra_info` of each benchmark holds sends (or rates) per
second of the best round; numba, where installed, is measured beside the interpreter.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy

from perfmodel.collectives.algorithms.ring import all_reduce
from perfmodel.collectives.timing.recurrence import schedule_s
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology

pytestmark = pytest.mark.benchmarks
HAS_NUMBA = importlib.util.find_spec("numba") is not None
COMPILED = pytest.mark.parametrize(
    "compiled",
    [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_NUMBA, reason="needs numba"))],
    ids=["interpreted", "compiled"],
)
CASES: Mapping[str, tuple[str, str, str]] = {
    "four rings, four NICs a host": ("dgx1-v100", "one-switch", "all_reduce"),
    "eight rings, a NIC for each GPU": ("dgx-a100", "rail-optimised", "all_reduce"),
    "all to all, two GPUs a NIC": ("dgx1-v100", "one-switch", "all_to_all"),
}
"""64 ranks over 8 hosts; cables of unlike speeds, 50 to 100 % of the datasheet's."""


def unlike(topology: Topology, seed: int = 1) -> Topology:
    """The same machine, every cable of its fabric at a speed of its own."""
    rng = np.random.default_rng(seed)
    bandwidth_Bps = topology.arcs.bandwidth_Bps.copy()
    cables = [
        at for at, kind in enumerate(topology.arcs.kinds) if kind in {"ethernet", "infiniband"}
    ]
    bandwidth_Bps[cables] *= rng.uniform(0.5, 1.0, len(cables))
    return topology.with_arcs(replace(topology.arcs, bandwidth_Bps=bandwidth_Bps))


@COMPILED
@pytest.mark.parametrize("case", CASES)
def test_sends_with_contention(benchmark: Any, case: str, compiled: bool) -> None:
    """25 MiB among 64 ranks. Rings and routes are laid beforehand, the sends' tables too."""
    template, fabric, op = CASES[case]
    topology = unlike(build_topology(template, hosts=8, fabric=fabric))
    timer = UncontendedTimer(Machine(topology, load_library("plain")))
    way = timer.best(op, 25 << 20, range(64))[0]
    env = simpy.Environment()
    network = MessageNetwork(env, timer, compiled=compiled, recalls=False, by_rounds=False)

    def run() -> None:
        env.run(until=network.launch([way]))

    run()
    landed, solved = network.counts
    benchmark(run)
    best_s = benchmark.stats.stats.min
    benchmark.extra_info |= {
        "sends": landed,
        "sends_per_s": round(landed / best_s),
        "rates_solved_per_send": round(solved / landed, 2),
        "rates_solved_per_s": round(solved / best_s),
    }


@COMPILED
def test_sends_from_nothing(benchmark: Any, compiled: bool) -> None:
    """The first case with everything that a single run needs: dependencies, tables, simulation."""
    template, fabric, op = next(iter(CASES.values()))
    timer = UncontendedTimer(
        Machine(unlike(build_topology(template, hosts=8, fabric=fabric)), load_library("plain"))
    )
    way = timer.best(op, 25 << 20, range(64))[0]

    def run() -> int:
        env = simpy.Environment()
        network = MessageNetwork(env, timer, compiled=compiled, recalls=False, by_rounds=False)
        env.run(until=network.launch([way]))
        return network.counts[0]

    landed = benchmark(run)
    benchmark.extra_info["sends_per_s"] = round(landed / benchmark.stats.stats.min)


@pytest.mark.parametrize("flows", [100, 1_000, 10_000, 100_000])
def test_rates_solved(benchmark: Any, flows: int) -> None:
    """`max_min_rates`: flows over 4 of flows / 4 links each, a third of them capped."""
    rng = np.random.default_rng(1)
    links = max(4, flows // 4)
    capacity = rng.uniform(1e9, 5e10, links)
    arcs = rng.integers(0, links, 4 * flows)
    pointers = np.arange(0, 4 * flows + 1, 4)
    caps = np.where(rng.random(flows) < 1 / 3, rng.uniform(1e8, 1e10, flows), np.inf)
    solve: Callable[[], Any] = lambda: max_min_rates(capacity, pointers, arcs, caps)  # noqa: E731
    solve()
    benchmark(solve)
    benchmark.extra_info["rates_per_s"] = round(flows / benchmark.stats.stats.min)


@pytest.mark.parametrize("ranks", [512, 4096])
@pytest.mark.parametrize("credits", [1, 2])
def test_sends_of_the_recurrence(benchmark: Any, ranks: int, credits: int) -> None:
    """Sends of a ring whose edges are all unlike and share nothing: no event at all."""
    rng = np.random.default_rng(1)
    schedule = all_reduce(ranks, ranks * 4096)
    rate, delay = rng.uniform(1e9, 5e10, ranks), rng.uniform(1e-7, 1e-5, ranks)
    benchmark(lambda: schedule_s(schedule.phases, rate, delay, credits=credits))
    sends = 2 * (ranks - 1) * ranks
    benchmark.extra_info |= {
        "sends": sends,
        "sends_per_s": round(sends / benchmark.stats.stats.min),
    }
