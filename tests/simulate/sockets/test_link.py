"""A link's capacity: by hand, and that bytes are neither lost, too quick nor idle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.simulate.sockets.link import FreeCapacity, Link


def test_a_bucket_lets_a_burst_pass_and_fills_up_again() -> None:
    """10 bytes at once, 2 a second after that: worked by hand."""
    link = Link(rate_Bps=2.0, burst_bytes=10.0)
    assert link.book(0.0, 0.0, 0.0, 14.0) == (0.0, 2.0)
    assert link.book(2.0, 2.0, 2.0, 4.0) == (2.0, 4.0)  # empty: nothing earned
    assert link.book(7.0, 7.0, 7.0, 10.0) == (7.0, 9.0)  # six earned in three seconds
    assert link.book(99.0, 99.0, 99.0, 12.0) == (99.0, 100.0)  # never more than ten


def test_a_bucket_stays_full_while_bytes_arrive_at_the_link_s_rate() -> None:
    link = Link(rate_Bps=2.0, burst_bytes=10.0)
    assert link.book(0.0, 0.0, 10.0, 20.0) == (0.0, 10.0)
    assert link.book(10.0, 10.0, 10.0, 10.0) == (10.0, 10.0)


def test_a_trickle_leaves_the_rest_of_a_link_to_others() -> None:
    """A tenth of the link for ten seconds; what comes meanwhile has nine tenths."""
    link = Link(10.0)
    assert link.book(0.0, 0.0, 10.0, 10.0) == (0.0, 10.0)
    assert link.book(0.0, 2.0, 2.0, 18.0) == (2.0, 4.0)
    assert link.book(0.0, 9.0, 9.0, 19.0) == (9.0, 10.0 + 1.0)


def test_what_is_yet_to_come_leaves_the_time_before_to_others() -> None:
    """The link is promised from 5 s on for 10 s: ten bytes pass before, ten after."""
    link = Link(2.0)
    assert link.book(0.0, 5.0, 5.0, 20.0) == (5.0, 15.0)
    assert link.book(0.0, 0.0, 0.0, 10.0) == (0.0, 5.0)
    assert link.book(0.0, 0.0, 0.0, 10.0) == (15.0, 20.0)


def test_an_interrupted_message_goes_on_where_it_stopped() -> None:
    link = Link(2.0)
    link.book(0.0, 5.0, 5.0, 20.0)
    assert link.book(0.0, 3.0, 3.0, 10.0) == (3.0, 18.0)


arrivals = st.tuples(st.floats(0, 50), st.just(0.0) | st.floats(1e-3, 20), st.floats(1, 200))


@given(st.lists(arrivals, min_size=1, max_size=12), st.floats(0.5, 50))
def test_no_more_than_the_rate_and_never_idle_with_bytes_waiting(
    messages: list[tuple[float, float, float]], rate_Bps: float
) -> None:
    """All is over when a fluid queue of the same arrivals is empty, whatever the order."""
    capacity = FreeCapacity(rate_Bps)
    ends = [capacity.take(at, at + for_s, nbytes) for at, for_s, nbytes in messages]
    for (start_s, end_s), (at, for_s, nbytes) in zip(ends, messages, strict=True):
        assert start_s >= at
        assert end_s >= max(at + for_s, at + nbytes / rate_Bps) * (1 - 1e-9)
    last_s = max(end_s for _, end_s in ends)
    assert last_s == pytest.approx(fluid_queue_empty_s(messages, rate_Bps), rel=1e-6, abs=1e-6)


def fluid_queue_empty_s(messages: list[tuple[float, float, float]], rate_Bps: float) -> float:
    """When a queue of that rate has sent everything: the arrivals' curve, bent at each change."""
    times = sorted({at for at, _, _ in messages} | {at + for_s for at, for_s, _ in messages})
    waiting, end_s = 0.0, 0.0
    for begin_s, stop_s in itertools.pairwise([*times, float("inf")]):
        waiting += sum(n for at, for_s, n in messages if at == begin_s and at + for_s == at)
        input_Bps = sum(
            n / for_s for at, for_s, n in messages if at + for_s > at and at <= begin_s < at + for_s
        )
        if stop_s == float("inf"):
            return max(end_s, begin_s + waiting / rate_Bps)
        waiting = max(0.0, waiting + (input_Bps - rate_Bps) * (stop_s - begin_s))
        end_s = stop_s
    return end_s
