"""Machines far from their datasheets, few rows, sizes that were not measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.calibrate import draws, interval_s
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.transfer.fit import fit_profile
from perfmodel.library.corrections import Corrections
from perfmodel.library.machine import make_machine, observed_time_s
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.simulate.uncontended import UncontendedTimer, hidden_s
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps
from perfmodel.validate.run import shipped_folder
from tests.calibrate.transfer.machines import SIZES, Row, dgx

LARGE = [2**n for n in range(26, 33)]
SWEEPS = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}


def plain(topology, settings=None):
    return make_machine(topology, load_library("nccl"), settings=settings or LibrarySettings())


def times(machine, op="all_reduce", sizes=SIZES):
    timer, ranks = UncontendedTimer(machine), range(len(machine.topology.ranks))
    each = []
    for nbytes in sizes:
        lowered, alone_s = timer.best(op, nbytes, ranks)
        repeated_s = alone_s - hidden_s(timer, lowered, op, ranks)
        each.append(observed_time_s(machine, repeated_s))
    return np.array(each)


BASE = times(plain(dgx()))
BASE_LARGE = times(plain(dgx()), sizes=LARGE)


def run(stretch, sizes=SIZES, op="all_reduce", topology=None, base=None):
    topology = topology or dgx()
    alone_s = times(plain(topology), op, sizes) if base is None else base
    rows = zip(sizes, alone_s * np.broadcast_to(stretch, len(sizes)), strict=True)
    return topology, LibrarySettings(), op, [Row(n, float(t)) for n, t in rows]


def ratio(profile, sizes=SIZES, topology=None, op="all_reduce"):
    """Times with the profile over those without."""
    nominal = plain(topology or dgx())
    return times(apply(profile, nominal), op, sizes) / times(nominal, op, sizes)


# ---------------------------------------------------------------- far from the datasheet


def test_a_machine_six_times_slower_than_its_datasheet_is_found_to_be_so():
    """bs_v100_16n: 16 nodes over Omni-Path, a single time of 4 GB, 6.4 times the predicted one."""
    sweep = SWEEPS["bs_v100_16n_allreduce"]
    matched = match(sweep)
    profile = fit_profile([(matched.topology, matched.settings, matched.op, sweep.rows)])
    rates = [v for v in profile.transfer.values if v.parameter in {"rate", "bandwidth"}]
    slow = min(rates, key=lambda value: value.si)
    assert slow.si < 0.2
    assert slow.settled
    nominal = plain(matched.topology, matched.settings)
    assert times(apply(profile, nominal), sizes=[4_000_000_000]) == pytest.approx(
        [sweep.rows[0].time_s], rel=0.05
    )
    small, large = times(apply(profile, nominal), sizes=[1024, 2**33]) / times(
        nominal, sizes=[1024, 2**33]
    )
    assert small < 1.2  # a slow link says nothing of a delay
    assert large == pytest.approx(6.4, rel=0.1)


@settings(max_examples=12, deadline=None)
@given(slower=st.floats(1.0, 12.0))
@example(slower=1.0)
@example(slower=12.0)
def test_slow_links_are_followed_however_slow_they_are(slower):
    profile = fit_profile([run(slower, LARGE, base=BASE_LARGE)])
    other = [3 * 2**27, 3 * 2**30]
    assert ratio(profile, other) == pytest.approx([slower, slower], rel=0.03)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(rate=st.floats(0.15, 1.2))
def test_a_known_rate_is_recovered_at_sizes_that_were_not_measured(rate):
    measured = Corrections(rates={"ring/simple": rate})
    slow = replace(plain(dgx()), measured=measured)
    profile = fit_profile([run(1.0, LARGE, base=times(slow, sizes=LARGE))])
    other = [3 * 2**26, 3 * 2**29]
    expected = times(slow, sizes=other) / times(plain(dgx()), sizes=other)
    assert ratio(profile, other) == pytest.approx(expected, rel=0.06)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(scale=st.floats(0.5, 3.0))
@example(scale=3.0)
def test_times_that_are_longer_by_a_factor_give_predictions_longer_by_it(scale):
    """All sizes: within 12 %, as part of it is taken for noise."""
    profile = fit_profile([run(scale, base=BASE)] * 2)
    assert ratio(profile) == pytest.approx(np.full(len(SIZES), scale), rel=0.12)


def test_two_rows_do_not_fly_away():
    """Of two sizes one is off by a third: nowhere is a prediction farther off than the rows are."""
    base = times(plain(dgx()), sizes=[2**20, 2**22])
    profile = fit_profile([run([1.0, 1.33], [2**20, 2**22], base=base)])
    assert np.all(ratio(profile) < 1.34)
    assert np.all(ratio(profile) > 0.9)


# ---------------------------------------------------------------- sizes beyond those measured


@pytest.mark.parametrize("stretch", [0.6, 1.7])
def test_below_the_smallest_size_the_datasheets_shape_holds(stretch):
    """Large collectives off by much: small ones no farther off, and not a slope continued."""
    sizes = [2**n for n in range(22, 33, 2)]
    slope = stretch ** np.linspace(1.0, 0.0, len(sizes))
    base = times(plain(dgx()), sizes=sizes)
    profile = fit_profile([run(slope, sizes, base=base)])
    below = ratio(profile, [2**n for n in range(3, 22, 2)])
    low, high = sorted((1.0, stretch))
    assert np.all((low * 0.97 < below) & (below < high * 1.03))
    assert abs(np.log(below[0])) < 0.4 * abs(np.log(stretch))


def test_intervals_are_wider_beyond_what_was_measured():
    sizes = [2**n for n in range(22, 33, 2)]
    nominal = plain(dgx())
    profile = fit_profile([run(1.2, sizes, base=times(nominal, sizes=sizes))])
    machines = [apply(draw, nominal) for draw in draws(profile, 30, seed=0)]

    def width(nbytes, op="all_reduce"):
        each = [float(times(machine, op, [nbytes])[0]) for machine in machines]
        low, high = interval_s(each, float(np.median(each)))
        return np.log(high / low)

    assert width(2**12) > 1.3 * width(2**24)
    assert width(2**24, "all_gather") > 1.1 * width(2**24)


# ---------------------------------------------------------------- one more row


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    stretch=st.floats(0.7, 1.6),
    bumps=st.lists(st.floats(0.92, 1.08), min_size=len(SIZES), max_size=len(SIZES)),
    at=st.integers(1, len(SIZES) - 2),
)
def test_a_size_that_was_measured_is_predicted_no_worse_than_without_it(stretch, bumps, at):
    """But for 3 %: a row among noisy neighbours is partly taken for noise."""
    measured = BASE * stretch * np.array(bumps)
    rows = [Row(n, float(t)) for n, t in zip(SIZES, measured, strict=True)]
    topology = dgx()

    def off(chosen):
        profile = fit_profile([(topology, LibrarySettings(), "all_reduce", chosen)])
        predicted = times(apply(profile, plain(topology)), sizes=[SIZES[at]])[0]
        return abs(np.log(predicted / measured[at]))

    assert off(rows) < off([row for row in rows if row.nbytes != SIZES[at]]) + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sb_a100_1n_reduce", "sb_a100_1n_all_reduce"])
def test_a_profile_meets_the_times_that_it_was_made_from(name):
    """Chains hide part of each other in nccl-tests: left out of the fit, 8 MiB were 31 % short."""
    sweep = SWEEPS[name]
    matched = match(sweep)
    profile = fit_profile([(matched.topology, matched.settings, matched.op, sweep.rows)])
    nominal = plain(matched.topology, matched.settings)
    measured = np.array([row.time_s for row in sweep.rows if row.nbytes >= 2**23])
    sizes = [row.nbytes for row in sweep.rows if row.nbytes >= 2**23]
    over = times(apply(profile, nominal), matched.op, sizes) / measured
    assert np.abs(np.log(over)).max() < 0.13
