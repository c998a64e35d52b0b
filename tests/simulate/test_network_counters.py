"""Bytes over links: what was sent is counted apart from what makes a link busy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy

from perfmodel.library.lowering.lower import lower_collective, lower_message
from perfmodel.library.machine import Machine
from perfmodel.library.model import library_on, load_library
from perfmodel.simulate.engine.engine import network_class
from perfmodel.simulate.network import (
    LinkCounters,
    count_stream,
    move_counts,
    sum_counters,
    zero_counters,
)
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import remove_links
from perfmodel.topology.templates.build import build_topology

NBYTES = 64 * 1024 * 1024


class Routes:
    """Two edges: one crosses a link, the other two."""

    def __init__(self, *arcs: int) -> None:
        self.arcs, self.pointers = np.array(arcs), np.array([0, 1, 3])


@pytest.mark.parametrize("fidelity", ["flow", "message"])
@pytest.mark.parametrize("protocol", ["simple", "ll"])
def test_payload_of_a_ring_is_what_users_sent(fidelity: str, protocol: str) -> None:
    """2 (N - 1) / N leave each host, though V100s stage it and LL adds a flag to each word."""
    topology = build_topology("v100-x8-25g", hosts=2, fabric="one-switch")
    machine = Machine(topology, library_on(load_library("nccl"), topology))
    ways = lower_collective(machine, "all_reduce", NBYTES, range(16), algorithm="ring")
    env = simpy.Environment()
    network: Any = network_class(fidelity)(env, UncontendedTimer(machine))
    (way,) = (way for way in ways if way.protocol == protocol)
    env.run(until=network.launch([way]))
    cables = range(topology.first_cable, len(topology.arcs))
    leaving = [arc for arc in cables if topology.arcs.names[arc][0].startswith("n0/")]
    payload = 2 * 15 / 16 * NBYTES
    assert network.counted.payload_bytes[leaving].sum() == pytest.approx(payload, rel=1e-6)
    busy_with = network.counted.wire_bytes[leaving].sum()
    assert busy_with > (1.99 if protocol == "ll" else 1.3) * payload


@pytest.mark.parametrize("fidelity", ["flow", "message"])
def test_payload_that_takes_another_cable_is_counted_there(fidelity: str) -> None:
    """InfiniBand carries more than payload: what is left of both when a cable breaks moves on."""
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    machine = Machine(topology, library_on(load_library("nccl"), topology))
    edges = lower_message(machine, 0, 8, NBYTES).stages[0].edges
    cable = next(arc for arc in edges.arcs.tolist() if arc >= topology.first_cable)
    env = simpy.Environment()
    network: Any = network_class(fidelity)(env, UncontendedTimer(machine))
    ended = network.collective("send", NBYTES, ((0, 8),), 0)
    other = replace(machine, topology=remove_links(topology, arcs=[cable]))
    half_s = NBYTES / 2 / float(topology.arcs.bandwidth_Bps[cable])
    env.timeout(half_s).callbacks.append(lambda _: network.become(other))
    env.run(until=ended)
    cables = range(topology.first_cable, len(topology.arcs))
    leaving = [arc for arc in cables if topology.arcs.names[arc][0].startswith("n0/")]
    payload, wire = network.counted.payload_bytes, network.counted.wire_bytes
    assert payload[leaving].sum() == pytest.approx(NBYTES)
    assert 0.2 * NBYTES < payload[cable] < 0.6 * NBYTES
    assert wire[cable] / payload[cable] == pytest.approx(wire[leaving].sum() / NBYTES)
    assert wire[cable] > 1.02 * payload[cable]


@pytest.mark.parametrize("fidelity", ["flow", "message"])
def test_what_begins_after_a_cable_is_lost_is_counted_elsewhere(fidelity: str) -> None:
    """The cable breaks while a collective is being launched: no byte has gone over it."""
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    machine = Machine(topology, library_on(load_library("nccl"), topology))
    lowered = UncontendedTimer(machine).best("all_reduce", NBYTES, range(16), 0)[0]
    used = (arc for stage in lowered.stages for arc in stage.edges.arcs.tolist())
    cable = next(arc for arc in used if arc >= topology.first_cable)
    env = simpy.Environment()
    network: Any = network_class(fidelity)(env, UncontendedTimer(machine))
    ended = network.launch([lowered])
    other = replace(machine, topology=remove_links(topology, arcs=[cable]))
    env.timeout(lowered.launch_s / 2).callbacks.append(lambda _: network.become(other))
    env.run(until=ended)
    cables = range(topology.first_cable, len(topology.arcs))
    leaving = [arc for arc in cables if topology.arcs.names[arc][0].startswith("n0/")]
    payload = network.counted.payload_bytes
    assert payload[cable] == pytest.approx(0.0, abs=1e-3)
    assert payload[leaving].sum() == pytest.approx(2 * 15 / 16 * NBYTES, rel=1e-6)


def test_a_stream_is_payload_as_it_is() -> None:
    counted = zero_counters(3)
    count_stream(counted, np.array([0, 2]), 5.0)
    assert counted.wire_bytes.tolist() == counted.payload_bytes.tolist() == [5.0, 0.0, 5.0]


def test_what_goes_elsewhere_is_counted_there_and_not_here() -> None:
    counted = zero_counters(4)
    old, new = Routes(0, 1, 2), Routes(3, 1, 2)
    move_counts(counted, old, new, np.array([6.0, 9.0]), np.array([2.0, 3.0]))
    assert counted.wire_bytes.tolist() == [-6.0, 0.0, 0.0, 6.0]
    assert counted.payload_bytes.tolist() == [-3.0, 0.0, 0.0, 3.0]


def test_counts_add_up() -> None:
    one = LinkCounters(np.array([1.0]), np.array([0.5]))
    both = sum_counters(one, LinkCounters(np.array([3.0]), np.array([2.0])))
    assert (both.wire_bytes.item(), both.payload_bytes.item()) == (4.0, 2.5)
    assert one.wire_bytes.item() == 1.0
