"""Unlike rings by their heaviest walk: equal to stepping through them."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.collectives.algorithms import ring
from perfmodel.collectives.timing.critical_path import chains_s, ring_s, rings_s
from perfmodel.collectives.timing.recurrence import TimedPhases, leg_ends
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.unrolled import prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks


def stepped_s(
    hold: np.ndarray, latency: np.ndarray, repeat: int, credits: int, *, sent: bool = False
) -> float:
    """The recurrence that `perfmodel.collectives.timing.recurrence` states, send by send."""
    free = np.zeros(len(hold))
    delivered = deque([np.zeros(len(hold))] * credits, maxlen=credits)
    for _ in range(repeat):
        start = np.maximum(np.maximum(np.roll(delivered[-1], 1), free), delivered[0])
        free = start + hold
        delivered.append(free + latency)
    return float((free if sent else delivered[-1]).max())


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    edges=st.integers(2, 40),
    credits=st.integers(2, 8),
    repeat=st.integers(1, 90),
    kinds=st.integers(1, 4),
    spread=st.floats(-2, 2),
    sent=st.booleans(),
)
def test_the_heaviest_walk_is_the_time(
    seed: int, edges: int, credits: int, repeat: int, kinds: int, spread: float, sent: bool
) -> None:
    """Rings of a few kinds of edges, from all hold to all latency."""
    rng = np.random.default_rng(seed)
    hold = rng.choice(rng.exponential(1, kinds), edges)
    latency = rng.choice(rng.exponential(10**spread, kinds), edges)
    actual = ring_s(hold, latency, repeat, credits, sent=sent)
    assume(actual is not None)
    assert actual == pytest.approx(stepped_s(hold, latency, repeat, credits, sent=sent), rel=1e-12)


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    edges=st.integers(256, 1000),
    credits=st.integers(2, 8),
    turns=st.sampled_from([1, 2, 3]),
    kinds=st.integers(1, 1000),
    spread=st.floats(-2, 2),
    hosts=st.booleans(),
)
def test_long_unlike_rings_are_told_as_they_are_stepped_or_not_at_all(
    seed: int, edges: int, credits: int, turns: int, kinds: int, spread: float, hosts: bool
) -> None:
    """Edges of few or of many kinds, in any order or host after host alike."""
    rng = np.random.default_rng(seed)
    hold, latency = (rng.choice(rng.exponential(size, kinds), edges) for size in (1.0, 10**spread))
    if hosts:
        edges -= edges % 16
        hold, latency = (np.resize(part[:16], edges) for part in (hold, latency))
    for sent in (False, True):
        actual = ring_s(hold, latency, turns * (edges - 1), credits, sent=sent)
        expected = stepped_s(hold, latency, turns * (edges - 1), credits, sent=sent)
        assert actual is None or actual == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(256, 400),
    rings=st.integers(1, 3),
    credits=st.integers(2, 8),
    chained=st.booleans(),
)
def test_long_legs_end_as_if_they_were_stepped(
    seed: int, ranks: int, rings: int, credits: int, chained: bool
) -> None:
    """Whole rings and chains, of unlike edges; chunks are all of one size."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(ranks) for _ in range(rings)]
    plan = ring.broadcast if chained else ring.all_reduce
    phases = plan(ranks, ranks * rings * 4096, orders=orders).phases
    rate = rng.choice([1e9, 3e9, 2e10], len(phases[0].src))
    latency = rng.choice([1e-6, 4e-6, 4e-5], len(rate))
    own = leg_ends(TimedPhases(phases, rate, latency), credits)
    course = prepare_phases(phases, credits)
    stepped = Clocks(course, np.zeros(len(rate)), LinkRates(-np.inf, rate, latency)).ends()
    assert own.last_s == pytest.approx(stepped.last_s, rel=1e-9)
    assert own.wire_s == pytest.approx(stepped.wire_s, rel=1e-9)
    if chained:
        assert own.landed_s == pytest.approx(stepped.landed_s, rel=1e-9)


