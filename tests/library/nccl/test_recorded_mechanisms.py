"""Mechanisms of NCCL against recorded times: each holds where it acts and fails without it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.library.lowering import edge_routing
from perfmodel.library.machine import make_machine, observed_time_s
from perfmodel.library.model import load_library
from perfmodel.library.nccl import trees as chunk_sizes
from perfmodel.library.nccl.dispatch import choices
from perfmodel.library.settings import LibrarySettings
from perfmodel.library.transport import local_path, usual_peer_level
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps, sweeps_folder
from perfmodel.validate.run import shipped_folder

HOME = sweeps_folder(shipped_folder())
SWEEPS = {sweep.id: sweep for sweep in read_sweeps(HOME)}
MIB = 1 << 20


def predicted(name, sizes, **changes):
    """Seconds of a recorded sweep's machine; `changes` to all protocols of the library."""
    matched = match(SWEEPS[name], HOME)
    library = load_library("nccl")
    if changes:
        protocols = {k: p.model_copy(update=changes) for k, p in library.protocols.items()}
        kept = tuple(
            v for v in library.variants if all(getattr(v, field, None) is None for field in changes)
        )
        library = library.model_copy(update={"protocols": protocols, "variants": kept})
    timer = UncontendedTimer(make_machine(matched.topology, library, settings=matched.settings))
    group = range(len(matched.topology.ranks))
    return np.array(
        [
            observed_time_s(timer.machine, timer.best(matched.op, n, group, 0, None)[1])
            for n in sizes
        ]
    )


def measured(name, sizes):
    times = {row.nbytes: row.time_s for row in SWEEPS[name].rows}
    return np.array([times[n] for n in sizes])


def errors(name, sizes, **changes):
    return predicted(name, sizes, **changes) / measured(name, sizes) - 1


LARGE = [16 * MIB, 64 * MIB, 256 * MIB]


@pytest.mark.parametrize("op", ["all_reduce", "alltoall"])
def test_traffic_both_ways_through_host_memory_shares_it(op):
    name = f"rtx2080ti_x2_nop2p_{op}"
    assert np.abs(errors(name, LARGE)).max() < 0.12
    assert errors(name, LARGE, two_way_efficiency=1.0).max() < -0.15


def test_one_way_through_host_memory_takes_all_of_it():
    name = "rtx2080ti_x2_nop2p_broadcast"
    both = predicted(name, LARGE), predicted(name, LARGE, two_way_efficiency=0.5)
    assert both[0] == pytest.approx(both[1])


@pytest.mark.parametrize("machine", ["a100_nccl2273", "h100_nccl2273", "b200_nccl2273"])
@pytest.mark.parametrize("op", ["allgather", "reducescatter"])
def test_two_gpus_lose_to_the_last_copy_what_eight_hardly_do(machine, op):
    """Bus bandwidth on 8 GPUs over that on 2 at 512 MiB; 1.3 to 1.5 are recorded."""
    ratios = []
    for of in (measured, predicted):
        two, eight = (of(f"aic_{machine}_{op}_{n}g", [512 * MIB])[0] for n in (2, 8))
        ratios.append((7 / 8 / eight) / (1 / 2 / two))
    assert ratios[1] == pytest.approx(ratios[0], rel=0.16)
    two, eight = (
        predicted(f"aic_{machine}_{op}_{n}g", [512 * MIB], copy_rate=None)[0] for n in (2, 8)
    )
    assert (7 / 8 / eight) / (1 / 2 / two) < 1.12


@pytest.mark.parametrize("machine", ["a100_nccl2273", "b200_nccl2273"])
def test_each_peer_of_an_all_to_all_is_started(machine):
    """From 2 GPUs to 8, 8 KiB take 1 to 6 us longer; without it nothing."""
    names = [f"aic_{machine}_alltoall_{n}g" for n in (2, 8)]
    grown = [predicted(name, [8192])[0] for name in names]
    recorded = [measured(name, [8192])[0] for name in names]
    assert grown[1] - grown[0] == pytest.approx(recorded[1] - recorded[0], abs=3e-6)
    still = [predicted(name, [8192], each_peer=0.0)[0] for name in names]
    assert still[1] - still[0] < 0.5 * (grown[1] - grown[0])


def test_ll_over_efa_has_the_steps_of_any_network():
    """NCCL 2.9 on two p4d: 175 us for 8 B by a ring of 16; with 25 us a step more, 221 us."""
    sizes = [8, 64, 512]
    assert np.abs(errors("aws_p4d_2n_allreduce_nccl29", sizes)).max() < 0.12
    assert predicted("aws_p5_2n_allreduce", [8])[0] < 1.35 * measured("aws_p5_2n_allreduce", [8])[0]


