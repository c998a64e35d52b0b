"""Predict all recorded sweeps and trainings of a folder, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.library.corrections import kind_of_machine
from perfmodel.library.machine import make_machine
from perfmodel.library.model import CommLibrary
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.collective import observed_s
from perfmodel.studies.sweep.executor import count_cores, map_unordered
from perfmodel.validate.forecast import Forecast, Mode, Task, Times, predict
from perfmodel.validate.match import Matched, match, one_line
from perfmodel.validate.run import WORTH_IT
from reports.validation.predict.baselines import alpha_beta_s, tuner_s
from reports.validation.refit.numbers import library_without
from reports.validation.strategies.model import StrategyTable
from reports.validation.strategies.step_tables import join_tables, predict_table, stated_tables
from reports.validation.trainings.datasets import datasets_in
from reports.validation.trainings.model import Dataset


def predict_fully(task: Task, *, left_out: bool) -> Forecast | str:
    """Predict one sweep in every mode, with both baselines; or the reason why not.

    `left_out`: whether to predict with constants fitted without this family of machines, too; a
    profile of others is then one on these.
    """
    own = match(*task.sweep)
    if isinstance(own, str):
        return own
    sizes = [row.nbytes for row in task.sweep[0].rows]
    without = library_without(kind_of_machine(own.topology)) if left_out else None
    forecast = predict(task, without)
    if isinstance(forecast, str):
        return forecast
    times: dict[Mode, Times] = {"datasheet": forecast.times["datasheet"]}
    missing: dict[Mode, str] = {}
    try:
        if without is not None:
            times["left out"] = predict_under(without, own, sizes)
        elif left_out:
            missing["left out"] = "no constant was fitted to this family of machines"
        times["alpha-beta"] = Times(alpha_beta_s(own.node, own.topology, own.op, sizes))
    except PerfmodelError as error:
        return f"cannot be predicted: {one_line(error)}"
    try:
        times["nccl tuner"] = Times(tuner_s(own.topology, own.settings, own.op, sizes))
    except PerfmodelError as error:
        missing["nccl tuner"] = f"the formula does not cover it: {one_line(error)}"
    return Forecast(times | forecast.times, missing | forecast.missing, forecast.choices)


def predict_under(library: CommLibrary, own: Matched, sizes: Sequence[int]) -> Times:
    """Predict with other numbers of the library."""
    timer = UncontendedTimer(make_machine(own.topology, library, settings=own.settings))
    return Times(tuple(observed_s(timer, own.op, nbytes) for nbytes in sizes))


def predict_all(
    tasks: Sequence[Task],
    folder: Path,
    processes: int,
    progress: Callable[[int, int], None] | None,
    *,
    left_out: bool = False,
    whole: bool = False,
) -> tuple[list[Forecast | str], list[Dataset], list[StrategyTable]]:
    """Predict sweeps, and the trainings and steps of strategies of a folder.

    Parameters
    ----------
    tasks : sequence of Task
    folder : Path
        Where tables of trainings stand.
    processes : int
        One is used where there is little to do.
    progress : callable, optional
        Called with (done, total): sweeps, and with `whole` what else is predicted.
    left_out : bool
        As of `predict_fully`.
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
    predict_sweep = partial(predict_fully, left_out=left_out)
    calls: list[tuple[Any, ...]] = [
        (STRATEGIES - at, predict_table, tables[at]) for at in longest_table_first
    ]
    calls.append((TRAININGS, datasets_in, folder))
    calls += [(at, predict_sweep, tasks[at]) for at in longest_first]
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
