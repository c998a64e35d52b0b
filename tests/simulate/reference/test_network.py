"""The reference's network: closed forms, and all quicker networks against it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel.collectives.catalog import ALGORITHMS, allows
from perfmodel.errors import SimulationError
from perfmodel.library.lowering.lowered import LoweredCollective, paths_of
from perfmodel.library.machine import Machine
from perfmodel.simulate import reference
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.flow.stream_network import StreamNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.network import Network
from perfmodel.simulate.reference import ReferenceNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import remove_links
from perfmodel.topology.model import Topology
from tests.simulate.random_machines import machines, random_library, random_machine

PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers if op != "send"]
SAME = 1e-9
Make = Callable[[simpy.Environment, UncontendedTimer], Network]
Start = tuple[float, str, str, int]
"""When which collective of all ranks begins, and elements per rank."""


def by_messages(env: simpy.Environment, timer: UncontendedTimer) -> Network:
    return MessageNetwork(env, timer, by_rounds=False)


def ends_s(make: Make, machine: Machine, starts: Sequence[Start]) -> tuple[list[float], Network]:
    """When each collective ends."""
    env, timer = simpy.Environment(), UncontendedTimer(machine)
    network = make(env, timer)
    ranks = range(len(machine.topology.ranks))
    ends = [math.inf] * len(starts)

    def collective(number: int) -> Any:
        at_s, op, name, elements = starts[number]
        yield env.timeout(at_s)
        yield network.launch([timer.best(op, 4 * elements * len(ranks), ranks, 0, name)[0]])
        ends[number] = env.now

    env.run(env.all_of([env.process(collective(number)) for number in range(len(starts))]))
    return ends, network


def possible(machine: Machine, starts: Sequence[Start]) -> list[Start]:
    """Those whose algorithms such a machine can run."""
    ranks, devices = len(machine.topology.ranks), machine.topology.devices.values()
    has_switch = any(device.kind == "nvswitch" for device in devices)
    return [
        (at_s, op, name, elements)
        for at_s, op, name, elements in starts
        if allows(op, name, ranks) is None
        if has_switch or not ALGORITHMS[op][name].in_switch
    ]


def shares_links(lowered: LoweredCollective) -> bool:
    """Whether two edges of a stage cross the same link."""
    crossed = Counter(
        (edge[0], link) for edge, path in paths_of(lowered).items() for link in path.links
    )
    return max(crossed.values()) > 1


STARTS = st.lists(
    st.tuples(
        st.one_of(st.just(0.0), st.floats(0, 3e-4)),
        st.sampled_from(PAIRS),
        st.integers(1, 3000),
    ).map(lambda drawn: (drawn[0], *drawn[1], drawn[2])),
    min_size=1,
    max_size=4,
)


# ---------------------------------------------------------------- theory


@pytest.mark.parametrize(
    ("credits", "wanted_s"), [(1, 14 * (20e-6 + 131072 / 50e9)), (8, 14 * 131072 / 50e9 + 52e-6)]
)
def test_a_ring_with_a_late_edge(
    switched_topology: Callable[..., Topology], credits: int, wanted_s: float
) -> None:
    """14 steps of that edge with one credit, 316.7 us; with more its latency passes twice only."""
    late = [1e-6] * 7 + [20e-6]
    library = random_library(credits)
    free = {"simple": library.protocols["simple"].model_copy(update={"launch": 0.0})}
    machine = Machine(
        switched_topology([50e9] * 8, late), library.model_copy(update={"protocols": free})
    )
    [end_s], _ = ends_s(ReferenceNetwork, machine, [(0.0, "all_reduce", "ring", 1 << 15)])
    assert end_s == pytest.approx(wanted_s, rel=SAME)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_who_send_to_the_same_rank_share_its_link(
    switched_topology: Callable[..., Topology], ranks: int
) -> None:
    """A gather into one port: all bytes at the port's rate, after one latency."""
    library = random_library(8)
    machine = Machine(switched_topology([50e9] * ranks, [2e-6] * ranks, down_Bps=10e9), library)
    [end_s], _ = ends_s(ReferenceNetwork, machine, [(0.0, "gather", "star", 1000)])
    nbytes = 4000 * (ranks - 1)
    assert end_s == pytest.approx(3e-6 + 2e-6 + nbytes / 10e9, rel=SAME)


def test_a_connection_in_order_sends_one_message_after_the_other(
    switched_topology: Callable[..., Topology],
) -> None:
    """Two messages at once over one connection: the first alone, then the second."""
    topology = switched_topology([1e9] * 2, [0.0] * 2)
    for in_order, wanted_s in ((True, [1.0, 2.0]), (False, [2.0, 2.0])):
        env = simpy.Environment()
        machine = Machine(topology, random_library(in_order=in_order))
        network = ReferenceNetwork(env, UncontendedTimer(machine))
        first, second = (network.collective("send", 10**9, ((0, 1),), 0) for _ in range(2))
        env.run(first)
        ends = [env.now]
        env.run(second)
        assert [*ends, env.now] == pytest.approx(wanted_s, rel=1e-4)


def test_traffic_without_an_end_is_counted_as_it_goes() -> None:
    machine = random_machine(1, 3)
    env = simpy.Environment()
    network = ReferenceNetwork(env, UncontendedTimer(machine))
    route = machine.router.route("n0/gpu0", "n0/gpu1")
    network.stream(route, 1e8, math.inf)
    env.run(2.0)
    assert network.counted.wire_bytes[list(route)] == pytest.approx(2e8)
    env.run(3.0)
    assert network.counted.payload_bytes.sum() == pytest.approx(3e8 * len(route))


