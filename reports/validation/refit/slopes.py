"""Recorded sweeps as a refit sees them: a few sizes of each, and how times change with numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.collectives.catalog import ALGORITHMS
from perfmodel.library.corrections import kind_of_machine
from perfmodel.library.lowering.protocols import GROUPED
from perfmodel.library.lowering.rings import SINGLE_SENDS
from perfmodel.library.machine import Machine, make_machine, observed_time_s
from perfmodel.library.model import CommLibrary, Variant, library_on
from perfmodel.simulate.uncontended import UncontendedTimer, hidden_s
from perfmodel.validate.match import Matched
from perfmodel.validate.read import Sweep
from reports.validation.refit.numbers import FittedNumber, with_numbers

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
        `family` is the kind of machine (`perfmodel.library.corrections.kind_of_machine`).
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
        sweep.id,
        sweep.table or sweep.id,
        kind_of_machine(matched.topology),
        matched.op,
        machine,
        tuple(row.nbytes for row in rows),
        np.log([row.time_s for row in rows]),
    )


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


STEP = 0.03
"""Change of a logarithm by which slopes are taken."""


@dataclass(frozen=True)
class Slopes:
    """Predictions of sweeps and how they change with each number.

    Parameters
    ----------
    numbers : tuple of FittedNumber
        With the values at which the rest holds.
    sweeps : tuple of Observed
    over : tuple of ndarray
        ln(predicted / measured) of each sweep.
    along : tuple of ndarray
        Change of that by the logarithm of each number; shape (sizes, numbers) for each sweep.
    """

    numbers: tuple[FittedNumber, ...]
    sweeps: tuple[Observed, ...]
    over: tuple[FloatArray, ...]
    along: tuple[FloatArray, ...]


def slopes_at(
    library: CommLibrary,
    sweeps: Sequence[Observed],
    numbers: Sequence[FittedNumber],
    before: Slopes | None = None,
) -> Slopes:
    """Predict all sweeps, and once more for each number that they may depend on.

    `before`: slopes of the same sweeps and numbers at other values. What had no slope there has
    none here: the numbers do not change what NCCL chooses.
    """
    over, along = [], []
    moved = [with_numbers(library, {n.place: n.value * math.exp(STEP)}) for n in numbers]
    for position, sweep in enumerate(sweeps):
        at = sweep.predict(library)
        table = np.zeros((len(at), len(numbers)))
        depends = None if before is None else np.any(before.along[position] != 0, axis=0).tolist()
        for column, number in enumerate(numbers):
            if _may_depend(library, number, sweep) if depends is None else depends[column]:
                table[:, column] = (sweep.predict(moved[column]) - at) / STEP
        over.append(at - sweep.log_s)
        along.append(table)
    return Slopes(tuple(numbers), tuple(sweeps), tuple(over), tuple(along))


def _may_depend(library: CommLibrary, number: FittedNumber, sweep: Observed) -> bool:
    topology = sweep.machine.topology
    section, key = number.place[0], number.place[1]
    network = topology.network if topology.hosts > 1 else "none"
    if number.place[-1] == "each_peer" and sweep.op not in GROUPED:
        return False
    if section == "variants":
        variant = library.variants[int(key)]
        return variant.fits(topology.gpu.generation, network) and _may_run(variant, sweep.op)
    return number.place[-1] != "network" or topology.hosts > 1


def _may_run(variant: Variant, op: str) -> bool:
    """Whether an operation may run by one of the variant's algorithms."""
    single = "p2p" in variant.algorithms and op in SINGLE_SENDS
    names = {name.rpartition("/")[2] for name in variant.algorithms}
    return not names or single or bool(names & ALGORITHMS[op].keys())
