"""How a fit treats runs that do not agree, and runs with other settings."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.calibrate import draws
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.transfer.fit import fit_profile
from perfmodel.calibrate.transfer.noise_model import SweepNoise
from perfmodel.calibrate.transfer.priors import (
    ContextArrays,
    residual_covariance,
    run_covariance,
    shipped_priors,
)
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.machine import make_machine, observed_time_s
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.simulate.uncontended import UncontendedTimer
from tests.calibrate.transfer.machines import SIZES, Row, dgx


def times(machine, sizes=SIZES):
    known, ranks = UncontendedTimer(machine), range(len(machine.topology.ranks))
    return np.array(
        [observed_time_s(machine, known.best("all_reduce", n, ranks)[1]) for n in sizes]
    )


def on(topology, **told):
    return make_machine(topology, load_library("nccl"), settings=LibrarySettings(**told))


def run(machine, stretch=1.0, sizes=SIZES):
    found = times(machine, sizes) * np.broadcast_to(stretch, len(sizes))
    rows = [Row(n, float(t)) for n, t in zip(sizes, found, strict=True)]
    return machine.topology, machine.settings, "all_reduce", rows


def test_a_profile_says_for_which_settings_it_may_not_hold():
    fixed = {"NCCL_PROTO": "Simple"}
    profile = fit_profile([run(on(dgx(), env=fixed), 1.1)], files=["fixed.log"])
    said = apply(profile, on(dgx())).topology.assumptions[-1]
    assert "may not hold for these settings: fixed.log: NCCL_PROTO simple against free" in said
    assert "may not hold" not in apply(profile, on(dgx(), env=fixed)).topology.assumptions[-1]


# ---------------------------------------------------------------- how a run was started


def test_a_busy_process_tells_nothing_of_the_ways_that_it_starts():
    """8 starts, one after the other, hide small all-reduces: that they take long is the host's."""
    topology, small = dgx(), [8, 64, 512, 4096]
    busy = on(topology, one_process=True)
    longer = busy.library.model_copy(update={"issue": 1.4 * busy.library.issue})
    slow = replace(busy, library=longer)
    rows = [Row(n, float(t)) for n, t in zip(small, times(slow, small), strict=True)]
    profile = fit_profile([(topology, LibrarySettings(one_process=True), "all_reduce", rows)])
    issue = next(f for f in profile.transfer.values if f.parameter == "issue")
    assert 1.15 < issue.si < 1.4  # other hosts' processors differ: not all of it is carried over
    plain = times(on(topology), small)
    assert times(apply(profile, on(topology)), small) == pytest.approx(plain, rel=0.05)
    again = times(apply(profile, on(topology, one_process=True)), small)
    assert again == pytest.approx([row.time_s for row in rows], rel=0.15)


def test_what_a_script_adds_is_not_taken_for_the_librarys():
    topology = dgx()
    profile = fit_profile([run(on(topology, awaited=True))])
    assert any(value.parameter == "awaited" for value in profile.transfer.values)
    queued = times(on(topology))
    assert times(apply(profile, on(topology))) == pytest.approx(queued, rel=0.03)
    assert times(on(topology, awaited=True))[0] > 1.3 * queued[0]


def test_starts_differ_from_run_to_run_however_many_runs_there_were():
    busy = on(dgx(), one_process=True)
    profile = fit_profile([run(busy, sizes=[8, 64, 512])] * 4)

    def spread(*, scatter):
        found = draws(profile, 40, seed=0, scatter=scatter)
        return np.std(
            [np.log(f.si) for d in found for f in d.transfer.values if f.parameter == "issue"]
        )

    assert spread(scatter=False) < spread(scatter=True)
    assert spread(scatter=True) > shipped_priors().runs.start


# ---------------------------------------------------------------- runs that do not agree


def test_a_run_that_is_odd_does_not_win_over_two_that_agree():
    topology = dgx()
    plain = times(on(topology))
    three = [run(on(topology), stretch) for stretch in (1.0, 1.0, 1.6)]
    profile = fit_profile(three, files=["a", "b", "odd"])
    assert np.median(times(apply(profile, on(topology))) / plain) < 1.1  # the mean would be 1.17
    usual, same, odd = profile.transfer.odd
    assert odd > 4 * max(usual, same)


def test_rows_say_more_where_the_mechanism_is_far_off():
    """A hump that is many times what is usual is this machine's, and its next run has it too."""
    hump = np.exp(-0.5 * ((np.log2(SIZES) - 21) / 4) ** 2)
    topology = dgx()
    plain = times(on(topology))

    def kept(height):
        profile = fit_profile([run(on(topology), np.exp(height * hump))])
        found = np.log(times(apply(profile, on(topology))) / plain)
        return found[5] / (height * hump[5])

    assert kept(1.2) > 0.8
    assert kept(1.2) > kept(0.03) + 0.1


def test_spreads_are_found_again_in_what_was_drawn_with_them():
    """Rows drawn with the mechanism four times as far off as usual: so they are taken."""
    expected, rng = shipped_priors(), np.random.default_rng(5)
    situations = [
        CollectiveContext("all_reduce", 2**n, 8, 1, "ring", "simple") for n in range(10, 34)
    ]
    places = ContextArrays.of(situations * 2)
    number = np.repeat([0, 1], len(situations))
    noise = run_covariance(places, number, expected.runs) + 1e-4 * np.eye(len(number))
    mechanism = 16 * residual_covariance(places, places, expected.left, expected.runs)

    def fitted(over):
        noise = SweepNoise(np.zeros((0, 0)), np.zeros(0), expected)  # of no factors
        noise.fit(np.zeros((len(number), 0)), places, number, over)
        return noise.residual.deviation

    factors = []
    for _ in range(12):
        over = np.linalg.cholesky(mechanism + noise) @ rng.standard_normal(len(number))
        factors.append(fitted(over) / expected.left.deviation)
    assert 2.0 < np.median(factors) < 5.0  # drawn towards 1, as is expected
    assert fitted(0 * over) <= expected.left.deviation
