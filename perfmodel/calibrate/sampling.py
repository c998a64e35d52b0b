"""Profiles that the measurements allow just as well: what puts an interval on a prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.calibrate.profile import Fit, Profile, Rows, Value
from perfmodel.calibrate.transfer.apply import drawn


def measured_at(
    profile: Profile,
    ranks: int,
    op: str,
    *,
    rows: Rows | None = None,
    algorithm: str | None = None,
) -> bool:
    """Whether a profile's numbers rest on measurements of this collective among so many ranks.

    On an oversubscribed machine a step costs more the more ranks there are, and how much more is
    a model: an interval from other numbers of ranks, from another collective or (for rows of
    "schedule") from another schedule would promise what nobody has tried.
    """
    if profile.transfer is not None and rows is None:
        return True  # its intervals are wide where nothing was measured
    fit = profile.fit_of(rows)
    alike = [source for source in profile.source if source.collective == op]
    if fit.rows == "schedule":
        alike = [source for source in alike if source.algorithm == algorithm]
    return ranks in fit.ranks and ranks in {source.ranks for source in alike}


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
        Also make the whole machine faster or slower by what runs differ from each other and by
        what measured times scatter about the fit, so that an interval covers a time that is
        measured in a new run, and not only the long-run median.

    Returns
    -------
    list of Profile
        Like the profile, with other values. The intervals are those of the original.
    """
    rng = np.random.default_rng(seed)
    return [
        profile.model_copy(
            update={
                "fits": tuple(_drawn(fit, rng, scatter) for fit in profile.fits),
                "transfer": profile.transfer
                and drawn(profile.transfer, rng, number, new_run=scatter),
            }
        )
        for number in range(count)
    ]


def _drawn(fit: Fit, rng: np.random.Generator, scatter: bool) -> Fit:
    covariance = np.array(fit.covariance).reshape(len(fit.values), len(fit.values))
    # Roots by eigenvalues: rounding in the file may have pushed one just below zero.
    sizes, axes = np.linalg.eigh(covariance)
    logs = axes @ (np.sqrt(np.maximum(sizes, 0.0)) * rng.standard_normal(len(sizes)))
    longer, slower = _run(fit, rng) if scatter else (0.0, 0.0)
    values = tuple(
        value.model_copy(
            update={"value": _moved(value, log - slower if value.is_rate else log + longer)}
        )
        for value, log in zip(fit.values, logs.tolist(), strict=True)
    )
    return fit.model_copy(update={"values": values})


def _run(fit: Fit, rng: np.random.Generator) -> tuple[float, float]:
    """Logarithms of how much longer all times of a new run are, and how much lower its rates."""
    off = fit.scatter * rng.standard_normal()
    if fit.run_spread is None:  # a profile from before the spread was kept
        return off, off
    spread = fit.run_spread
    both = rng.standard_t(spread.freedom, 2)
    return off + spread.times * float(both[0]), off + spread.rates * float(both[1])


def _moved(value: Value, log: float) -> str:
    return value.key.format(value.si * float(np.exp(log)))
