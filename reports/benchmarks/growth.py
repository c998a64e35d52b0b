"""How a cost grows: the exponent of a power law fitted to measured points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np

ENOUGH_S = 4.0
"""CPU seconds after which a measurement is not repeated."""


@dataclass(frozen=True, slots=True)
class Growth:
    """cost ~ size ** exponent.

    Parameters
    ----------
    sizes, costs_s : tuple of float
        What was measured.
    exponent : float
        Slope of the least-squares line through the logarithms.
    half_width : float
        Of its 95 % interval (Student's t).
    """

    sizes: tuple[float, ...]
    costs_s: tuple[float, ...]
    exponent: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} +- {self.half_width:.2f}"


def fitted(sizes: Sequence[float], costs_s: Sequence[float]) -> Growth:
    """Fit a power law to at least three points.

    Examples
    --------
    >>> str(fitted([1, 10, 100, 1000], [2, 200, 20000, 2000000]))
    '2.00 +- 0.00'
    """
    from scipy.stats import linregress, t

    fit = linregress(np.log(sizes), np.log(costs_s))
    width = float(t.ppf(0.975, len(sizes) - 2) * fit.stderr)
    return Growth(tuple(sizes), tuple(costs_s), float(fit.slope), width)


def least_s(work: Callable[[], object], *, repeats: int = 3) -> float:
    """CPU seconds of the quickest of some runs: what others do on the machine adds, never takes.

    What takes long is run once: a few per cent are not worth minutes.
    """
    took: list[float] = []
    while len(took) < repeats and sum(took) < ENOUGH_S:
        begun = process_time()
        work()
        took.append(process_time() - begun)
    return min(took)
