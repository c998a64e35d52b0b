"""Profiles from sweeps: what they find, what they leave open, and how they carry over."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.calibrate import draws, interval_s, read_profile, write_profile
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.parameters import Parameter
from perfmodel.calibrate.transfer.fit import fit_profile, thin
from perfmodel.calibrate.transfer.forward_model import model_of
from perfmodel.calibrate.transfer.priors import (
    ContextArrays,
    DirectMeasurement,
    Priors,
    ResidualProcess,
    residual_covariance,
    run_covariance,
    shipped_priors,
)
from perfmodel.errors import InputError
from perfmodel.library.corrections import CollectiveContext, Corrections
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.report.validation import write_residuals
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.templates.build import build_topology
from tests.calibrate.transfer.machines import SIZES, Row, dgx

EXPECTED = Priors.model_validate(
    {
        "levers": {
            "launch": {"deviation": 0.8},
            "uneven": {"deviation": 0.4},
            "step": {"deviation": 0.8, "alike": 0.5},
            "bandwidth": {"deviation": 0.07},
            "rate": {"deviation": 0.07, "alike": 0.3},
            "issue": {"deviation": 0.2},
            "awaited": {"deviation": 0.3},
        },
        "left": {
            "small": 0.16,
            "deviation": 0.16,
            "large": 0.16,
            "octaves": 2.0,
            "level": 0.06,
            "ranks_octaves": 0.5,
            "hosts_octaves": 3.0,
            "other_op": 0.5,
            "other_way": 0.7,
            "networked": 0.3,
        },
        "runs": {
            "small": 0.07,
            "middle": 0.06,
            "large": 0.06,
            "turn_bytes": 2**20,
            "bulk_bytes": 2**27,
            "octaves": 4.0,
            "row": 0.5,
            "freedom": 4.0,
        },
        "source": "assumption: so that these tests do not hang on what is shipped",
    }
)
"""Of a mechanism that is worse, and so leaves more to the data, than the shipped one."""


def fit(runs, **more):
    return fit_profile(runs, **({"priors": EXPECTED} | more))


def times(machine, op="all_reduce", sizes=SIZES):
    known, ranks = UncontendedTimer(machine), range(len(machine.topology.ranks))
    return np.array([known.best(op, n, ranks)[1] for n in sizes])


def plain(topology):
    return make_machine(topology, load_library("nccl"))


def sweep(topology, stretch=1.0, measured=None, op="all_reduce", sizes=SIZES):
    """What a machine would measure whose times are so much longer than the model's."""
    machine = replace(plain(topology), measured=measured or Corrections())
    found = times(machine, op, sizes) * np.broadcast_to(stretch, len(sizes))
    return (
        topology,
        LibrarySettings(),
        op,
        [Row(n, float(t)) for n, t in zip(sizes, found, strict=True)],
    )


def factors(profile):
    return {(f.parameter, f.where): f for f in profile.transfer.values}


def off(profile, topology, wanted, op="all_reduce", sizes=SIZES):
    return np.abs(times(apply(profile, plain(topology)), op, sizes) / wanted - 1.0)


def test_a_slower_machine_is_found_to_be_slower_and_its_own_times_are_met():
    slower = {"ll/nvlink": 1.5, "ll128/nvlink": 1.5, "simple/nvlink": 1.5}
    run = sweep(dgx(), measured=Corrections(steps=slower))
    profile = fit([run])
    step = factors(profile)["step", "ll/nvlink"]
    assert step.si > 1.1
    assert step.low < 1.5 < step.high
    assert off(profile, dgx(), [row.time_s for row in run[3]]).max() < 0.05
    assert profile.transfer.median_abs < 0.02


@pytest.mark.slow
def test_what_was_fitted_on_two_machines_holds_for_eight():
    slower = {f"{p}/{hop}": 1.6 for p in ("ll", "ll128", "simple") for hop in ("network", "nvlink")}
    measured = Corrections(steps=slower)
    profile = fit([sweep(dgx(2), measured=measured)])
    eight = dgx(8)
    wanted = times(replace(plain(eight), measured=measured))
    before = np.abs(times(plain(eight)) / wanted - 1.0)
    after = off(profile, eight, wanted)
    assert np.median(after) < 0.5 * np.median(before)
    assert np.median(after) < 0.1


def test_an_algorithm_that_reaches_less_of_the_links_is_found_too():
    measured = Corrections(rates={"ring/simple": 0.85})
    profile = fit([sweep(dgx(), measured=measured, sizes=[2**n for n in range(28, 34)])])
    share = factors(profile)["rate", "ring/simple"]
    assert share.si < 0.99  # the links' rate and the correction have the rest
    assert share.low < 0.9
    other = [2**27 * 3]
    wanted = times(replace(plain(dgx()), measured=measured), sizes=other)
    assert off(profile, dgx(), wanted, sizes=other)[0] < 0.03