def test_a_ring_over_efa_before_hopper_has_one_chunk_under_way():
    """32 and 64 MiB on two p4d; with four chunks in flight 40 % too quick."""
    name, sizes = "aws_p4d_2n_allreduce_nccl29", [32 * MIB, 64 * MIB]
    assert np.abs(errors(name, sizes)).max() < 0.25
    assert errors(name, sizes, credits=4).max() < -0.3


@pytest.mark.slow
def test_no_nvls_tree_between_racks():
    """Two racks of GB200: 184 us for 8 B and 99.7 ms for 32 GiB, which a ring takes."""
    name = "oci_gb200_32n_allreduce"
    matched = match(SWEEPS[name], HOME)
    machine = make_machine(matched.topology, load_library("nccl"), settings=matched.settings)
    for nbytes in (8, 2**35):
        names = {c.algorithm for c in choices(machine, "all_reduce", nbytes, range(128))}
        assert "nvls_tree" not in names
    assert np.abs(errors(name, [8, 1024, 8 * 2**30, 32 * 2**30])).max() < 0.15
    hosts = build_topology("dgx-h100", hosts=2, fabric="rail-optimised")
    two = make_machine(hosts, load_library("nccl"))
    algorithms = {c.algorithm for c in choices(two, "all_reduce", 2**30, range(16))}
    assert "nvls_tree" in algorithms


@pytest.mark.parametrize(
    ("node", "gpus", "level"),
    [("aws-g5-48xlarge", 8, "PXB"), ("l40s-x8", 2, "PXB"), ("rtx4090-x4-p2p", 4, None)],
)
def test_gpus_copy_to_each_other_through_no_cpu(node, gpus, level):
    """NVIDIA/nccl src/graph/paths.cc: PXB by default; GeForce cards as patched."""
    assert usual_peer_level(build_topology(node, gpus_per_host=gpus)) == level


def test_two_gpus_of_an_amd_host_copy_through_its_cpus():
    """8 L40S of one host: 20 GB/s between two, 5 GB/s and less on more (recorded)."""
    staged = {}
    for gpus in (2, 4):
        topology = match(SWEEPS[f"aic_l40s_nccl2273_allreduce_{gpus}g"], HOME).topology
        assert usual_peer_level(topology) == ("SYS" if gpus == 2 else "PXB")
        used = make_machine(topology, load_library("nccl")).topology  # with no level set
        staged[gpus] = local_path(used, Router(used), *used.ranks[:2]).staged
    assert staged == {2: False, 4: True}
    forced = make_machine(
        match(SWEEPS["aic_l40s_nccl2273_allreduce_4g"], HOME).topology,
        load_library("nccl"),
        settings=LibrarySettings(env={"NCCL_P2P_LEVEL": "SYS"}),
    ).topology
    assert not local_path(forced, Router(forced), *forced.ranks[:2]).staged
    assert np.abs(errors("aic_l40s_nccl2273_allreduce_2g", LARGE)).max() < 0.15


def test_before_2_8_a_tree_between_hosts_was_charged_50_us_a_hop():
    """NVIDIA/nccl 2.7.8 src/graph/tuning.cc, hwLat: 28 us before, 50 us then, Tree and Simple."""
    topology = build_topology("dgx-a100", hosts=4, fabric="rail-optimised")
    times = {}
    for version in ("2.7.8", "2.8.4"):
        settings = LibrarySettings(version=version, env={"NCCL_ALGO": "Tree"})
        machine = make_machine(topology, load_library("nccl"), settings=settings)
        estimates = choices(machine, "all_reduce", 64, range(32))
        times[version] = next(e.time_s for e in estimates if e.protocol == "simple")
    hops = 2 * math.log2(4)
    assert times["2.7.8"] - times["2.8.4"] == pytest.approx(hops * 22e-6, rel=0.01)


def test_without_a_generation_of_its_own_a_gpu_is_as_quick_as_its_clock():
    """512 bytes on 2 GPUs: 9.0 us on A100, 5.3 on H100 and L40S; alike without their clocks."""
    names = [f"aic_{gpu}_nccl2273_allgather_2g" for gpu in ("a100", "h100", "l40s")]
    library = load_library("nccl")
    library = library.model_copy(
        update={"variants": tuple(v for v in library.variants if not v.generations)}
    )

    def spread(clock_GHz):
        over = []
        for name in names:
            matched = match(SWEEPS[name], HOME)
            machine = make_machine(
                matched.topology,
                library.model_copy(update={"clock_GHz": clock_GHz}),
                settings=matched.settings,
            )
            time_s = UncontendedTimer(machine).best("all_gather", 512, range(2), 0, None)[1]
            over.append(time_s / measured(name, [512])[0])
        return max(over) / min(over)

    assert spread(library.clock_GHz) < 1.3
    assert spread(None) > 1.5