# ---------------------------------------------------------------- quicker models


@pytest.mark.slow
@given(machines(), STARTS)
def test_message_is_the_reference_on_any_graph(drawn: dict[str, Any], starts: list[Start]) -> None:
    machine = random_machine(**drawn)
    starts = possible(machine, starts)
    expected, network = ends_s(ReferenceNetwork, machine, starts)
    found, other = ends_s(by_messages, machine, starts)
    assert found == pytest.approx(expected, rel=SAME)
    for kind in ("wire_bytes", "payload_bytes"):
        counted = getattr(network.counted, kind)
        assert getattr(other.counted, kind) == pytest.approx(counted, rel=SAME)


def alone_s(drawn: dict[str, Any], start: Start) -> tuple[float, float, float]:
    """Time of a collective alone by the reference, by flow and by the recurrence."""
    machine = random_machine(**drawn)
    timer, ranks = UncontendedTimer(machine), range(drawn["ranks"])
    _, op, name, elements = start
    lowered, recurrence_s = timer.best(op, 4 * elements * len(ranks), ranks, 0, name)
    assume(not shares_links(lowered))  # as two rings in opposite ways do among two ranks
    [expected], _ = ends_s(ReferenceNetwork, machine, [start])
    [flow_s], _ = ends_s(FlowNetwork, machine, [start])
    return expected, flow_s, recurrence_s


EVEN = 840
"""Elements that 2 to 8 ranks, and channels of theirs, cut into equal chunks."""


@pytest.mark.slow
@given(machines(mesh=True), st.sampled_from(PAIRS), st.integers(1, 4))
def test_flow_and_the_recurrence_are_the_reference_where_no_link_is_shared(
    drawn: dict[str, Any], pair: tuple[str, str], chunks: int
) -> None:
    assume(possible(random_machine(**drawn), [(0.0, *pair, chunks)]))
    assume(pair[1] != "rabenseifner" or drawn["ranks"] in {2, 4, 8})
    expected, flow_s, recurrence_s = alone_s(drawn, (0.0, *pair, EVEN * chunks))
    assert flow_s == pytest.approx(expected, rel=SAME)
    assert recurrence_s == pytest.approx(expected, rel=SAME)


@pytest.mark.slow
@given(machines(mesh=True), st.sampled_from(PAIRS), st.integers(1, 100_000))
def test_flow_is_near_where_chunks_are_unequal(
    drawn: dict[str, Any], pair: tuple[str, str], elements: int
) -> None:
    """It gives each the mean of their bytes. Odd ranks halve and double in rounds of their own."""
    start = (0.0, *pair, elements)
    assume(possible(random_machine(**drawn), [start]))
    expected, flow_s, _ = alone_s(drawn, start)
    near = 0.2 if pair[1] == "rabenseifner" else 1e-3
    assert flow_s == pytest.approx(expected, rel=near)


@pytest.mark.slow
@given(machines(in_order=True), STARTS)
def test_message_is_the_reference_where_connections_are_in_order(
    drawn: dict[str, Any], starts: list[Start]
) -> None:
    machine = random_machine(**drawn)
    starts = possible(machine, starts)
    expected, _ = ends_s(ReferenceNetwork, machine, starts)
    assert ends_s(by_messages, machine, starts)[0] == pytest.approx(expected, rel=SAME)


STREAMS = st.lists(
    st.tuples(
        st.floats(0, 2e-2),
        st.integers(0, 7),
        st.integers(0, 7),
        st.floats(1e3, 1e8),
        st.sampled_from([math.inf, 3e8]),
    ),
    min_size=1,
    max_size=14,
)


def streams_s(make: Make, machine: Machine, sent: Sequence[tuple[Any, ...]]) -> list[float]:
    """When each stream ends."""
    env = simpy.Environment()
    network = make(env, UncontendedTimer(machine))
    names, ends = machine.topology.ranks, [0.0] * len(sent)

    def stream(number: int) -> Any:
        at_s, src, hops, nbytes, cap_Bps = sent[number]
        yield env.timeout(at_s)
        dst = src + 1 + hops % (len(names) - 1)
        route = machine.router.route(names[src % len(names)], names[dst % len(names)])
        yield network.stream(route, cap_Bps, nbytes)
        ends[number] = env.now

    env.run(env.all_of([env.process(stream(number)) for number in range(len(sent))]))
    return ends


@pytest.mark.slow
@given(machines(), STREAMS)
def test_streams_are_those_of_the_reference(drawn: dict[str, Any], sent: list[Any]) -> None:
    machine = random_machine(**drawn)
    expected = streams_s(ReferenceNetwork, machine, sent)
    for make in (StreamNetwork, FlowNetwork, by_messages):
        assert streams_s(make, machine, sent) == pytest.approx(expected, rel=SAME)


# ---------------------------------------------------------------- refusals


def test_too_many_sends_are_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MOST_SENDS", 30)
    machine = random_machine(1, 4)
    ends_s(ReferenceNetwork, machine, [(0.0, "all_reduce", "ring", 10)])
    with pytest.raises(SimulationError, match=r"48 sends with fidelity 'reference'.*at most 30"):
        ends_s(ReferenceNetwork, machine, [(0.0, "all_reduce", "ring", 10)] * 2)


def test_links_that_are_lost_are_refused() -> None:
    machine = random_machine(1, 2)
    network = ReferenceNetwork(simpy.Environment(), UncontendedTimer(machine))
    lost = replace(machine, topology=remove_links(machine.topology, arcs={0}))
    with pytest.raises(SimulationError, match="links that are lost"):
        network.become(lost)
