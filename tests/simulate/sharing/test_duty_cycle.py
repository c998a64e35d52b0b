"""Links of edges that work by turns: each meets those that work when it does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.arrays import FloatArray
from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.lowered import Edges, Stage
from perfmodel.simulate.sharing import duty_cycle
from perfmodel.simulate.sharing.duty_cycle import UseOrders

Spans = list[tuple[int, int]]
"""Of each edge: the first repeat in which it works, and in how many."""


def duty_cycle_rates(
    capacity_Bps: FloatArray, stage: Stage, orders: UseOrders | None = None
) -> FloatArray:
    known = UseOrders() if orders is None else orders
    return duty_cycle.duty_cycle_rates(capacity_Bps, stage, known).of_edges()


def fill_and_drain_rates(
    capacity_Bps: FloatArray, stage: Stage, orders: UseOrders | None = None
) -> FloatArray:
    known = UseOrders() if orders is None else orders
    return duty_cycle.fill_and_drain_rates(capacity_Bps, stage, known).of_edges()


def spans_of(edges: int) -> st.SearchStrategy[Spans]:
    """Edges that work for different times, or, as the pieces of a pipeline, for the same."""
    first, active = st.integers(0, 9), st.integers(1, 12)

    def all_for(repeats: int) -> st.SearchStrategy[Spans]:
        return st.lists(st.tuples(first, st.just(repeats)), min_size=edges, max_size=edges)

    unlike = st.lists(st.tuples(first, active), min_size=edges, max_size=edges)
    return st.one_of(unlike, active.flatmap(all_for))


def stage_of(routes: list[list[int]], works: list[Spans]) -> Stage:
    """Edges over links; phase by phase, the repeats in which each works."""
    count = len(routes)
    ranks, none = np.arange(count), np.zeros(count)
    phases = tuple(
        Phase(
            "",
            ranks,
            ranks + 1,
            ranks * 0,
            none + 1.0,
            1 + max(f + a for f, a in part),
            np.array([f for f, _ in part]),
            np.array([a for _, a in part]),
        )
        for part in works
    )
    edges = Edges(
        ranks,
        ranks + 1,
        np.cumsum([0, *map(len, routes)]),
        np.array([arc for route in routes for arc in route], dtype=np.int64),
        none,
        none + np.inf,
        ranks * 0,
        staged=False,
    )
    return Stage(phases, edges, none, none + np.inf, none + 1.0)


@pytest.mark.slow
@given(st.data())
def test_shares_are_those_counted_repeat_by_repeat(data: st.DataObject) -> None:
    links = data.draw(st.integers(1, 5))
    route = st.lists(st.integers(0, links - 1), max_size=4, unique=True)
    routes = data.draw(st.lists(route, min_size=1, max_size=7))
    works = data.draw(st.lists(spans_of(len(routes)), min_size=1, max_size=3))
    capacity = np.arange(1.0, links + 1)
    got = duty_cycle_rates(capacity, stage_of(routes, works))
    for edge, mine in enumerate(routes):
        wanted = np.inf
        for arc in mine:
            users = [other for other, theirs in enumerate(routes) if arc in theirs]
            met = sum(
                first <= repeat < first + active
                for part in works
                for repeat in range(part[edge][0], sum(part[edge]))
                for first, active in (part[user] for user in users)
            )
            own = sum(part[edge][1] for part in works)
            wanted = min(wanted, capacity[arc] / max(1.0, met / own))
        assert got[edge] == pytest.approx(wanted, rel=1e-12)


def test_taking_turns_costs_nothing_and_meeting_half_the_time_a_third() -> None:
    """Three edges on a link of 6: the first two overlap in half of their repeats."""
    stage = stage_of([[0], [0], [0]], [[(0, 4), (2, 4), (6, 1)]])
    assert duty_cycle_rates(np.array([6.0]), stage) == pytest.approx([4.0, 4.0, 6.0])


@pytest.mark.slow
@given(st.data())
def test_pipelines_fill_and_drain_as_counted_in_their_first_and_last_repeats(
    data: st.DataObject,
) -> None:
    route = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
    routes = data.draw(st.lists(route, min_size=1, max_size=7))
    works = data.draw(spans_of(len(routes)))
    capacity = np.arange(1.0, 5.0)
    got = fill_and_drain_rates(capacity, stage_of(routes, [works]))

    def users(arc: int, repeat: int) -> int:
        spans = (works[other] for other, theirs in enumerate(routes) if arc in theirs)
        return sum(first <= repeat < first + active for first, active in spans)

    for edge, mine in enumerate(routes):
        first, active = works[edge]
        expected = min(
            capacity[arc] / min(users(arc, first), users(arc, first + active - 1)) for arc in mine
        )
        assert got[edge] == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)
@given(st.data())
def test_sizes_share_the_order_of_their_uses(data: st.DataObject) -> None:
    """More pieces over the same edges: as if nothing had been put in order before."""
    routes = data.draw(st.lists(st.lists(st.integers(0, 2), unique=True), min_size=2, max_size=6))
    stage, orders = stage_of(routes, [data.draw(spans_of(len(routes)))]), UseOrders()
    capacity = np.ones(3)
    for more in (0, 3, 40):
        phase = replace(stage.phases[0], active=stage.phases[0].active + more)
        larger = replace(stage, phases=(phase,))
        for rates in (duty_cycle_rates, fill_and_drain_rates):
            assert rates(capacity, larger, orders) == pytest.approx(rates(capacity, larger))
    assert len(orders) == 1


def test_an_edge_that_begins_when_another_is_over_does_not_meet_it() -> None:
    """The second edge is alone in its first repeat, and shares its last with the third."""
    stage = stage_of([[0], [0], [0]], [[(0, 2), (2, 2), (3, 2)]])
    assert fill_and_drain_rates(np.array([6.0]), stage) == pytest.approx([6.0, 6.0, 6.0])
