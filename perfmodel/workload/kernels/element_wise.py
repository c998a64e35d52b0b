"""Element-wise work of layers by kind, as ``element_wise.yaml`` has it."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from perfmodel.files import read_yaml

_table = cache(partial(read_yaml, Path(__file__).with_name("element_wise.yaml")))


def passes_of(kind: str) -> float:
    """Return the passes that a kind of element-wise work makes over its elements, forward."""
    passes: float = _table()[kind]["passes"]
    return passes


def kernels_of(kind: str) -> int:
    """Return the kernels that a kind of element-wise work launches, forward."""
    return int(_table()[kind]["kernels"])
