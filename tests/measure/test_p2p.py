"""Scratch and staged moves of a rank; no torch needed."""

from perfmodel.collectives import catalog
from perfmodel.collectives.algorithms import ring
from perfmodel.measure.reference import make_moves
from perfmodel.measure.worker import count_scratch, largest_scratch


def test_scratch_of_the_neediest_rank_is_found():
    for algorithm, ranks in (("ring", 4), ("tree", 5), ("server", 4), ("recursive_doubling", 8)):
        rounds = make_moves(catalog.make("all_reduce", algorithm, ranks, 4 * 160, itemsize=4))
        assert largest_scratch(rounds) == max(count_scratch(rounds, r) for r in range(ranks))


def test_arrivals_go_straight_into_the_buffer_where_nothing_reads():
    gather = make_moves(ring.all_gather(4, 4 * 16))
    assert count_scratch(gather, 0) == largest_scratch(gather) == 0
    assert count_scratch(make_moves(ring.reduce_scatter(4, 4 * 16)), 0) == 4
