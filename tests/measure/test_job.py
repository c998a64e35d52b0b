"""Sizes, schedules and faults of a measurement job; no torch needed."""

import re

import pytest

from perfmodel.errors import InputError, ScheduleError
from perfmodel.measure.job import ITEM_BYTES, MeasurementJob, make_schedules, measured_size

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


def test_sizes_are_whole_elements_and_like_parts():
    assert measured_size(job(), 1023) == 1020
    assert measured_size(job(), 1) == 4
    assert measured_size(job(collective="all_gather", ranks=3, dtype="float64"), 100) == 96
    assert list(make_schedules(job(sizes=(1, 2, 7, 4096)))) == [4, 4096]


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_sizes_are_whole_elements_of_each_type(dtype):
    """A type's name ends with its bits."""
    item = int(re.search(r"\d+$", dtype)[0]) // 8
    assert measured_size(job(dtype=dtype), 5 * item) == 5 * item
    assert measured_size(job(dtype=dtype), 6 * item - 1) == 5 * item


def test_wrong_jobs_say_what_is_allowed():
    with pytest.raises(
        InputError, match=r"(?s)--dtype.*did you mean 'float32'.*--ranks.*2 or more"
    ):
        make_schedules(job(dtype="float23", ranks=1))
    assert list(make_schedules(job(repeats=1))) == list(SIZES)
    with pytest.raises(InputError, match="--repeats: found 0; allowed: 1 or more"):
        make_schedules(job(repeats=0))
    with pytest.raises(InputError, match="did you mean 'ring'"):
        make_schedules(job(algorithm="rnig"))
    with pytest.raises(ScheduleError, match="switch needs a switch that reduces"):
        make_schedules(job(algorithm="switch"))
