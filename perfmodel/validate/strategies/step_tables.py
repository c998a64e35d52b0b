"""Published steps of all strategies, a table for each source that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.files.read import parse_yaml
from perfmodel.validate.strategies.model import StrategyTable
from perfmodel.validate.strategies.predicted_step import (
    PredictedStep,
    base_of,
    compare_step,
    predict_step,
)
from perfmodel.validate.strategies.stated_step import gpus_of, is_same, passes_of, read_step
from perfmodel.validate.sweeps.match import one_line
from perfmodel.validate.trainings.datasets import collect_table_faults

STEPS = "strategy_steps.csv"
SETUPS = 2
"""Setups of split models that are predicted of each GPU, precision and kind of split of a table; so
that all take minutes, one setup of each GPU where steps are long."""
LONG_PASSES, LONG_WORK = 1500, 200_000
"""Passes of blocks, and these times GPUs, above which a step is long: its plan has from ten
thousand tasks on, or collectives of many ranks, and takes up to a minute."""
NOT_SAMPLED = "not predicted: setups of split models beside those sampled of their table"


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
    """Predict the rows of ``strategy_steps.csv``; what no scenario can express is counted.

    Of tables with many setups of split models a few are predicted, evenly spaced (`sample_rows`).
    """
    rows: dict[str, list[Mapping[str, str]]] = {}
    for record in read_table(path, faults) if path.is_file() else ():
        rows.setdefault(record.cells["table"], []).append(record.cells)
    return [_predict_table(name, own) for name, own in rows.items()]


def _predict_table(name: str, rows: Sequence[Mapping[str, str]]) -> StrategyTable:
    stated, omitted = list[PredictedStep](), dict[str, int]()
    sampled = sample_rows(rows)
    for cells in sampled:
        try:
            predicted = predict_step(read_step(cells), stated)
            _ = predicted.step_s
            stated.append(predicted)
        except PerfmodelError as error:
            reason = one_line(error, 100)
            omitted[reason] = omitted.get(reason, 0) + 1
    if len(sampled) < len(rows):
        omitted[NOT_SAMPLED] = len(rows) - len(sampled)
    return StrategyTable(name, [compare_step(step, base_of(step, stated)) for step in stated],
                         omitted)  # fmt: skip


def sample_rows(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Rows of a table that are predicted: all, or of split models those of a few setups.

    Of each GPU, precision and kind of split the first and the last setup, and others between them
    in even distances; of long steps one of each GPU.
    """
    groups: dict[tuple[bool, str, str], list[Mapping[str, str]]] = {}
    for cells in rows:
        if cells["parallel"]:
            passes = passes_of(cells)
            is_long = passes > LONG_PASSES or passes * gpus_of(cells) > LONG_WORK
            key = (is_long, cells["gpu"], "" if is_long else cells["precision"] + kind_of(cells))
            setups = groups.setdefault(key, [])
            if not any(is_same(cells, other) for other in setups):
                setups.append(cells)
    chosen: list[Mapping[str, str]] = []
    for (is_long, _, _), setups in groups.items():
        most = 1 if is_long else min(SETUPS, len(setups))
        last = len(setups) - 1
        chosen += [setups[round(i * last / max(most - 1, 1))] for i in range(most)]
    return [
        cells for cells in rows
        if not cells["parallel"] or any(is_same(cells, other) for other in chosen)
    ]  # fmt: skip


def kind_of(cells: Mapping[str, str]) -> str:
    """What a row's model is split by, and the schedule of its pipeline."""
    section = parse_yaml(cells["parallel"])
    kinds = [key for key in ("tensor", "context", "expert", "pipeline") if key in section]
    return " ".join([*kinds, str(section.get("pipeline", {}).get("schedule", ""))])
