"""Whole answers on faster machines: more bandwidth, quicker GPUs and more links never cost time.

Where NCCL lays other channels over more links, or takes another algorithm or protocol, times may
jump: such pairs are told by that choice and left out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.background import Traffic
from perfmodel.simulate.engine.engine import Fidelity, simulate
from perfmodel.simulate.flow.approximation import NOTES
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.collective import collective_rows
from perfmodel.studies.run.resolve.placement import place_plan
from perfmodel.topology.model import Sockets
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import DeviceSpec, NodeSpec
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from reports.validation.trainings.shaped_links import ShapedCluster, machine_of

MIB = 1 << 20
TURNS = 0.001
"""Cores that processes share serve whatever comes first, so that a faster network may end a step
later by the work of a message (R. L. Graham: see tests/simulate/test_faster_is_never_slower.py)."""
NODE = (Path(__file__).parents[3] / "topologies" / "shaped-ethernet.yaml").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("cores", ["  cores: 2\n", ""])
@pytest.mark.parametrize("hosts", [2, 4])
def test_exposed_time_from_1500_to_2500_mbit(hosts: int, cores: str, tmp_path: Path) -> None:
    """By 100: never longer, and shorter by what the bandwidth is more, at most.

    It went from 231 to 422 ms between 1700 and 1800 Mbit/s on two hosts.
    """
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "# What is exposed?\nperfmodel: 1\nmodel: {name: resnet18}\ncompute: {precision: fp32}\n"
        f"strategy: {{kind: ddp}}\ncluster: {{node: host.yaml, nodes: {hosts}, "
        "fabric: one-switch}\nlibrary: {name: gloo}\ntraining: {batch_per_gpu: 32}\n"
    )
    rates = np.arange(1500, 2501, 100 if hosts == 2 else 250)
    exposed_s = []
    for rate in rates.tolist():
        node = NODE.replace("bandwidth: 500 Mbit/s", f"bandwidth: {rate} Mbit/s")
        (tmp_path / "host.yaml").write_text(node.replace("  cores: 2\n", cores))
        exposed_s.append(run_scenario(load_scenario(str(path))).points[-1].exposed_comm_s)
    ratios = np.array(exposed_s[1:]) / exposed_s[:-1]
    assert (ratios <= 1 + TURNS).all()
    assert (ratios >= (rates[:-1] / rates[1:]) ** 1.5).all()


@pytest.mark.parametrize(("gpus", "wanted_ms"), [(1, 8.9), (8, 13.6)])
def test_all_models_of_gloo_give_16_mib_on_v100_hosts(gpus: int, wanted_ms: float) -> None:
    """2 (N - 1) / N of 16 MiB over 25 Gbit/s (8.7 and 11.2 ms), and a pace of 2 (N - 1) turns."""
    topology = build_topology("v100-x8-25g", hosts=4, fabric="one-switch", gpus_per_host=gpus)
    rows = [
        collective_rows(topology, sizes=[16 * MIB], library="gloo", fidelity=fidelity)[0]["time_s"]
        for fidelity in get_args(Fidelity)
    ]
    assert rows[0] == pytest.approx(rows[1], rel=1e-3)
    assert rows[0] * 1e3 == pytest.approx(wanted_ms, rel=0.01)


# ---------------------------------------------------------------- GPUs


LIBRARIES = ("gloo", "nccl", "mpi", "plain")


def step_of(ranks: int, buckets: list[tuple[float, int]], speed: float) -> StepPlan:
    """Parts of backward (seconds) and buckets (bytes), each reduced when its part is done."""
    tasks: list[Task] = []
    before: tuple[int, ...] = ()
    for number, (work_s, nbytes) in enumerate(buckets):
        work = Compute(work_s / speed)
        tasks.append(Task(f"backward {number}", "backward", "all", "compute", work, before))
        before = (len(tasks) - 1,)
        reduced = Collective("all_reduce", nbytes, "dp", f"bucket {number}")
        tasks.append(Task(f"reduce {number}", "communication", "all", "comm", reduced, before))
    return StepPlan(
        "step",
        (RankClass("all", range(ranks)),),
        (Stream("compute", "compute"), Stream("comm", "comm")),
        (Communicator("dp", (range(ranks),)),),
        tuple(tasks),
        ranks,
    )


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("library", LIBRARIES)
@given(
    machine=st.sampled_from([("ethernet-25g", 4), ("v100-x8-25g", 1), ("aws-g4dn-12xlarge", 2)]),
    buckets=st.lists(
        st.tuples(st.floats(1e-5, 5e-3), st.integers(1, 2 * MIB).map(lambda n: 4 * (n // 4 + 1))),
        min_size=1,
        max_size=5,
    ),
    speed=st.sampled_from([1.001, 1.3, 4.0]),
)
@settings(max_examples=5, deadline=None)
def test_quicker_gpus(
    library: str,
    fidelity: Fidelity,
    machine: tuple[str, int],
    buckets: list[tuple[float, int]],
    speed: float,
) -> None:
    """More FLOP/s: a step of one communication stream is never longer, shorter by that at most."""
    node, hosts = machine
    topology = build_topology(node, hosts=hosts, fabric="one-switch" if hosts > 1 else None)
    made = make_machine(topology, load_library(library))
    timer, ranks = UncontendedTimer(made), len(topology.ranks)
    before_s, after_s = (
        simulate(
            step_of(ranks, buckets, each),
            made,
            timer=timer,
            fidelity=fidelity,
            overlap_slowdown=1.0,
        ).step_time_s
        for each in (1.0, speed)
    )
    assert after_s <= before_s * (1 + 1e-9)
    assert after_s >= before_s / speed * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("library", ["gloo", "nccl", "mpi"])
def test_quicker_gpus_in_a_whole_answer(library: str, fidelity: Fidelity, tmp_path: Path) -> None:
    """ResNet-18 with two all-reduces of Gloo at once, beside compute that they slow down."""
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "# How long?\nperfmodel: 1\nmodel: {name: resnet18}\ncompute: {precision: fp32}\n"
        "strategy: {kind: ddp}\ntraining: {batch_per_gpu: 32}\n"
        "cluster: {node: ethernet-10g, nodes: 4, fabric: one-switch}\n"
        f"library: {{name: {library}}}\n"
    )
    factors = np.array([1.0, 1.001, 2.0, 10.0])
    steps_s = np.array(
        [
            run_scenario(load_scenario(str(path), [f"what_if.compute={factor}"]), fidelity=fidelity)
            .points[-1]
            .step_time_s
            for factor in factors.tolist()
        ]
    )
    assert (steps_s[1:] <= steps_s[:-1] * (1 + TURNS)).all()
    assert (steps_s[1:] >= steps_s[:-1] * factors[:-1] / factors[1:]).all()


# ---------------------------------------------------------------- two jobs


@pytest.mark.slow
@pytest.mark.parametrize("compute_s", [0.0, 5e-3, 40e-3])
def test_two_jobs_on_sockets_share_a_narrow_link(compute_s: float) -> None:
    """Two whole DDP jobs of two hosts each, whose pairs meet on a trunk of 1 Gbit/s.

    A step has backward in four parts, each reduced beside the next. Where the network decides, a
    step of each takes as long as the trunk needs for the buckets of both; where compute does, as
    long as alone; never less than either.
    """
    nbytes, parts, steps, rate_Bps = MIB, 4, 6, 125e6
    cluster = ShapedCluster(rate_Bps, 25e-6, (0, 0, 1, 1), rate_Bps, (), 0.0, 9000, 2, 2, 1.0)
    machine = machine_of(cluster)
    machine = Machine(replace(machine.topology, sockets=Sockets()), machine.library)
    buckets = [(compute_s, nbytes)] * parts
    one, other = (place_plan(step_of(2, buckets, 1.0), ranks) for ranks in ((0, 2), (1, 3)))
    alone_s = simulate(one, machine, steps=steps, overlap_slowdown=1.0).step_times_s
    both = simulate(
        one, machine, steps=steps, overlap_slowdown=1.0, background_jobs=[other]
    ).step_times_s
    trunk_s = 2 * parts * nbytes / rate_Bps  # of both jobs: each sends all of its bytes, both ways
    busiest_s = max(trunk_s, parts * compute_s)
    assert min(both) >= min(alone_s) * (1 - 1e-9)
    mean_s = sum(both[1:]) / (steps - 1)
    tail_s = 2 * nbytes / rate_Bps  # of the last bucket, which no compute hides
    assert 0.99 * busiest_s <= mean_s <= busiest_s + 1.1 * tail_s
    if compute_s == 0:
        assert mean_s == pytest.approx(trunk_s, rel=0.02)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_job_of_gloo_beside_traffic(share: float) -> None:
    """Traffic at a share of the trunk leaves the rest of it to the job; it has all of that."""
    nbytes, rate_Bps = 8 * MIB, 125e6
    cluster = ShapedCluster(rate_Bps, 25e-6, (0, 0, 1, 1), rate_Bps, (), 0.0, 9000, 2, 2, 1.0)
    machine = machine_of(cluster)
    machine = Machine(replace(machine.topology, sockets=Sockets()), machine.library)
    job = place_plan(step_of(2, [(0.0, nbytes)], 1.0), (0, 2))
    names = machine.topology.ranks
    traffic = [Traffic(names[a], names[b], rate_Bps=share * rate_Bps) for a, b in ((1, 3), (3, 1))]
    run = simulate(job, machine, steps=3, traffic=traffic)
    alone_s = nbytes / rate_Bps
    assert run.step_times_s[-1] == pytest.approx(alone_s / (1 - share), rel=0.03)
    assert NOTES["sockets"] in run.notes


# ---------------------------------------------------------------- links


def with_lanes(node: NodeSpec, link: str, times: int) -> NodeSpec:
    """The node with so many times the lanes of each connection of a kind."""
    edges = tuple(
        edge.model_copy(update={"lanes": np.multiply(edge.lanes, times).tolist()})
        if edge.link == link
        else edge
        for edge in node.edges
    )
    return node.model_copy(update={"edges": edges})


def choice_of(machine: Machine, nbytes: int) -> tuple[float, tuple[str, str, int]]:
    """Time of an all-reduce, and what NCCL chose: algorithm, protocol and channels."""
    timer, ranks = UncontendedTimer(machine), range(len(machine.topology.ranks))
    lowered, time_s = timer.best("all_reduce", nbytes, ranks)
    channels = 1 + max(int(phase.channel.max()) for phase in lowered.schedule.phases)
    return time_s, (lowered.schedule.algorithm, lowered.protocol, channels)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@given(
    case=st.sampled_from(
        [
            ("v100-x8-25g", "nvlink2", 1),
            ("v100-x8-25g", "pcie3", 1),
            ("v100-x8-25g", "pcie3", 2),
            ("v100-x8-25g", "upi", 1),
            ("ethernet-25g", "pcie3", 3),
            ("ethernet-25g", "dram", 3),
            ("aws-g4dn-12xlarge", "pcie3", 2),
        ]
    ),
    nbytes=st.floats(np.log(64), np.log(1e8)).map(lambda x: 4 * int(np.exp(x) / 4)),
)
@settings(max_examples=15, deadline=None)
def test_more_lanes(library: str, case: tuple[str, str, int], nbytes: int) -> None:
    """Twice the lanes of a kind of link inside hosts are no slower."""
    name, link, hosts = case
    node, fabric = load_node(name), "one-switch" if hosts > 1 else None
    (before_s, before), (after_s, after) = (
        choice_of(
            make_machine(
                build_topology(with_lanes(node, link, times), hosts=hosts, fabric=fabric),
                load_library(library),
            ),
            nbytes,
        )
        for times in (1, 2)
    )
    if before == after:
        assert after_s <= before_s * (1 + 1e-9)


def with_nics(node: NodeSpec, nics: int) -> NodeSpec:
    """The node with so many NICs, all where its first NIC is."""
    port = next(device.port for device in node.nodes if device.kind == "nic")
    edge = next(edge for edge in node.edges if "nic" in edge.from_)
    switch = next(d.id for d in node.nodes if d.kind in {"pcie_switch", "cpu"})
    own = f"nic[0-{nics - 1}]"
    joined = edge.model_copy(update={"from_": own, "to": switch, "lanes": 1, "pattern": "all"})
    others = tuple(edge for edge in node.edges if "nic" not in edge.from_ + edge.to)
    devices = tuple(device for device in node.nodes if device.kind != "nic")
    added = DeviceSpec(id=own, kind="nic", port=port)
    return node.model_copy(update={"nodes": (*devices, added), "edges": (*others, joined)})


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("library", LIBRARIES)
@given(
    name=st.sampled_from(["v100-x8-25g", "v100-x8-100g", "aws-g4dn-12xlarge"]),
    fabric=st.sampled_from(["one-switch", "leaf-spine"]),
    nics=st.sampled_from([(1, 2), (2, 4), (1, 4)]),
    nbytes=st.floats(np.log(64), np.log(3e7)).map(lambda x: 4 * int(np.exp(x) / 4)),
)
@settings(max_examples=5, deadline=None)
def test_more_nics(
    library: str, fidelity: Fidelity, name: str, fabric: str, nics: tuple[int, int], nbytes: int
) -> None:
    """More NICs are no slower, where hosts stay as near to each other.

    In a fat tree more ports a host put it under another switch, by a half percent; on rails, what
    leaves by one and enters by another crosses the spine.
    """
    choices, times_s = [], []
    for number in nics:
        topology = build_topology(with_nics(load_node(name), number), hosts=2, fabric=fabric)
        choices.append(choice_of(make_machine(topology, load_library(library)), nbytes)[1])
        (row,) = collective_rows(topology, sizes=[nbytes], library=library, fidelity=fidelity)
        times_s.append(row["time_s"])
    if choices[0] == choices[1]:
        assert times_s[1] <= times_s[0] * (1 + 1e-6)