@pytest.mark.parametrize("gpus", [2, 4])
def test_what_was_fitted_on_eight_gpus_helps_with_fewer(gpus):
    measured = Corrections(steps={f"{p}/nvlink": 1.5 for p in ("ll", "ll128", "simple")})
    profile = fit([sweep(dgx(), measured=measured)])
    wanted = times(replace(plain(dgx(gpus=gpus)), measured=measured))
    before = np.abs(times(plain(dgx(gpus=gpus))) / wanted - 1.0)
    assert np.median(off(profile, dgx(gpus=gpus), wanted)) < 0.6 * np.median(before)


def test_what_the_mechanism_cannot_be_is_left_to_a_correction_that_fades():
    bump = 1.0 + 0.3 * np.exp(-0.5 * ((np.log2(SIZES) - 20) / 2.5) ** 2)
    profile = fit([sweep(dgx(), bump)])
    residual = profile.transfer.residual
    there = CollectiveContext("all_reduce", 2**20, 8, 1, "ring", "ll")
    assert off(profile, dgx(), times(plain(dgx())) * bump).max() < 0.06
    beyond = replace(there, nbytes=2**60)
    assert abs(np.log(residual(beyond))) < 0.25 * abs(np.log(residual(there)) or 1.0) + 0.02
    for far in (replace(there, ranks=2**14), replace(there, hosts=2**14)):
        assert residual(far) == pytest.approx(1.0, abs=0.02)


def test_one_spike_of_a_first_iteration_moves_nothing_else():
    spike = np.ones(len(SIZES))
    spike[3] = 4.0
    clean, spiked = fit([sweep(dgx())]), fit([sweep(dgx(), spike)])
    others = [n for n in SIZES if not SIZES[1] < n < SIZES[5]]
    wanted = times(plain(dgx()), sizes=others)
    assert off(clean, dgx(), wanted, sizes=others).max() < 0.02
    assert off(spiked, dgx(), wanted, sizes=others).max() < 0.06
    own = {point.nbytes: point.own for point in spiked.transfer.points}
    assert own[SIZES[3]] > 5 * own[SIZES[8]]


def test_what_the_data_cannot_tell_is_said_and_stays_as_it_was():
    profile = fit([sweep(dgx(), 1.3, sizes=[2**30, 2**31, 2**32])])
    lost = factors(profile)["launch", ""]
    assert lost.reason
    assert lost.told < 0.3
    assert lost.si == pytest.approx(1.0, abs=0.1)
    assert lost.high / lost.low > 2.0
    said = apply(profile, plain(dgx())).topology.assumptions[-1]
    assert "Hardly told by these data" in said
    assert "by these data: launch" in said


def test_a_rate_that_was_measured_by_itself_moves_its_link():
    kind = Parameter("bandwidth", "nvlink")
    profile = fit([], topology=dgx(), direct=[DirectMeasurement(kind, float(np.log(0.8)), 0.01)])
    assert factors(profile)["bandwidth", "nvlink"].si == pytest.approx(0.8, rel=0.01)
    slow, usual = apply(profile, plain(dgx())), plain(dgx())
    (large,) = times(slow, sizes=[2**32]) / times(usual, sizes=[2**32])
    assert large == pytest.approx(1 / 0.8, rel=0.02)
    both = fit([sweep(dgx(), 1.25, sizes=SIZES[-3:])], direct=[DirectMeasurement(kind, 0.0, 0.001)])
    assert factors(both)["bandwidth", "nvlink"].si == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
def test_intervals_are_wider_where_nothing_was_measured():
    profile = fit([sweep(dgx(2), 1.2)])
    drawn = draws(profile, 40, seed=1)

    def width(topology):
        machine = plain(topology)
        each = np.array([times(apply(one, machine), sizes=[2**24]) for one in drawn])
        low, high = interval_s(each[:, 0].tolist(), float(np.median(each)))
        return np.log(high / low)

    assert width(dgx(2)) < 0.6 * width(dgx(32))
    assert draws(profile, 2, seed=1) == drawn[:2]


def test_factors_that_trade_with_each_other_leave_measured_times_certain():
    """Launch and steps are open by tens of percent; the times they make up are not."""
    profile = fit([sweep(dgx(), sizes=[2**10, 2**11, 2**12, 2**13])])
    launch = factors(profile)["launch", ""]
    assert launch.high / launch.low > 3.0
    machine = plain(dgx())
    each = [times(apply(one, machine), sizes=[2**11])[0] for one in draws(profile, 40, seed=0)]
    low, high = np.quantile(each, [0.1, 0.9])
    assert np.log(high / low) < 4 * 1.2816 * EXPECTED.runs.small


