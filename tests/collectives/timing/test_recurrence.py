"""The max-plus recurrence: equal to stepping through every send, whatever shortcut it takes."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import ring
from perfmodel.collectives.timing.recurrence import schedule_s


def stepped_s(
    ranks: int, chunk: float, rate: np.ndarray, latency: np.ndarray, credits: int
) -> float:
    """A ring all-reduce, send by send, straight from the rules."""
    steps = 2 * (ranks - 1)
    delivered = np.zeros((steps, ranks))
    free = np.zeros((steps, ranks))
    for step in range(steps):
        for edge in range(ranks):
            start = max(delivered[step - 1][edge - 1], free[step - 1][edge]) if step else 0.0
            if step >= credits:
                start = max(start, delivered[step - credits][edge])
            free[step][edge] = start + chunk / rate[edge]
            delivered[step][edge] = free[step][edge] + latency[edge]
    return float(delivered.max())


@given(
    ranks=st.integers(2, 24),
    period=st.sampled_from([0, 1, 2, 3, 4]),
    credits=st.sampled_from([1, 2, 3, 8, 100]),
    rings=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_ring_recurrence_equals_stepping(
    ranks: int, period: int, credits: int, rings: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    length = period if period and ranks % period == 0 else ranks
    rate = np.tile(rng.uniform(1e9, 9e9, length), ranks // length)
    latency = np.tile(rng.uniform(0, 1e-4, length), ranks // length)
    schedule = ring.all_reduce(ranks, rings * ranks * 4000, orders=[list(range(ranks))] * rings)
    actual = schedule_s(
        schedule.phases, np.tile(rate, rings), np.tile(latency, rings), credits=credits
    )
    assert actual == pytest.approx(stepped_s(ranks, 4000, rate, latency, credits), rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 512])
def test_uniform_links_give_the_closed_form(ranks: int, theory: ModuleType) -> None:
    schedule = ring.all_reduce(ranks, ranks * 4096)
    rate, latency = np.full(ranks, 50e9), np.full(ranks, 5e-7)
    actual = schedule_s(schedule.phases, rate, latency, credits=1)
    expected = theory.ring_all_reduce_s(ranks, ranks * 4096, alpha_s=5e-7, beta_s_per_B=1 / 50e9)
    assert actual == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("credits", "wanted_us"), [(1, 316.7), (16, 88.7)])
def test_one_slow_edge_blocking_and_pipelined(credits: int, wanted_us: float) -> None:
    """N = 8, 1 MiB, 50 GB/s, 1 us everywhere and 20 us on one edge: worked out by hand.

    Blocking: 14 steps of 20 us + 2.62 us. Pipelined: 14 chunks of 2.62 us, 12 fast hops, 2 slow.
    """
    latency = np.full(8, 1e-6)
    latency[3] = 20e-6
    phases = ring.all_reduce(8, 1 << 20).phases
    actual = schedule_s(phases, np.full(8, 50e9), latency, credits=credits)
    assert actual * 1e6 == pytest.approx(wanted_us, abs=0.05)


@given(
    ranks=st.integers(2, 9),
    pieces=st.integers(1, 9),
    credits=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_chain_recurrence_equals_stepping(ranks: int, pieces: int, credits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate, latency = rng.uniform(1e9, 9e9, ranks - 1), rng.uniform(0, 1e-4, ranks - 1)
    schedule = ring.broadcast(ranks, pieces * 400, piece_bytes=400)
    delivered = np.zeros((pieces, ranks - 1))
    free = np.zeros((pieces, ranks - 1))
    for piece in range(pieces):
        for hop in range(ranks - 1):
            start = delivered[piece][hop - 1] if hop else 0.0
            start = max(start, free[piece - 1][hop] if piece else 0.0)
            if piece >= credits:
                start = max(start, delivered[piece - credits][hop])
            free[piece][hop] = start + 400 / rate[hop]
            delivered[piece][hop] = free[piece][hop] + latency[hop]
    actual = schedule_s(schedule.phases, rate, latency, credits=credits)
    assert actual == pytest.approx(float(delivered.max()), rel=1e-12)


def test_uniform_chain_gives_the_closed_form(theory: ModuleType) -> None:
    schedule = ring.reduce(6, 4000, piece_bytes=400)
    actual = schedule_s(schedule.phases, np.full(5, 1e9), np.full(5, 1e-6), credits=1)
    expected = theory.chain_s(6, 4000, pieces=10, alpha_s=1e-6, beta_s_per_B=1e-9)
    assert actual == pytest.approx(expected, rel=1e-12)


def test_nothing_to_do_takes_no_time() -> None:
    assert schedule_s((), np.zeros(0), np.zeros(0), credits=1) == 0.0


@given(ranks=st.integers(2, 40), nbytes=st.integers(1, 10**6), seed=st.integers(0, 10**6))
def test_no_time_beats_the_bounds(ranks: int, nbytes: int, seed: int, theory: ModuleType) -> None:
    rng = np.random.default_rng(seed)
    size = nbytes * 4
    rate, latency = rng.uniform(1e9, 9e9, ranks), rng.uniform(1e-7, 1e-5, ranks)
    actual = schedule_s(ring.all_reduce(ranks, size).phases, rate, latency, credits=8)
    cut = theory.egress_bound_s("all_reduce", ranks, size - 4 * ranks, float(rate.min()))
    assert actual >= cut * (1 - 1e-9)
    assert actual >= theory.latency_bound_s("all_reduce", ranks, float(latency.min()))
