"""Sweeps predicted from others of the same hardware, with times linear in the factors.

The mechanism's constants are those fitted without the kind of machine that a sweep was measured on:
with constants that had seen it, machines would look more alike than those of a user are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from perfmodel.calibrate.checks import differences
from perfmodel.calibrate.estimation import Observation
from perfmodel.calibrate.parameters import Parameter, prior_covariance
from perfmodel.calibrate.transfer.fit import thin
from perfmodel.calibrate.transfer.forward_model import FactorModel
from perfmodel.calibrate.transfer.noise_model import SweepNoise
from perfmodel.calibrate.transfer.priors import (
    ContextArrays,
    Priors,
    residual_covariance,
    row_variance,
    run_deviation,
    tails_of,
)
from perfmodel.errors import PerfmodelError
from perfmodel.library.corrections import CollectiveContext, kind_of_machine
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.validate.match import Matched, match
from perfmodel.validate.read import Sweep, read_sweeps
from reports.validation.refit.numbers import library_without

FEWEST_TRUST = 3
"""Sweeps of less trust are not used."""


LARGE_BYTES = 256 * 1024
"""From this size on a sweep is judged on its own."""

CUT_BYTES = 1 << 20
"""Sizes from here on are predicted from those below, and the other way round."""

FEWEST_ROWS = 4
"""On both sides of the cut."""

MOST_OTHERS = 4
"""Sweeps that one is predicted from: those of the most alike numbers of ranks."""

EVERY = 4
"""Of a sweep's rows, each of so many tells those between them."""

Kind = Literal[
    "another run", "another collective", "other ranks", "smaller", "larger", "sizes between"
]
"""From what a sweep is predicted: the same collective in other tables, at any scale; another
collective in its own table; the same in its own table among other numbers of ranks; some of its
own sizes."""

OWN_ROWS = frozenset({"smaller", "larger", "sizes between"})
"""Kinds that predict some rows of a sweep from others of it."""


@dataclass(frozen=True)
class Prepared:
    """A sweep with the mechanism's times, linear in the logarithms of the factors.

    Parameters
    ----------
    hardware : str
        As `perfmodel.validate.match.Matched`.
    table : str
        Sweeps of one table, or of one source, are of one machine.
    ranks : int
    op : str
    nbytes : ndarray of int, shape (rows,)
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    parameters : tuple of Parameter
    slopes : ndarray of float, shape (rows, parameters)
    contexts : tuple of CollectiveContext
    shares : ndarray of float, shape (rows,)
        As `perfmodel.calibrate.transfer.priors.ContextArrays`.
    thin : ndarray of int
        Rows that a fit uses.
    unlike : frozenset of str
        Sweeps whose library had other settings.
    """

    hardware: str
    table: str
    ranks: int
    op: str
    nbytes: np.ndarray
    over: np.ndarray
    parameters: tuple[Parameter, ...]
    slopes: np.ndarray
    contexts: tuple[CollectiveContext, ...]
    shares: np.ndarray
    thin: np.ndarray
    unlike: frozenset[str]

    def thinned(self) -> Prepared:
        """The rows that a fit uses."""
        return self.only(self.thin)

    def only(self, at: np.ndarray) -> Prepared:
        """Some of the rows."""
        return replace(
            self,
            nbytes=self.nbytes[at],
            over=self.over[at],
            slopes=self.slopes[at],
            contexts=tuple(self.contexts[row] for row in at),
            shares=self.shares[at],
            thin=np.arange(len(at)),
        )

    def slopes_along(self, parameters: Sequence[Parameter]) -> np.ndarray:
        """Slopes along other parameters; zero where this sweep does not depend on them."""
        column = {parameter: at for at, parameter in enumerate(self.parameters)}
        zero = np.zeros(len(self.nbytes))
        columns = [self.slopes[:, column[p]] if p in column else zero for p in parameters]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Question:
    """A sweep to predict, and from which others (for `OWN_ROWS` from itself)."""

    kind: Kind
    name: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class Fold:
    """A sweep left out.

    Parameters
    ----------
    name, table : str
    nbytes : ndarray of int, shape (rows,)
    over : ndarray of float, shape (rows,)
        Logarithm of measured over predicted time.
    expected : ndarray of float, shape (rows,)
        The same, as the other sweeps say.
    deviation : ndarray of float, shape (rows,)
        Of `over` from `expected`, as the other sweeps say.
    """

    name: str
    table: str
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
            self.name,
            self.table,
            self.nbytes[at],
            self.over[at],
            self.expected[at],
            self.deviation[at],
        )


def prepare(folder: Path) -> dict[str, Prepared]:
    """Match and time all sweeps of a folder whose hardware is stated."""
    pairs = {sweep.id: (sweep, match(sweep, folder)) for sweep in read_sweeps(folder)}
    usable = {
        name: (sweep, matched)
        for name, (sweep, matched) in pairs.items()
        if isinstance(matched, Matched) and sweep.trust >= FEWEST_TRUST and not matched.unstated
    }
    machines = {name: (matched.topology, matched.settings) for name, (_, matched) in usable.items()}
    runs = {}
    for name, (sweep, matched) in usable.items():
        unlike = [
            other
            for other, machine in machines.items()
            if differences(matched.op, machines[name], machine)
        ]
        try:
            runs[name] = _prepare(sweep, matched, frozenset(unlike))
        except PerfmodelError as error:
            print(f"{sweep.id}: {error}", file=sys.stderr)  # noqa: T201  (a script's output)
    return runs


