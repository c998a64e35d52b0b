"""Fits of measurements whose truth is known, because they were made from a closed form.

The closed form stands here on its own: on `cpu-loopback` all N senders of a ring share one link of
bandwidth B, so a step of chunk c takes alpha + N c / B, plus gamma c where it reduces. It is that
of a plain ring, so the library here is Gloo without its segments.
"""

import numpy as np
import pytest

from perfmodel.calibrate import draws, fit, read_profile, write_profile
from perfmodel.calibrate.apply import apply, with_values
from perfmodel.calibrate.least_squares import solve
from perfmodel.calibrate.link_model import CostModel, observations_of
from perfmodel.calibrate.parameters import Parameter
from perfmodel.errors import InputError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.measure.job import Measurement
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

LAUNCH_S, ALPHA_S, RATE_BPS, GAMMA_BPS = 40e-6, 120e-6, 3.3e9, 9e9
SIZES = [2**k for k in range(10, 27)]
BANDWIDTH = Parameter("bandwidth", "memory")
STEP, LAUNCH, REDUCE = (
    Parameter("step", "ring/memory"),
    Parameter("launch", "ring"),
    Parameter("reduce", "ring"),
)


def step_s(chunk, ranks, *, alpha_s=ALPHA_S, rate_Bps=RATE_BPS):
    return alpha_s + ranks * chunk / rate_Bps


def time_s(op, ranks, nbytes, *, launch_s=LAUNCH_S, gamma_Bps=GAMMA_BPS, step=step_s):
    """Closed form; all sizes here cut into whole elements."""
    chunk = nbytes / ranks
    rounds = (ranks - 1) * (2 if op == "all_reduce" else 1)
    reduced = 0.0 if op == "all_gather" else (ranks - 1) * chunk / gamma_Bps
    return launch_s + rounds * step(chunk, ranks) + reduced


def measurement(times, *, ranks=4, op="all_reduce", what="library", **fields):
    def row(nbytes, t):
        names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
        return {"what": what, "nbytes": nbytes, "repeats": 20} | dict.fromkeys(names, t)

    known = {
        "backend": "gloo",
        "collective": op,
        "algorithm": "ring",
        "ranks": ranks,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1.0,
        "command": "made up",
        "machine": {"cpu": "none"},
        "versions": {"torch": "0"},
        "rows": [row(nbytes, t) for nbytes, t in times.items()],
    }
    return Measurement.model_validate(known | fields)


def exact(ranks=4, op="all_reduce", sizes=SIZES, **how):
    times = {nbytes: time_s(op, ranks, nbytes, **how) for nbytes in sizes}
    return measurement(times, ranks=ranks, op=op)


BARE = {"launch_s": 0.0, "gamma_Bps": np.inf}


@pytest.fixture(scope="module")
def topology():
    return build_topology("cpu-loopback")


@pytest.fixture(scope="module")
def library():
    """Gloo as it would be with plain rings, one blocking send at a time."""
    gloo = load_library("gloo")
    ring = gloo.protocols["ring"].model_copy(update={"credits": 1, "two_in_turn": False})
    return gloo.model_copy(update={"algorithms": {}, "protocols": {"ring": ring}})


@pytest.fixture(scope="module")
def machine(topology, library):
    return Machine(topology, library)


def found(profile):
    return {value.key: value.si for value in profile.fits[0].values}


def predicted(machine, op, nbytes, ranks):
    return UncontendedTimer(machine).best(op, nbytes, range(ranks))[1]


# ---------------------------------------------------------------- recovery


@pytest.mark.slow
def test_exact_times_give_back_every_number(topology, library):
    few = SIZES[::2]  # each takes its time
    measured = [exact(4, sizes=few), exact(4, "all_gather", few), exact(2, sizes=few)]
    values = found(fit(measured, topology, library))
    assert values == pytest.approx(
        {BANDWIDTH: RATE_BPS, STEP: ALPHA_S, LAUNCH: LAUNCH_S, REDUCE: GAMMA_BPS}, rel=1e-4
    )


