"""Refits recover what was put in, and know nothing of a family that is left out."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.library.model import load_library
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps, sweeps_folder
from perfmodel.validate.run import shipped_folder
from reports.validation.refit import numbers
from reports.validation.refit.fit import centres, fit, refitted, solve
from reports.validation.refit.fitted import fitted_on
from reports.validation.refit.numbers import (
    fitted_numbers,
    left_out,
    library_without,
    number_at,
    with_numbers,
)
from reports.validation.refit.slopes import observe, spread_over

HOME = sweeps_folder(shipped_folder())
LIBRARY = load_library("nccl")
NUMBERS = fitted_numbers(LIBRARY)
SWEEPS = {sweep.id: sweep for sweep in read_sweeps(HOME)}


def observed(name):
    sweep = SWEEPS[name]
    return observe(sweep, match(sweep, HOME), LIBRARY)


@pytest.fixture(scope="module")
def two_families():
    names = [
        f"aic_{machine}_nccl2273_{op}_{gpus}g"
        for machine in ("a100", "h100")
        for op in ("allreduce", "allgather")
        for gpus in (2, 8)
    ]
    return [observed(name) for name in names]


def made_up(sweeps, library):
    """The sweeps as they would be, were a library right."""
    return [dataclasses.replace(s, log_s=s.predict(library)) for s in sweeps]


@given(at=st.integers(0, len(NUMBERS) - 1), factor=st.floats(0.5, 2.0))
def test_a_number_is_changed_where_it_stands_and_nowhere_else(at, factor):
    chosen = NUMBERS[at]
    other = with_numbers(LIBRARY, {chosen.place: chosen.value * factor})
    for number in NUMBERS:
        expected = number.value * (factor if number is chosen else 1.0)
        assert number_at(other, number.place) == pytest.approx(expected)


def test_names_are_unique_and_do_not_depend_on_where_a_variant_stands():
    names = [number.name for number in NUMBERS]
    assert len(set(names)) == len(names)
    turned = LIBRARY.model_copy(update={"variants": LIBRARY.variants[::-1]})
    assert {n.name: n.value for n in fitted_numbers(turned)} == {n.name: n.value for n in NUMBERS}


def test_numbers_left_out_that_the_library_lacks_are_named(monkeypatch):
    table = left_out().model_copy(update={"families": {"a family": {"hopper ll: lunch": 1e-6}}})
    monkeypatch.setattr(numbers, "left_out", lambda: table)
    with pytest.raises(InputError, match=r"left_out\.yaml: a family: found 'hopper ll: lunch'"):
        library_without.__wrapped__("a family")


def test_every_number_of_a_protocol_has_a_centre_and_of_a_variant_a_parent():
    for number in NUMBERS:
        if number.place[0] == "protocols":
            table = centres().protocols[number.place[1]]
            assert ".".join(number.place[2:]) in table
        else:
            assert number.parents
            assert all(parent != number.place for parent in number.parents)


@pytest.mark.slow
def test_a_fit_recovers_what_was_put_in(two_families):
    launch = next(n for n in NUMBERS if n.place == ("protocols", "ll", "launch"))
    truth = with_numbers(LIBRARY, {launch.place: 1.5 * launch.value})
    library, _ = fit(LIBRARY, made_up(two_families, truth), rounds=2)
    assert number_at(library, launch.place) == pytest.approx(1.5 * launch.value, rel=0.12)


@pytest.mark.slow
def test_a_family_left_out_has_no_say(two_families):
    """Whatever is recorded of the family, the refit without it is the same."""
    family = two_families[0].family
    _, slopes = fit(LIBRARY, two_families, rounds=1)
    other = dataclasses.replace(
        slopes,
        over=tuple(
            o + (3.0 if s.family == family else 0.0)
            for s, o in zip(slopes.sweeps, slopes.over, strict=True)
        ),
    )
    values = [
        [number_at(refitted(LIBRARY, each, family), n.place) for n in NUMBERS]
        for each in (slopes, other)
    ]
    assert values[0] == values[1]
    kept = solve(slopes, LIBRARY, lambda _: False), solve(other, LIBRARY, lambda _: False)
    assert not np.allclose(*kept)


@pytest.mark.slow
def test_the_shipped_refits_leave_out_each_family_that_counts():
    """Names of numbers exist, every family of a fitted sweep is there, and none moves a number so
    far that it must be of another place."""
    fitted = fitted_on()[0].sweeps
    families = {observed(name).family for name in fitted if not SWEEPS[name].table}
    assert families <= set(left_out().families)
    shipped = {number.name: number.value for number in NUMBERS}
    for family, changed in left_out().families.items():
        assert set(changed) <= set(shipped)
        assert all(1 / 3 < value / shipped[name] < 3 for name, value in changed.items())
        assert library_without(family) is not None
    assert library_without("no such family") is None


@given(st.lists(st.integers(1, 2**34), min_size=1, unique=True), st.integers(2, 12))
def test_sizes_are_thinned_to_their_ends_and_in_between(sizes, most):
    sizes = sorted(sizes)
    at = spread_over(sizes, most)
    assert at == sorted(set(at))
    assert len(at) <= max(most, 1)
    assert {0, len(sizes) - 1} <= set(at)
    assert math.isclose(sizes[at[0]], sizes[0])
