"""Max-min fair sharing: the properties that define it, exact water-filling, theory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology

Network = tuple[list[float], list[list[int]], list[float]]


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Links, routes (some cross a link twice or none at all) and caps."""
    links = draw(st.integers(1, 8))
    exact = st.integers(1, 20).map(float)
    size = st.one_of(exact, st.floats(0.01, 1e11))
    capacity = draw(st.lists(size, min_size=links, max_size=links))
    route = st.lists(st.integers(0, links - 1), min_size=0, max_size=4)
    routes = draw(st.lists(route, min_size=1, max_size=12))
    cap = st.one_of(st.just(np.inf), exact, st.floats(0.01, 1e11))
    caps = draw(st.lists(cap, min_size=len(routes), max_size=len(routes)))
    return capacity, routes, caps


def arrays(routes: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    pointers = np.concatenate([[0], np.cumsum([len(route) for route in routes])]).astype(np.int64)
    return pointers, np.array([arc for route in routes for arc in route], dtype=np.int64)


def shared(network: Network) -> list[float]:
    capacity, routes, caps = network
    return max_min_rates(np.array(capacity), *arrays(routes), np.array(caps)).tolist()


def water_filling(network: Network) -> list[Fraction | float]:
    """The textbook's algorithm in exact fractions: freeze one level after the other."""
    capacity, routes, caps = network
    rates: list[Fraction | float] = [float("inf")] * len(routes)
    still = {flow for flow, route in enumerate(routes) if route or caps[flow] < np.inf}
    left = [Fraction(c) for c in capacity]
    while still:
        users = [sum(routes[flow].count(arc) for flow in still) for arc in range(len(left))]
        shares = [left[arc] / users[arc] for arc in range(len(left)) if users[arc]]
        limits = [Fraction(caps[flow]) for flow in still if caps[flow] < np.inf]
        level = min(shares + limits)
        full = {arc for arc in range(len(left)) if users[arc] and left[arc] / users[arc] == level}
        frozen = {f for f in still if caps[f] == level or full.intersection(routes[f])}
        for flow in frozen:
            rates[flow] = level
            for arc in routes[flow]:
                left[arc] -= level
        still -= frozen
    return rates


@pytest.mark.slow
@given(networks())
def test_equal_to_exact_water_filling(network: Network) -> None:
    assert shared(network) == pytest.approx([float(r) for r in water_filling(network)], rel=1e-9)


@pytest.mark.slow
@given(networks())
def test_no_link_overflows_and_every_flow_has_a_bottleneck(network: Network) -> None:
    capacity, routes, caps = network
    rates = shared(network)
    load = np.zeros(len(capacity))
    for rate, route in zip(rates, routes, strict=True):
        np.add.at(load, route, rate)
    assert (load <= np.array(capacity) * (1 + 1e-9)).all()
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


@pytest.mark.slow
@given(networks(), st.randoms())
def test_the_order_of_flows_does_not_change_a_bit(network: Network, random: object) -> None:
    capacity, routes, caps = network
    order = list(range(len(routes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = shared((capacity, [routes[f] for f in order], [caps[f] for f in order]))
    assert [other[order.index(f)] for f in range(len(routes))] == shared(network)


def test_worked_by_hand() -> None:
    capacity = [1.0, 2.0, 3.0]
    routes = [[0], [0, 1], [1, 2], [2], [2]]
    caps = [np.inf, np.inf, np.inf, np.inf, 0.25]
    found = shared((capacity, routes, caps))
    assert found == pytest.approx([0.5, 0.5, 1.375, 1.375, 0.25])


def test_textbook_example() -> None:
    """One long flow over two links of 1 with one short flow on each: half for everyone."""
    assert shared(([1.0, 1.0], [[0, 1], [0], [1]], [np.inf] * 3)) == pytest.approx([0.5] * 3)


def test_a_flow_that_crosses_a_link_twice_pays_twice() -> None:
    assert shared(([6.0], [[0, 0], [0]], [np.inf] * 2)) == pytest.approx([2.0, 2.0])


def test_a_flow_without_links_is_free() -> None:
    assert shared(([1.0], [[]], [np.inf])) == [np.inf]
    assert shared(([1.0], [[]], [3.0])) == [3.0]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
def test_flows_on_one_link_finish_when_theory_says(
    switched_topology: Callable[..., Topology], sizes: list[int]
) -> None:
    """M flows that start together on a link of C: the k-th shortest, of size x_k, ends when all
    have sent x_k or their whole, whichever is less: sum of min(x_i, x_k), over C."""
    topology = switched_topology([1e9, 1e9], [0.0, 0.0])
    env = simpy.Environment()
    network = MessageNetwork(env, UncontendedTimer(Machine(topology, load_library("plain"))))
    ends = [0.0] * len(sizes)

    def end(which: int) -> Callable[[simpy.Event], None]:
        def note(_: simpy.Event) -> None:
            ends[which] = env.now

        return note

    streams = [network.stream((0,), np.inf, size) for size in sizes]
    for which, stream in enumerate(streams):
        stream.callbacks.append(end(which))
    env.run(until=env.all_of(streams))
    wanted = [sum(min(other, size) for other in sizes) / 1e9 for size in sizes]
    assert ends == pytest.approx(wanted, rel=1e-9)
    assert network.counted.wire_bytes[0] == pytest.approx(sum(sizes))