def test_four_ranks_tell_two_and_eight(topology, library, machine):
    profile = fit([exact(4), exact(4, "all_gather")], topology, library)
    here = apply(profile, machine)
    for ranks in (2, 4, 8):
        for op in ("all_reduce", "all_gather", "reduce_scatter"):
            for nbytes in (3 * 2**13, 3 * 2**20):
                # Gloo of PyTorch 2.13 reduces and scatters by an all-reduce
                wanted = time_s("all_gather" if op == "all_gather" else "all_reduce", ranks, nbytes)
                assert predicted(here, op, nbytes, ranks) == pytest.approx(wanted, rel=1e-5)


def test_four_ranks_alone_meet_the_textbook_form(topology, library, machine):
    here = apply(fit([exact(4, **BARE)], topology, library), machine)
    for ranks in (2, 8):
        wanted = 2 * (ranks - 1) * (ALPHA_S + 2**22 / RATE_BPS)  # 2(N-1)(alpha + S beta / N)
        assert predicted(here, "all_reduce", 2**22, ranks) == pytest.approx(wanted, rel=1e-5)


def test_outliers_do_not_move_the_fit(topology, library):
    times = {nbytes: time_s("all_reduce", 4, nbytes, **BARE) for nbytes in SIZES}
    times[2**14] *= 5
    times[2**24] *= 3
    values = found(fit([measurement(times)], topology, library))
    assert values == pytest.approx({BANDWIDTH: RATE_BPS, STEP: ALPHA_S}, rel=1e-2)


@pytest.mark.slow
def test_intervals_hold_the_truth_four_times_out_of_five(machine):
    clean = [exact(ranks, sizes=SIZES[::2], **BARE) for ranks in (4, 2)]
    cases = observations_of(clean, machine, "library")
    truth = {BANDWIDTH: RATE_BPS, STEP: ALPHA_S}
    runs, held = 40, dict.fromkeys(truth, 0)
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        noise = np.exp(0.05 * rng.standard_normal(len(cases)))
        noise[rng.random(len(cases)) < 0.05] *= 2.0
        forward = CostModel(machine, cases)
        forward.measured_s = forward.measured_s * noise
        solution = solve(forward, truth)
        for key, value in truth.items():
            factor = solution.spread[key]
            held[key] += 1 / factor <= solution.values[key] / value <= factor
    # 80 % of 40 with a standard deviation of 6 %: about two of them to each side.
    assert all(0.67 <= count / runs <= 0.93 for count in held.values()), held


@pytest.mark.parametrize(
    ("template", "library_name", "ranks"), [("cpu-loopback", "gloo", 5), ("dgx-a100", "nccl", 8)]
)
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "broadcast", "reduce", "gather"])
def test_a_fit_sees_the_times_that_predictions_will_have(template, library_name, ranks, op):
    machine = Machine(build_topology(template), load_library(library_name))
    times = dict.fromkeys((2**10, 2**20 + 4, 2**25), 1.0)
    made = measurement(times, ranks=ranks, op=op, backend=library_name)
    forward = CostModel(machine, observations_of([made], machine, "library"))
    values = {key: value * 1.3 for key, value in forward.parameters().items()}
    wanted = [
        predicted(with_values(machine, values), op, n, ranks) for n, _ in made.times("library")
    ]
    assert forward.times_s(values) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_a_number_that_shrinks_to_nothing_is_not_told(topology, library):
    few = SIZES[::4]  # each takes its time, as such a number goes on shrinking
    measured = [
        exact(4, sizes=few, **BARE),
        exact(2, sizes=few, **BARE),
        exact(4, "all_gather", few, **BARE),
    ]
    profile = fit(measured, topology, library)
    assert found(profile) == pytest.approx({BANDWIDTH: RATE_BPS, STEP: ALPHA_S}, rel=1e-3)
    assert "no sign" in reasons(profile)["launch", "ring"].reason
    assert "no sign" in reasons(profile)["reduce", "ring"].reason


