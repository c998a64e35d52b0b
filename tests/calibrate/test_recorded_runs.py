"""Recorded runs of real processes: a profile of one run predicts another run at fresh sizes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from perfmodel.calibrate import apply, draws, fit, read_profile
from perfmodel.library.carry import Machine
from perfmodel.library.model import load_library
from perfmodel.measure.record import read_measurement
from perfmodel.simulate.estimate import Estimator
from perfmodel.topology.build import build

MEASURED = Path(__file__).parents[2] / "reports" / "measured"
RUN, CHECK = MEASURED / "gloo_ring_4_epyc.json", MEASURED / "gloo_ring_4_epyc_check.json"


@pytest.fixture(scope="module")
def machine():
    return Machine(build("cpu-loopback"), load_library("gloo"))


@pytest.mark.parametrize("rows", ["library", "schedule"])
def test_one_run_predicts_the_fresh_sizes_of_another(machine, rows):
    profile = fit([read_measurement(RUN)], machine.topology, machine.library)
    check, used = read_measurement(CHECK), dict(read_measurement(RUN).times(rows))
    fresh = [(n, t) for n, t in check.times(rows) if n not in used]
    assert len(fresh) >= 10

    def times(one):
        best = Estimator(apply(one, machine, rows=rows)).best
        return np.array([best("all_reduce", n, range(check.ranks))[1] for n, _ in fresh])

    measured = np.array([t for _, t in fresh])
    assert np.median(np.abs(times(profile) / measured - 1)) <= 0.10
    low, high = np.quantile([times(one) for one in draws(profile, 50, 0)], [0.1, 0.9], axis=0)
    # 80 % promised; two runs of a shared machine differ by more than either scatters.
    assert np.mean((low <= measured) & (measured <= high)) >= 0.4


def test_the_shipped_profile_is_made_from_the_recorded_run(machine):
    shipped = read_profile("epyc-2-cores-gloo")
    assert shipped.source[0].sha256 == hashlib.sha256(RUN.read_bytes()).hexdigest()
    made = fit([read_measurement(RUN)], machine.topology, machine.library)
    for one, other in zip(shipped.fits, made.fits, strict=True):
        assert [v.key for v in one.values] == [v.key for v in other.values]
        assert [v.si for v in one.values] == pytest.approx([v.si for v in other.values], rel=1e-3)