def test_what_cannot_be_told_is_rare_and_said() -> None:
    rng = np.random.default_rng(1)
    unknown = 0
    for _ in range(500):
        hold, latency = rng.exponential(1, 24), rng.exponential(5, 24)
        unknown += ring_s(hold, latency, 46, 4) is None
    assert 0 < unknown < 50


def test_one_slow_edge_by_hand() -> None:
    """N = 4, two credits: staying on the slow edge is worth 6 a step, any other step 2."""
    hold, latency = np.array([1.0, 1.0, 6.0, 1.0]), np.ones(4)
    assert ring_s(hold, latency, 6, 2) == pytest.approx(6 * 6 + 1)
    assert stepped_s(hold, latency, 6, 2) == pytest.approx(37)


def test_a_period_stands_for_the_whole_ring() -> None:
    hold, latency = np.array([1.0, 3.0, 2.0]), np.array([5.0, 1.0, 9.0])
    whole = ring_s(np.tile(hold, 8), np.tile(latency, 8), 46, 3)
    assert whole == pytest.approx(ring_s(hold, latency, 46, 3))
    assert whole == pytest.approx(stepped_s(np.tile(hold, 8), np.tile(latency, 8), 46, 3))


def test_sends_that_differ_by_a_few_bytes_are_bracketed() -> None:
    """An all-reduce whose chunks are not all of one size; each edge and phase sends its own."""
    ranks, credits = 40, 4
    phases = ring.all_reduce(ranks, 40_000_028, itemsize=4).phases
    rng = np.random.default_rng(2)
    rate = rng.choice([1e9, 3e9], ranks)
    latency = rng.choice([1e-6, 4e-5], ranks)
    actual = rings_s(phases, 1, rate, latency, credits)
    assert actual is not None
    free, delivered = np.zeros(ranks), deque([np.zeros(ranks)] * credits, maxlen=credits)
    for phase in phases:
        for _ in range(phase.repeat):
            start = np.maximum(np.maximum(np.roll(delivered[-1], 1), free), delivered[0])
            free = start + phase.nbytes / rate
            delivered.append(free + latency)
    assert actual[1] == pytest.approx(float(delivered[-1].max()), rel=1e-6)
    assert actual[0] == pytest.approx(float(free.max()), rel=1e-6)


@pytest.mark.parametrize("credits", [1, 2, 3, 8])
@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_a_pipeline_crosses_every_edge_and_waits_on_the_slowest(op: str, credits: int) -> None:
    """Send by send: chunk k leaves edge e when it is there, the wire is free and a credit is."""
    rng = np.random.default_rng(credits)
    for ranks in (2, 3, 9, 17):
        orders = [list(range(ranks)), [0, *range(ranks - 1, 0, -1)]]
        phase = getattr(ring, op)(ranks, 64 << 20, root=0, itemsize=4, orders=orders).phases[0]
        rate = rng.choice([1e9, 5e9, 2e10], len(phase.src))
        latency = rng.choice([1e-6, 1e-4, 3e-3], len(phase.src))
        actual = chains_s(phase, rate, latency, credits)
        assert actual is not None
        chunks, last = int(phase.active[0]), 0.0
        hold = (phase.nbytes / rate).reshape(2, -1)
        for held, late in zip(hold, latency.reshape(2, -1), strict=True):
            arrived = np.zeros(chunks)
            for wire, delay in zip(held, late, strict=True):
                free, before = 0.0, arrived
                arrived = np.zeros(chunks)
                for k in range(chunks):
                    credit = arrived[k - credits] if k >= credits else 0.0
                    free = max(before[k], free, credit) + wire
                    arrived[k] = free + delay
            last = max(last, arrived[-1])
        assert actual[1].max() == pytest.approx(last, rel=1e-12)
