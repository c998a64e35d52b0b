"""What if the machine were faster: closed forms, other templates, and the words that say it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibrate import read_profile
from perfmodel.calibrate.apply import apply
from perfmodel.errors import InputError
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario import WhatIf, load_scenario, scenario_digest, sizes
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.machine import build_ensemble, build_machine
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.steps.uncertainty import step_interval
from perfmodel.topology.templates.build import build_topology, load_node, template_names

MIB = 1 << 20
ETHERNET_BPS = 10e9 / 8 * 0.941
"""Payload of 10 Gbit/s Ethernet: 1448 of 1538 bytes, as topologies/ethernet-10g.yaml says."""
PCIE_S, ETHERNET_S = 0.5e-6, 20.09e-6
"""Latencies there: of a PCIe link; of one end of the network with half of the switch's 0.18 us."""

SMALL = """# How long is a step of one large tensor?
perfmodel: 1
model: {file: model.csv}
compute: {source: file, times: times.csv, precision: fp32, gpu_spread: 0}
strategy: {broadcast_buffers: false, bucket_cap: 64 MiB}
cluster: {node: ethernet-10g, nodes: 4, fabric: one-switch}
training: {batch_per_gpu: 1}
library: {name: plain}
"""
ELEMENTS = 8 * MIB
PLAIN_S = {"forward": 3e-3, "backward": 6e-3}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "model.csv").write_text(f"name,shape,dtype\nlayer.weight,{ELEMENTS},fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\nlayer,3 ms,6 ms\n")
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def step(path: Path | str, *overrides: str) -> SizeResult:
    return run_scenario(load_scenario(path, overrides)).main


def asked(name: str, *overrides: str) -> Result:
    return run_scenario(load_scenario(name, ["scale=null", *overrides]))


def ethernet(hosts: int = 4, library: str = "plain") -> Machine:
    return make_machine(
        build_topology("ethernet-10g", hosts=hosts, fabric="one-switch"), load_library(library)
    )


def ring_s(what_if: WhatIf, nbytes: int, hosts: int = 4) -> float:
    timer = UncontendedTimer(apply_what_if(what_if, ethernet(hosts)))
    return timer.best("all_reduce", nbytes, range(hosts))[1]


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("latency", [0.0, 1.0, 3.0])
def test_a_ring_over_the_network_has_hockneys_time(bandwidth: float, latency: float) -> None:
    """2(N-1)(alpha + S / (N B)): the network's part of alpha and B are what the factors say."""
    what_if = WhatIf(network_bandwidth=bandwidth, network_latency=latency)
    alpha_s = 4 * PCIE_S + latency * 2 * ETHERNET_S
    wanted_s = 6 * (alpha_s + 4 * MIB / 4 / (bandwidth * ETHERNET_BPS))
    assert ring_s(what_if, 4 * MIB) == pytest.approx(wanted_s, rel=1e-9)


def test_latency_inside_nodes_is_not_that_between_them() -> None:
    what_if = WhatIf(node_latency=10.0, network_latency=0.0)
    wanted_s = 6 * (10 * 4 * PCIE_S + MIB / ETHERNET_BPS)
    assert ring_s(what_if, 4 * MIB) == pytest.approx(wanted_s, rel=1e-9)


def test_an_infinite_network_leaves_the_links_inside_nodes() -> None:
    """PCIe 3 with 16 lanes carries 15.75 GB/s times NCCL's 0.762."""
    what_if = WhatIf.model_validate({"network_bandwidth": "infinite", "network_latency": 0})
    wanted_s = 6 * (4 * PCIE_S + MIB / (15.75e9 * 0.762))
    assert ring_s(what_if, 4 * MIB) == pytest.approx(wanted_s, rel=1e-6)


