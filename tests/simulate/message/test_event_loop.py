"""The kernel of fidelity "message" against the reference, with and without numba."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.catalog import ALGORITHMS
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.reference import ReferenceNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology

Maker = Callable[..., Topology]
PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers if op != "send"]
POWERS_OF_TWO = {"recursive_doubling", "recursive_halving", "halving_doubling"}
HAS_NUMBA = importlib.util.find_spec("numba") is not None
COMPILED = [False, True] if HAS_NUMBA else [False]


def library(credits: int, *, in_order: bool = False, max_rate: float | None = None) -> CommLibrary:
    plain = load_library("plain")
    changed = {"credits": credits, "max_rate": max_rate, "launch": 3e-6}
    simple = plain.protocols["simple"].model_copy(update=changed)
    return plain.model_copy(update={"protocols": {"simple": simple}, "in_order": in_order})


@st.composite
def switches(draw: st.DrawFn) -> dict[str, Any]:
    """GPUs of unlike speed that share their receiving ports, or a trunk as well."""
    ranks = 8
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    alike = draw(st.booleans())
    speeds, delays = rng.uniform(1e9, 9e10, ranks), rng.uniform(0, 1e-5, ranks)
    return {
        "bandwidth_Bps": [speeds[0]] * ranks if alike else speeds.tolist(),
        "latency_s": [delays[0] * (speeds[0] > 4e10)] * ranks if alike else delays.tolist(),
        "down_Bps": draw(st.sampled_from([1e15, 5e10, 2e10])),
        "shared_Bps": draw(st.sampled_from([None, None, 6e10])),
    }


Start = tuple[float, str, str, int, int]


@st.composite
def starts(draw: st.DrawFn) -> list[Start]:
    """When which collective begins, by how many ranks, and how large."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        op, name = draw(st.sampled_from(PAIRS))
        at_s = draw(st.one_of(st.just(0.0), st.floats(0, 3e-4)))
        ranks = draw(st.sampled_from([2, 4, 8] if name in POWERS_OF_TWO else range(2, 9)))
        found.append((at_s, op, name, ranks, draw(st.integers(1, 3000))))
    return found


def ends(
    network: type,
    machine: Machine,
    begun: Sequence[Start],
    changes: Sequence[tuple[float, Machine]] = (),
    streams: Sequence[tuple[float, tuple[int, ...], float, float]] = (),
    **how: Any,
) -> list[float]:
    """When each collective ends."""
    env = simpy.Environment()
    timer = UncontendedTimer(machine)
    net = network(env, timer, **how)
    found = [0.0] * len(begun)

    def run(index: int) -> Any:
        at_s, op, name, ranks, elements = begun[index]
        group = range(ranks)
        yield env.timeout(at_s)
        way = timer.best(op, 4 * elements * len(group), group, 0, name)[0]
        yield net.launch([way])
        found[index] = env.now

    for at_s, other in changes:
        env.timeout(at_s).callbacks.append(lambda _, other=other: net.become(other))
    for at_s, *stream in streams:
        env.timeout(at_s).callbacks.append(lambda _, stream=stream: net.stream(*stream))
    env.run(until=env.all_of([env.process(run(index)) for index in range(len(begun))]))
    return found


@pytest.mark.slow
@given(switches(), starts(), st.integers(1, 4), st.booleans(), st.sampled_from([None, 2e10]))
def test_the_kernel_is_the_reference(
    switched_topology: Maker,
    given_switch: dict[str, Any],
    begun: list[Start],
    credits: int,
    in_order: bool,
    max_rate: float | None,
) -> None:
    if in_order:  # who is first in line at the very same instant is nobody's law: avoid it
        given_switch |= {"down_Bps": 1e15, "shared_Bps": None}
        in_order = len(set(given_switch["bandwidth_Bps"])) > 1
    machine = Machine(
        switched_topology(**given_switch), library(credits, in_order=in_order, max_rate=max_rate)
    )
    wanted = ends(ReferenceNetwork, machine, begun)
    found = [
        ends(MessageNetwork, machine, begun, compiled=compiled, by_rounds=False)
        for compiled in COMPILED
    ]
    assert found[0] == pytest.approx(wanted, rel=1e-9)
    assert found[-1] == found[0]  # the same bits
    assert ends(MessageNetwork, machine, begun) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
@given(
    switches(),
    starts(),
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0, 4e-4), st.floats(0.1, 2), st.integers(0, 7)), max_size=3),
    st.lists(
        st.tuples(
            st.floats(0, 2e-4),
            st.lists(st.integers(0, 15), min_size=1, max_size=3).map(tuple),
            st.sampled_from([1e9, 3e10, np.inf]),
            st.sampled_from([0.0, 1e4, 1e6, np.inf]),
        ),
        max_size=3,
    ),
)
def test_the_kernel_is_the_reference_when_links_change_and_others_send(
    switched_topology: Maker,
    given_switch: dict[str, Any],
    begun: list[Start],
    credits: int,
    changes: list[tuple[float, float, int]],
    streams: list[tuple[float, tuple[int, ...], float, float]],
) -> None:
    """Bandwidths of some links change in mid-transfer; streams come and go."""
    machine = Machine(switched_topology(**given_switch), library(credits))
    speed = machine.topology.arcs.bandwidth_Bps
    others = [
        (
            at_s,
            replace(machine, topology=degrade_links(machine.topology, {arc: by * speed[arc]})),
        )
        for at_s, by, arc in changes
    ]
    wanted = ends(ReferenceNetwork, machine, begun, others, streams)
    found = [ends(MessageNetwork, machine, begun, others, streams, compiled=c) for c in COMPILED]
    assert found[0] == pytest.approx(wanted, rel=1e-9)
    assert found[-1] == found[0]


@pytest.mark.parametrize("compiled", COMPILED)
def test_channels_over_the_same_links_share_them_as_edges_of_their_own(compiled: bool) -> None:
    """Seven channels cross each GPU's NVLinks; the kernel solves the rate of each pair once."""
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    machine = Machine(topology, load_library("nccl"))
    begun = [(0.0, "all_reduce", "ring", 16, 1 << 15)]
    wanted = ends(ReferenceNetwork, machine, begun)
    found = ends(MessageNetwork, machine, begun, compiled=compiled, by_rounds=False)
    assert found == pytest.approx(wanted, rel=1e-9)
