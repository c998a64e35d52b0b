"""From which sweeps a profile is made, and what is said where it is not."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.validate.predict.forecast import Task, partners, predict
from perfmodel.validate.run import shipped_folder
from perfmodel.validate.sweeps.match import match
from perfmodel.validate.sweeps.read import read_sweeps
from perfmodel.validate.sweeps.times import Row

SWEEPS = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}


def pair(name, **changes):
    sweep = replace(SWEEPS[name], **changes)
    return sweep, match(sweep)


def thin(one):
    return (replace(one[0], rows=one[0].rows[::5]), one[1])


def forecast(own, *others):
    return predict(Task(*own, None, others))


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
    rows = tuple(Row(n, 1.0) for n in sizes)
    plain = forecast((replace(own[0], rows=rows), own[1])).times["datasheet"].time_s
    slow = tuple(Row(n, 1.5 * t) for n, t in zip(sizes, plain, strict=True))
    others = [(replace(own[0], id=name, rows=slow), own[1]) for name in ("a", "b")]
    found = forecast((replace(own[0], rows=rows), own[1]), *others).times["transferred"]
    ratio = np.array(found.time_s) / np.array(plain)
    assert ratio == pytest.approx(1.5, rel=0.07)
    for (low, high), row in zip(found.interval_s, slow, strict=True):
        assert low < row.time_s < high
