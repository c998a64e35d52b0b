"""Element-wise work of layers by kind, as ``element_wise.yaml`` has it."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from perfmodel.files import read_yaml

_table = cache(partial(read_yaml, Path(__file__).with_name("element_wise.yaml")))


def passes_of(kind: str) -> Any:
    """Return the passes that a kind of element-wise work makes over its elements, forward."""
    return _table()[kind]["passes"]


def kernels_of(kind: str) -> int:
    """Return the kernels that a kind of element-wise work launches, forward."""
    return int(_table()[kind]["kernels"])
