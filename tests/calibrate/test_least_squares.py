"""Runs differ more than repeats of one run: that spread is found, kept and put on predictions."""

import numpy as np
import pytest

from perfmodel.calibrate import draws, fit, read_profile, write_profile
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.least_squares import robust_deviation
from perfmodel.calibrate.priors import shipped_cost_priors
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.measure.job import Measurement
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

ALPHA_S, RATE_BPS = 500e-6, 3e9
SIZES = [2**k for k in range(10, 27, 2)]


def run(seed, *, times=0.25, rates=0.2, scatter=0.03):
    """A run of four processes whose steps and rates are off by a factor of their own."""
    rng = np.random.default_rng(seed)
    longer, slower = np.exp([times, rates] * rng.standard_normal(2))
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    rows = []
    for nbytes in SIZES:
        exact = 6 * (ALPHA_S * longer + nbytes / RATE_BPS * slower)
        t = exact * np.exp(scatter * rng.standard_normal())
        row = {"what": "schedule", "nbytes": nbytes, "repeats": 9}
        rows.append(row | dict.fromkeys(names, t))
    return Measurement.model_validate(
        {
            "backend": "gloo",
            "collective": "all_reduce",
            "algorithm": "ring",
            "ranks": 4,
            "started": f"2026-01-02T03:04:{seed % 60:02}+00:00",
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


def test_many_runs_show_their_spread(machine):
    found = fit([run(seed) for seed in range(20)], machine.topology, machine.library).fits[0]
    usual = shipped_cost_priors().runs
    assert found.runs == 20
    assert found.run_spread.freedom == usual.freedom + 19
    # Twenty runs tell a standard deviation to 16 %, and the usual one pulls a little.
    assert found.run_spread.times == pytest.approx(0.25, rel=0.4)
    assert found.run_spread.rates == pytest.approx(0.2, rel=0.4)
    assert found.scatter == pytest.approx(0.03, rel=0.4)


@pytest.mark.slow
def test_one_run_has_the_usual_spread_and_says_so(machine):
    found = fit([run(0)], machine.topology, machine.library).fits[0]
    usual = shipped_cost_priors().runs
    assert (found.run_spread.times, found.run_spread.rates) == (usual.times, usual.rates)
    assert "one run; usual spread: own measurement" in found.run_spread.source


@pytest.mark.slow
def test_like_runs_narrow_the_spread_and_the_values(machine):
    alike = [run(seed, times=0.0, rates=0.0) for seed in range(6)]
    many = fit(alike, machine.topology, machine.library).fits[0]
    one = fit(alike[:1], machine.topology, machine.library).fits[0]
    assert many.run_spread.times < shipped_cost_priors().runs.times
    for few, more in zip(one.values, many.values, strict=True):
        assert more.high / more.low < few.high / few.low


@pytest.mark.slow
def test_intervals_hold_times_of_new_runs_four_times_out_of_five(machine):
    held = []
    for first in range(0, 60, 6):
        profile = fit(
            [run(seed) for seed in range(first, first + 5)], machine.topology, machine.library
        )
        new = dict(run(first + 5).times("schedule"))
        low, high = np.quantile(
            [_times(machine, one) for one in draws(profile, 40, 0)], [0.1, 0.9], axis=0
        )
        measured = np.array(list(new.values()))
        held += ((low <= measured) & (measured <= high)).tolist()
    # Ten runs of two independent factors: about 20 judgements, so 80 % to within 9 % (1 sigma).
    assert 0.62 <= np.mean(held) <= 0.97


def _times(machine, profile):
    known = UncontendedTimer(apply(profile, machine))
    return [known.best("all_reduce", n, range(4), 0, "ring")[1] for n in SIZES]


@pytest.mark.slow
def test_the_spread_survives_the_file(machine, tmp_path):
    profile = fit([run(0), run(1)], machine.topology, machine.library, name="p")
    write_profile(profile, tmp_path / "p.yaml")
    assert read_profile(tmp_path / "p.yaml") == profile


def test_of_normal_residuals_the_median_tells_the_deviation():
    """Half of a normal variable lies within 0.6745 standard deviations."""
    drawn = np.random.default_rng(1).normal(0.0, 3.0, 20_000)
    assert robust_deviation(drawn, len(drawn)) == pytest.approx(3.0, rel=0.03)
