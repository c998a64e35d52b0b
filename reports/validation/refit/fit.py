"""Fit the numbers of a library to recorded sweeps: robust least squares on logarithms of times.

The residual of a time is ln(predicted / measured), weighed so that every table counts the same,
under Cauchy's loss, so that a sweep that nothing explains (a faulty fabric) counts little. A number
of a variant is drawn to the number that would hold without the variant: hardware of which nothing
was recorded keeps what is known of hardware in general. Numbers of protocols are drawn weakly to
round values near NCCL's own constants (``centres.yaml``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.files import FileModel, load_document
from perfmodel.library.model import CommLibrary
from reports.validation.refit.numbers import (
    FittedNumber,
    Place,
    fitted_numbers,
    number_at,
    with_numbers,
)
from reports.validation.refit.slopes import Observed, Slopes, slopes_at

FAR = 0.7
"""Most that a logarithm moves in one step of the search."""


class Centres(FileModel):
    """Contents of ``centres.yaml``."""

    perfmodel: int
    source: str
    scale: float
    wide: float
    near: Mapping[str, float]
    protocols: Mapping[str, Mapping[str, float]]


@cache
def centres() -> Centres:
    """Read where numbers are drawn to, and how strongly."""
    return load_document(Centres, Path(__file__).with_name("centres.yaml"))


Progress = Callable[[str], None]


def solve(slopes: Slopes, library: CommLibrary, leave: Callable[[Observed], bool]) -> FloatArray:
    """Logarithms of the numbers that fit the sweeps not left out best, by linear predictions."""
    start = np.array([math.log(number.value) for number in slopes.numbers])
    fitted = [at for at, sweep in enumerate(slopes.sweeps) if not leave(sweep)]
    over = np.concatenate([slopes.over[at] for at in fitted])
    along = np.concatenate([slopes.along[at] for at in fitted])
    weights = _weights([slopes.sweeps[at] for at in fitted])
    pull, towards = _priors(slopes.numbers, library)
    scale = centres().scale
    moved = np.zeros(len(start))
    for _ in range(60):
        residual = over + along @ moved
        robust = weights / (1 + (residual / scale) ** 2) / scale**2
        normal = along.T @ (robust[:, None] * along) + pull.T @ pull
        right = -along.T @ (robust * over) - pull.T @ (pull @ start - towards)
        new = np.linalg.solve(normal + 1e-9 * np.eye(len(start)), right)
        if np.max(np.abs(new - moved)) < 1e-4:
            break
        moved = new
    bounded: FloatArray = start + np.clip(moved, -FAR, FAR)
    shares = np.array([number.kind == "share" for number in slopes.numbers])
    return np.where(shares, np.minimum(bounded, 0.0), bounded)


def _weights(sweeps: Sequence[Observed]) -> FloatArray:
    """Every table weighs the same; its sizes share that."""
    sizes: dict[str, int] = {}
    for sweep in sweeps:
        sizes[sweep.table] = sizes.get(sweep.table, 0) + len(sweep.nbytes)
    each = [np.full(len(sweep.nbytes), 8.0 / sizes[sweep.table]) for sweep in sweeps]
    weights: FloatArray = np.concatenate(each)
    return weights


def _priors(numbers: Sequence[FittedNumber], library: CommLibrary) -> tuple[FloatArray, FloatArray]:
    """Rows of pulls on the logarithms, and what they should come to."""
    table = centres()
    column = {number.place: at for at, number in enumerate(numbers)}
    pull, towards = np.zeros((len(numbers), len(numbers))), np.zeros(len(numbers))
    for row, number in enumerate(numbers):
        if number.place[0] == "protocols":
            strength = 1 / (table.near["share"] if number.kind == "share" else table.wide)
            at = table.protocols[str(number.place[1])][".".join(map(str, number.place[2:]))]
            pull[row, row], towards[row] = strength, strength * math.log(at)
            continue
        strength = 1 / table.near[number.kind]
        pull[row, row] = strength
        for parent in number.parents:
            share = strength / len(number.parents)
            if parent in column:
                pull[row, column[parent]] -= share
            else:
                towards[row] += share * math.log(_stated_at(library, parent))
    return pull, towards


def _stated_at(library: CommLibrary, place: Place) -> float:
    try:
        return number_at(library, place)
    except (AttributeError, KeyError, TypeError):  # a number that nothing states: no effect
        return 1.0


def at_values(library: CommLibrary, slopes: Slopes, logs: FloatArray) -> CommLibrary:
    """Return the library with fitted numbers, rounded to three digits."""
    values = {
        number.place: float(f"{math.exp(log):.3g}")
        for number, log in zip(slopes.numbers, logs.tolist(), strict=True)
    }
    return with_numbers(library, values)


def fit(
    library: CommLibrary,
    sweeps: Sequence[Observed],
    *,
    rounds: int = 4,
    progress: Progress = lambda _: None,
) -> tuple[CommLibrary, Slopes]:
    """Fit all fitted numbers; returns the library, and the slopes of the last round."""
    slopes: Slopes | None = None
    for number in range(max(1, rounds)):
        slopes = slopes_at(library, sweeps, fitted_numbers(library), slopes)
        progress(f"round {number + 1}: {_describe(slopes)}")
        library = at_values(library, slopes, solve(slopes, library, lambda _: False))
    assert slopes is not None
    return library, slopes


def refitted(library: CommLibrary, slopes: Slopes, family: str) -> CommLibrary:
    """Return the library fitted without a family of machines, from slopes near the whole fit."""
    return at_values(library, slopes, solve(slopes, library, lambda s: s.family == family))


def _describe(slopes: Slopes) -> str:
    errors = np.abs(np.expm1(np.concatenate(slopes.over)))
    return f"median {np.median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}"
