"""Each algorithm says its steps, its bytes, its latency term, when it is right, and its source."""

from __future__ import annotations

import pytest

from perfmodel.collectives.algorithms import collnet, hierarchical, linear, nvls
from perfmodel.collectives.catalog import ALGORITHMS

WRAPPED = {
    "_hierarchical": hierarchical.all_reduce,
    "_torus": hierarchical.torus,
    "_nvls_tree": nvls.tree_all_reduce,
    "_collnet": collnet.chain_all_reduce,
    "_collnet_direct": collnet.direct_all_reduce,
    "_send": linear.send,
}


@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, makers in ALGORITHMS.items() for name in makers]
)
def test_docstring_says_what_the_algorithm_costs(op: str, name: str) -> None:
    maker = ALGORITHMS[op][name]
    told = " ".join((WRAPPED.get(maker.__name__, maker).__doc__ or "").lower().split())
    words = ("step", "byte", "latency term", "right", "source")
    assert [word for word in words if word not in told] == []
