"""Cores that all processes share, and links: bytes are neither lost, too quick nor idle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.sockets.core_work import Cores, FreeCapacity, Link
from perfmodel.simulate.sockets.network import SocketNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Sockets, Topology

Maker = Callable[..., Topology]
RATE_BPS, ONE_WAY_S = 496.3e6 / 8 * 0.9963, 23.5e-6


def last_s(topology: Topology, sockets: Sockets, sizes: list[int], in_a_row: int) -> float:
    """When the last of some all-reduces ends that begin together, so many rounds in a row."""
    ranks = len(topology.ranks)
    env = simpy.Environment()
    machine = Machine(replace(topology, sockets=sockets), load_library("gloo"))
    network = SocketNetwork(env, UncontendedTimer(machine), tolerance=None)
    for _ in range(in_a_row):
        env.run(
            until=env.all_of(
                [network.collective("all_reduce", size, (range(ranks),), 0) for size in sizes]
            )
        )
    return env.now


def test_two_cores_by_hand() -> None:
    """Three seconds' work thrice at once: the third waits for three seconds."""
    cores = Cores(2)
    assert [cores.wait_s(10.0, 3.0) for _ in range(3)] == [0.0, 0.0, 3.0]
    assert cores.wait_s(11.0, 1.0) == 2.0
    assert cores.done_s(20.0, 1.0) == 21.0


def test_slow_cores_take_longer_and_cores_of_one_s_own_never_wait() -> None:
    slow = Cores(1, 0.5)
    assert [slow.wait_s(0.0, 3.0) for _ in range(2)] == [0.0, 6.0]
    assert slow.done_s(12.0, 1.0) == 14.0
    own = Cores(None)
    assert [own.wait_s(0.0, 3.0) for _ in range(9)] == [0.0] * 9


@pytest.mark.slow
@given(
    ranks=st.integers(2, 6),
    sizes=st.lists(st.integers(1, 100_000).map(lambda n: 4 * n), min_size=1, max_size=3),
)
@settings(max_examples=20, deadline=None)
def test_many_cores_are_as_none_and_few_never_quicker(
    switched_topology: Maker, ranks: int, sizes: list[int]
) -> None:
    topology = switched_topology([RATE_BPS] * ranks, [ONE_WAY_S] * ranks)
    times = [last_s(topology, Sockets(0.0, n), sizes, 1) for n in (None, 4096, 2, 1)]
    assert times[1] == pytest.approx(times[0], rel=1e-9)
    assert times[2] >= times[0] * (1 - 1e-9)
    assert times[3] >= times[0] * (1 - 1e-9)


def test_busy_cores_are_the_bottleneck_of_small_all_reduces(switched_topology: Maker) -> None:
    """Not below what all work of all ranks takes on both cores: 8 ranks, 28 rounds each."""
    gloo = load_library("gloo")
    topology = switched_topology([RATE_BPS] * 8, [ONE_WAY_S] * 8)
    work_s = 8 * (gloo.core_call + 2 * 28 * gloo.core_message)
    found_s = last_s(topology, Sockets(0.0, 2, 0.25), [64, 64], 5)
    assert found_s >= 0.95 * 5 * 2 * work_s / (2 * 0.25)
    assert found_s > 3 * last_s(topology, Sockets(0.0, None), [64, 64], 5)


def test_each_packet_keeps_a_core_busy(switched_topology: Maker) -> None:
    """Four ranks receive 3/2 of 4 MiB each, packet by packet, on one slow core."""
    gloo = load_library("gloo")
    topology = switched_topology([RATE_BPS] * 4, [ONE_WAY_S] * 4)
    packets = 4 * 1.5 * (4 << 20) / 9000
    found_s = last_s(topology, Sockets(0.0, 1, 0.25, 9000.0), [4 << 20], 1)
    assert found_s >= packets * gloo.core_frame / 0.25
    assert last_s(topology, Sockets(0.0, 1, 0.25, 32000.0), [4 << 20], 1) < 0.6 * found_s
    small_s = last_s(topology, Sockets(0.0, 8, 1.0, 1500.0), [4 << 20], 1)
    assert small_s == pytest.approx(last_s(topology, Sockets(), [4 << 20], 1), rel=0.02)


def test_packets_that_come_too_quickly_are_taken_in_together(switched_topology: Maker) -> None:
    """A core could take in a twelfth of packets of 100 bytes one by one; a core each is enough."""
    topology = switched_topology([RATE_BPS] * 2, [ONE_WAY_S] * 2)
    own_s = last_s(topology, Sockets(), [4 << 20], 1)
    shared_s = last_s(topology, Sockets(0.0, 2, 1.0, 100.0), [4 << 20], 1)
    assert own_s <= shared_s < 1.1 * own_s


@pytest.mark.parametrize(("cores", "waits_s"), [(1, 8e-3), (2, 4e-3), (None, 0.0)])
def test_an_all_reduce_waits_for_cores_that_do_something_else(
    switched_topology: Maker, cores: int | None, waits_s: float
) -> None:
    """Two ranks have 4 ms of work each on cores of speed 1."""
    topology = switched_topology([RATE_BPS] * 2, [ONE_WAY_S] * 2)
    machine = Machine(replace(topology, sockets=Sockets(0.0, cores)), load_library("gloo"))
    ends_s = []
    for busy in (False, True):
        env = simpy.Environment()
        network = SocketNetwork(env, UncontendedTimer(machine))
        if busy:
            network.occupy(4e-3, 2)
        env.run(until=network.collective("all_reduce", 64, (range(2),), 0))
        ends_s.append(env.now)
    assert ends_s[1] - ends_s[0] == pytest.approx(waits_s, rel=0.05, abs=1e-9)


@pytest.mark.parametrize(
    ("ranks", "speed", "measured_s", "within"),
    [(4, 1.0, 0.84e-3, 0.25), (4, 0.465, 1.85e-3, 0.15)],
    ids=["idle", "busy"],
)
def test_four_processes_on_two_cores_as_measured(
    switched_topology: Maker, ranks: int, speed: float, measured_s: float, within: float
) -> None:
    """All-reduces of 1 to 16 KiB in a row: own measurements at a load of 1 and of 10.

    How fast the cores were is from two processes.
    """
    topology = switched_topology([RATE_BPS] * ranks, [ONE_WAY_S] * ranks)
    found_s = last_s(topology, Sockets(18528, 2, speed), [1024], 10) / 10
    assert found_s == pytest.approx(measured_s, rel=within)


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