def _prepare(sweep: Sweep, matched: Matched, unlike: frozenset[str]) -> Prepared:
    library = library_without(kind_of_machine(matched.topology)) or load_library("nccl")
    machine = make_machine(matched.topology, library, settings=matched.settings)
    rows = [row for row in sweep.rows if row.nbytes > 0 and row.time_s > 0]
    used = {row.nbytes for row in thin(rows)}
    ranks = len(machine.topology.ranks)
    forward = FactorModel(
        [Observation.of(machine, matched.op, ranks, row.nbytes, row.time_s) for row in rows]
    )
    parameters = forward.parameters()
    ones = dict.fromkeys(parameters, 1.0)
    times_s = forward.times_s(ones)
    contexts, shares = forward.contexts(ones)
    return Prepared(
        hardware=matched.hardware,
        table=sweep.table or sweep.source.partition(",")[0],
        ranks=ranks,
        op=matched.op,
        nbytes=np.array([row.nbytes for row in rows]),
        over=np.log(forward.measured_s / times_s),
        parameters=tuple(parameters),
        slopes=forward.slopes(ones, times_s),
        contexts=tuple(contexts),
        shares=np.array(shares),
        thin=np.flatnonzero([row.nbytes in used for row in rows]),
        unlike=unlike,
    )


def questions(runs: Mapping[str, Prepared]) -> list[Question]:
    """Everything that may be asked of a sweep: `Kind`."""
    return [question for name in runs for question in _questions_of(name, runs)]


def _questions_of(name: str, runs: Mapping[str, Prepared]) -> Iterator[Question]:
    run = runs[name]
    alike = {
        other: candidate
        for other, candidate in runs.items()
        if other != name
        and candidate.hardware == run.hardware
        and other not in run.unlike
        and not np.array_equal(candidate.over, run.over)
    }
    own = {other: candidate for other, candidate in alike.items() if candidate.table == run.table}
    by_kind: dict[Kind, list[str]] = {
        "another run": [o for o, c in alike.items() if c.op == run.op and o not in own],
        "another collective": [
            o for o, c in own.items() if c.op != run.op and c.ranks == run.ranks
        ],
        "other ranks": [o for o, c in own.items() if c.op == run.op and c.ranks != run.ranks],
    }
    for kind, others in by_kind.items():
        nearest = sorted(others, key=lambda other: abs(np.log(runs[other].ranks / run.ranks)))
        most = MOST_OTHERS if kind == "another run" else 1
        if nearest:
            yield Question(kind, name, tuple(nearest[:most]))
    below = int(np.sum(run.nbytes < CUT_BYTES))
    if min(below, len(run.nbytes) - below) >= FEWEST_ROWS:
        yield Question("smaller", name, (name,))
        yield Question("larger", name, (name,))
        yield Question("sizes between", name, (name,))


def rows_of(
    runs: Mapping[str, Prepared], question: Question, *, every: bool
) -> tuple[Prepared, list[Prepared]]:
    """Rows to predict (`every` one, or so many for each factor of two), and those to fit."""
    run = runs[question.name]
    if question.kind not in OWN_ROWS:
        own = run if every else run.thinned()
        return own, [runs[other].thinned() for other in question.others]
    rows = np.arange(len(run.nbytes)) if every else run.thin
    small = run.nbytes < CUT_BYTES
    if question.kind == "sizes between":
        fitted = np.arange(0, len(run.nbytes), EVERY)
        return run.only(np.setdiff1d(rows, fitted)), [run.only(fitted)]
    asked = small if question.kind == "smaller" else ~small
    return run.only(rows[asked[rows]]), [run.only(run.thin[~asked[run.thin]])]


def fold_of(
    runs: Mapping[str, Prepared], question: Question, priors: Priors, *, every: bool = True
) -> Fold:
    """Predict a sweep from what a question says."""
    own, fitted = rows_of(runs, question, every=every)
    parameters = sorted({parameter for run in (own, *fitted) for parameter in run.parameters})
    before = prior_covariance(parameters, priors.levers)
    slopes = np.concatenate([run.slopes_along(parameters) for run in fitted])
    over = np.concatenate([run.over for run in fitted])
    fitted_contexts = ContextArrays.of(
        [context for run in fitted for context in run.contexts],
        np.concatenate([run.shares for run in fitted]).tolist(),
    )
    contexts = ContextArrays.of(own.contexts, own.shares.tolist())
    number = np.repeat(np.arange(len(fitted)), [len(run.nbytes) for run in fitted])
    noise = SweepNoise(before, tails_of(parameters, priors), priors)
    noise.fit(slopes, fitted_contexts, number, over)
    before = before + np.diag(noise.factor_variances)
    own_slopes = own.slopes_along(parameters)
    common = own_slopes @ before @ slopes.T
    common = common + residual_covariance(contexts, fitted_contexts, noise.residual, priors.runs)
    own_variance = np.einsum("ij,jk,ik->i", own_slopes, before, own_slopes)
    own_variance += np.diag(residual_covariance(contexts, contexts, noise.residual, priors.runs))
    explained = np.einsum("ij,jk,ik->i", common, noise.inverse, common)
    run_variance = run_deviation(contexts, priors.runs) ** 2
    variance = np.maximum(own_variance - explained, 0.0) + run_variance
    variance += row_variance(contexts, priors.runs)
    expected = common @ noise.inverse @ over
    return Fold(question.name, own.table, own.nbytes, own.over, expected, np.sqrt(variance))
