"""Small changes of partitions into groups of neighbours."""

from __future__ import annotations

from perfmodel.studies.tune.exact import neighbourhood, simplify


def test_small_changes_are_partitions() -> None:
    cuts = (2, 5, 9)
    near = set(neighbourhood(cuts))
    assert all(one[-1] == 9 and list(one) == sorted(set(one)) and one != cuts for one in near)
    assert {(5, 9), (2, 9), (1, 5, 9), (3, 5, 9), (2, 4, 9), (2, 5, 7, 9)} <= near


def test_ends_that_gain_nothing_are_taken_away() -> None:
    assert simplify((1, 2, 3, 4), lambda cuts: 1.0) == (4,)
    assert simplify((1, 2, 3, 4), lambda cuts: 1.0 if 2 in cuts else 2.0) == (2, 4)
