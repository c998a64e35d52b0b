"""Published steps of all strategies, a table for each source that they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.files.read import parse_yaml
from perfmodel.validate.match import one_line
from reports.validation.strategies.model import StrategyTable
from reports.validation.strategies.predicted_step import (
    PredictedStep,
    base_of,
    compare_step,
    predict_step,
)
from reports.validation.strategies.stated_step import gpus_of, is_same, passes_of, read_step
from reports.validation.trainings.datasets import collect_table_faults

STEPS = "strategy_steps.csv"
SETUPS = 2
"""Setups of split models that are predicted of each GPU, precision and kind of split of a table; so
that all take minutes, one setup of each GPU where steps are long."""
LONG_PASSES, LONG_WORK = 1500, 150_000
"""Passes of blocks, and these times GPUs, above which a step is long: its plan has from ten
thousand tasks on, or collectives of many ranks, and takes up to a minute."""
LONG_SHARDS = 64
"""GPUs of a shard group, from which on copies of it (HSDP) are long: their all-reduces meet the
gathers over the same NICs all the time."""
NOT_SAMPLED = (
    "not predicted: setups of split models, and long ones, beside those sampled of their table"
)


@dataclass(frozen=True, slots=True)
class StatedTable:
    """Rows of a source, as they stand in the file; all, or those that are predicted together.

    `path`: of the file; `id`: of the source.
    `beyond`: positions of rows that the sample leaves out (`sample_rows`).
    `whole`: whether these are predicted, too.
    """

    path: Path
    id: str
    rows: Sequence[Mapping[str, str]]
    beyond: frozenset[int] = frozenset()
    whole: bool = False

    @property
    def predicted(self) -> list[int]:
        """Positions of the rows that are predicted."""
        return [at for at in range(len(self.rows)) if self.whole or at not in self.beyond]

    @property
    def work(self) -> int:
        """Roughly how long it takes, to begin with the longest: rows, and passes of blocks."""
        return len(self.rows) + sum(passes_of(self.rows[at]) for at in self.predicted)


def strategies_in(folder: Path, *, whole: bool = False) -> list[StrategyTable]:
    """Predict the published steps of a folder laid out like the shipped records; none if none.

    `whole`: every row, and not a sample of split models' (`sample_rows`).
    Raises `InputError`: every fault of the table.
    """
    return join_tables(predict_table(table) for table in stated_tables(folder, whole=whole))


def stated_tables(folder: Path, *, whole: bool = False) -> list[StatedTable]:
    """Read the rows of ``strategy_steps.csv``, a table for each source.

    `whole`: for all rows, of which each long setup is apart, so that processes share a table's
        and none holds several plans of that size. `join_tables` puts their answers together.
    Raises `InputError`: every fault of the file's shape, and counts that are none.
    """
    path, faults, rows = folder / STEPS, list[Fault](), dict[str, list[Mapping[str, str]]]()
    tables: list[StatedTable] = []
    with collect_table_faults(path, faults):
        for record in read_table(path, faults) if path.is_file() else ():
            rows.setdefault(record.cells["table"], []).append(record.cells)
        for name, own in rows.items():
            sampled = {id(cells) for cells in sample_rows(own)}
            beyond = frozenset(at for at, cells in enumerate(own) if id(cells) not in sampled)
            table = StatedTable(path, name, own, beyond, whole)
            tables += _parts_of(table) if whole else [table]
    if faults:
        raise InputError(faults)
    return tables


def _parts_of(table: StatedTable) -> list[StatedTable]:
    """Split a table: its short rows together, each long setup with its repetitions."""
    parts: list[list[int]] = [[]]
    for at, cells in enumerate(table.rows):
        if not is_long(cells):
            parts[0].append(at)
            continue
        for part in parts[1:]:
            if is_same(cells, table.rows[part[0]]):
                part.append(at)
                break
        else:
            parts.append([at])
    return [
        StatedTable(
            table.path,
            table.id,
            [table.rows[at] for at in part],
            frozenset(new for new, at in enumerate(part) if at in table.beyond),
            whole=True,
        )
        for part in parts
        if part
    ]


def join_tables(tables: Iterable[StrategyTable]) -> list[StrategyTable]:
    """Put the parts of each table together; in the order in which tables first occur."""
    joined: dict[str, StrategyTable] = {}
    for table in tables:
        before = joined.get(table.id, StrategyTable(table.id, ()))
        left_out = Counter(before.left_out) + Counter(table.left_out)
        joined[table.id] = StrategyTable(table.id, [*before.steps, *table.steps], dict(left_out))
    return list(joined.values())


def predict_table(table: StatedTable) -> StrategyTable:
    """Predict the rows of a source; what no scenario can express is counted.

    Of tables with many setups of split models a few are predicted, evenly spaced (`sample_rows`),
    unless all are asked for.
    Raises `InputError`: cells that are no numbers.
    """
    faults = list[Fault]()
    with collect_table_faults(table.path, faults):
        return _predict_table(table)
    raise InputError(faults)


def _predict_table(table: StatedTable) -> StrategyTable:
    stated, omitted = dict[int, PredictedStep](), Counter[str]()
    for at in table.predicted:
        try:
            predicted = predict_step(read_step(table.rows[at]), stated.values())
            _ = predicted.step_s
            stated[at] = predicted
        except PerfmodelError as error:
            omitted[one_line(error, 100)] += 1
    if not table.whole and table.beyond:
        omitted[NOT_SAMPLED] = len(table.beyond)
    others = list(stated.values())
    steps = [
        replace(compare_step(step, base_of(step, others)), sampled=at not in table.beyond)
        for at, step in stated.items()
    ]
    return StrategyTable(table.id, steps, dict(omitted))


def sample_rows(rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Rows of a table that are predicted: all, or of split models and long steps a few setups.

    Of each GPU, precision and kind of split the first and the last setup, and others between them
    in even distances; of long steps one of each GPU.
    """
    groups: dict[tuple[bool, str, str], list[Mapping[str, str]]] = {}
    for cells in rows:
        long = is_long(cells)
        if cells["parallel"] or long:
            key = (long, cells["gpu"], "" if long else cells["precision"] + kind_of(cells))
            setups = groups.setdefault(key, [])
            if not any(is_same(cells, other) for other in setups):
                setups.append(cells)
    chosen: list[Mapping[str, str]] = []
    for (long, _, _), setups in groups.items():
        most = 1 if long else min(SETUPS, len(setups))
        last = len(setups) - 1
        chosen += [setups[round(i * last / max(most - 1, 1))] for i in range(most)]
    return [
        cells
        for cells in rows
        if not (cells["parallel"] or is_long(cells))
        or any(is_same(cells, other) for other in chosen)
    ]


def is_long(cells: Mapping[str, str]) -> bool:
    """Whether the step takes up to a minute to simulate."""
    if not cells["parallel"]:
        return int(parse_yaml(cells["strategy"]).get("shard_gpus", 0)) >= LONG_SHARDS
    passes = passes_of(cells)
    return passes > LONG_PASSES or passes * gpus_of(cells) > LONG_WORK


def kind_of(cells: Mapping[str, str]) -> str:
    """What a row's model is split by, and the schedule of its pipeline."""
    section = parse_yaml(cells["parallel"])
    kinds = [key for key in ("tensor", "context", "expert", "pipeline") if key in section]
    return " ".join([*kinds, str(section.get("pipeline", {}).get("schedule", ""))])
