"""Sweeps predicted from others of the same hardware, with times linear in the factors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perfmodel.calibrate.checks import differences
from perfmodel.calibrate.transfer.fit import thinned
from perfmodel.calibrate.transfer.forward_model import ForwardModel, Observation
from perfmodel.calibrate.transfer.gaussian_process import (
    ContextArrays,
    residual_covariance,
    row_variance,
    run_deviation,
)
from perfmodel.calibrate.transfer.noise_model import fit_noise
from perfmodel.calibrate.transfer.parameters import Priors, TransferParameter, prior_covariance
from perfmodel.errors import PerfmodelError
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.validate.sweeps.match import Matched, match
from perfmodel.validate.sweeps.read import Sweep, read_sweeps

FEWEST_TRUST = 3
"""Sweeps of less trust are not used."""


LARGE_BYTES = 256 * 1024
"""From this size on a sweep is judged on its own."""


@dataclass(frozen=True)
class Prepared:
    """A sweep and what the model says of it.

    Parameters
    ----------
    hardware : str
        As `perfmodel.validate.sweeps.match.Matched`.
    op : str
    nbytes : ndarray of int, shape (rows,)
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    levers : tuple of TransferParameter
    slopes : ndarray of float, shape (rows, levers)
    situations : tuple of CollectiveContext
    shares : ndarray of float, shape (rows,)
        As `perfmodel.calibrate.transfer.gaussian_process.ContextArrays`.
    thin : ndarray of int
        Rows that a fit uses.
    unlike : frozenset of str
        Sweeps whose library was told otherwise.
    """

    hardware: str
    op: str
    nbytes: np.ndarray
    over: np.ndarray
    levers: tuple[TransferParameter, ...]
    slopes: np.ndarray
    situations: tuple[CollectiveContext, ...]
    shares: np.ndarray
    thin: np.ndarray
    unlike: frozenset[str]

    def thinned(self) -> Prepared:
        """The rows that a fit uses."""
        at = self.thin
        return replace(
            self, nbytes=self.nbytes[at], over=self.over[at], slopes=self.slopes[at],
            situations=tuple(self.situations[one] for one in at), shares=self.shares[at],
            thin=np.arange(len(at)),
        )  # fmt: skip

    def along(self, levers: Sequence[TransferParameter]) -> np.ndarray:
        """Slopes along other levers; zero where this sweep does not depend on them."""
        at = {lever: column for column, lever in enumerate(self.levers)}
        none = np.zeros(len(self.nbytes))
        columns = [self.slopes[:, at[one]] if one in at else none for one in levers]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Fold:
    """A sweep left out.

    Parameters
    ----------
    name : str
    nbytes : ndarray of int, shape (rows,)
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    expected : ndarray of float, shape (rows,)
        The same, as the other sweeps say.
    deviation : ndarray of float, shape (rows,)
        Of `over` from `expected`, as the other sweeps say.
    """

    name: str
    nbytes: np.ndarray
    over: np.ndarray
    expected: np.ndarray
    deviation: np.ndarray

    @property
    def away(self) -> np.ndarray:
        """Deviations by which a row is off."""
        return (self.over - self.expected) / self.deviation

    def errors(self, *, before: bool = False) -> np.ndarray:
        """Absolute relative errors, with (or `before`) what the other sweeps say."""
        return np.abs(np.exp((0.0 if before else self.expected) - self.over) - 1.0)

    def only(self, *, large: bool) -> Fold:
        """Rows from 256 KiB on, or those below."""
        at = (self.nbytes >= LARGE_BYTES) == large
        return Fold(
            self.name, self.nbytes[at], self.over[at], self.expected[at], self.deviation[at]
        )


def prepared(folder: Path) -> dict[str, Prepared]:
    """Match and time all sweeps of a folder whose hardware is stated."""
    pairs = {sweep.id: (sweep, match(sweep, folder)) for sweep in read_sweeps(folder)}
    known = {
        name: (sweep, matched)
        for name, (sweep, matched) in pairs.items()
        if isinstance(matched, Matched) and sweep.trust >= FEWEST_TRUST and not matched.unstated
    }
    told = {name: (matched.topology, matched.settings) for name, (_, matched) in known.items()}
    found = {}
    for name, (sweep, matched) in known.items():
        unlike = [o for o, its in told.items() if differences(matched.op, told[name], its)]
        try:
            found[name] = _prepared(sweep, matched, frozenset(unlike))
        except PerfmodelError as error:
            print(f"{sweep.id}: {error}", file=sys.stderr)  # noqa: T201  (a script's output)
    return found


def _prepared(sweep: Sweep, matched: Matched, unlike: frozenset[str]) -> Prepared:
    machine = make_machine(matched.topology, load_library("nccl"), settings=matched.settings)
    rows = [row for row in sweep.rows if row.nbytes > 0 and row.time_s > 0]
    used = {row.nbytes for row in thinned(rows)}
    forward = ForwardModel(
        [Observation(machine, matched.op, row.nbytes, row.time_s, 0, sweep.id) for row in rows]
    )
    levers = forward.levers()
    plain = dict.fromkeys(levers, 1.0)
    times_s = forward.times_s(plain)
    return Prepared(
        hardware=matched.hardware,
        op=matched.op,
        nbytes=np.array([row.nbytes for row in rows]),
        over=np.log(forward.measured_s / times_s),
        levers=tuple(levers),
        slopes=forward.slopes(plain, times_s),
        situations=tuple(forward.situations(plain)),
        shares=forward.shares(plain),
        thin=np.flatnonzero([row.nbytes in used for row in rows]),
        unlike=unlike,
    )


def folds(runs: Mapping[str, Prepared]) -> list[tuple[str, list[str]]]:
    """Each sweep that has others of its hardware, collective and settings, and these."""
    found = []
    for name, run in runs.items():
        others = [
            other
            for other, its in runs.items()
            if other != name
            and (its.hardware, its.op) == (run.hardware, run.op)
            and not np.array_equal(its.over, run.over)
            and other not in run.unlike
        ]
        if others:
            found.append((name, others))
    return found


def fold_of(
    runs: Mapping[str, Prepared],
    name: str,
    others: Sequence[str],
    expected: Priors,
    *,
    every: bool = True,
) -> Fold:
    """Predict a sweep from others: every row, or as many for each factor of two in size."""
    own = runs[name] if every else runs[name].thinned()
    its = [runs[other].thinned() for other in others]
    levers = sorted({lever for one in (own, *its) for lever in one.levers})
    open_ = prior_covariance(levers, expected)
    slopes = np.concatenate([one.along(levers) for one in its])
    over = np.concatenate([one.over for one in its])
    places = ContextArrays.of(
        [situation for one in its for situation in one.situations],
        np.concatenate([one.shares for one in its]).tolist(),
    )
    here = ContextArrays.of(own.situations, own.shares.tolist())
    run = np.repeat(np.arange(len(its)), [len(one.nbytes) for one in its])
    found = fit_noise(slopes @ open_ @ slopes.T, places, run, over, expected)
    ahead = own.along(levers)
    common = ahead @ open_ @ slopes.T + residual_covariance(here, places, found.left, expected.runs)
    own_variance = np.einsum("ij,jk,ik->i", ahead, open_, ahead)
    own_variance += np.diag(residual_covariance(here, here, found.left, expected.runs))
    known = np.einsum("ij,jk,ik->i", common, found.inverse, common)
    run_variance = run_deviation(here, expected.runs) ** 2
    variance = np.maximum(own_variance - known, 0.0) + run_variance
    variance += row_variance(here, expected.runs)
    return Fold(name, own.nbytes, own.over, common @ found.inverse @ over, np.sqrt(variance))
