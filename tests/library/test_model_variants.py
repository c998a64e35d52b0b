"""Numbers that differ by generation of GPU, network and algorithm, and what they do to times."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine, observed_time_s
from perfmodel.library.model import CommLibrary, Variant, library_on, load_library, protocols_of
from perfmodel.library.nccl.host_graph import hardware
from perfmodel.library.settings import LibrarySettings
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology

MIB = 1 << 20


@pytest.fixture(scope="module")
def one() -> Topology:
    return build_topology("dgx-h100")


@pytest.fixture(scope="module")
def two() -> Topology:
    return build_topology("dgx-h100", hosts=2, fabric="rail-optimised")


def with_variants(*variants: Variant) -> CommLibrary:
    return load_library("plain").model_copy(update={"variants": variants})


def variant(**numbers: object) -> Variant:
    return Variant.model_validate({"source": "a test", **numbers})


def test_a_variant_speaks_of_its_hardware_only(one: Topology, two: Topology) -> None:
    library = with_variants(
        variant(generations=["hopper"], launch="1 us"),
        variant(generations=["volta"], launch="9 us"),
        variant(networks=["infiniband"], step={"network": "5 us"}),
    )
    cluster, there = library_on(library, one), library_on(library, two)
    (name,) = cluster.protocols
    assert cluster.protocols[name].launch == pytest.approx(1e-6)
    assert cluster.protocols[name].step.network == library.protocols[name].step.network
    assert there.protocols[name].step.network == pytest.approx(5e-6)
    assert there.protocols[name].step.nvlink == library.protocols[name].step.nvlink


def test_later_variants_win_and_algorithms_have_their_own(one: Topology) -> None:
    library = library_on(
        with_variants(
            variant(launch="1 us"),
            variant(launch="2 us"),
            variant(algorithms=["tree"], launch="3 us"),
        ),
        one,
    )
    (name,) = library.protocols
    assert protocols_of(library, "ring")[name].launch == pytest.approx(2e-6)
    assert protocols_of(library, "tree")[name].launch == pytest.approx(3e-6)


def test_uneven_channels_cost_the_root_of_the_bytes(one: Topology) -> None:
    even = make_machine(one, with_variants())
    uneven = make_machine(one, with_variants(variant(unevenness="10 us")))

    def loss_s(nbytes: int) -> float:
        (rough,), (smooth,) = (
            lower_collective(machine, "all_reduce", nbytes, range(8)) for machine in (uneven, even)
        )
        return UncontendedTimer(uneven).time_s(rough) - UncontendedTimer(even).time_s(smooth)

    carried = 2 * 7 / 8  # MiB that a rank sends for each of the message
    assert loss_s(MIB) == pytest.approx(10e-6 * math.sqrt(carried))
    assert loss_s(16 * MIB) == pytest.approx(10e-6 * math.sqrt(16 * carried))


def test_a_share_of_the_network_slows_the_network_only(one: Topology, two: Topology) -> None:
    half = with_variants(variant(networks=["infiniband"], network_efficiency=0.5))
    for topology, factor in ((one, 1.0), (two, 2.0)):
        ranks = range(len(topology.ranks))
        (plain,) = lower_collective(
            make_machine(topology, with_variants()), "all_reduce", 64 * MIB, ranks
        )
        (slow,) = lower_collective(make_machine(topology, half), "all_reduce", 64 * MIB, ranks)
        ratio = slow.stages[0].phases[0].nbytes / plain.stages[0].phases[0].nbytes
        assert ratio.max() == pytest.approx(factor)
        assert ratio.min() == pytest.approx(1.0)


def test_connections_carry_no_more_than_their_rate(two: Topology) -> None:
    library = load_library("nccl")
    slow = {k: p.model_copy(update={"network_rate": 3e9}) for k, p in library.protocols.items()}
    capped = library.model_copy(update={"protocols": slow, "variants": ()})
    (lowered,) = lower_collective(make_machine(two, capped), "all_reduce", 64 * MIB, range(16))
    stage = lowered.stages[0]
    between = stage.edges.hop == 2
    assert between.any()
    assert np.all(stage.cap_Bps[between] == 3e9)
    assert np.all(np.isinf(stage.cap_Bps[~between]))


def test_a_port_of_nvls_carries_its_overhead(one: Topology) -> None:
    """Of S bytes each port of 8 carries S (1 + 1/8), over the switch's efficiency."""
    nbytes = 1 << 30
    machine = make_machine(one, load_library("nccl"))
    (lowered,) = lower_collective(machine, "all_reduce", nbytes, range(8), algorithm="nvls")
    share = protocols_of(machine.library, "nvls")["simple"].switch_efficiency
    sent = sum(
        (p.nbytes * p.active)[stage.edges.src == 0].sum()
        for stage in lowered.stages
        for p in stage.phases
    )
    assert 0.5 < share < 1
    assert sent == pytest.approx(nbytes * (1 + 1 / 8) / share, rel=1e-3)


def test_who_ran_it_sees_the_start_of_every_gpu(one: Topology) -> None:
    library = load_library("nccl")
    together = make_machine(one, library, settings=LibrarySettings(one_process=True))
    waited = make_machine(one, library, settings=LibrarySettings(awaited=True))
    assert observed_time_s(together, 1e-6) == pytest.approx(8 * library.issue)
    assert observed_time_s(together, 1.0) == 1.0
    assert observed_time_s(waited, 1e-3) == pytest.approx(1e-3 + library.awaited)


def test_what_a_plugin_tells() -> None:
    """aws-ofi-nccl platform-aws.c: 150 us on p3dn, 75 us on p4d and p5, 35 us on p6."""
    efa = hardware().plugins["efa"]
    stated = [efa.stated_us(capability, (2, 20)) for capability in (70, 80, 90, 100)]
    assert stated == [150, 75, 75, 35]
    assert efa.stated_us(80, (2, 9)) == 0
    assert [efa.keeps_order(at, (2, 20)) for at in (80, 90)] == [False, True]
    assert efa.keeps_order(80, (2, 9))


def test_no_more_channels_than_the_user_allows(two: Topology) -> None:
    """One channel uses one NIC of eight."""
    library = load_library("nccl")
    times = []
    for most in (1, 2, 64):
        settings = LibrarySettings(env={"NCCL_MAX_NCHANNELS": str(most), "NCCL_ALGO": "Ring"})
        machine = make_machine(two, library, settings=settings)
        assert len(machine.rings(range(16)).orders) == min(most, 8)
        times.append(UncontendedTimer(machine).best("all_reduce", 1 << 30, range(16))[1])
    assert times[0] > 1.8 * times[1] > 1.8 * 1.8 * times[2]