# ---------------------------------------------------------------- pieces


def two_rates(chunk, ranks):
    slow = max(chunk - 2**20, 0.0)
    return ALPHA_S + ranks * ((chunk - slow) / 6e9 + slow / 1.5e9)


@pytest.mark.slow
def test_two_rates_give_a_breakpoint(topology, library, machine):
    profile = fit([exact(4, step=two_rates, **BARE)], topology, library)
    rates = [value for value in profile.fits[0].values if value.parameter == "bandwidth"]
    assert len(rates) >= 2
    assert any(2**19 < value.key.beyond_bytes < 2**21 for value in rates)
    assert rates[0].si == pytest.approx(6e9, rel=0.05)
    assert min(value.si for value in rates) == pytest.approx(1.5e9, rel=0.1)
    assert profile.fits[0].p90_abs < 0.03
    here = apply(profile, machine)
    for nbytes in (2**17, 48 * 2**20):
        wanted = time_s("all_reduce", 4, nbytes, step=two_rates, **BARE)
        assert predicted(here, "all_reduce", nbytes, 4) == pytest.approx(wanted, rel=0.05)


@pytest.mark.slow
def test_outliers_beside_a_knee_hide_neither_rate(topology, library):
    times = {n: time_s("all_reduce", 4, n, step=two_rates, **BARE) for n in SIZES}
    times[2**13] *= 4
    times[2**21] *= 3
    profile = fit([measurement(times), exact(4, step=two_rates, **BARE)], topology, library)
    rates = [value for value in profile.fits[0].values if value.parameter == "bandwidth"]
    assert rates[0].si == pytest.approx(6e9, rel=0.1)
    assert min(value.si for value in rates) == pytest.approx(1.5e9, rel=0.1)
    shown = profile.fits[0].by_size["all_reduce", 4, 2**13]
    off = [point.fitted_s / point.measured_s - 1 for point in shown]
    assert min(off) < -0.7, "the residual of an outlier is shown, not hidden"
    assert abs(max(off)) < 0.1


@pytest.mark.slow
def test_one_rate_with_noise_gives_no_breakpoint(topology, library):
    for seed in range(2):
        noise = np.exp(0.04 * np.random.default_rng(seed).standard_normal(len(SIZES)))
        times = {
            nbytes: time_s("all_reduce", 4, nbytes, **BARE) * factor
            for nbytes, factor in zip(SIZES, noise, strict=True)
        }
        assert set(found(fit([measurement(times)], topology, library))) == {BANDWIDTH, STEP}


# ---------------------------------------------------------------- what cannot be told


def reasons(profile):
    return {(lost.parameter, lost.where): lost for lost in profile.fits[0].undetermined}


def test_one_number_of_ranks_and_one_collective_leave_launch_and_reduce_open(topology, library):
    lost = reasons(fit([exact(4)], topology, library))
    assert set(lost) == {("launch", "ring"), ("reduce", "ring")}
    assert "step of ring/memory" in lost["launch", "ring"].reason
    assert "bandwidth of memory" in lost["reduce", "ring"].reason
    assert lost["launch", "ring"].kept.startswith("0 us")


def test_small_sizes_do_not_tell_a_bandwidth(topology, library):
    sizes = [64, 128, 256, 512, 1024]
    noise = np.exp(0.05 * np.random.default_rng(1).standard_normal(len(sizes)))
    times = {
        nbytes: time_s("all_reduce", 4, nbytes, **BARE) * factor
        for nbytes, factor in zip(sizes, noise, strict=True)
    }
    profile = fit([measurement(times)], topology, library)
    assert set(found(profile)) == {STEP}
    lost = reasons(profile)["bandwidth", "memory"]
    assert lost.kept.startswith("5.964 GB/s")
    assert lost.reason == "these data show no sign of it"


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 0), (3, 1)])
def test_too_few_sizes_are_said_to_be(topology, library, count, most):
    profile = fit([exact(4, sizes=SIZES[-count:])], topology, library)
    assert len(profile.fits[0].values) <= most
    assert any("too few" in lost.reason for lost in profile.fits[0].undetermined)


