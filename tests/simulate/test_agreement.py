"""Fidelity "flow" against "message": equal where a fluid must be right, measured where it need not.

The scenes are those of ``python reports/oracle/fidelities.py``, which also writes them down.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))

from oracle.agreement import (
    FIDELITIES,
    SAME,
    Compared,
    Ends,
    at_both,
    beaten_bounds,
    compare,
    spread,
)
from oracle.family import scenes
from oracle.fidelities import MEDIAN, P90
from oracle.must_agree import MUST_AGREE
from oracle.need_not import NEED_NOT
from oracle.scenes import Scene, play


def fresh(family: str) -> Iterator[Scene]:
    return scenes(MUST_AGREE if family in MUST_AGREE else NEED_NOT, family)


@cache
def played(family: str) -> list[tuple[Scene, Ends]]:
    return [(scene, at_both(scene)) for scene in fresh(family)]


def rows_of(family: str) -> list[Compared]:
    rows = [compare(scene, ends) for scene, ends in played(family)]
    assert not {row.missing for row in rows} - {""}
    return rows


def test_there_are_a_hundred_scenes_of_each_kind() -> None:
    for table in (MUST_AGREE, NEED_NOT):
        assert sum(family.count for family in table.values()) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("family", MUST_AGREE)
def test_a_fluid_is_exact_where_it_must_be(family: str) -> None:
    wrong = [row for row in rows_of(family) if abs(row.difference) > SAME]
    assert not wrong


@pytest.mark.slow
def test_a_fluid_is_near_elsewhere() -> None:
    over = spread(row for family in NEED_NOT for row in rows_of(family))
    assert over
    assert over.median <= MEDIAN
    assert over.p90 <= P90


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", sorted({*MUST_AGREE, *NEED_NOT} - {"cable lost in mid-transfer"})
)
def test_message_is_the_reference(family: str) -> None:
    """Which has no links that are lost."""
    for scene, ends in played(family):
        assert ends["message"] == pytest.approx(play("reference", scene), rel=1e-9)


@pytest.mark.parametrize("family", [*MUST_AGREE, *NEED_NOT])
def test_nothing_ends_before_it_can(family: str) -> None:
    """Neither fidelity beats the narrowest cut or the chain of latencies."""
    for scene, ends in played(family):
        assert beaten_bounds(scene, ends) == []


TOGETHER = ["alike jobs together", "two jobs, unlike rings", "bursts against a collective"]


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("family", TOGETHER)
def test_the_order_of_starting_does_not_matter(family: str, fidelity: str) -> None:
    """To the last bit, in whatever order the collectives of one instant reach the network."""
    for scene, ends in played(family):
        backwards = range(len(scene.launches))[::-1]
        assert play(fidelity, scene, backwards) == ends[fidelity]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_same_seed_gives_the_same_bits(fidelity: str) -> None:
    for family in [*MUST_AGREE, *NEED_NOT]:
        assert play(fidelity, next(fresh(family))) == played(family)[0][1][fidelity]