@pytest.mark.parametrize("library", ["plain", "gloo", "mpi", "nccl"])
def test_no_link_and_no_library_leaves_no_time(library: str) -> None:
    everything = WhatIf.model_validate(
        {
            "network_bandwidth": "infinite",
            "node_bandwidth": "infinite",
            "network_latency": 0,
            "node_latency": 0,
            "launch": 0,
        }
    )
    machine = make_machine(
        build_topology("dgx-a100", hosts=2, fabric="rail-optimised", gpus_per_host=4),
        load_library(library),
    )
    alone_s = UncontendedTimer(machine).best("all_reduce", 64 * MIB, range(8))[1]
    assert UncontendedTimer(apply_what_if(everything, machine)).best(
        "all_reduce", 64 * MIB, range(8)
    )[1] < (
        1e-3 * alone_s if library == "nccl" else 1e-6 * alone_s  # LL has a rate of its own
    )


def test_launch_is_what_no_link_sees() -> None:
    machine = ethernet(library="nccl")
    none = apply_what_if(WhatIf(launch=0.0, network_latency=0.0, node_latency=0.0), machine)
    lowered, _ = UncontendedTimer(machine).best("all_reduce", 8, range(4))
    free, time_s = UncontendedTimer(none).best("all_reduce", 8, range(4))
    assert lowered.launch_s > 0
    assert free.launch_s == 0
    assert time_s < 1e-6


def test_twice_the_network_halves_a_step_that_it_binds(small: Path) -> None:
    """One bucket of 32 MiB that is ready when backward ends: nothing hides it."""
    still = "what_if.network_latency=0", "what_if.node_latency=0"
    wire_s = 6 * (4 * ELEMENTS / 4 / ETHERNET_BPS)
    once, twice = (step(small, *still, f"what_if.network_bandwidth={n}") for n in (1, 2))
    assert once.comm_s == pytest.approx(wire_s, rel=1e-9)
    assert twice.comm_s == pytest.approx(wire_s / 2, rel=1e-9)
    assert once.step_time_s - twice.step_time_s == pytest.approx(wire_s / 2, rel=1e-9)


def test_without_communication_a_step_is_compute_alone(small: Path) -> None:
    free = step(small, "what_if.communication=false")
    assert free.comm_s == free.exposed_comm_s == 0
    parts = free.uncertainties or ()  # none of a network
    assert [part.origin.split(" ")[0] for part in parts] == ["compute", "run"]
    assert free.interval_s == pytest.approx(step_interval(free.step_time_s, parts), rel=1e-12)
    assert free.step_time_s == pytest.approx(free.compute_s, rel=1e-12)
    everything = (
        "what_if={network_bandwidth: infinite, network_latency: 0, node_bandwidth: infinite, "
        "node_latency: 0, launch: 0}"
    )
    assert step(small, everything).step_time_s == pytest.approx(free.step_time_s, rel=1e-6)


@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize(
    "name",
    ["resnet50-dgx-a100", "gpt2-xl-pcie-p2p", "dataparallel-dgx1", "resnet18-loopback-gloo"],
)
def test_compute_twice_as_fast_takes_half_as_long(name: str) -> None:
    """Without communication all of a step is compute, and the host that starts it."""
    once, twice = (
        asked(name, "what_if.communication=false", f"what_if.compute={n}").main for n in (1, 2)
    )
    assert once.step_time_s == pytest.approx(2 * twice.step_time_s, rel=1e-9)
    for part, time_s in once.breakdown_s.items():
        assert time_s == pytest.approx(2 * twice.breakdown_s[part], rel=1e-9, abs=1e-12)


def test_a_host_twice_as_fast_starts_kernels_in_half_the_time() -> None:
    """One image on a large GPU: the host is what limits the step."""
    one = "training.batch_per_gpu=1", "what_if.communication=false", "model.name=resnet18"
    once, twice = (asked("resnet50-dgx-a100", *one, f"what_if.compute={n}").main for n in (1, 2))
    assert once.bottleneck.startswith("host")
    assert once.step_time_s == pytest.approx(2 * twice.step_time_s, rel=1e-9)


