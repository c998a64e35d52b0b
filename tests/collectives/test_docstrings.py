"""Each algorithm says its steps, its bytes, its latency term, when it is right, and its source."""

from __future__ import annotations

import pytest

from perfmodel.collectives.catalog import ALGORITHMS


@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, makers in ALGORITHMS.items() for name in makers]
)
def test_docstring_says_what_the_algorithm_costs(op: str, name: str) -> None:
    told = " ".join((ALGORITHMS[op][name].maker.__doc__ or "").lower().split())
    words = ("step", "byte", "latency term", "right", "source")
    assert [word for word in words if word not in told] == []
