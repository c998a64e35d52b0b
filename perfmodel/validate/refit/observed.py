"""Recorded sweeps as a refit sees them: a few sizes of each, timed under any numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.library.machine import Machine, make_machine, observed_time_s
from perfmodel.library.model import CommLibrary, library_on
from perfmodel.library.prediction_error import kind_of_machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.collective import hidden_s
from perfmodel.validate.sweeps.match import Matched
from perfmodel.validate.sweeps.read import Sweep

MOST_SIZES = 9
"""Sizes of a sweep that a refit looks at: neighbours tell the same."""

MOST_OF_TABLE = 6
"""The same of a sweep that is one of several in a table."""


@dataclass(frozen=True)
class Observed:
    """A recorded sweep, thinned.

    Parameters
    ----------
    id, table, family, op : str
        `family` is the kind of machine (`perfmodel.library.prediction_error.kind_of_machine`).
    machine : Machine
    nbytes : tuple of int
    log_s : ndarray of float, shape (sizes,)
        Logarithm of the measured times.
    """

    id: str
    table: str
    family: str
    op: str
    machine: Machine
    nbytes: tuple[int, ...]
    log_s: FloatArray

    def predict(self, library: CommLibrary) -> FloatArray:
        """Logarithm of the predicted times under a library's numbers; shape (sizes,)."""
        topology = self.machine.topology
        timer = UncontendedTimer(self.machine.with_library(library_on(library, topology)))
        group = range(len(topology.ranks))
        times = []
        for nbytes in self.nbytes:
            lowered, time_s = timer.best(self.op, nbytes, group, 0, None)
            repeated_s = time_s - hidden_s(timer, lowered, self.op, group)
            times.append(math.log(observed_time_s(timer.machine, repeated_s)))
        return np.array(times)


def observe(sweep: Sweep, matched: Matched, library: CommLibrary) -> Observed:
    """Thin a sweep, one of a table to fewer sizes, and put its machine together."""
    machine = make_machine(matched.topology, library, settings=matched.settings)
    most = MOST_SIZES if not sweep.table else MOST_OF_TABLE
    rows = [sweep.rows[at] for at in spread_over([row.nbytes for row in sweep.rows], most)]
    return Observed(
        sweep.id, sweep.table or sweep.id, kind_of_machine(matched.topology), matched.op, machine,
        tuple(row.nbytes for row in rows), np.log([row.time_s for row in rows]),
    )  # fmt: skip


def spread_over(sizes: Sequence[int], most: int = MOST_SIZES) -> list[int]:
    """Positions of at most so many sizes, evenly spread over their logarithms.

    Examples
    --------
    >>> spread_over([8, 16, 32, 64, 128, 256], 3)
    [0, 2, 5]
    """
    if len(sizes) <= most:
        return list(range(len(sizes)))
    logs = np.log(sizes)
    aims = np.linspace(logs[0], logs[-1], most)
    return sorted({int(np.argmin(np.abs(logs - aim))) for aim in aims})
