"""Leaves out the combinations of algorithm and number of ranks that do not exist."""

from __future__ import annotations

from functools import cache

import pytest

from perfmodel.collectives import catalog


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose parameters op, name and ranks the algorithm does not allow."""
    left_out = [item for item in items if _impossible(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _impossible(item: pytest.Item) -> bool:
    given = getattr(getattr(item, "callspec", None), "params", {})
    if not {"op", "name", "ranks"} <= given.keys():
        return False
    return _refused(given["op"], given["name"], given["ranks"])


@cache
def _refused(op: str, name: str, ranks: int) -> bool:
    """Whether an algorithm is not for so many ranks: asked once for all tests that have them."""
    return catalog.allows(op, name, ranks) is not None
