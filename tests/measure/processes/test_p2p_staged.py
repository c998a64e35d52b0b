"""Moves that a rank receives by way of scratch; no torch needed."""

from perfmodel.collectives.algorithms import ring
from perfmodel.measure.processes.p2p import count_scratch
from perfmodel.measure.reference import (
    make_moves,
)


def test_arrivals_go_straight_into_the_buffer_where_nothing_reads():
    gather = make_moves(ring.all_gather(4, 4 * 16))
    assert count_scratch(gather, 0) == 0
    assert count_scratch(make_moves(ring.reduce_scatter(4, 4 * 16)), 0) == 4
