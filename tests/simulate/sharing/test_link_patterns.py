"""Links and trees that are alike are counted once: the same rates and times as link by link."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.arrays import FloatArray
from perfmodel.collectives.algorithms.tree import chained_parents, forest_all_reduce, forest_of
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing.critical_path import pipelines_s
from perfmodel.collectives.timing.path_classes import EdgeClasses, classify, mix
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import Stage
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.sharing import duty_cycle
from perfmodel.simulate.sharing import link_uses as link_patterns
from perfmodel.simulate.sharing.duty_cycle import (
    StageRates,
    UseOrders,
    tells_apart,
)
from perfmodel.topology.templates.build import build_topology


def duty_cycle_rates(
    capacity_Bps: FloatArray, stage: Stage, orders: UseOrders | None = None
) -> FloatArray:
    known = UseOrders() if orders is None else orders
    return duty_cycle.duty_cycle_rates(capacity_Bps, stage, known).of_edges()


def fill_and_drain_rates(
    capacity_Bps: FloatArray, stage: Stage, orders: UseOrders | None = None
) -> FloatArray:
    known = UseOrders() if orders is None else orders
    return duty_cycle.fill_and_drain_rates(capacity_Bps, stage, known).of_edges()


@pytest.mark.parametrize("fabric", ["rail-optimised", "fat-tree", "leaf-spine"])
@pytest.mark.parametrize("hosts", [2, 5, 40])
def test_rates_are_those_link_by_link(
    hosts: int, fabric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sizes of messages, and links that differ, one of them from all others."""
    topology = build_topology("dgx-a100", hosts=hosts, fabric=fabric)
    machine = make_machine(topology, load_library("nccl"))
    capacity = topology.arcs.bandwidth_Bps.copy()
    capacity[7] /= 3
    orders: dict[int, UseOrders] = {}
    for nbytes in (1 << 20, (1 << 26) + 4):
        way = lower_collective(machine, "all_reduce", nbytes, range(8 * hosts), algorithm="tree")[
            -1
        ]
        rates = []
        for least in (0, 1 << 60):
            monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", least)
            shared = orders.setdefault(least, UseOrders())
            rates.append(
                [
                    of(capacity, way.stages[0], shared)
                    for of in (duty_cycle_rates, fill_and_drain_rates)
                ]
            )
        for once, one_by_one in zip(*rates, strict=True):
            np.testing.assert_allclose(once, one_by_one, rtol=1e-9)
    assert orders[0].classes(way.stages[0]) is not None
    if hosts == 40:
        classes = orders[0].classes(way.stages[0])
        assert classes is not None
        assert len(classes.sample) < len(way.stages[0].edges)


def test_what_is_known_of_other_bandwidths_gives_the_same_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links of a machine and of one on which those of one bandwidth are quicker: same edges."""
    monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", 0)
    machine = make_machine(
        build_topology("dgx-a100", hosts=40, fabric="leaf-spine"), load_library("nccl")
    )
    usual_Bps = machine.topology.arcs.bandwidth_Bps
    quicker_Bps = np.where(usual_Bps == usual_Bps[-1], 7 * usual_Bps, usual_Bps)
    way = lower_collective(machine, "all_reduce", 1 << 26, range(320), algorithm="tree")[-1]
    stage, known = way.stages[0], UseOrders()
    for of in (duty_cycle_rates, fill_and_drain_rates):
        of(usual_Bps, stage, known)
    assert tells_apart(usual_Bps, quicker_Bps)
    shared, anew = UseOrders(known), UseOrders()
    for of in (duty_cycle_rates, fill_and_drain_rates):
        expected = of(quicker_Bps, stage, anew)
        np.testing.assert_allclose(of(quicker_Bps, stage, shared), expected, rtol=1e-9)
        assert not np.allclose(of(usual_Bps, stage, known), expected)
    assert len(shared) == 0
    assert shared.classes(stage) is known.classes(stage) is not None


def test_what_is_asked_for_on_a_machine_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases of every relief of a cluster of 100,000 GPUs stayed: 25 MB for each size."""
    monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", 0)
    machine = make_machine(
        build_topology("dgx-a100", hosts=40, fabric="leaf-spine"), load_library("nccl")
    )
    capacity_Bps, known = machine.topology.arcs.bandwidth_Bps, UseOrders()
    way = lower_collective(machine, "all_reduce", 1 << 26, range(320), algorithm="tree")[-1]
    stage = way.stages[0]
    duty_cycle_rates(capacity_Bps, stage, known)
    phase = replace(stage.phases[0])
    before = sys.getrefcount(phase)
    own = UseOrders(known)
    duty_cycle_rates(2 * capacity_Bps, replace(stage, phases=(phase,)), own)
    assert len(own) == 0
    assert sys.getrefcount(phase) > before
    del own
    assert sys.getrefcount(phase) == before


def test_what_is_known_is_not_used_where_alike_edges_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", 0)
    machine = make_machine(
        build_topology("dgx-a100", hosts=4, fabric="rail-optimised"), load_library("nccl")
    )
    capacity_Bps = machine.topology.arcs.bandwidth_Bps
    stage = lower_collective(machine, "all_reduce", 1 << 26, range(32), algorithm="tree")[
        -1
    ].stages[0]
    known = UseOrders()
    duty_cycle_rates(capacity_Bps, stage, known)
    late = replace(stage, latency_s=np.arange(len(stage.edges)) * 1e-6)
    own = UseOrders(known)
    duty_cycle_rates(capacity_Bps, late, own)
    assert len(own) == 1
    classes = own.classes(late)
    assert classes is not None
    assert len(classes.sample) == len(stage.edges)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([1.0, 1.0, 2.0], [3.0, 3.0, 3.0], True),
        ([1.0, 1.0, 2.0], [3.0, 4.0, 4.0], False),
        ([1.0, 1.0], [1.0, 1.0, 1.0], False),
    ],
)
def test_bandwidths_that_tell_links_apart(
    first: list[float], second: list[float], told: bool
) -> None:
    assert tells_apart(np.array(first), np.array(second)) is told


