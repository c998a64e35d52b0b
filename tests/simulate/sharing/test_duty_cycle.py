"""Links of edges that work by turns: each meets those that work when it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import Stage
from perfmodel.simulate.sharing.duty_cycle import duty_cycle_rates


def stage_of(routes: list[list[int]], works: list[list[tuple[int, int]]]) -> Stage:
    """Edges over links; phase by phase, the repeats in which each works: first and how many."""
    count = len(routes)
    ranks, none = np.arange(count), np.zeros(count)
    phases = tuple(
        Phase(
            "", ranks, ranks + 1, ranks * 0, none + 1.0, 1 + max(f + a for f, a in part),
            np.array([f for f, _ in part]), np.array([a for _, a in part]),
        )
        for part in works
    )  # fmt: skip
    edges = Edges(
        ranks, ranks + 1, np.cumsum([0, *map(len, routes)]),
        np.array([arc for route in routes for arc in route], dtype=np.int64),
        none, none + np.inf, ranks * 0, staged=False,
    )  # fmt: skip
    return Stage(phases, edges, none, none + np.inf, none + 1.0)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_shares_are_those_counted_repeat_by_repeat(data: st.DataObject) -> None:
    links = data.draw(st.integers(1, 5))
    route = st.lists(st.integers(0, links - 1), max_size=4, unique=True)
    routes = data.draw(st.lists(route, min_size=1, max_size=7))
    span = st.tuples(st.integers(0, 9), st.integers(1, 9))
    works = data.draw(
        st.lists(st.lists(span, min_size=len(routes), max_size=len(routes)), min_size=1, max_size=3)
    )
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
