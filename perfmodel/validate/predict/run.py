"""Predict all recorded sweeps and trainings of a folder, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.calibrate import Profile
from perfmodel.studies.sweep.executor import count_cores, map_unordered
from perfmodel.validate.predict.forecast import Forecast, Pair, Task, predict
from perfmodel.validate.strategies.model import StrategyTable
from perfmodel.validate.strategies.step_tables import join_tables, predict_table, stated_tables
from perfmodel.validate.sweeps.match import Matched, Unmatched, match
from perfmodel.validate.sweeps.read import Sweep
from perfmodel.validate.trainings.datasets import datasets_in
from perfmodel.validate.trainings.model import Dataset

WORTH_IT = 8
"""Sweeps from which on starting processes costs less than they save."""

Placed = tuple[Sweep, Path]
"""A sweep, and the folder with the YAML files that it may name."""


def match_all(sweeps: Sequence[Sweep], folder: Path) -> tuple[list[Pair], dict[str, str]]:
    """Match all sweeps of a folder; the second part says why some could not be."""
    matched: list[Pair] = []
    unmatched: dict[str, str] = {}
    for sweep in sweeps:
        outcome = match(sweep, folder)
        if isinstance(outcome, Unmatched):
            unmatched[sweep.id] = outcome.reason
        else:
            matched.append((sweep, outcome))
    return matched, unmatched


@dataclass(frozen=True, slots=True)
class PredictionTask:
    """One sweep to predict, as data that processes can exchange (machines are not).

    Parameters
    ----------
    sweep : tuple of Sweep and Path
    profile : Profile or None
    others : tuple of (Sweep, Path), or None
        Other sweeps of the same hardware; None: do not fit a profile of them.
    left_out : bool
        Whether to predict with constants fitted without this family of machines, too.
    """

    sweep: Placed
    profile: Profile | None
    others: tuple[Placed, ...] | None
    left_out: bool = False

    @property
    def work(self) -> float:
        """Roughly how long it takes, to begin with the longest."""
        partners = len(self.others or ())
        return len(self.sweep[0].rows) * (1 + 3 * partners) + 10.0 * self.sweep[0].nranks


def run(job: PredictionTask) -> Forecast | str:
    """Predict one sweep; the reason why not."""
    own = match(*job.sweep)
    if not isinstance(own, Matched):
        return own.reason
    others = None
    if job.others is not None:
        pairs = [(other[0], match(*other)) for other in job.others]
        others = tuple((sweep, m) for sweep, m in pairs if isinstance(m, Matched))
    return predict(Task(job.sweep[0], own, job.profile, others, job.left_out))


def predict_sweeps(
    tasks: Sequence[PredictionTask],
    folder: Path,
    processes: int,
    progress: Callable[[int, int], None] | None,
    *,
    whole: bool = False,
) -> tuple[list[Forecast | str], list[Dataset], list[StrategyTable]]:
    """Predict sweeps, and the trainings and steps of strategies of a folder.

    Parameters
    ----------
    tasks : sequence of PredictionTask
    folder : Path
        Where tables of trainings stand.
    processes : int
        One is used where there is little to do.
    progress : callable, optional
        Called with (done, total): sweeps, and with `whole` what else is predicted.
    whole : bool
        Whether to predict every published step, and not a sample of those of split models.

    Returns
    -------
    list of Forecast or str
        In the order of `tasks`; a text says why a sweep could not be predicted.
    list of Dataset
    list of StrategyTable
    """
    tables = stated_tables(folder, whole=whole)
    if len(tasks) < WORTH_IT and not (whole and tables):
        processes = 1
    longest_first = sorted(range(len(tasks)), key=lambda at: -tasks[at].work)
    longest_table_first = sorted(range(len(tables)), key=lambda at: -tables[at].work)
    calls: list[tuple[Any, ...]] = [
        (STRATEGIES - at, predict_table, tables[at]) for at in longest_table_first
    ]
    calls.append((TRAININGS, datasets_in, folder))
    calls += [(at, run, tasks[at]) for at in longest_first]
    outcomes: dict[int, Any] = {}
    for at, outcome in map_unordered(_call_at, calls, jobs=processes, threads=count_cores()):
        outcomes[at] = outcome
        if progress is not None and (whole or at >= 0):
            counted = sum(whole or place >= 0 for place in outcomes)
            progress(counted, len(calls) if whole else len(tasks))
    forecasts = [outcomes[at] for at in range(len(tasks))]
    strategies = [outcomes[STRATEGIES - at] for at in range(len(tables))]
    return forecasts, outcomes[TRAININGS], join_tables(strategies)


TRAININGS, STRATEGIES = -1, -2
"""Positions among the outcomes, beside those of the sweeps: of all trainings, and of the first
table of strategies, from which on the others count down."""


def _call_at(at: int, function: Callable[[Any], Any], argument: object) -> tuple[int, Any]:
    return at, function(argument)
