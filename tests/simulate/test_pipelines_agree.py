"""Trees and switches at both fidelities, and on machines that change under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import simpy

from perfmodel.errors import TopologyError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.lowering.rerouting import reroute
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.sharing.duty_cycle import UseOrders, fill_and_drain_rates
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links, remove_links
from perfmodel.topology.templates.build import build_topology

MiB = 1 << 20
NETWORKS = (FlowNetwork, MessageNetwork)


@cache
def machine(template: str, hosts: int) -> Machine:
    fabric = "rail-optimised" if hosts > 1 else None
    return make_machine(build_topology(template, hosts=hosts, fabric=fabric), load_library("nccl"))


def way_of(here: Machine, algorithm: str, nbytes: int) -> LoweredCollective:
    ranks = range(len(here.topology.ranks))
    return UncontendedTimer(here).best("all_reduce", nbytes, ranks, 0, algorithm)[0]


def times(
    here: Machine, way: LoweredCollective, change: tuple[float, Machine] | None = None
) -> list[float]:
    """At fidelity flow and message; the machine may become another at a time."""
    found = []
    for make in NETWORKS:
        env = simpy.Environment()
        network = make(env, UncontendedTimer(here))
        done = network.launch([way])
        if change is not None:
            timer, other = env.timeout(change[0]), change[1]
            timer.callbacks.append(_becoming(network, other))
        env.run(until=done)
        found.append(float(env.now))
    return found


def _becoming(network: FlowNetwork | MessageNetwork, other: Machine) -> Callable[[object], None]:
    return lambda _: network.become(other)


WAYS = [
    ("dgx-h100", 1, "nvls"),
    ("dgx-h100", 1, "tree"),
    ("dgx1-v100", 1, "tree"),
    ("dgx-h100", 2, "nvls_tree"),
    ("dgx-h100", 2, "tree"),
    ("azure-ndv4", 2, "tree"),
    ("dgx-h100", 2, "collnet"),
    ("dgx-h100", 2, "collnet_direct"),
    ("rtx4090-x4", 1, "tree"),
]


MANY_MESSAGES = ("dgx-h100", 2, "tree")
"""By LL over 16 channels: 12 MiB take a quarter of a minute at fidelity message, 4 MiB a sixth."""

CASES = [
    (*way, 4 * MiB if nbytes == 12 * MiB and way == MANY_MESSAGES else nbytes)
    for nbytes in (16384, MiB, 12 * MiB)
    for way in WAYS
]


@pytest.mark.slow
@pytest.mark.parametrize(("template", "hosts", "algorithm", "nbytes"), CASES)
def test_flow_is_near_message(template: str, hosts: int, algorithm: str, nbytes: int) -> None:
    """Measured: 8 % too quick to 21 % too slow, up to 1 GiB; most within 5 %."""
    here = machine(template, hosts)
    flow, message = times(here, way_of(here, algorithm, nbytes))
    assert 0.91 * message <= flow <= 1.22 * message


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_scattering_through_a_switch_is_exact(op: str) -> None:
    """Each port has edges of one kind only."""
    here = machine("dgx-h100", 1)
    way = UncontendedTimer(here).best(op, 20 * MiB, range(8), 0, "nvls")[0]
    flow, message = times(here, way)
    assert flow == pytest.approx(message, rel=1e-9)


def uplink(here: Machine) -> int:
    return here.topology.arcs.names.index(("n0/gpu0", "n0/nvs"))


@pytest.mark.parametrize(("hosts", "algorithm"), [(1, "nvls"), (1, "tree"), (2, "nvls_tree")])
def test_a_link_that_slows_down_slows_what_goes_over_it(hosts: int, algorithm: str) -> None:
    here = machine("dgx-h100", hosts)
    arc = uplink(here)
    slow = {arc: 0.1 * float(here.topology.arcs.bandwidth_Bps[arc])}
    worse = replace(here, topology=degrade_links(here.topology, slow))
    way = way_of(here, algorithm, 12 * MiB)
    before = times(here, way)
    for part in (0.2, 0.5):
        flow, message = times(here, way, (part * before[1], worse))
        assert message > 1.05 * before[1]
        assert 0.8 * message <= flow <= 1.25 * message


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree", "collnet"])
def test_a_lost_nic_leads_its_rail_through_another(algorithm: str) -> None:
    here = machine("dgx-h100", 2)
    left = replace(here, topology=remove_links(here.topology, nodes=["n1/nic3"]))
    way = way_of(here, algorithm, 2 * MiB if algorithm == "tree" else 12 * MiB)
    there = reroute(way, left)
    crossed = {end for arc in there.stages[0].edges.arcs for end in left.topology.arcs.names[arc]}
    assert "n1/nic3" not in crossed
    assert there.schedule is way.schedule
    kept = there.stages[0].edges.hop == way.stages[0].edges.hop
    assert kept.all()
    flow, message = times(here, way, (0.4 * times(here, way)[1], left))
    assert 0.75 * message <= flow <= 1.3 * message


def test_a_gpu_that_loses_its_switch_is_out_of_reach() -> None:
    here = machine("dgx-h100", 1)
    names = here.topology.arcs.names
    gone = [i for i, ends in enumerate(names) if set(ends) == {"n0/gpu2", "n0/nvs"}]
    left = replace(here, topology=remove_links(here.topology, arcs=gone))
    with pytest.raises(TopologyError, match="n0/nvs is unreachable from n0/gpu2 since"):
        reroute(way_of(here, "nvls", MiB), left)


def test_what_was_measured_stays_when_a_link_changes() -> None:
    here = machine("dgx-h100", 2)
    way = lower_collective(here, "all_reduce", MiB, range(16), algorithm="tree")[-1]
    stage = way.stages[0]
    slower = replace(way, stages=(replace(stage, latency_s=stage.latency_s + 1e-6),))
    left = replace(here, topology=remove_links(here.topology, nodes=["n0/nic0"]))
    more = reroute(slower, left).stages[0].latency_s - reroute(way, left).stages[0].latency_s
    assert more == pytest.approx(np.full(len(more), 1e-6))


def test_pieces_arrive_sooner_while_a_pipeline_fills() -> None:
    """The first piece of a chain meets nobody; the last ones up meet those on their way down."""
    here = machine("dgx-h100", 1)
    way = lower_collective(here, "all_reduce", 96 * MiB, range(8), algorithm="tree")[-1]
    timer = UncontendedTimer(here)
    capacity_Bps = here.topology.arcs.bandwidth_Bps
    alone = fill_and_drain_rates(capacity_Bps, way.stages[0], UseOrders()).of_edges()
    shared = timer.rates(way.stages[0])
    assert (alone >= shared * (1 - 1e-12)).all()
    assert alone.max() > 1.5 * shared.min()
    assert (timer.legs(way)[0].latency_s <= way.stages[0].latency_s).all()