def test_the_network_is_told_and_pcie_is_not(library):
    cluster = build_topology("ethernet-10g", hosts=4, fabric="one-switch")
    before = Machine(cluster, library)
    rate_Bps, wire_s = 0.8e9, before.rings(range(4)).edges.latency_s[0]
    times = {n: 6 * (300e-6 + 2 * wire_s + n / 4 / rate_Bps) for n in SIZES}
    profile = fit([measurement(times)], cluster, library)
    assert found(profile) == pytest.approx(
        {Parameter("bandwidth", "ethernet"): rate_Bps, Parameter("step", "ring/network"): 300e-6},
        rel=1e-3,
    )
    assert "no measured time" in reasons(profile)["bandwidth", "pcie"].reason


@pytest.mark.slow
def test_one_collective_of_several_numbers_of_ranks_leaves_gamma_open(topology, library):
    measured = [exact(4, sizes=SIZES[::2]), exact(2, sizes=SIZES[::2])]
    lost = reasons(fit(measured, topology, library))
    assert "same share of the bytes is added" in lost["reduce", "ring"].reason


# ---------------------------------------------------------------- two kinds of rows


@pytest.mark.slow
def test_rows_of_the_library_and_of_our_schedule_are_fitted_apart(topology, library, machine):
    few = SIZES[::2]
    twice = measurement({n: 2 * time_s("all_reduce", 4, n) for n in few}, what="schedule")
    profile = fit([exact(4, sizes=few), twice], topology, library)
    assert [one.rows for one in profile.fits] == ["library", "schedule"]
    default, ours = apply(profile, machine), apply(profile, machine, rows="schedule")
    one, two = (predicted(here, "all_reduce", 2**20, 4) for here in (default, ours))
    assert two == pytest.approx(2 * one, rel=1e-3)
    with pytest.raises(InputError, match="'schedule'; allowed: what profile 'measured' has: 'lib"):
        apply(fit([exact(4, sizes=few)], topology, library), machine, rows="schedule")


# ---------------------------------------------------------------- draws


@pytest.mark.slow
def test_draws_scatter_as_the_covariance_says(topology, library):
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(len(SIZES)))
    times = {n: time_s("all_reduce", 4, n, **BARE) * f for n, f in zip(SIZES, noise, strict=True)}
    profile = fit([measurement(times)], topology, library)
    logs = np.log(
        [[v.si for v in p.fits[0].values] for p in draws(profile, 2000, 1, scatter=False)]
    )
    covariance = np.array(profile.fits[0].covariance)
    off = np.cov(logs.T) - covariance
    deviations = np.sqrt(np.diag(covariance))
    # A correlation from 2000 draws is known to about 0.02.
    assert np.abs(off / np.outer(deviations, deviations)).max() < 0.1
    assert draws(profile, 3, 7) == draws(profile, 3, 7)
    assert draws(profile, 3, 7) != draws(profile, 3, 8)
    wider = np.log([[v.si for v in p.fits[0].values] for p in draws(profile, 2000, 1)])
    assert (np.var(wider, axis=0) > np.var(logs, axis=0)).all()


@pytest.mark.slow
def test_a_profile_survives_its_file(topology, library, tmp_path):
    measured = [exact(4, sizes=SIZES[::4], step=two_rates), exact(2, sizes=SIZES[::4])]
    profile = fit(measured, topology, library, name="there-and-back")
    write_profile(profile, tmp_path / "p.yaml")
    assert read_profile(tmp_path / "p.yaml") == profile
