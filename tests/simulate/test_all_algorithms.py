"""Every algorithm at both fidelities: equal on a crossbar, bounded, exact under scaling."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import simpy

from perfmodel.collectives.catalog import ALGORITHMS, allows
from perfmodel.errors import InputError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology
from reports.oracle import closed_forms

Maker = Callable[..., Topology]
PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers if op != "send"]
RANKS = 8
IN_NVSWITCH = {"nvls", "nvls_tree"}
IN_SWITCH = {*IN_NVSWITCH, "collnet", "collnet_direct"}
NOT_HERE = {*IN_SWITCH, "pat"}


def ways(
    topology: Topology, op: str, name: str, nbytes: int, library: str = "plain"
) -> tuple[UncontendedTimer, LoweredCollective]:
    timer = UncontendedTimer(Machine(topology, load_library(library)))
    return timer, timer.best(op, nbytes, range(len(topology.ranks)), 0, name)[0]


def timed(network: type, timer: UncontendedTimer, way: LoweredCollective) -> float:
    env = simpy.Environment()
    env.run(until=network(env, timer).launch([way]))
    return float(env.now)


# NCCL knows that there is no such switch, and more than one GPU to a host: NOT_HERE.
HERE = [
    (op, name, library)
    for op, name in PAIRS
    for library in ("plain", "nccl", "gloo")
    if library != "nccl" or name not in NOT_HERE
]


@pytest.mark.parametrize(("op", "name", "library"), HERE)
@pytest.mark.parametrize("elements", [64 * RANKS, 6400 * RANKS])
def test_flow_equals_message_on_a_crossbar(
    switched_topology: Maker, op: str, name: str, elements: int, library: str
) -> None:
    """Whatever the library: its protocols, credits, ready messages and time per step.

    But for NCCL's tree in one host, a chain whose ways up and down share each port: pieces that
    meet nothing the other way yet are quicker than the average share, and more so the more pieces.
    """
    topology = switched_topology([50e9] * RANKS, [1e-6] * RANKS)
    timer, way = ways(topology, op, name, 4 * elements, library)
    flow, message = (timed(n, timer, way) for n in (FlowNetwork, MessageNetwork))
    shares = library == "nccl" and name == "tree"
    assert flow == pytest.approx(message, rel=0.07 if shares else 1e-6)


SEVERAL_HOSTS = [
    (op, name)
    for op, name in PAIRS
    if name in {"recursive_doubling", "halving_doubling", "rabenseifner", "recursive_halving"}
    or name in {"bruck", "tree", "chain", "torus", "pairwise", "ring", "gloo_ring"}
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "name", "template", "hosts"),
    [
        (op, name, template, hosts)
        for op, name in SEVERAL_HOSTS
        for template, hosts in (("dgx-h100", 2), ("dgx1-v100", 3))
        if allows(op, name, 8 * hosts) is None
    ],
)
@pytest.mark.parametrize("library", ["plain", "nccl", "gloo"])
def test_flow_is_near_message_over_several_hosts(
    op: str, name: str, library: str, template: str, hosts: int
) -> None:
    """From 15 % too quick to 35 % too slow, as decision 0002 says; measured: -12.1 to +30.3 %.

    A fluid edge keeps its share of a link while it waits (too slow), and edges of two stages that
    share a link do not see each other where some ranks are ahead (too quick).
    """
    topology = build_topology(template, hosts=hosts, fabric="rail-optimised")
    timer, way = ways(topology, op, name, 1 << 20, library)
    flow, message = (timed(network, timer, way) for network in (FlowNetwork, MessageNetwork))
    assert 0.85 * message <= flow <= 1.35 * message


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_message_is_the_closed_form_on_uniform_ports(
    switched_topology: Maker, op: str, name: str
) -> None:
    """Ports of 50 GB/s each way and 1 us.

    The forms of trees and of what goes through switches count the busiest port all the time.
    """
    topology = switched_topology([50e9] * RANKS, [1e-6] * RANKS, down_Bps=50e9)
    nbytes = 6400 * RANKS * 4
    timer, way = ways(topology, op, name, nbytes)
    uniform = {"alpha_s": 1e-6, "beta_s_per_B": 1 / 50e9}
    # One host is one group of the hierarchical algorithm, which is then a ring.
    form = "ring" if name == "hierarchical" else name
    wanted = closed_forms.closed_form_s(op, form, RANKS, nbytes, **uniform)
    found = timed(MessageNetwork, timer, way)
    assert found >= closed_forms.lower_bound_s(op, form, RANKS, nbytes, **uniform) * (1 - 1e-9)
    if name in {"tree", *IN_SWITCH}:
        assert 0.3 * wanted <= found <= wanted
    elif name == "switch":  # its latency lies on the way up only
        assert found == pytest.approx(wanted - 1e-6, rel=1e-9)
    else:
        assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_twice_the_bandwidth_and_half_the_latency_is_half_the_time(
    switched_topology: Maker, op: str, name: str
) -> None:
    slow = switched_topology([10e9, 20e9, 30e9, 40e9] * 2, [1e-6, 2e-6] * 4)
    fast = switched_topology([20e9, 40e9, 60e9, 80e9] * 2, [5e-7, 1e-6] * 4)
    for network in (FlowNetwork, MessageNetwork):
        times = [timed(network, *ways(machine, op, name, 25600)) for machine in (slow, fast)]
        # The switch's own ports are the same in both machines, and all but infinitely fast.
        assert times[1] == pytest.approx(
            times[0] / 2, rel=1e-4 if name in {"switch", *IN_SWITCH} else 1e-9
        )


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_no_algorithm_beats_the_bounds(
    switched_topology: Maker, op: str, name: str, theory: ModuleType
) -> None:
    topology = switched_topology([50e9] * RANKS, [1e-6] * RANKS)
    timer, way = ways(topology, op, name, 64000 * RANKS)
    # A reducing switch sends a rank nothing that it has to send itself: half of the bytes.
    share = 0.5 if way.schedule.switches else 1.0
    wire = theory.egress_bound_s(op, RANKS, 64000 * RANKS, 50e9)
    rooted = {"gather", "scatter"}
    for network in (FlowNetwork, MessageNetwork):
        found = timed(network, timer, way)
        assert found >= theory.latency_bound_s(op, 2 if way.schedule.switches else RANKS, 1e-6)
        if op not in rooted and op != "all_gather":
            assert found >= share * wire * (1 - 1e-9)


def test_hierarchical_follows_the_hosts() -> None:
    """Inside a host over NVLink only; between hosts each GPU talks to its like, on its rail."""
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    _, way = ways(topology, "all_reduce", "hierarchical", 1 << 20)
    kinds = [{topology.arcs.kinds[a] for a in stage.edges.arcs.tolist()} for stage in way.stages]
    assert kinds[0] == kinds[-1] == {"nvlink"}
    between = way.stages[1].edges
    assert (between.src % 8 == between.dst % 8).all()


def test_a_reducing_switch_needs_an_nvswitch() -> None:
    _, way = ways(build_topology("dgx-h100"), "all_reduce", "switch", 1 << 20)
    assert way.schedule.switches == 1
    for machine in (
        build_topology("rtx4090-x4"),
        build_topology("dgx-h100", hosts=2, fabric="one-switch"),
    ):
        with pytest.raises(InputError, match="ranks that share an NVSwitch"):
            ways(machine, "all_reduce", "switch", 1 << 20)


def test_unknown_algorithms_name_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'torus'"):
        ways(build_topology("dgx-a100"), "all_reduce", "tours", 1 << 20)