def test_phases_of_one_stage_are_not_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same edges with one phase before, and then with that and a later one."""
    monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", 0)
    machine = make_machine(
        build_topology("dgx-a100", hosts=4, fabric="rail-optimised"), load_library("nccl")
    )
    way = lower_collective(machine, "all_reduce", 1 << 24, range(32), algorithm="tree")[-1]
    stage, rates = way.stages[0], StageRates(machine.topology.arcs.bandwidth_Bps)
    later = replace(stage.phases[0], first=stage.phases[0].first[::-1].copy())
    both = replace(stage, phases=(stage.phases[0], later))
    assert rates.of(stage) == pytest.approx(StageRates(rates.capacity_Bps).of(stage))
    assert rates.of(both) == pytest.approx(duty_cycle_rates(rates.capacity_Bps, both))
    assert rates.orders.classes(both) is None


def test_edges_that_send_otherwise_than_before_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_patterns, "LARGE_STAGE_LINKS", 0)
    machine = make_machine(
        build_topology("dgx-a100", hosts=4, fabric="rail-optimised"), load_library("nccl")
    )
    way = lower_collective(machine, "all_reduce", 1 << 24, range(32), algorithm="tree")[-1]
    capacity, orders = machine.topology.arcs.bandwidth_Bps, UseOrders()
    stage = way.stages[0]
    duty_cycle_rates(capacity, stage, orders)
    nbytes = stage.phases[0].nbytes.copy()
    nbytes[::3] *= 2
    other = replace(stage, phases=(replace(stage.phases[0], nbytes=nbytes),))
    assert duty_cycle_rates(capacity, other, orders) == pytest.approx(
        duty_cycle_rates(capacity, other)
    )


def tree_phase(hosts: int, size: int, channels: int, pieces: int, spread: bool) -> Phase:
    """All-reduce over trees of chains, two for each channel."""
    places = np.arange(hosts * size).reshape(hosts, size)
    parents = [
        chained_parents(np.roll(places, channel, axis=1), second=bool(second), spread=spread)
        for channel in range(channels)
        for second in range(2)
    ]
    trees = forest_of(np.stack(parents))
    return forest_all_reduce(trees, 1 << 22, pieces=pieces).phases[0]


def select_edges_of(phase: Phase, selection: np.ndarray) -> Phase:
    names = ("src", "dst", "channel", "nbytes", "active", "adds")
    columns = {name: np.asarray(getattr(phase, name))[selection] for name in names}
    first = phase.first[selection]
    return replace(phase, first=first - first.min(), **columns)


@given(
    hosts=st.integers(2, 20),
    size=st.integers(1, 4),
    channels=st.integers(1, 2),
    pieces=st.integers(1, 9),
    credits=st.integers(1, 4),
    spread=st.booleans(),
    kinds=st.integers(1, 3),
    part=st.sampled_from(["both", "up", "down"]),
    seed=st.integers(0, 99),
)
def test_shapes_of_trees_have_the_heaviest_path_of_all_their_edges(
    hosts: int,
    size: int,
    channels: int,
    pieces: int,
    credits: int,
    spread: bool,
    kinds: int,
    part: str,
    seed: int,
) -> None:
    """Links of few kinds, at any places of the trees."""
    phase = tree_phase(hosts, size, channels, pieces, spread)
    if part != "both":  # as a reduction or a broadcast has them
        phase = select_edges_of(phase, np.asarray(phase.adds) == (part == "up"))
    if not phase.first.max():
        return
    draw = np.random.default_rng(seed)
    kind = draw.integers(kinds, size=len(phase.src))
    rate_Bps, latency_s = np.array([1e9, 3e9, 7e8])[kind], np.array([1e-6, 2e-5, 4e-4])[kind]
    classes = classify(mix(kind, phase.channel, phase.nbytes))
    once = pipelines_s(phase, rate_Bps, latency_s, credits, classes)
    edge_by_edge = pipelines_s(phase, rate_Bps, latency_s, credits)
    assert once is not None
    assert edge_by_edge is not None
    assert once[1].shape == (1,)
    assert once[0] == pytest.approx(edge_by_edge[0], rel=1e-12)
    assert once[1].max() == pytest.approx(edge_by_edge[1].max(), rel=1e-12)


def test_classes_that_are_none_are_not_used() -> None:
    """Edges of one class with other rates: each edge is looked at."""
    phase = tree_phase(4, 2, 1, 3, spread=False)
    rate_Bps = np.linspace(1e9, 2e9, len(phase.src))
    latency_s = np.full(len(rate_Bps), 1e-6)
    classes = EdgeClasses(np.zeros(len(rate_Bps), dtype=np.int64), np.zeros(1, dtype=np.int64))
    times = pipelines_s(phase, rate_Bps, latency_s, 2, classes)
    assert times is not None
    assert times[1].shape == rate_Bps.shape
