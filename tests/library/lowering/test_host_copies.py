"""Copies between GPUs through the memory of a NUMA domain share what it carries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import settings_of
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.composed.compose import compose
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.templates.build import build_topology

MIB = 1 << 20
LINK_Bps = 31.5e9 * 0.762
"""PCIe 4.0 with 16 lanes, as the templates have it."""


def machine_of(gpus, **env):
    node = describe("L40S", gpus=gpus, intra="PCIe 4.0 x16 (root ports), one NUMA domain").node
    return make_machine(build_topology(node), load_library("nccl"), settings=settings_of(env=env))


def payload_Bps(machine, op, nbytes=64 * MIB):
    """Payload that all edges of a collective may carry together, host by host."""
    group = range(len(machine.topology.ranks))
    (lowered,) = lower_collective(machine, op, nbytes, group)
    (stage,) = lowered.stages
    used = np.any([phase.active > 0 for phase in stage.phases], axis=0) & np.isfinite(stage.cap_Bps)
    hosts = stage.edges.src[used] // machine.topology.gpus_per_host
    return np.bincount(hosts, weights=(stage.cap_Bps / stage.load)[used])


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
@pytest.mark.parametrize("gpus", [3, 4, 8])
def test_all_copies_of_a_domain_carry_what_one_link_does(op, gpus):
    assert payload_Bps(machine_of(gpus), op) == pytest.approx([LINK_Bps])


@pytest.mark.parametrize(("domains", "gpus"), [(2, 4), (2, 8), (4, 8)])
def test_each_domain_carries_what_one_link_does(domains, gpus):
    node = compose(NodeSection(gpus=gpus, gpu="L40S", numa_domains=domains, p2p=False), None)
    machine = make_machine(build_topology(node), load_library("nccl"))
    link_Bps = float(machine.topology.arcs.bandwidth_Bps[machine.rings(range(gpus)).edges.arcs[0]])
    assert payload_Bps(machine, "all_gather") == pytest.approx([domains * link_Bps])


def test_one_copy_alone_has_all_of_it():
    machine = machine_of(2, NCCL_P2P_DISABLE="1")
    assert payload_Bps(machine, "broadcast") == pytest.approx([LINK_Bps])


def test_gpus_that_copy_to_each_other_share_nothing():
    assert machine_of(2).rings(range(2)).edges.copies is None
    machine = make_machine(build_topology("dgx-a100"), load_library("nccl"))
    assert machine.rings(range(8)).edges.copies is None


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 7), st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
def test_more_gpus_never_move_more_in_all(gpus, op):
    """Bus bandwidth times GPUs: measured, it falls from 40 to 20 and 12 GB/s for 2, 4 and 8."""
    few, many = machine_of(gpus), machine_of(gpus + 1)

    def moved_Bps(machine):
        ranks = len(machine.topology.ranks)
        time_s = UncontendedTimer(machine).best(op, 512 * MIB, range(ranks))[1]
        steps = 2 * (ranks - 1) if op == "all_reduce" else ranks - 1
        return steps * 512 * MIB / time_s

    assert moved_Bps(many) <= 1.02 * moved_Bps(few)
    assert moved_Bps(many) <= 1.001 * LINK_Bps
