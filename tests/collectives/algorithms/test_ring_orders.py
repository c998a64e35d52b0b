"""A ring sends along the order that it is given, however many places it has."""

from __future__ import annotations

import pytest

from perfmodel.collectives.algorithms import ring


@pytest.mark.parametrize("ranks", [4, ring.MOST_PLACES_KEPT])
def test_each_rank_sends_to_the_next_of_its_order(ranks: int) -> None:
    """Two rings: of 8 places, whose schedules are made once, and of more than are."""
    evens_first = [*range(0, ranks, 2), *range(1, ranks, 2)]
    orders = [evens_first, list(range(ranks))]
    for _ in range(2):  # the second time as it was made
        schedule = ring.all_reduce(ranks, 64 * ranks, orders=orders)
        along = [(order[at], order[(at + 1) % ranks]) for order in orders for at in range(ranks)]
        for phase in schedule.phases:
            assert list(zip(phase.src.tolist(), phase.dst.tolist(), strict=True)) == along
            assert phase.channel.tolist() == [0] * ranks + [1] * ranks
