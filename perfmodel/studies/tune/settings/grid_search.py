"""Search over a few settings: a coarse grid along each, then between the values near the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.training.strategy import Setting

Choice = tuple[Any, ...]
"""A value for each setting, in their order."""

MOST_WHOLE = 40
"""Combinations up to which all are tried; beyond, settings are tried one after the other."""
MOST_ROUNDS = 3
"""Rounds over all settings, unless one changes nothing."""
HALVINGS = 2
"""Times that the values next to the best one are brought nearer."""

KIB, MIB = 1024, 1024 * 1024
FEW = 4
"""MiB from which whole ones are near enough."""

Cost = Callable[[Choice], float]
"""Seconds of a step; infinite where it cannot be."""


def search(settings: Sequence[Setting], starts: Sequence[Choice], cost: Cost) -> Choice:
    """Return the choice with the least cost of all that are tried; the first of them, if several.

    Parameters
    ----------
    settings : sequence of Setting
    starts : sequence of Choice
        Tried first; the search sets out from the best of them.
    cost : callable
        Of a choice; it is asked for one more than once.
    """
    best = min(starts, key=cost)
    grids = [setting.values for setting in settings]
    if math.prod(map(len, grids)) <= MOST_WHOLE:
        best = min([best, *itertools.product(*grids)], key=cost)
    else:
        for _ in range(MOST_ROUNDS):
            before = best
            for place, grid in enumerate(grids):
                best = min([best, *(_with(best, place, value) for value in grid)], key=cost)
            if best == before:
                break
    for place, setting in enumerate(settings):
        if setting.unit is not None:
            best = _refine(setting, place, best, cost)
    return best


def _with(choice: Choice, place: int, value: object) -> Choice:
    return (*choice[:place], value, *choice[place + 1 :])


def _refine(setting: Setting, place: int, best: Choice, cost: Cost) -> Choice:
    """Try values halfway to the neighbours of the best one, by ratio, ever nearer."""
    values = sorted({*setting.values, best[place]})
    for _ in range(HALVINGS):
        at = values.index(best[place])
        near = [
            _between(low, high, setting.unit)
            for low, high in itertools.pairwise(values[max(0, at - 1) : at + 2])
            if low > 0
        ]
        values = sorted({*values, *near})
        best = min([best, *(_with(best, place, value) for value in near)], key=cost)
    return best


def _between(low: float, high: float, unit: str | None) -> float:
    """The geometric mean in few digits: whole MiB or KiB, or two digits of others."""
    middle = math.sqrt(low * high)
    if unit == "bytes":
        step = MIB if middle > FEW * MIB else KIB
        return float(max(1, round(middle / step)) * step)
    rounded = float(f"{middle:.2g}")
    return int(rounded) if unit == "elements" else rounded
