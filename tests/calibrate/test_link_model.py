"""Ranks that share the cores of one host: what they cost together and what one does alone.

The truth is a closed form that stands here: a step of a ring of N processes takes at least N times
what one of them costs the cores, and its bytes go at B / N or as fast as one process can, if that
is less.
"""

import numpy as np
import pytest

from perfmodel.calibrate import fit
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.parameters import Parameter
from perfmodel.collectives.catalog import make
from perfmodel.library.lowering.protocols import chunk_bytes, reduced_bytes
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.measure.job import Measurement
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

ALPHA_S, HOST_S, ALL_BPS, ONE_BPS = 300e-6, 190e-6, 3.2e9, 1.1e9
SIZES = [2**k for k in range(10, 27)]


def time_s(ranks, nbytes):
    chunk = nbytes / ranks
    each_Bps = min(ALL_BPS / ranks, ONE_BPS)
    return 2 * (ranks - 1) * (max(ALPHA_S, ranks * HOST_S) + chunk / each_Bps)


def measured(ranks, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    times = {n: time_s(ranks, n) * np.exp(noise * rng.standard_normal()) for n in SIZES}
    rows = [
        {"what": "schedule", "nbytes": n, "repeats": 9} | dict.fromkeys(names, t)
        for n, t in times.items()
    ]
    return Measurement.model_validate(
        {
            "backend": "gloo",
            "collective": "all_reduce",
            "algorithm": "ring",
            "ranks": ranks,
            "started": "2026-01-02T03:04:05+00:00",
            "seconds": 1.0,
            "command": "made up",
            "machine": {},
            "versions": {},
            "topology": "cpu-loopback",
            "rows": rows,
        }
    )


@pytest.fixture(scope="module")
def machine():
    return Machine(build_topology("cpu-loopback"), load_library("gloo"))


@pytest.mark.slow
def test_two_numbers_of_ranks_tell_what_others_take(machine):
    profile = fit([measured(2), measured(4)], machine.topology, machine.library)
    values = {value.key: value.si for value in profile.fits[0].values}
    assert values[Parameter("host_step", "ring")] == pytest.approx(HOST_S, rel=1e-2)
    assert values[Parameter("rank_rate", "ring")] == pytest.approx(ONE_BPS, rel=1e-2)
    assert values[Parameter("bandwidth", "memory")] == pytest.approx(ALL_BPS, rel=1e-2)
    known = UncontendedTimer(apply(profile, machine))
    for ranks in (2, 3, 4, 8):
        for nbytes in (3 * 2**12, 3 * 2**22):
            found = known.best("all_reduce", nbytes, range(ranks), 0, "ring")[1]
            assert found == pytest.approx(time_s(ranks, nbytes), rel=0.02), (ranks, nbytes)


@pytest.mark.slow
def test_one_number_of_ranks_does_not_ask_for_it(machine):
    profile = fit([measured(4, 0.05)], machine.topology, machine.library)
    assert {value.parameter for value in profile.fits[0].values} == {"bandwidth", "step"}


def test_a_step_elsewhere_does_not_share_the_host():
    library = load_library("gloo")
    ring = library.protocols["ring"].model_copy(update={"host_step": 1.0})
    busy = library.model_copy(update={"protocols": {"ring": ring}})
    cluster = build_topology("ethernet-10g", hosts=4, fabric="one-switch")
    times = [
        UncontendedTimer(Machine(cluster, one)).best("all_reduce", 4096, range(4))[1]
        for one in (library, busy)
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("op", "algorithm", "share"),
    [
        ("all_reduce", "ring", 1 / 2),
        ("all_reduce", "recursive_doubling", 1.0),
        ("all_reduce", "halving_doubling", 1 / 2),
        ("reduce_scatter", "ring", 1.0),
        ("all_gather", "ring", 0.0),
        ("all_reduce", "gloo_ring", 1 / 2),
    ],
)
def test_what_is_added_is_counted_in_the_schedule(op, algorithm, share):
    schedule = make(op, algorithm, 8, 8 * 2**16)
    assert reduced_bytes(schedule) == pytest.approx(share * chunk_bytes(schedule))
