"""Max-min fair sharing: the properties that define it, a brute-force reference, theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.simulate.fairness import max_min_few, max_min_rates


@st.composite
def networks(draw: st.DrawFn) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    links = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.integers(1, 20), min_size=links, max_size=links))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=12))
    cap = st.one_of(st.just(np.inf), st.integers(1, 15).map(float))
    caps = draw(st.lists(cap, min_size=len(routes), max_size=len(routes)))
    return np.array(capacity, dtype=float), routes, np.array(caps)


def shared(capacity: np.ndarray, routes: list[list[int]], caps: np.ndarray) -> np.ndarray:
    pointers = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    arcs = np.array([arc for route in routes for arc in route])
    return max_min_rates(capacity, pointers, arcs, caps)


def filled(capacity: np.ndarray, routes: list[list[int]], caps: np.ndarray) -> np.ndarray:
    """Raise all rates together in small steps until a link or a cap stops each: brute force."""
    rates = np.zeros(len(routes))
    growing = np.ones(len(routes), dtype=bool)
    step = 1 / 2520 / 4
    while growing.any():
        rates[growing] += step
        for flow in np.flatnonzero(growing):
            full = any(
                sum(rates[f] for f, r in enumerate(routes) if arc in r) > capacity[arc] - step / 2
                for arc in routes[flow]
            )
            if full or rates[flow] > caps[flow] - step / 2:
                growing[flow] = False
        step = max(step, 1e-4)
    return rates


@given(networks())
@settings(max_examples=200, deadline=None)
def test_no_link_overflows_and_every_flow_has_a_bottleneck(
    network: tuple[np.ndarray, list[list[int]], np.ndarray],
) -> None:
    capacity, routes, caps = network
    rates = shared(capacity, routes, caps)
    load = np.zeros(len(capacity))
    for rate, route in zip(rates, routes, strict=True):
        load[route] += rate
    assert (load <= capacity * (1 + 1e-9)).all()
    for flow, route in enumerate(routes):
        capped = rates[flow] >= caps[flow] * (1 - 1e-9)
        throttled = any(
            load[arc] >= capacity[arc] * (1 - 1e-9)
            and all(
                rates[flow] >= rates[other] * (1 - 1e-9)
                for other, r in enumerate(routes)
                if arc in r
            )
            for arc in route
        )
        assert capped or throttled


@given(networks())
@settings(max_examples=100, deadline=None)
def test_the_small_solver_gives_the_same(
    network: tuple[np.ndarray, list[list[int]], np.ndarray],
) -> None:
    capacity, routes, caps = network
    few = max_min_few(capacity.tolist(), routes, caps.tolist())
    assert few == pytest.approx(shared(capacity, routes, caps).tolist(), rel=1e-9)


def test_equal_to_brute_force() -> None:
    capacity = np.array([1.0, 2.0, 3.0])
    routes = [[0], [0, 1], [1, 2], [2], [2]]
    caps = np.array([np.inf, np.inf, np.inf, np.inf, 0.25])
    found = shared(capacity, routes, caps)
    assert found == pytest.approx(filled(capacity, routes, caps), abs=5e-3)
    assert found == pytest.approx([0.5, 0.5, 1.375, 1.375, 0.25])


def test_textbook_example() -> None:
    """One long flow over two links of 1 with one short flow on each: half for everyone."""
    assert shared(np.ones(2), [[0, 1], [0], [1]], np.full(3, np.inf)) == pytest.approx([0.5] * 3)


def test_a_flow_that_crosses_a_link_twice_pays_twice() -> None:
    assert shared(np.array([6.0]), [[0, 0], [0]], np.full(2, np.inf)) == pytest.approx([2.0, 2.0])


def test_a_flow_without_links_is_free() -> None:
    rates = max_min_rates(np.ones(1), np.array([0, 0]), np.zeros(0, dtype=int))
    assert np.isinf(rates).all()
