"""Factors of a profile fade below the sizes that it was measured at."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate import draws
from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.transfer.fit import fit_profile
from perfmodel.library.corrections import FADE_OCTAVES, Corrections
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.simulate.uncontended import UncontendedTimer
from tests.calibrate.transfer.machines import Row, dgx

MIB = 2**20
FOUND = Corrections(launch=2.0, uneven=1.5, steps={"ll/nvlink": 4.0}, rates={"ring/ll": 0.5})
MEASURED = Corrections(**{**vars(FOUND), "from_bytes": MIB})
FAR = MIB // 2 ** int(2 * FADE_OCTAVES)


def numbers(corrections):
    of = (corrections.launch, corrections.uneven, *corrections.steps.values())
    return [*of, *corrections.rates.values()]


@given(st.floats(MIB / 2**FADE_OCTAVES, 2**40))
def test_factors_hold_from_two_octaves_below_the_smallest_size_on(nbytes):
    assert numbers(MEASURED.at(nbytes)) == numbers(FOUND)


@given(st.floats(1, FAR))
def test_far_below_no_factor_is_left(nbytes):
    assert numbers(MEASURED.at(nbytes)) == pytest.approx([1.0] * 4)


def test_half_way_a_factor_has_half_of_its_logarithm():
    half = MEASURED.at(MIB / 2 ** (1.5 * FADE_OCTAVES))
    assert numbers(half) == pytest.approx([math.sqrt(x) for x in numbers(FOUND)])


@given(st.floats(1, MIB))
def test_without_measured_sizes_nothing_fades(nbytes):
    assert FOUND.at(nbytes) == FOUND


def test_draws_lie_about_the_datasheet_as_they_did_about_the_fit():
    drawn = Corrections(launch=3.0, from_bytes=MIB, likely=Corrections(launch=2.0))
    assert drawn.at(1).launch == pytest.approx(1.5)


def slower(factor, sizes):
    """A machine whose collectives take so many times as long, measured at some sizes."""
    nominal = make_machine(dgx(), load_library("nccl"))
    times = [factor * time_s(nominal, nbytes) for nbytes in sizes]
    rows = [Row(*row) for row in zip(sizes, times, strict=True)]
    return nominal, fit_profile([(dgx(), LibrarySettings(), "all_reduce", rows)])


def time_s(machine, nbytes):
    return UncontendedTimer(machine).best("all_reduce", nbytes, range(8), 0, None)[1]


def test_a_profile_of_long_messages_leaves_short_ones_to_the_datasheet():
    nominal, profile = slower(1.6, [MIB << n for n in range(12)])
    measured = apply(profile, nominal)
    assert time_s(measured, MIB) > 1.3 * time_s(nominal, MIB)
    assert time_s(measured, 1024) == pytest.approx(time_s(nominal, 1024), rel=0.01)
    assert len({time_s(apply(draw, nominal), 1024) for draw in draws(profile, 8, seed=0)}) == 8


def test_a_profile_of_short_messages_corrects_them():
    nominal, profile = slower(1.6, [1024 << n for n in range(20)])
    assert time_s(apply(profile, nominal), 1024) > 1.3 * time_s(nominal, 1024)
