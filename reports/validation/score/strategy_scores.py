"""Error statistics of published steps of strategies: by quantity and strategy; by table.

Every table weighs the same in a score, however many rows it lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from perfmodel.files import as_json
from perfmodel.validate.scores import weighted_quantile
from reports.validation.score.training_scores import TrainingScore, coverage_of, weighted_median
from reports.validation.strategies.model import (
    QUANTITIES,
    Quantity,
    StrategyStep,
    StrategyTable,
)

ALL, STATED, SPLIT = "all", "all stated", "split models"
"""Groups: every row; those of which the table states GPU, network and batch; of
models that are split over GPUs."""

APART = 0.05
"""By how much published times of two settings have to differ that their order is compared."""

Entry = tuple[str, StrategyStep]
"""A row and the table that lists it."""


@dataclass(frozen=True, slots=True)
class OrderScore:
    """Pairs of settings, and how many of them are predicted in the right order."""

    pairs: int
    right: int


def score_steps(entries: Iterable[Entry], quantity: Quantity) -> TrainingScore | None:
    """Score a quantity over some rows; None if none of them has it."""
    compared = [
        (table, step, pair) for table, step in entries if (pair := step.pair(quantity)) is not None
    ]
    if not compared:
        return None
    errors = np.array([predicted / published - 1.0 for *_, (published, predicted) in compared])
    _, at, counts = np.unique(
        [table for table, *_ in compared], return_inverse=True, return_counts=True
    )
    weights = 1.0 / counts[at]
    ends = [(step.intervals.get(quantity), pair[0]) for _, step, pair in compared]
    return TrainingScore(
        tables=len(counts),
        runs=len(compared),
        median_abs_error=weighted_median(np.abs(errors), weights),
        p90_abs_error=weighted_quantile(np.abs(errors), weights, 0.9),
        bias=weighted_median(errors, weights),
        **coverage_of(ends, weights),
    )


def step_entries(tables: Iterable[StrategyTable]) -> list[Entry]:
    """All rows of all tables."""
    return [(table.id, step) for table in tables for step in table.steps]


def by_strategy(entries: Sequence[Entry]) -> dict[Quantity, dict[str, TrainingScore]]:
    """Score each quantity over all rows, over those that leave nothing open, by strategy."""
    groups = {ALL: list(entries), STATED: [e for e in entries if not e[1].presumed]}
    for name in sorted({step.strategy for _, step in entries}):
        groups[name] = [entry for entry in entries if entry[1].strategy == name]
    return _score_groups(groups)


def of_split_models(entries: Sequence[Entry]) -> dict[Quantity, dict[str, TrainingScore]]:
    """Score each quantity over models that are split: all, by GPU, by precision."""
    split = [entry for entry in entries if entry[1].degrees]
    groups = {ALL: split}
    for name in sorted({step.gpu for _, step in split}):
        groups[name] = [entry for entry in split if entry[1].gpu == name]
    for name in sorted({_format_of(step) for _, step in split}):
        groups[name] = [entry for entry in split if _format_of(entry[1]) == name]
    return _score_groups(groups)


def _format_of(step: StrategyStep) -> str:
    return step.precision.partition(" ")[0]


def _score_groups(
    groups: Mapping[str, Sequence[Entry]],
) -> dict[Quantity, dict[str, TrainingScore]]:
    scored: dict[Quantity, dict[str, TrainingScore]] = {}
    for quantity in QUANTITIES:
        for name, own in groups.items():
            score = score_steps(own, quantity)
            if score is not None:
                scored.setdefault(quantity, {})[name] = score
    return scored


def order_of(entries: Iterable[Entry]) -> OrderScore | None:
    """How many pairs of settings are in the right order; None: there are no pairs.

    A pair: two rows of one table that train the same model, with other settings, whose times of a
    GPU for a sample differ by more than `APART`. Equal predictions are in the wrong order.
    """
    tables: dict[tuple[str, str], list[StrategyStep]] = {}
    for table, step in entries:
        if step.pair("step") is not None:
            tables.setdefault((table, step.model), []).append(step)
    pairs = [
        right
        for steps in tables.values()
        for first, second in combinations(steps, 2)
        if (right := _is_right_order(first, second)) is not None
    ]
    return OrderScore(len(pairs), sum(pairs)) if pairs else None


def _is_right_order(first: StrategyStep, second: StrategyStep) -> bool | None:
    """Whether the quicker of two settings is predicted to be so; None: they are alike."""
    if _setting_of(first) == _setting_of(second):
        return None
    times, published = (first.pair("step"), second.pair("step")), list[float]()
    predicted = list[float]()
    for step, pair in zip((first, second), times, strict=True):
        assert pair is not None
        share = step.gpus / step.samples
        published.append(pair[0] * share)
        predicted.append(pair[1] * share)
    if max(published) <= (1 + APART) * min(published):
        return None
    return (predicted[0] - predicted[1]) * (published[0] - published[1]) > 0


def _setting_of(step: StrategyStep) -> tuple[object, ...]:
    return (
        step.strategy,
        step.gpu,
        step.gpus,
        step.batch,
        step.samples,
        step.precision,
        step.recompute,
        step.degrees,
    )


def by_source(tables: Iterable[StrategyTable]) -> dict[str, dict[Quantity, TrainingScore]]:
    """Score each quantity over the rows of each table."""
    return {
        table.id: {
            quantity: groups[ALL] for quantity, groups in by_strategy(step_entries([table])).items()
        }
        for table in tables
        if table.steps
    }


def sampled(tables: Iterable[StrategyTable]) -> list[StrategyTable]:
    """Tables with those rows alone that are predicted where not all are."""
    return [
        replace(table, steps=[step for step in table.steps if step.sampled]) for table in tables
    ]


def orders(tables: Sequence[StrategyTable]) -> dict[str, OrderScore | None]:
    """Pairs in the right order: of all rows, of split models, of each table that has pairs."""
    entries = step_entries(tables)
    split = [entry for entry in entries if entry[1].degrees]
    of_tables = {table.id: order_of(step_entries([table])) for table in tables}
    return {
        ALL: order_of(entries),
        SPLIT: order_of(split),
        **{name: order for name, order in of_tables.items() if order is not None},
    }


def strategies_json(tables: Sequence[StrategyTable]) -> Mapping[str, Any]:
    """Return the entry ``strategies`` of ``reports.validation --json``: scores, and every row."""
    entries = step_entries(tables)
    return {
        "quantities": as_json(by_strategy(entries), "strategies"),
        "split_models": as_json(of_split_models(entries), "strategies"),
        "order": {
            name: None if order is None else {"pairs": order.pairs, "right": order.right}
            for name, order in orders(tables).items()
        },
        "tables": as_json(by_source(tables), "strategies"),
        "left_out": {table.id: dict(table.left_out) for table in tables if table.left_out},
        "rows": [_row_json(table, step) for table, step in entries],
    }


def _row_json(table: str, step: StrategyStep) -> dict[str, Any]:
    return {
        "table": table,
        "model": step.model,
        "strategy": step.strategy,
        "gpu": step.gpu,
        "degrees": step.degrees or None,
        "samples": step.samples,
        "gpus": step.gpus,
        "batch_per_gpu": step.batch,
        "precision": step.precision,
        "recompute": step.recompute,
        "step_s": step.published_s,
        "predicted_s": None if step.unlike else step.predicted_s,
        "scaled_s": step.scaled_s,
        "peak_bytes": step.published_bytes,
        "predicted_bytes": step.predicted_bytes or None,
        "memory_kind": step.memory_kind or None,
        "presumed": step.presumed or None,
        "unlike": step.unlike or None,
        "undecided": step.undecided or None,
        "sampled": step.sampled,
        "intervals": {name: list(ends) for name, ends in step.intervals.items()},
        "source": step.source,
        "note": step.note,
        "setting": step.setting and as_json(step.setting._asdict(), "setting"),
    }
