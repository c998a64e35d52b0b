"""Ranks that stand for each other take the time that all of them take; and where none may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine import engine
from perfmodel.simulate.flow.approximation import NOTES
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.network import Network, UnsuitedNetworkError
from perfmodel.simulate.sockets.folding import arcs_that_queue, fold, fold_pair
from perfmodel.simulate.sockets.network import EXACTLY_ALIKE, SocketNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Sockets
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

MIB = 1 << 20
Make = Callable[..., Network]


def gloo_on(node: str, hosts: int, fabric: str = "one-switch") -> Machine:
    topology = build_topology(node, hosts=hosts, fabric=fabric if hosts > 1 else None)
    return make_machine(topology, load_library("gloo"))


def timed(
    make: Make, timer: UncontendedTimer, nbytes: int, at_once: int = 1, op: str = "all_reduce"
) -> float:
    env = simpy.Environment()
    network = make(env, timer)
    groups = (range(len(timer.machine.topology.ranks)),)
    ends = [network.collective(op, nbytes, groups, 0) for _ in range(at_once)]
    env.run(until=env.all_of(ends))
    return float(env.now)


def period_of(machine: Machine, alike: float = EXACTLY_ALIKE, op: str = "all_reduce") -> int | None:
    ranks = len(machine.topology.ranks)
    folding = fold(machine, UncontendedTimer(machine).best(op, MIB, range(ranks))[0], alike)
    return folding and folding.period


@given(
    machine=st.sampled_from(
        [
            ("ethernet-10g", 7, "one-switch"), ("ethernet-25g", 8, "leaf-spine"),
            ("v100-x8-25g", 2, "one-switch"), ("v100-x8-25g", 2, "fat-tree"),
            ("aws-g4dn-12xlarge", 3, "one-switch"), ("dgx-a100", 3, "rail-optimised"),
            ("cpu-loopback", 1, "one-switch"), ("ethernet-25g", 2, "one-switch"),
        ]
    ),
    nbytes=st.floats(np.log(64), np.log(60e6)).map(lambda x: 4 * int(np.exp(x) / 4)),
    at_once=st.integers(1, 3),
    op=st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_some_stand_for_all(
    machine: tuple[str, int, str], nbytes: int, at_once: int, op: str
) -> None:
    """To a thousandth: segments are as long as those of the others on average.

    Messages that a narrow link lets through one after the other arrive at the next one like that;
    each is written down as even, so that two of them may seem to be in each other's way there.
    """
    timer = UncontendedTimer(gloo_on(*machine))
    all_of_them = timed(partial(SocketNetwork, alike=None), timer, nbytes, at_once, op)
    folded = timed(SocketNetwork, timer, nbytes, at_once, op)
    assert folded == pytest.approx(all_of_them, rel=1e-3)


@pytest.mark.parametrize(
    ("node", "hosts", "fabric", "period", "nearly"),
    [
        ("ethernet-25g", 6, "one-switch", 1, 1),
        ("v100-x8-25g", 3, "one-switch", 8, 8),
        ("ethernet-25g", 32, "fat-tree", 32, 1),  # neighbours are two links apart, or more
        ("v100-x8-25g", 4, "fat-tree", 16, 8),
        ("dgx-a100", 3, "rail-optimised", 24, 24),  # two of three meet on a cable, by hash
        ("cpu-loopback", 1, "one-switch", 16, 16),  # all share the host's memory
    ],
)
def test_how_many_stand_for_all(
    node: str, hosts: int, fabric: str, period: int, nearly: int
) -> None:
    machine = gloo_on(node, hosts, fabric)
    assert period_of(machine) == period
    assert period_of(machine, engine.NEARLY_ALIKE) == nearly


def test_who_does_not_fold() -> None:
    machine = gloo_on("ethernet-25g", 4)
    assert period_of(machine, op="broadcast") is None
    for sockets in (Sockets(burst_bytes=18528.0), Sockets(cores=2)):
        assert (
            period_of(Machine(replace(machine.topology, sockets=sockets), machine.library)) is None
        )
    slower = machine.topology.arcs.bandwidth_Bps.copy()
    slower[machine.topology.first_cable] /= 2
    arcs = replace(machine.topology.arcs, bandwidth_Bps=slower)
    assert period_of(Machine(machine.topology.with_arcs(arcs), machine.library)) == 4


def test_where_nothing_ever_waits() -> None:
    """Two of 10 fill a link of 20 but not one of 21; behind a narrow one a wide one is free."""
    rates = np.array([10.0, 10.0, 20.0, 5.0, 19.0])
    assert arcs_that_queue([(0, 2), (1, 2)], rates) == {0, 1}
    assert arcs_that_queue([(0, 4), (1, 4)], rates) == {0, 1, 4}
    assert arcs_that_queue([(0, 3, 2)], rates) == {0, 3}
    assert arcs_that_queue([(0, 3), (1, 3, 2)], rates) == {0, 1, 3}


def test_pairs_are_shifted_by_whole_periods() -> None:
    assert fold_pair(9, 8, 12, 4) == (1, 0)
    assert fold_pair(8, 7, 12, 4) == (0, 11)
    assert fold_pair(0, 11, 12, 4) == (0, 11)
    assert fold_pair(5, 4, 12, 12) == (5, 4)


def test_what_folds_otherwise_waits_for_idle_links() -> None:
    """A broadcast after an all-reduce is simulated whole; in the middle of one it is refused."""
    timer = UncontendedTimer(gloo_on("ethernet-25g", 4))
    env = simpy.Environment()
    network = SocketNetwork(env, timer)
    groups = (range(4),)
    env.run(until=network.collective("all_reduce", MIB, groups, 0))
    begin_s = env.now
    env.run(until=network.collective("broadcast", MIB, groups, 0))
    alone_s = timed(SocketNetwork, timer, MIB, op="broadcast")
    assert env.now - begin_s == pytest.approx(alone_s, rel=1e-9)
    network.collective("all_reduce", MIB, groups, 0)
    with pytest.raises(UnsuitedNetworkError):
        network.collective("broadcast", MIB, groups, 0)


# ---------------------------------------------------------------- a size is no switch


def step(ranks: int, nbytes: int, buckets: int, *, broadcast: bool = False) -> StepPlan:
    """Backward in as many parts as buckets, each all-reduced beside the next; two at once."""
    tasks = []
    for number in range(buckets):
        work = Compute(2e-3)
        after = (tasks.index(tasks[-2]),) if tasks else ()
        tasks.append(Task(f"backward {number}", "backward", "all", "compute", work, after))
        both = Collective("all_reduce", nbytes, "dp", f"bucket {number}")
        tasks.append(
            Task(f"reduce {number}", "communication", "all", f"comm{number % 2}", both,
                 (len(tasks) - 1,))
        )  # fmt: skip
    if broadcast:
        work_ = Collective("broadcast", 4096, "dp", "buffers")
        tasks.append(Task("buffers", "communication", "all", "comm0", work_, (0,)))
    streams = (Stream("compute", "compute"), Stream("comm0", "comm"), Stream("comm1", "comm"))
    everyone = range(ranks)
    return StepPlan(
        "step", (RankClass("all", everyone),), streams,
        (Communicator("dp", (everyone,)),), tuple(tasks), ranks,
    )  # fmt: skip


@pytest.mark.parametrize("fabric", ["one-switch", "fat-tree"])
@pytest.mark.parametrize("node", ["ethernet-10g", "ethernet-25g"])
@pytest.mark.parametrize("segment_bytes", [100_000, 400_000])
def test_beyond_what_can_be_simulated_rank_by_rank(
    node: str, fabric: str, segment_bytes: int
) -> None:
    """Above 71 hosts the nearly alike stand for each other: 1 % at most, alone and in a step.

    Of the same 36 hosts both ways: where the ring goes at the pace of latencies, and where it
    begins to fill its links.
    """
    hosts = 36
    timer = UncontendedTimer(gloo_on(node, hosts, fabric))
    nbytes = 2 * hosts * segment_bytes
    nearly = partial(SocketNetwork, alike=engine.NEARLY_ALIKE)
    for at_once in (1, 2):
        exact_s = timed(SocketNetwork, timer, nbytes, at_once)
        assert timed(nearly, timer, nbytes, at_once) == pytest.approx(exact_s, rel=0.01)
