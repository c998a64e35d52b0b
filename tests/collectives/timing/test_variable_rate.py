"""Sends at rates that change in mid-transfer: equal to following every edge, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import ring
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.unrolled import prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks

Change = tuple[float, np.ndarray, np.ndarray]


def sent(start_s: float, nbytes: float, edge: int, changes: list[Change]) -> tuple[float, float]:
    """When a send has left and when it lands: straight along the changes of its edge's rate."""
    at_s = start_s
    for (_, rate, late), after in zip(changes, [*changes[1:], None], strict=True):
        until_s = np.inf if after is None else after[0]
        if at_s > until_s:
            continue
        end_s = at_s + nbytes / rate[edge] if nbytes > 0 else at_s
        if end_s <= until_s:
            return end_s, end_s + late[edge]
        nbytes -= (until_s - at_s) * rate[edge]
        at_s = until_s
    raise AssertionError("unreachable")


def stepped_ring_s(
    steps: int, ranks: int, chunk: float, credits: int, changes: list[Change]
) -> float:
    """A ring, send by send, straight from the rules."""
    free, delivered = np.zeros((steps, ranks)), np.zeros((steps, ranks))
    for step in range(steps):
        for edge in range(ranks):
            start = max(delivered[step - 1][edge - 1], free[step - 1][edge]) if step else 0.0
            if step >= credits:
                start = max(start, delivered[step - credits][edge])
            free[step][edge], delivered[step][edge] = sent(start, chunk, edge, changes)
    return float(delivered.max())


def drawn_changes(rng: np.random.Generator, ranks: int, whole_s: float, count: int) -> list[Change]:
    times = [-np.inf, *np.sort(rng.uniform(0, whole_s, count))]
    alike = rng.integers(2)  # all edges change, or one
    actual: list[Change] = []
    for at_s in times:
        rate, late = rng.uniform(1e9, 9e9, ranks), rng.uniform(0, 1e-5, ranks)
        if actual and not alike:
            rate, late = actual[-1][1].copy(), actual[-1][2]
            rate[rng.integers(ranks)] *= rng.uniform(0.1, 2)
        actual.append((float(at_s), rate, late))
    return actual


@given(
    ranks=st.integers(2, 12),
    credits=st.sampled_from([1, 2, 5]),
    count=st.integers(0, 12),
    rings=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_ring_whose_rates_change(
    ranks: int, credits: int, count: int, rings: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    schedule = ring.all_reduce(ranks, rings * ranks * 40_000, orders=[list(range(ranks))] * rings)
    changes = drawn_changes(rng, ranks, 2 * ranks * 2e-5, count)
    clocks = Clocks(
        prepare_phases(schedule.phases, credits),
        np.zeros(rings * ranks),
        LinkRates(-np.inf, np.tile(changes[0][1], rings), np.tile(changes[0][2], rings)),
    )
    for at_s, rate, late in changes[1:]:
        clocks.change(at_s, np.tile(rate, rings), np.tile(late, rings))
    expected = stepped_ring_s(2 * (ranks - 1), ranks, 40_000, credits, changes)
    assert clocks.ends().last_s == pytest.approx(expected, rel=1e-9)


@given(ranks=st.integers(2, 9), credits=st.sampled_from([1, 3]), seed=st.integers(0, 2**32 - 1))
def test_a_change_to_the_same_is_none(ranks: int, credits: int, seed: int) -> None:
    """Rings and chains; also at times at which a cycle was leapt over."""
    rng = np.random.default_rng(seed)
    for schedule in (
        ring.all_reduce(ranks, ranks * 4000),
        ring.broadcast(ranks, 400_000, root=0, piece_bytes=40_000),
    ):
        edges = len(schedule.phases[0].src)
        rate, late = rng.uniform(1e9, 9e9, edges), rng.uniform(0, 1e-5, edges)
        course = prepare_phases(schedule.phases, credits)
        plain = Clocks(course, np.zeros(edges), LinkRates(-np.inf, rate, late)).ends()
        broken = Clocks(course, np.zeros(edges), LinkRates(-np.inf, rate, late))
        for at_s in np.sort(rng.uniform(0, plain.last_s, 5)):
            broken.change(float(at_s), rate, late)
        assert broken.ends().last_s == pytest.approx(plain.last_s, rel=1e-12)
        assert broken.ends().wire_s == pytest.approx(plain.wire_s, rel=1e-12)
        assert (broken.left() < 1).any() or ranks == 2 or plain.last_s == 0


def test_nothing_ends_while_a_link_carries_nothing() -> None:
    schedule = ring.all_reduce(4, 16_000)
    clocks = Clocks(
        prepare_phases(schedule.phases, 1),
        np.zeros(4),
        LinkRates(-np.inf, np.full(4, 1e9), np.zeros(4)),
    )
    still = np.array([1e9, 0.0, 1e9, 1e9])
    clocks.change(10e-6, still, np.zeros(4))
    assert np.isinf(clocks.ends().wire_s)
    clocks.change(30e-6, np.full(4, 1e9), np.zeros(4))
    assert clocks.ends().wire_s == pytest.approx(24e-6 + 20e-6)


def test_many_changes_lose_no_bytes() -> None:
    """More changes than are kept, in one send: what is sent is their sum."""
    schedule = ring.all_gather(2, 8_000_000)
    clocks = Clocks(
        prepare_phases(schedule.phases, 1),
        np.zeros(2),
        LinkRates(-np.inf, np.full(2, 1e9), np.zeros(2)),
    )
    for number in range(1, 101):
        clocks.change(number * 20e-6, np.full(2, 1e9 if number % 2 == 0 else 3e9), np.zeros(2))
    # 50 spans of 20 us at 1 GB/s and 50 at 3 GB/s send 4 MB in 2 ms, which is all.
    assert clocks.ends().wire_s == pytest.approx(2e-3)
