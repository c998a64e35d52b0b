"""What the report predicts beside `perfmodel validate`: constants left out, and baselines."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.validate.forecast import SweepPrediction, Task
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps, sweeps_folder
from perfmodel.validate.run import shipped_folder
from reports.validation.predict.run import predict_fully
from reports.validation.refit.fitted import fitted_on
from reports.validation.run import Validation, to_json

SWEEPS = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}
HERE = Path()
"""No sweep names a file."""


def pair(name):
    return SWEEPS[name], match(SWEEPS[name])


def thin(one):
    return (replace(one[0], rows=one[0].rows[::5]), one[1])


def test_a_profile_of_others_corrects_constants_that_have_not_seen_the_machine():
    """From "left out" it is judged against "left out": with shipped ones it would gain less."""
    own, other = pair("aic_h100_nccl2273_allgather_8g"), pair("aic_h100_nccl2273_allreduce_8g")
    task = Task((thin(own)[0], HERE), None, ((thin(other)[0], HERE),))
    fully, plainly = (predict_fully(task, left_out=left) for left in (True, False))
    left, shipped = (np.array(each.times["transferred"].time_s) for each in (fully, plainly))
    measured = np.array([row.time_s for row in thin(own)[0].rows])
    without = np.array(fully.times["left out"].time_s)
    assert not np.allclose(left, shipped, rtol=0.01)

    def off(predicted):
        return np.median(np.abs(predicted / measured - 1))

    assert off(left) < 0.67 * off(without)


def test_the_headline_of_shipped_data_leaves_families_out():
    """A sweep that constants were fitted to is predicted with those fitted without its family."""
    home = sweeps_folder(shipped_folder())
    sweep = next(s for s in read_sweeps(home) if s.id == "rtx4090_x4_p2p_allreduce")
    forecast = predict_fully(Task((sweep, home)), left_out=True)
    assert forecast.times["left out"].time_s != forecast.times["datasheet"].time_s
    answer = to_json(Validation("d", [SweepPrediction(sweep, match(sweep, home), forecast)], {}))
    assert answer["headline_mode"] == "left out"
    (entry,) = (d for d in answer["datasets"] if d["mode"] == "left out")
    assert answer["median_abs_error"] == entry["bands"]["256 KiB and up"]["median_abs_error"]
    assert answer["median_abs_error"] > 0


def test_what_was_fitted_on_what_names_shipped_sweeps():
    known = {sweep.id for sweep in read_sweeps(shipped_folder())}
    for one in fitted_on():
        assert set(one.sweeps) <= known