@pytest.mark.slow
def test_intervals_hold_what_a_new_run_would_measure():
    """Runs drawn from the expected spread: 80 % of their times should lie inside; 70 to 90 do."""
    runs = EXPECTED.runs
    rng = np.random.default_rng(7)
    topology, inside = dgx(), []
    base = times(plain(topology))
    for _ in range(6):
        both = np.exp(rng.normal(0.0, runs.large, 2))
        profile = fit([sweep(topology, both[0], sizes=SIZES[-4:])])
        machine = plain(topology)
        machines = [apply(one, machine) for one in draws(profile, 40, seed=0)]
        each = np.array([times(machine, sizes=SIZES[-4:]) for machine in machines])
        low, high = np.quantile(each, [0.1, 0.9], axis=0)
        scatter = np.hypot(runs.large, runs.row * runs.large)
        new = base[-4:, None] * np.exp(rng.normal(0.0, scatter, 50))
        inside.append((low[:, None] <= new) & (new <= high[:, None]))
    assert 0.65 < np.mean(inside) < 0.99


def test_a_profile_file_gives_the_same_predictions(tmp_path):
    profile = fit([sweep(dgx(), 1.2)], name="mine", files=["a.log"], date="2026-01-02")
    write_profile(profile, tmp_path / "mine.yaml")
    again = read_profile(tmp_path / "mine.yaml")
    assert again == profile
    first, second = (times(apply(p, plain(dgx(4)))) for p in (profile, again))
    assert second == pytest.approx(first, rel=1e-4)
    page = write_residuals(profile, tmp_path / "fit.html").read_text(encoding="utf-8")
    assert "a.log" in page
    assert "figure-residuals" in page
    assert "default-src 'none'" in page
    assert len(page) < 1_600_000


@pytest.mark.slow
def test_collectives_are_printed_with_an_interval_at_any_scale():
    profile = fit([sweep(dgx(2), 1.2)])
    (row,) = collective_rows(dgx(4), sizes=[2**26], profile=profile)
    low, high = row["interval_s"]
    assert low < row["time_s"] < high


def test_profiles_of_other_hardware_are_refused():
    profile = fit([sweep(dgx(), 1.2)])
    with pytest.raises(InputError, match="made on a100-sxm4"):
        apply(profile, plain(build_topology("dgx-h100")))
    with pytest.raises(InputError, match="made for library 'nccl'"):
        apply(profile, make_machine(dgx(), load_library("plain")))
    with pytest.raises(InputError, match="runs of one model of GPU"):
        fit([sweep(dgx()), sweep(build_topology("dgx-h100"))])
    with pytest.raises(InputError, match="at least one size with a time"):
        fit([])
    assert (
        apply(profile, plain(build_topology("azure-ndv4"))).measured != Corrections()
    )  # the same GPU
    assert model_of("h100-pcie-80gb") == "h100-pcie"


def test_rows_are_thinned_evenly_over_the_logarithm_of_size():
    rows = [Row(n << 20, 1.0) for n in range(1, 1025)]
    assert len(thin(rows, 2)) == 20  # no whole MiB lies between 1.41 and 2
    assert [row.nbytes for row in thin([Row(0, 1.0), Row(8, 0.0), Row(9, 1.0)])] == [9]


# ---------------------------------------------------------------- the residual, against theory


def test_a_single_row_is_shrunk_as_theory_says():
    """Mean k / (k + n) of what was seen; Rasmussen and Williams (2006), equation 2.25."""
    left, runs = shipped_priors().left, shipped_priors().runs
    here = CollectiveContext("all_reduce", 2**22, 8, 1, "ring", "simple")
    places = ContextArrays.of([here])
    noise = run_covariance(places, np.zeros(1, dtype=int), runs) + 0.01
    residual = ResidualProcess(places, np.array([0.5]), noise, left, runs)
    k = left.deviation**2 + left.level**2
    run = runs.middle**2 + 0.01
    assert np.log(residual(here)) == pytest.approx(0.5 * k / (k + run), rel=0.01)


def test_covariances_are_those_of_something():
    rng = np.random.default_rng(3)
    situations = [
        CollectiveContext(
            str(rng.choice(["all_reduce", "all_gather"])),
            int(2 ** rng.uniform(3, 33)),
            int(2 ** rng.integers(1, 9)),
            int(2 ** rng.integers(0, 5)),
            str(rng.choice(["ring", "tree"])),
            str(rng.choice(["ll", "simple"])),
        )
        for _ in range(60)
    ]
    places = ContextArrays.of(situations)
    whole = residual_covariance(places, places, shipped_priors().left, shipped_priors().runs)
    assert np.allclose(whole, whole.T)
    assert np.linalg.eigvalsh(whole).min() > -1e-9