def test_times_of_a_file_become_shorter_too(small: Path) -> None:
    parts = step(small, "what_if.compute=4").breakdown_s
    for name, time_s in PLAIN_S.items():
        assert parts[name] == pytest.approx(time_s / 4, rel=1e-12)


# ---------------------------------------------------------------- other machines


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 16])
def test_four_times_25_gbit_is_100_gbit(nodes: int) -> None:
    """Two templates that were written one by one and differ in the adapter's rate alone."""
    size = f"cluster.nodes={nodes}"
    slow = asked("bert-large-v100-25g", size, "what_if.network_bandwidth=4").main
    fast = asked("bert-large-v100-100g", size).main
    assert slow.step_time_s == fast.step_time_s
    assert slow.interval_s == fast.interval_s
    assert slow.links == fast.links


def test_a_profiles_numbers_are_multiplied_too() -> None:
    scenario = load_scenario(
        "resnet18-loopback-gloo", ["scale=null", "what_if={node_bandwidth: 2, node_latency: 3}"]
    )
    profile = read_profile("epyc-2-cores-gloo-2-ranks")
    node = load_node("cpu-loopback")
    size = sizes(scenario, 16)[-1]
    plain = build_machine(scenario, node, size)
    ensemble = build_ensemble(scenario, plain, profile, size)
    before = apply(profile, plain)
    assert np.array_equal(
        ensemble.likely.topology.arcs.bandwidth_Bps, 2 * before.topology.arcs.bandwidth_Bps
    )
    (ours,), (theirs,) = (each.library.protocols.values() for each in (ensemble.likely, before))
    assert ours.step.memory == 3 * theirs.step.memory
    assert ours.step.network == theirs.step.network
    assert len(ensemble.drawn) > 1
    assert all(
        one.topology.arcs.bandwidth_Bps[0] != before.topology.arcs.bandwidth_Bps[0]
        for one in ensemble.drawn
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(0.25, 64), min_size=2, max_size=2),
    st.sampled_from(["network_bandwidth", "node_bandwidth"]),
    st.sampled_from([8, 256 << 10, 64 << 20]),
)
def test_more_bandwidth_never_takes_longer(factors: list[float], field: str, nbytes: int) -> None:
    slow, fast = sorted(factors)
    slow_s, fast_s = (ring_s(WhatIf.model_validate({field: f}), nbytes) for f in (slow, fast))
    assert fast_s <= slow_s * (1 + 1e-12)


# ---------------------------------------------------------------- what happens


@pytest.mark.slow
def test_without_jitter_nothing_varies() -> None:
    few = "cluster.nodes=2"
    steady = asked("jitter", few, "what_if.jitter=false").main
    never = asked("jitter", few, "events=[]").main
    assert steady.step_time_s == never.step_time_s
    assert steady.interval_s == never.interval_s
    assert steady.disturbance is None
    assert asked("jitter", few).main.step_time_s > steady.step_time_s


@pytest.mark.slow
def test_without_events_everything_is_well() -> None:
    few = ("cluster.nodes=2", "events=[{slow: {nodes: [1], by: 1.2}}]")
    well = asked("straggler", *few, "what_if.events=false")
    never = asked("straggler", few[0], "events=[]")
    assert well.main.step_time_s == pytest.approx(never.main.step_time_s, rel=1e-12)
    assert any("no stragglers" in line for line in well.assumptions)
    slow = asked("straggler", *few, "what_if.jitter=false").main
    assert slow.step_time_s > 1.05 * never.main.step_time_s  # a straggler is no jitter


@pytest.mark.usefixtures("steps_alone")
def test_other_jobs_stand_still_and_keep_their_nodes() -> None:
    with_them = asked("two-jobs").main
    without = asked("two-jobs", "what_if.jobs=false")
    alone_s = with_them.disturbance.undisturbed_s if with_them.disturbance else 0.0
    assert without.main.step_time_s == pytest.approx(alone_s, rel=1e-9)
    assert any("no other jobs" in line for line in without.assumptions)


