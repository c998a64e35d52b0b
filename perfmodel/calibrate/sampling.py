"""Profiles drawn from the uncertainty of a profile: what puts an interval on a prediction.

And what is asked of a profile beyond what it was measured with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.calibrate.parameters import RATES, draw_logs
from perfmodel.calibrate.profile import Fit, Profile, Rows
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.units import format_bytes

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
    fit = profile.fit_of(rows)
    if fit.left is not None:
        return True  # its intervals are wide where nothing was measured
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
            update={"fits": tuple(draw_fit(f, rng, number, new_run=scatter) for f in profile.fits)}
        )
        for number in range(count)
    ]


def draw_fit(fit: Fit, rng: np.random.Generator, number: int = 0, *, new_run: bool) -> Fit:
    """Draw values from their covariance, and with them a residual that the rows allow.

    Parameters
    ----------
    fit : Fit
    rng : Generator
    number : int
        Of the draw, from 0 on: deviations of the residual are those of an even sequence, so that
        few draws have the quantiles that they should.
    new_run : bool
        Also draw what a run has of its own: an interval then covers a time that is measured, and
        not only what is expected of one.
    """
    covariance = np.array(fit.covariance).reshape(len(fit.values), -1)
    widening = fit.noise.widened if fit.noise else 1.0
    logs = draw_logs(covariance, rng, widening)
    deviations = widening * NormalDist().inv_cdf((0.5 + number * GOLDEN) % 1.0)
    own = _run_logs(fit, rng, deviations) if new_run else np.zeros(len(logs))
    values = tuple(v.scaled(log) for v, log in zip(fit.values, (logs + own).tolist(), strict=True))
    draw = fit.model_copy(update={"values": values})
    if fit.residual is not None:
        shifted = fit.residual.shift(fit.residual.over - np.array(fit.slopes) @ logs, deviations)
        vars(draw)["residual"] = replace(shifted, new_run=new_run)
    return draw


def _run_logs(fit: Fit, rng: np.random.Generator, deviations: float) -> FloatArray:
    """Logarithms by which the values differ in a new run.

    All times are longer by a factor, and all rates lower by another. Of factors: hosts that start
    collectives differ from run to run as what they start does, so many `deviations`.
    """
    if fit.noise is not None:
        start = deviations * fit.noise.start
        return np.array([start * (value.parameter in STARTS) for value in fit.values])
    both = fit.scatter * rng.standard_normal() * np.ones(2)
    if fit.run_spread is not None:
        spread = fit.run_spread
        both += rng.standard_t(spread.freedom, 2) * [spread.times, spread.rates]
    return np.array([-both[1] if v.parameter in RATES else both[0] for v in fit.values])


# ---------------------------------------------------------------- what is asked of a profile


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """A collective whose time a profile is asked for."""

    op: str
    nbytes: int
    ranks: int
    hosts: int


def requests_of(plan: StepPlan, gpus_per_host: int) -> Iterator[CollectiveRequest]:
    """Yield the collectives of a step among more than one rank."""
    groups = {each.name: max(each.groups, key=len) for each in plan.communicators}
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        group = groups[work.communicator]
        hosts = len({rank // gpus_per_host for rank in group})
        if len(group) > 1:
            yield CollectiveRequest(work.op, work.nbytes, len(group), hosts)


def describe_beyond(
    profile: Profile, requests: Iterable[CollectiveRequest], rows: Rows | None = None
) -> tuple[str, ...]:
    """Say which of the collectives asked for are beyond those that a profile was measured with.

    Their times follow from the mechanism with the profile's numbers and are less sure.
    """
    fit = profile.fit_of(rows)
    questions, points = list(requests), fit.points
    if not questions or not points:
        return ()
    beyond = []
    for name, unit in (("op", ""), ("ranks", " ranks"), ("hosts", " hosts")):
        measured = {getattr(point, name) for point in points}
        others = sorted({getattr(each, name) for each in questions} - measured)
        known = _join_counts(sorted(measured), unit)
        beyond += [f"{_join_counts(others, unit)} (measured: {known})"] if others else []
    smallest, largest = (end(point.nbytes for point in points) for end in (min, max))
    least, most = (end(each.nbytes for each in questions) for end in (min, max))
    if least < smallest:
        beyond.append(f"{format_bytes(least)} (measured from {format_bytes(smallest)} on)")
    if most > largest:
        beyond.append(f"{format_bytes(most)} (measured up to {format_bytes(largest)})")
    less = (
        "there the datasheets' shape holds, with the measured factors, and the interval is wider"
        if fit.left is not None
        else "there no interval rests on a measurement"
    )
    text = f"Beyond what profile {profile.name} was measured with: {'; '.join(beyond)}: {less}."
    return (text,) if beyond else ()


def _join_counts(values: Sequence[object], unit: str) -> str:
    texts, most = [str(value) for value in values], 4
    if len(texts) > most:
        texts[most - 1 :] = [f"... {texts[-1]}"]
    listed = ", ".join(texts)
    return listed + (unit.removesuffix("s") if listed == "1" else unit)
