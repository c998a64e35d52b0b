"""Streams as rows of arrays have the rates and the counts of those of the general network."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.background import Change, schedule_changes
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.flow.stream_network import StreamNetwork
from perfmodel.simulate.network import Network, UnsuitedNetworkError
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
from tests.conftest import switched

Sent = tuple[float, int, int, float, float]
"""When it begins, from which GPU to which, its bytes and its cap."""

MANY = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 1e-3, 5e-3, 2e-2]),
        st.integers(0, 4),
        st.integers(0, 4),
        st.floats(1e3, 1e8),
        st.sampled_from([math.inf, 3e8]),
    ),
    min_size=1,
    max_size=14,
)


def machine_of(topology: Topology) -> Machine:
    return Machine(topology, load_library("plain"))


def run(
    make: Callable[..., Network],
    machine: Machine,
    sent: list[Sent],
    changes: tuple[Change, ...] = (),
    until: float | None = None,
) -> tuple[list[float], Network]:
    env = simpy.Environment()
    network = make(env, UncontendedTimer(machine))
    ends = [math.inf] * len(sent)
    schedule_changes(env, network, changes, list)

    def send(number: int, each: Sent):
        begin, src, dst, nbytes, cap = each
        yield env.timeout(begin)
        ranks = machine.topology.ranks
        yield network.stream(machine.router.route(ranks[src], ranks[dst]), cap, nbytes)
        ends[number] = env.now

    for number, each in enumerate(sent):
        env.process(send(number, each))
    env.run(until=until)
    return ends, network


@given(sent=MANY, slow=st.floats(1e8, 1e9))
def test_equals_the_general_network(sent: list[Sent], slow: float) -> None:
    sent = [each for each in sent if each[1] != each[2]] or [(0.0, 0, 1, 1e6, math.inf)]
    machine = machine_of(switched([1e9, slow, 1e9, 5e8, 1e9], [0.0] * 5, down_Bps=1e9))
    rows, rows_network = run(StreamNetwork, machine, sent)
    flows, flows_network = run(FlowNetwork, machine, sent)
    assert rows == pytest.approx(flows, rel=1e-9)
    counted = rows_network.counted.wire_bytes
    assert counted == pytest.approx(flows_network.counted.wire_bytes, rel=1e-9)


@settings(max_examples=25)
@given(sent=MANY, at=st.floats(1e-4, 5e-2), by=st.floats(1.5, 20))
def test_goes_on_when_the_machine_changes(sent: list[Sent], at: float, by: float) -> None:
    sent = [each for each in sent if each[1] != each[2]] or [(0.0, 0, 1, 1e6, math.inf)]
    topology = switched([1e9] * 5, [0.0] * 5, down_Bps=1e9)
    arc = machine_of(topology).router.route("n0/gpu0", "n0/gpu1")[0]
    slower = degrade_links(topology, {arc: 1e9 / by}, {})
    change = Change(at, machine_of(slower), "slow link")
    machine = machine_of(topology)
    rows, network = run(StreamNetwork, machine, sent, (change,))
    flows, _ = run(FlowNetwork, machine, sent, (change,))
    assert rows == pytest.approx(flows, rel=1e-9)
    expected = np.zeros(len(topology.arcs))
    for _, src, dst, nbytes, _ in sent:
        route = machine.router.route(topology.ranks[src], topology.ranks[dst])
        np.add.at(expected, list(route), nbytes)
    assert network.counted.wire_bytes == pytest.approx(expected, rel=1e-9)


def test_a_stream_without_end_is_counted_as_it_goes() -> None:
    machine = machine_of(switched([1e9] * 3, [0.0] * 3, down_Bps=1e9))
    sent = [(0.0, 0, 1, math.inf, 4e8), (0.0, 2, 1, 6e8, math.inf)]
    ends, network = run(StreamNetwork, machine, sent, until=2.0)
    assert ends[1] == pytest.approx(1.0)  # 600 MB at what the other's cap leaves of 1 GB/s
    arc = machine.router.route("n0/gpu0", "n0/gpu1")[0]
    assert network.counted.wire_bytes[arc] == pytest.approx(8e8)


def test_a_link_that_stays_dead_stalls() -> None:
    topology = switched([1e9] * 2, [0.0] * 2, down_Bps=1e9)
    machine = machine_of(topology)
    arc = machine.router.route("n0/gpu0", "n0/gpu1")[0]
    change = Change(0.5, machine_of(degrade_links(topology, {arc: 0.0}, {})), "dead")
    with pytest.raises(SimulationError, match="stall for ever"):
        run(StreamNetwork, machine, [(0.0, 0, 1, 1e9, math.inf)], (change,))


@settings(max_examples=25)
@given(sent=MANY)
def test_solving_less_often_delays_by_a_quantum_at_most(sent: list[Sent]) -> None:
    """Each beginning and end of another message costs a quantum of waiting or of unused rate."""
    sent = [each for each in sent if each[1] != each[2]] or [(0.0, 0, 1, 1e6, math.inf)]
    machine = machine_of(switched([1e9] * 5, [0.0] * 5, down_Bps=1e9))
    exact, _ = run(StreamNetwork, machine, sent)
    quantum_s = 1e-4

    def make(env: simpy.Environment, timer: UncontendedTimer) -> StreamNetwork:
        return StreamNetwork(env, timer, quantum_s=quantum_s)

    rough, network = run(make, machine, sent)
    assert isinstance(network, StreamNetwork)
    assert max(rough) <= max(exact) + (2 * len(sent) + 1) * quantum_s
    assert max(rough) >= max(exact) * (1 - 1e-9) - 2 * len(sent) * quantum_s


def test_collectives_are_refused() -> None:
    machine = machine_of(switched([1e9] * 2, [0.0] * 2, down_Bps=1e9))
    network = StreamNetwork(simpy.Environment(), UncontendedTimer(machine))
    with pytest.raises(UnsuitedNetworkError, match="streams only"):
        network.collective("all_reduce", 1000, (range(2),), 0)
