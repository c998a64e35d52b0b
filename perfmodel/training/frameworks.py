"""Numbers that frameworks have in their source code, as ``frameworks.yaml`` has them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from perfmodel.files import read_yaml

_table = cache(partial(read_yaml, Path(__file__).with_name("frameworks.yaml")))


def fixed_in(framework: str, name: str) -> int:
    """Return a number that no user sets: it is fixed in the code of a framework."""
    return int(_table()[framework][name]["value"])
