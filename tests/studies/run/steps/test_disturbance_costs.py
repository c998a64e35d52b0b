"""What each disturbance costs: the step without it is simulated only where something costs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.studies.run.steps.one_size import cost_of


@pytest.mark.parametrize(
    ("costs_s", "asked"), [((0.0, 0.0, 0.0), 1), ((0.1, 0.0, 0.002), 4), ((1e-6, 0.0, 0.0), 4)]
)
def test_the_step_is_simulated_without_each_where_all_cost_something(
    costs_s: tuple[float, ...], asked: int
) -> None:
    """Steps of 1 s and what the disturbances that are left add to it."""
    each: Any = [SimpleNamespace(description=str(s), jitter=None, own_s=s) for s in costs_s]
    calls = list[int]()

    def step_with_s(rest: Sequence[Any]) -> float:
        calls.append(len(rest))
        return 1.0 + sum(one.own_s for one in rest)

    cost = cost_of(each, step_with_s, 1.0 + sum(costs_s), ())
    assert len(calls) == asked
    assert [event.costs_s for event in cost.events] == pytest.approx(costs_s, abs=1e-15)
