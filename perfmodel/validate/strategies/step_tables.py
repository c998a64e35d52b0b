"""Published steps of all strategies, a table for each source that they come from."""

from __future__ import annotations

from pathlib import Path

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.validate.strategies.model import StrategyTable
from perfmodel.validate.strategies.predicted_step import (
    PredictedStep,
    base_of,
    compare_step,
    predict_step,
)
from perfmodel.validate.strategies.stated_step import read_step
from perfmodel.validate.sweeps.match import one_line
from perfmodel.validate.trainings.datasets import collect_table_faults

STEPS = "strategy_steps.csv"


def strategies_in(folder: Path) -> list[StrategyTable]:
    """Predict the published steps of a folder laid out like the shipped records; none if none.

    Raises `InputError`: every fault of the table.
    """
    path, faults, tables = folder / STEPS, list[Fault](), list[StrategyTable]()
    with collect_table_faults(path, faults):
        tables = strategy_tables(path, faults)
    if faults:
        raise InputError(faults)
    return tables


def strategy_tables(path: Path, faults: list[Fault]) -> list[StrategyTable]:
    """Predict the rows of ``strategy_steps.csv``; what no scenario can express is counted."""
    stated: dict[str, list[PredictedStep]] = {}
    omitted: dict[str, dict[str, int]] = {}
    for record in read_table(path, faults) if path.is_file() else ():
        table = record.cells["table"]
        stated.setdefault(table, [])
        try:
            predicted = predict_step(read_step(record.cells), stated[table])
            _ = predicted.step_s
            stated[table].append(predicted)
        except PerfmodelError as error:
            reason = one_line(error, 100)
            reasons = omitted.setdefault(table, {})
            reasons[reason] = reasons.get(reason, 0) + 1
    return [
        StrategyTable(name, [compare_step(step, base_of(step, rows)) for step in rows],
                      omitted.get(name, {}))
        for name, rows in stated.items()
    ]  # fmt: skip
