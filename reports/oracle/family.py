"""Families of scenes, each made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from oracle.scenes import Scene

Maker = Callable[[str, np.random.Generator], Scene]


@dataclass(frozen=True, slots=True)
class Family:
    """Scenes of one kind.

    Parameters
    ----------
    make : callable
        From a name and a random generator to a scene.
    count : int
    why : str
        Why a fluid must be right here, or why it is not.
    """

    make: Maker
    count: int
    why: str


def scenes(families: Mapping[str, Family], only: str | None = None) -> Iterator[Scene]:
    """All scenes of some families; each has its own seed, so that one more changes no other.

    Parameters
    ----------
    families : mapping of str to Family
    only : str, optional
        Name of one family.
    """
    for number, (name, family) in enumerate(families.items()):
        for index in range(family.count if only in {None, name} else 0):
            yield family.make(f"{name} {index}", np.random.default_rng([2026, number, index]))
