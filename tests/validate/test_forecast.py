"""From which sweeps a profile is made, and what is said where it is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.calibrate.readers import SweepRow
from perfmodel.library.corrections import profile_margin
from perfmodel.validate.forecast import Task, partners, predict
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps
from perfmodel.validate.run import shipped_folder

SWEEPS = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}


def pair(name, **changes):
    sweep = replace(SWEEPS[name], **changes)
    return sweep, match(sweep)


def thin(one):
    return (replace(one[0], rows=one[0].rows[::5]), one[1])


HERE = Path()
"""No sweep names a file."""


def forecast(own, *others):
    return predict(Task((own[0], HERE), None, tuple((other, HERE) for other, _ in others)))


def test_runs_of_other_rules_and_protocols_are_named_and_not_used():
    """p4d ran NCCL 2.9.9, p4de 2.17.1 with NCCL_PROTO=simple: the same hosts otherwise."""
    old, fixed = pair("aws_p4d_2n_allreduce_nccl29"), pair("aws_p4de_2n_simple_allreduce")
    assert [one.id for one, _ in partners(*old, [old, fixed])] == [fixed[0].id]
    found = forecast(thin(old), thin(fixed))
    assert "transferred" not in found.times
    said = found.missing["transferred"]
    assert "not from aws_p4de_2n_simple_allreduce" in said
    assert "NCCL_PROTO free against simple" in said
    assert "NCCL 2.9.9 against 2.17.1" in said


def test_the_nearest_sweeps_of_the_hardware_are_taken_first_those_of_the_machine():
    """An octave in ranks is as far as another collective and another machine together."""
    names = [
        "sb_a100_1n_reduce_scatter",
        "sb_a100_1n_reduce",
        "a100_8gpu_sp_allreduce",
        "vtrain_a100_8gpu_allreduce",
        "vtrain_a100_4gpu_allreduce",
        "aic_a100_nccl2273_allgather_8g",
    ]
    own, *others = (pair(name) for name in ("sb_a100_1n_all_reduce", *names))
    found = [sweep.id for sweep, _ in partners(*own, [own, *others])]
    assert set(found) == {*names[:4]}
    assert names[4] in [sweep.id for sweep, _ in partners(*own, [own, *others[2:]])]
    assert names[5] not in [sweep.id for sweep, _ in partners(*own, [own, others[5]])]


def test_sweeps_of_one_table_are_of_one_machine():
    own, other = pair("aic_h100_nccl2273_allgather_8g"), pair("aic_h100_nccl2273_allreduce_8g")
    assert [sweep.id for sweep, _ in partners(*own, [own, other])] == [other[0].id]
    elsewhere = pair("aic_h100_nccl2292_allreduce_8g")
    assert partners(*own, [own, elsewhere]) == []


@pytest.mark.slow
def test_a_spike_out_of_place_does_not_go_into_a_profile():
    """A first row five times too long, beside one in place that is as long as its neighbours."""
    like = pair("aws_p5_2n_doeks_allreduce")
    rows = like[0].rows[::4]
    spiked = (replace(rows[0], time_s=5 * rows[0].time_s, in_place_s=rows[0].time_s), *rows[1:])
    in_place = tuple(replace(row, in_place_s=row.in_place_s or row.time_s) for row in spiked)
    own = thin(pair("aws_p5_2n_allreduce"))
    first, second = (
        forecast(own, (replace(like[0], rows=each), like[1])).times["transferred"].time_s
        for each in (rows, in_place)
    )
    assert second == pytest.approx(first, rel=1e-3)


@pytest.mark.slow
def test_the_others_are_used_all_the_same_and_the_note_says_which():
    one = thin(pair("aws_p5_2n_allreduce"))
    like = thin(pair("aws_p5_2n_doeks_allreduce"))
    fixed = thin(pair("aws_p5_2n_doeks_allreduce", id="fixed", env_and_algo="NCCL_ALGO=Ring"))
    note = forecast(one, like, fixed).times["transferred"].note
    assert note.startswith("from aws_p5_2n_doeks_allreduce; not from fixed: NCCL_ALGO free")


def test_a_machine_off_by_half_at_every_scale_is_met():
    """Its other runs take 1.5 times what is predicted: so does the one that was left out."""
    own = pair("nv_dgxh100_1n_allreduce")
    sizes = [2**n for n in range(10, 33, 3)]
    rows = tuple(SweepRow(n, 1.0) for n in sizes)
    plain = forecast((replace(own[0], rows=rows), own[1])).times["datasheet"].time_s
    slow = tuple(SweepRow(n, 1.5 * t) for n, t in zip(sizes, plain, strict=True))
    others = [(replace(own[0], id=name, rows=slow), own[1]) for name in ("a", "b")]
    found = forecast((replace(own[0], rows=rows), own[1]), *others).times["transferred"]
    ratio = np.array(found.time_s) / np.array(plain)
    assert ratio == pytest.approx(1.5, rel=0.07)
    for (low, high), row in zip(found.interval_s, slow, strict=True):
        assert low < row.time_s < high


def test_another_machine_lies_farther_off_than_the_one_that_was_measured(monkeypatch):
    """By the ledger's factor for each size, on either side (``strangers.yaml``)."""
    own, other = pair("aws_p5_2n_allreduce"), pair("aws_p5_2n_doeks_allreduce")
    wide = forecast(thin(own), thin(other)).times["transferred"].interval_s
    monkeypatch.setattr("perfmodel.validate.forecast.profile_margin", lambda nbytes: 1.0)
    plain = forecast(thin(own), thin(other)).times["transferred"].interval_s
    for row, (low, high), (inner, outer) in zip(thin(own)[0].rows, wide, plain, strict=True):
        margin = profile_margin(row.nbytes)
        assert margin > 1.0
        assert (low * margin, high / margin) == pytest.approx((inner, outer))
