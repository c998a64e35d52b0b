"""Profiles that the measurements allow just as well: what puts an interval on a prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.calibrate.profile import Fit, Parameter, Profile


def measured_at(profile: Profile, ranks: int) -> bool:
    """Whether any of a profile's fits rests on measurements of this number of ranks.

    On an oversubscribed machine a step costs more the more ranks there are, so an interval means
    nothing elsewhere.
    """
    return any(ranks in fit.ranks for fit in profile.fits)


def interval_s(times_s: Sequence[float], likely_s: float) -> tuple[float, float] | None:
    """80 % interval of drawn times, wide enough to hold the most likely one; seconds.

    None without draws.
    """
    if not times_s:
        return None
    low, high = np.quantile(times_s, [0.1, 0.9])
    return min(float(low), likely_s), max(float(high), likely_s)


def draws(profile: Profile, count: int, seed: int, *, scatter: bool = True) -> list[Profile]:
    """Draw profiles from the covariance of a profile's values.

    Parameters
    ----------
    profile : Profile
    count : int
    seed : int
    scatter : bool
        Also make the whole machine faster or slower by what measured times scatter about the fit,
        so that an interval covers a time that is measured, and not only its long-run median.

    Returns
    -------
    list of Profile
        Like the profile, with other values. The intervals are those of the original.
    """
    rng = np.random.default_rng(seed)
    return [
        profile.model_copy(
            update={"fits": tuple(_drawn(fit, rng, scatter) for fit in profile.fits)}
        )
        for _ in range(count)
    ]


def _drawn(fit: Fit, rng: np.random.Generator, scatter: bool) -> Fit:
    covariance = np.array(fit.covariance).reshape(len(fit.values), len(fit.values))
    # Roots by eigenvalues: rounding in the file may have pushed one just below zero.
    sizes, axes = np.linalg.eigh(covariance)
    logs = axes @ (np.sqrt(np.maximum(sizes, 0.0)) * rng.standard_normal(len(sizes)))
    slower = fit.scatter * rng.standard_normal() if scatter else 0.0
    values = tuple(
        value.model_copy(update={"value": _moved(value.key, value.si, log, slower)})
        for value, log in zip(fit.values, logs.tolist(), strict=True)
    )
    return fit.model_copy(update={"values": values})


def _moved(key: Parameter, value: float, log: float, slower: float) -> str:
    is_rate = key.name in {"bandwidth", "reduce"}
    return key.format(value * float(np.exp(log - slower if is_rate else log + slower)))
