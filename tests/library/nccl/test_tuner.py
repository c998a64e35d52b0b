"""NCCL's own estimates against tables that were computed from NCCL's formulas elsewhere.

Golden numbers: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc``, worked out independently, and choices
of a published sweep (stas00/ml-engineering ``network/README.md``, 8 x H200, NCCL 2.27.7).
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.library.nccl.communicator import System, channels_of
from perfmodel.library.nccl.cost_model import Case, algorithm_GBps, constants_of, latency_us
from perfmodel.library.nccl.dispatch import channels_used, predictions
from perfmodel.library.nccl.graphs import Graph
from perfmodel.library.settings import LibrarySettings, settings_of

NEWEST = LibrarySettings()


def system(ranks, nodes, capability, cpu, channels, speed, nvls=None):
    ring = Graph(channels, speed, speed, "NVL", "PIX" if nodes > 1 else "LOC", nodes == 1)
    switched = None if nvls is None else Graph(*nvls, "NVL", "LOC", same_channels=False)
    return System(
        nodes,
        ranks,
        capability,
        cpu,
        ring,
        ring,
        switched,
        ring if nodes > 1 else None,
        ranks // nodes,
    )


A100 = system(8, 1, 80, "amd", 12, 20.0)
H100 = system(8, 1, 90, "intel", 12, 30.0, (8, 40.0, 60.0))
A100_2 = system(16, 2, 80, "amd", 8, 24.0)
A100_4 = system(32, 4, 80, "amd", 8, 24.0)
H100_4 = system(32, 4, 90, "intel", 8, 45.0, (8, 40.0, 48.0))
WAYS = [
    ("ring", "ll"),
    ("ring", "ll128"),
    ("ring", "simple"),
    ("tree", "ll"),
    ("tree", "ll128"),
    ("tree", "simple"),
]

TABLE = [
    (A100, "15.0/50.1 40.6/126.2 56.0/137.1 15.2/29.1 31.5/85.9 64.4/110.4"),
    (H100, "15.0/80.6 40.6/189.3 56.0/205.7 15.2/43.6 31.5/128.8 64.4/165.6 25/272.0"),
    (A100_2, "68.0/12.0 78.0/85.3 204.4/102.4 25.2/11.2 48.5/80.0 92.4/88.3"),
    (A100_4, "134.8/9.8 150.0/82.6 428.4/99.1 35.2/9.5 65.5/66.8 120.4/71.2"),
    (H100_4, "78.8/10.5 144.4/151.5 282.8/185.8 35.2/10.2 65.5/116.0 120.4/144.0 108.6/187.9"),
]


@pytest.mark.parametrize(("on", "row"), TABLE)
def test_latency_and_bandwidth_of_every_way(on, row):
    ways = [*WAYS, ("nvls" if on.nodes == 1 else "nvls_tree", "simple")]
    for (algorithm, protocol), cell in zip(ways, row.split(), strict=False):
        case = Case(on, "all_reduce", algorithm, protocol, constants_of((math.inf, math.inf)))
        lat_us, rate_GBps = (float(part) for part in cell.split("/"))
        assert latency_us(case) == pytest.approx(lat_us, abs=0.051)
        assert algorithm_GBps(case) == pytest.approx(rate_GBps, abs=0.051)


MODELLED = [  # bytes, A100: us and choice, H200: us and choice
    (32 << 10, 15.7, ("ring", "ll"), 15.4, ("ring", "ll")),
    (1 << 20, 35.9, ("ring", "ll"), 28.0, ("ring", "ll")),
    (8 << 20, 107.1, ("ring", "ll128"), 55.8, ("nvls", "simple")),
    (16 << 20, 173.6, ("ring", "ll128"), 86.7, ("nvls", "simple")),
    (32 << 20, 300.7, ("ring", "simple"), 148.4, ("nvls", "simple")),
    (64 << 20, 545.3, ("ring", "simple"), 271.7, ("nvls", "simple")),
    (256 << 20, 2013.0, ("ring", "simple"), 1012.0, ("nvls", "simple")),
    (1 << 30, 7885.0, ("ring", "simple"), 3973.0, ("nvls", "simple")),
    (16 << 30, 125326.0, ("ring", "simple"), 63186.0, ("nvls", "simple")),
]


@pytest.mark.parametrize("row", MODELLED)
def test_times_and_choices_over_sizes(row):
    nbytes, *expected = row
    for on, time_us, choice in ((A100, *expected[:2]), (H100, *expected[2:])):
        best = predictions(on, "all_reduce", nbytes, NEWEST)[0]
        assert (best.algorithm, best.protocol) == choice
        assert best.time_s * 1e6 == pytest.approx(time_us, abs=0.6)


SWITCH = [  # GPUs, speed of NVLS, GB/s by ring, by NVLS up to 2.27 and since, and the choices
    (4, 60.0, 240.0, 200.0, "ring", 160.0, "ring"),
    (5, 60.0, 225.0, 250.0, "nvls", 187.5, "ring"),
    (6, 50.0, 216.0, 250.0, "nvls", 216.0, "nvls"),
    (7, 40.0, 210.0, 233.3, "nvls", 238.0, "nvls"),
    (8, 40.0, 205.7, 266.7, "nvls", 272.0, "nvls"),
]


@pytest.mark.parametrize("row", SWITCH)
def test_where_nvls_beats_the_ring(row):
    gpus, speed, by_ring, before, chosen_before, since, chosen_since = row
    on = system(gpus, 1, 90, "intel", 12, 30.0, (gpus, speed, 60.0))
    for version, rate, chosen in (("2.27.7", before, chosen_before), (None, since, chosen_since)):
        constants = constants_of(settings_of(version=version).release)
        ring = Case(on, "all_reduce", "ring", "simple", constants)
        nvls = Case(on, "all_reduce", "nvls", "simple", constants)
        assert algorithm_GBps(ring) == pytest.approx(by_ring, abs=0.05)
        assert algorithm_GBps(nvls) == pytest.approx(rate, abs=0.05)
        best = predictions(on, "all_reduce", 8 << 30, settings_of(version=version))[0]
        assert best.algorithm == chosen


def test_h200_of_the_published_run_with_its_version():
    """16 GiB in 64.4 ms by the formulas of 2.27."""
    best = predictions(H100, "all_reduce", 16 << 30, settings_of(version="2.27.7"))[0]
    assert best.time_s == pytest.approx(64.4e-3, rel=2e-3)


def test_ring_plateau_between_hosts():
    at = {
        (p.algorithm, p.protocol): p.time_s
        for p in predictions(A100_2, "all_reduce", 1 << 30, NEWEST)
    }
    wire_s = (1 << 30) / 102.4e9
    assert at["ring", "simple"] == pytest.approx(1.4 * 204.4e-6 + wire_s, rel=1e-6)


def test_tree_correction_at_a_size():
    """64 KiB are 64 B x 2^10: entry 10 of LL, 0.6."""
    times = {
        (p.algorithm, p.protocol): p.time_s
        for p in predictions(A100, "all_reduce", 64 << 10, NEWEST)
    }
    case = Case(A100, "all_reduce", "tree", "ll", constants_of((math.inf, math.inf)))
    expected = 15.2e-6 + (64 << 10) / (algorithm_GBps(case) * 0.6e9)
    assert times["tree", "ll"] == pytest.approx(expected, rel=1e-9)


CHANGES = [  # version, name of a table and row, value: facts of the versions' tuning.cc
    ("2.10.3", lambda c: c.base_us["ring"], (3.6, 10.0, 8.4)),
    ("2.10.3", lambda c: c.network_us["ring"][2], 9.6),
    ("2.12.12", lambda c: c.network_us["ring"][2], 28.0),
    ("2.12.12", lambda c: c.base_us["tree"], (4.4, 4.4, 0.0)),
    ("2.12.12", lambda c: c.nvlink_us["tree"][2], 28.0),
    ("2.12.12", lambda c: c.ampere_cap_GBps, 235),
    ("2.18.3", lambda c: c.pcie_us["tree"][2], 6.0),
    ("2.18.3", lambda c: c.ring_ll_factor, 0.25),
    ("2.18.3", lambda c: c.base_us["nvls"][2], 23.0),
    ("2.18.3", lambda c: c.network_us["nvls_tree"][2], 19.0),
    ("2.21.5", lambda c: c.pcie_us["tree"][2], 4.0),
    ("2.21.5", lambda c: c.ring_hops_per_host, True),
    ("2.21.5", lambda c: c.base_us["tree"][2], 0.0),
    ("2.21.5", lambda c: c.network_us["nvls_tree"][2], 14.0),
    ("2.23.4", lambda c: c.ring_hops_per_host, False),
    ("2.23.4", lambda c: c.base_us["tree"][2], 8.4),
    ("2.23.4", lambda c: c.pat_factor, 0.85),
    ("2.27.7", lambda c: c.pat_factor, 0.75),
    ("2.28.9", lambda c: c.network_us["nvls_tree"][2], 20.9),
    (None, lambda c: c.nvls_efficiency["hopper"], 0.85),
]


@pytest.mark.parametrize(("version", "read", "value"), CHANGES)
def test_constants_of_versions(version, read, value):
    actual = read(constants_of(settings_of(version=version).release))
    assert actual == value


def test_hops_between_hosts_by_version():
    """2 N of them in 2.18 to 2.22, 2 (N - 1) before and since; each 2.7 us by LL instead of 1."""
    lat = {}
    for version in ("2.18.3", "2.23.4"):
        constants = constants_of(settings_of(version=version).release)
        lat[version] = latency_us(Case(H100_4, "all_reduce", "ring", "ll", constants))
    assert lat["2.18.3"] - lat["2.23.4"] == pytest.approx(2 * (2.7 - 1.0))


@pytest.mark.parametrize(
    ("on", "op", "expected"),
    [
        (A100, "all_reduce", {"ring", "tree"}),
        (A100, "all_gather", {"ring"}),
        (A100, "broadcast", {"ring"}),
        (H100, "all_reduce", {"ring", "tree", "nvls"}),
        (H100, "reduce_scatter", {"ring", "nvls"}),
        (H100_4, "all_reduce", {"ring", "tree", "nvls_tree"}),
        (H100_4, "all_gather", {"ring"}),
        (system(4, 4, 80, "intel", 1, 24.0), "all_gather", {"ring", "pat"}),
        (system(4, 4, 80, "intel", 1, 24.0), "all_reduce", {"ring", "tree"}),
    ],
)
def test_algorithms_that_may_run(on, op, expected):
    assert {p.algorithm for p in predictions(on, op, 1 << 20, NEWEST)} == expected


def test_ll128_needs_nvlink_and_a_good_way_to_the_network():
    far = system(16, 2, 80, "amd", 1, 12.0)
    hidden = Graph(1, 12.0, 12.0, "NVL", "PHB")
    without = System(2, 16, 80, "amd", hidden, hidden, None, None, 8)
    assert "ll128" in {p.protocol for p in predictions(far, "all_reduce", 1 << 20, NEWEST)}
    assert "ll128" not in {p.protocol for p in predictions(without, "all_reduce", 1 << 20, NEWEST)}
    named = settings_of(env={"NCCL_PROTO": "LL128"})
    assert {p.protocol for p in predictions(without, "all_reduce", 1 << 20, named)} == {"ll128"}


@pytest.mark.parametrize(
    ("env", "op", "ways"),
    [
        ({"NCCL_ALGO": "Tree"}, "all_reduce", {"tree"}),
        ({"NCCL_ALGO": "^Tree,NVLS"}, "all_reduce", {"ring"}),
        ({"NCCL_ALGO": "allreduce:tree;allgather:ring"}, "all_reduce", {"tree"}),
        ({"NCCL_ALGO": "Tree"}, "all_gather", {"ring", "nvls"}),
        ({"NCCL_NVLS_ENABLE": "1"}, "all_reduce", {"ring", "tree", "nvls"}),
    ],
)
def test_environment_filters_algorithms(env, op, ways):
    actual = predictions(H100, op, 1 << 20, settings_of(env=env))
    assert {p.algorithm for p in actual} == ways


def test_environment_that_leaves_nothing_names_what_there_is():
    with pytest.raises(InputError, match=r"NCCL_ALGO.*'NVLS'.*'ring', 'tree'"):
        predictions(A100, "all_reduce", 1 << 20, settings_of(env={"NCCL_ALGO": "NVLS"}))
    both = settings_of(env={"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"})
    with pytest.raises(InputError, match=r"NCCL_PROTO.*'simple'"):
        predictions(H100, "all_reduce", 1 << 20, both)


def test_collnet_only_when_asked_for():
    asked = settings_of(env={"NCCL_COLLNET_ENABLE": "1"})
    assert "collnet_chain" in {p.algorithm for p in predictions(H100_4, "all_reduce", 1, asked)}
    assert "collnet_chain" not in {
        p.algorithm for p in predictions(H100_4, "all_reduce", 1, NEWEST)
    }


def test_channels_by_size():
    """All 24 from 24 x 512 x 64 bytes on (NCCL's enqueue.cc), fewer below."""
    full = 24 * 512 * 64
    assert channels_used(A100, "all_reduce", "ring", "simple", full, NEWEST) == 24
    assert channels_used(A100, "all_reduce", "ring", "simple", full - 1, NEWEST) == 23
    assert channels_used(A100, "all_reduce", "ring", "simple", 8, NEWEST) == 1
    few = settings_of(env={"NCCL_MAX_CTAS": "4"})
    assert channels_used(A100, "all_reduce", "ring", "simple", full, few) == 4


@given(st.integers(0, 34), st.sampled_from(["all_reduce", "all_gather", "broadcast"]))
def test_estimates_rise_with_size_and_are_sorted(power, op):
    small = {(p.algorithm, p.protocol): p for p in predictions(H100, op, 2**power, NEWEST)}
    big = predictions(H100, op, 2 ** (power + 1), NEWEST)
    assert [p.time_s for p in big] == sorted(p.time_s for p in big)
    for p in big:
        if p.algorithm != "tree":  # its correction table is not monotonous
            assert p.time_s >= small[p.algorithm, p.protocol].time_s


def test_unknown_operation_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        predictions(A100, "all_redcue", 1, NEWEST)


ALONE = replace(
    system(4, 4, 80, "intel", 1, 24.0), tree=Graph(1, 24.0, 24.0, "LOC", "PIX", plain=True)
)


def case(on, op, algorithm, protocol, version=None):
    return Case(on, op, algorithm, protocol, constants_of(settings_of(version=version).release))


def test_nvls_tree_before_2_28_has_half_the_network_on_more_than_two_hosts():
    """8 channels of min(40, 48 / 2) GB/s, five sixths of it."""
    actual = algorithm_GBps(case(H100_4, "all_reduce", "nvls_tree", "simple", "2.26.2"))
    assert actual == pytest.approx(8 * 24 * 5 / 6)
    on_two = replace(H100_4, nodes=2, ranks=16)
    actual = algorithm_GBps(case(on_two, "all_reduce", "nvls_tree", "simple", "2.26.2"))
    assert actual == pytest.approx(8 * 40 * 5 / 6)


def test_a_plain_tree_loses_15_percent():
    """17.8 GB/s a channel on more than two hosts of Ampere, 0.85 of it, half of that as result."""
    assert algorithm_GBps(case(ALONE, "all_reduce", "tree", "simple")) == pytest.approx(7.565)


def test_broadcast_in_unlike_channels_waits_for_every_step():
    alike = case(A100, "broadcast", "ring", "simple")
    assert latency_us(alike) == pytest.approx(8.4 + 3.4)
    unlike = replace(A100, ring=replace(A100.ring, same_channels=False))
    assert latency_us(case(unlike, "broadcast", "ring", "simple")) == pytest.approx(8.4 + 8 * 4.0)


def test_pat():
    """8 + log2(4) * 14 / 3.5 + 2.8 * 4 us; three quarters of the bandwidth."""
    actual = case(ALONE, "all_gather", "pat", "simple")
    assert latency_us(actual) == pytest.approx(27.2)
    assert algorithm_GBps(actual) == pytest.approx(18.0)


def test_fewer_channels_for_little_data():
    """LL on a ring: 512 threads x 8 bytes x 8 ranks a channel; and 32 KiB of traffic at least."""
    assert channels_used(A100, "all_reduce", "ring", "ll", 12 * 512 * 8 * 8, NEWEST) == 12
    assert channels_used(A100, "all_reduce", "ring", "ll128", 64 << 10, NEWEST) == 4
    assert channels_used(A100, "broadcast", "ring", "ll128", 64 << 10, NEWEST) == 2
    assert channels_used(H100, "all_reduce", "nvls", "simple", 8, NEWEST) == 16


def test_few_fast_channels_between_hosts_are_doubled_again():
    few = system(12, 2, 90, "intel", 6, 48.0)
    assert channels_of(few, "ring", NEWEST) == 24
    assert channels_of(replace(few, capability=80), "ring", NEWEST) == 12