@pytest.mark.slow
def test_trees_of_64_gpus_pass_on_lines_as_they_come(monkeypatch):
    """Two racks of GB200, LL and LL128: steps that wait for their ends take up to 90 % longer."""
    name, sizes = "oci_gb200_32n_allreduce", [MIB // 2, 128 * MIB, 256 * MIB]
    assert np.abs(errors(name, sizes)).max() < 0.25
    monkeypatch.setattr(chunk_sizes, "PASSED_ON_BYTES", {})
    assert errors(name, sizes).max() > 0.5


@pytest.mark.parametrize("op", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_four_gpus_share_the_memory_of_a_domain(monkeypatch, op):
    """L40S: 20 GB/s in all, which two alone have each; without it three times too quick."""
    name = f"aic_l40s_nccl2273_{op}_4g"
    assert np.abs(errors(name, LARGE)).max() < 0.3
    monkeypatch.setattr(
        edge_routing, "local_path", lambda *ends: replace(local_path(*ends), together_Bps=math.inf)
    )
    assert errors(name, LARGE).max() < -0.5


def test_what_an_all_to_all_leaves_where_it_is_takes_time():
    """Two B200 at 256 MiB, half of which stays: bus bandwidth 0.6 of that of eight."""
    two, eight = (f"aic_b200_nccl2273_alltoall_{n}g" for n in (2, 8))
    sizes = [256 * MIB]
    assert errors(two, sizes)[0] > -0.4
    assert errors(two, sizes, copy_rate=None)[0] < errors(two, sizes)[0] - 0.1
    assert errors(eight, sizes, copy_rate=None)[0] > errors(eight, sizes)[0] - 0.06


A3_MEGA_US = {8: 136, 1024: 147, 256 << 10: 167, 64 << 20: 1262, 1 << 30: 6759, 8 << 30: 47535}
"""All-reduce on two a3-megagpu-8g (lessizzmore/create-a3mega-ztan-fork), when Google's guide asked
for NCCL_PROTO=Simple."""

A3_HIGH_US = {
    1 << 20: (997, 997),
    8 << 20: (1007, 785),
    64 << 20: (1335, 1433),
    512 << 20: (7099, 10028),
}
"""All-gather on two a3-highgpu-8g: GoogleCloudPlatform/cluster-toolkit, and dstackai/dstack."""


def on_a3(template, op, sizes, **env):
    topology = build_topology(template, hosts=2, fabric="one-switch")
    machine = make_machine(topology, load_library("nccl"), settings=LibrarySettings(env=env))
    timer = UncontendedTimer(machine)
    return np.array([timer.best(op, nbytes, range(16))[1] * 1e6 for nbytes in sizes])


def test_a3_mega_runs_as_google_requires():
    """NVLS off, ring and tree; Simple alone where the user says so, in steps of 1 MiB.

    With NCCL's own buffers of 4 MiB trees of Simple are quicker than any that was recorded.
    """
    sizes, recorded_us = list(A3_MEGA_US), np.array(list(A3_MEGA_US.values()))
    simple = on_a3("gcp-a3-mega", "all_reduce", sizes, NCCL_PROTO="Simple")
    assert np.abs(simple / recorded_us - 1).max() < 0.3
    smaller = on_a3(
        "gcp-a3-mega", "all_reduce", sizes, NCCL_PROTO="Simple", NCCL_BUFFSIZE=str(4 * MIB)
    )
    assert smaller[3] < 0.9 * simple[3] < 0.9 * recorded_us[3]


def test_a3_high_has_a_floor_of_a_millisecond():
    """Where NCCL over RDMA takes 0.1 ms; no message of LL or over trees."""
    found = on_a3("gcp-a3-high", "all_gather", list(A3_HIGH_US))
    low, high = (np.array([f(pair) for pair in A3_HIGH_US.values()]) for f in (min, max))
    assert (found > 0.75 * low).all()
    assert (found < 1.25 * high).all()


def test_what_a_user_sets_holds_and_one_host_needs_nothing():
    library = load_library("nccl")
    two = build_topology("gcp-a3-mega", hosts=2, fabric="one-switch")
    one = build_topology("gcp-a3-mega")
    own = LibrarySettings(env={"NCCL_NVLS_ENABLE": "1"})
    assert make_machine(two, library, settings=own).settings.is_on("NCCL_NVLS_ENABLE")
    assert not make_machine(two, library).settings.is_on("NCCL_NVLS_ENABLE", default=True)
    assert make_machine(one, library).settings.env == {}
