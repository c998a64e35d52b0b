"""Profiles drawn from the uncertainty of a profile: what puts an interval on a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from perfmodel.calibrate.estimation import draw_logs
from perfmodel.calibrate.profile import Fit, Profile, Rows, Value
from perfmodel.calibrate.transfer.model import Transfer

GOLDEN = (5.0**0.5 - 1.0) / 2.0
"""Multiples of it fill the unit interval evenly however many they are (Kronecker sequence)."""

STARTS = frozenset({"issue", "awaited"})
"""Factors on the host's time to start a collective, which the residual does not multiply."""


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
    "schedule") from another schedule would rest on no measurement.
    """
    if profile.transfer is not None and rows is None:
        return True  # its intervals are wide where nothing was measured
    fit = profile.fit_of(rows)
    sources = [source for source in profile.source if source.collective == op]
    if fit.rows == "schedule":
        sources = [source for source in sources if source.algorithm == algorithm]
    return ranks in fit.ranks and ranks in {source.ranks for source in sources}


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
                "fits": tuple(_draw_fit(fit, rng, scatter) for fit in profile.fits),
                "transfer": profile.transfer
                and draw_transfer(profile.transfer, rng, number, new_run=scatter),
            }
        )
        for number in range(count)
    ]


def _draw_fit(fit: Fit, rng: np.random.Generator, scatter: bool) -> Fit:
    covariance = np.array(fit.covariance).reshape(len(fit.values), len(fit.values))
    logs = draw_logs(covariance, rng)
    longer, slower = _draw_run(fit, rng) if scatter else (0.0, 0.0)
    values = tuple(
        value.model_copy(
            update={"value": _scaled_text(value, log - slower if value.is_rate else log + longer)}
        )
        for value, log in zip(fit.values, logs.tolist(), strict=True)
    )
    return fit.model_copy(update={"values": values})


def _draw_run(fit: Fit, rng: np.random.Generator) -> tuple[float, float]:
    """Logarithms of how much longer all times of a new run are, and how much lower its rates."""
    off = fit.scatter * rng.standard_normal()
    if fit.run_spread is None:  # a profile from before the spread was kept
        return off, off
    spread = fit.run_spread
    both = rng.standard_t(spread.freedom, 2)
    return off + spread.times * float(both[0]), off + spread.rates * float(both[1])


def _scaled_text(value: Value, log: float) -> str:
    return value.key.format(value.si * float(np.exp(log)))


def draw_transfer(
    transfer: Transfer, rng: np.random.Generator, number: int = 0, *, new_run: bool
) -> Transfer:
    """Draw factors from their covariance, and with them a residual that the rows allow.

    Parameters
    ----------
    transfer : Transfer
    rng : Generator
    number : int
        Of the draw, from 0 on: deviations of the residual are those of an even sequence, so that
        few draws have the quantiles that they should.
    new_run : bool
        Also draw what a run has of its own: an interval then covers a time that is measured, and
        not only what is expected of one.
    """
    covariance = np.array(transfer.covariance).reshape(len(transfer.factors), -1)
    widening = transfer.runs.widened
    logs = draw_logs(covariance, rng, widening)
    deviations = widening * NormalDist().inv_cdf((0.5 + number * GOLDEN) % 1.0)
    # Hosts that start collectives differ from run to run as what they start does.
    start = deviations * transfer.runs.start * new_run
    own = [log + start * (f.of in STARTS) for f, log in zip(transfer.factors, logs, strict=True)]
    factors = tuple(
        factor.model_copy(update={"factor": factor.factor * float(np.exp(log))})
        for factor, log in zip(transfer.factors, own, strict=True)
    )
    draw = transfer.model_copy(update={"factors": factors})
    residual = transfer.residual
    if residual is not None:
        slopes = np.array([point.slopes for point in transfer.points])
        shifted = residual.shift(residual.over - slopes @ logs, deviations)
        vars(draw)["residual"] = shifted if new_run else replace(shifted, new_run=False)
    return draw
