"""Dataclasses as the plain data that ``json`` writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from perfmodel.errors import InputError
from perfmodel.files import as_json, attributes


@dataclass(frozen=True)
class Leaf:
    ends_s: tuple[float, float] | None
    name: str = "leaf"


def test_nested_dataclasses_keep_the_order_of_their_fields() -> None:
    document = as_json({"leaves": (Leaf((1.5, 2.0)), Leaf(None)), "count": 2, "ok": True})
    assert document == {
        "leaves": [{"ends_s": [1.5, 2.0], "name": "leaf"}, {"ends_s": None, "name": "leaf"}],
        "count": 2,
        "ok": True,
    }
    assert list(document["leaves"][0]) == ["ends_s", "name"]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_named(number: float) -> None:
    with pytest.raises(InputError, match=r"result\.leaves\[0\]\.ends_s\[1\]"):
        as_json({"leaves": [Leaf((1.0, number))]}, "result")


def test_infinity_may_mean_no_limit() -> None:
    assert as_json([1.0, math.inf], infinite_as_null=True) == [1.0, None]
    with pytest.raises(InputError):
        as_json(math.nan, infinite_as_null=True)


def test_attributes_in_the_order_asked_for() -> None:
    assert list(attributes(Leaf(None), "name ends_s").items()) == [
        ("name", "leaf"),
        ("ends_s", None),
    ]