# ---------------------------------------------------------------- words


def test_what_is_imagined_is_said_first() -> None:
    sentence = asked(
        "bucket-size-slow-ethernet",
        "what_if={network_bandwidth: infinite, network_latency: 0, compute: 2}",
    ).assumptions[0]
    assert sentence == (
        "What if: links between nodes infinitely fast, no latency between nodes, compute 2 times "
        "as fast; the library chooses its algorithms anew on such a network."
    )
    assert not any("What if" in line for line in asked("bucket-size-slow-ethernet").assumptions)


def test_factors_of_one_ask_the_same_question() -> None:
    plain, nothing, twice = (
        load_scenario("bucket-size-slow-ethernet", overrides)
        for overrides in ([], ["what_if={}"], ["what_if.network_bandwidth=2"])
    )
    one = load_scenario("bucket-size-slow-ethernet", ["what_if={compute: 1, jitter: true}"])
    digests = {scenario_digest(each) for each in (plain, nothing, one)}
    assert len(digests) == 1
    assert scenario_digest(twice) not in digests
    assert run_scenario(one).summary.equals(run_scenario(plain).summary)


def test_digests_of_old_scenarios_stay() -> None:
    """As they stood in results before what_if, sweep and plan were words of a scenario."""
    caps, jitter = (
        scenario_digest(load_scenario(name)) for name in ("bucket-size-slow-ethernet", "jitter")
    )
    assert caps == "f70e3e6a3401da9bb98843a8b3211bc8727459f44f882bd6aec89946d021c128"
    assert jitter == "f6fcee610406ce27dd85d83ecdf9d3bbbe2deeae3a5a1e798f2eeb787ae3029e"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("network_bandwidth", "0", "greater than or equal to"),
        ("network_bandwidth", "fast", "a number"),
        ("network_latency", "-1", "greater than or equal to 0"),
        ("compute", "2 GHz", "a number"),
        ("jitter", "0", "true or false"),
        ("network_bandwith", "2", "did you mean 'network_bandwidth'?"),
    ],
)
def test_faults_name_the_field(field: str, value: str, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("bucket-size-slow-ethernet", [f"what_if.{field}={value}"])
    (fault,) = caught.value.faults
    assert fault.field == f"--set what_if.{field}"
    assert allowed in fault.allowed


@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("name", template_names()[::5])
def test_any_machine_can_be_imagined(name: str) -> None:
    """Factors of all kinds: finite times, and the same numbers in the graph as in the arrays."""
    nominal = make_machine(build_topology(name), load_library("nccl"))
    for factor in (0.1, 3.0, 1e9):
        scaled = apply_what_if(WhatIf(node_bandwidth=factor), nominal)
        assert graph_rates(scaled) == scaled.topology.arcs.bandwidth_Bps.tolist()
        if len(nominal.topology.ranks) > 1:
            group = range(len(nominal.topology.ranks))
            assert np.isfinite(UncontendedTimer(scaled).best("all_reduce", 25 * MIB, group)[1])


def graph_rates(machine: Machine) -> list[float]:
    rows = sorted(machine.topology.graph.edges(data=True), key=lambda arc: arc[2]["index"])
    return [data["bandwidth"] for _, _, data in rows]


def test_a_faster_gpu_has_a_higher_peak() -> None:
    """Twice as fast, ResNet-50 uses the same share of it; of one without bound there is none."""
    plain, twice, infinite = (
        asked("resnet50-dgx-a100", "cluster.nodes=1", f"what_if.compute={factor}").main.mfu
        for factor in (1, 2, "infinite")
    )
    assert twice == pytest.approx(plain, rel=0.05)
    assert infinite is None
