"""Error statistics of published steps of strategies: by quantity and strategy; by table.

Every table weighs the same in a score, however many rows it lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.files import as_json
from perfmodel.validate.score.points import weighted_quantile
from perfmodel.validate.score.training_scores import TrainingScore, coverage_of, weighted_median
from perfmodel.validate.strategies.model import (
    QUANTITIES,
    Quantity,
    StrategyStep,
    StrategyTable,
)

ALL, STATED = "all", "all stated"
"""Groups: every row; those of which the table states GPU, network and batch."""

Entry = tuple[str, StrategyStep]
"""A row and the table that lists it."""


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
    scored: dict[Quantity, dict[str, TrainingScore]] = {}
    for quantity in QUANTITIES:
        for name, own in groups.items():
            score = score_steps(own, quantity)
            if score is not None:
                scored.setdefault(quantity, {})[name] = score
    return scored


def by_source(tables: Iterable[StrategyTable]) -> dict[str, dict[Quantity, TrainingScore]]:
    """Score each quantity over the rows of each table."""
    return {
        table.id: {
            quantity: groups[ALL] for quantity, groups in by_strategy(step_entries([table])).items()
        }
        for table in tables
        if table.steps
    }


def strategies_json(tables: Sequence[StrategyTable]) -> Mapping[str, Any]:
    """Return the entry ``strategies`` of ``perfmodel validate --json``: scores, and every row."""
    entries = step_entries(tables)
    return {
        "quantities": as_json(by_strategy(entries), "strategies"),
        "tables": as_json(by_source(tables), "strategies"),
        "left_out": {table.id: dict(table.left_out) for table in tables if table.left_out},
        "rows": [_row_json(table, step) for table, step in entries],
    }


def _row_json(table: str, step: StrategyStep) -> dict[str, Any]:
    return {
        "table": table, "model": step.model, "strategy": step.strategy, "gpu": step.gpu,
        "gpus": step.gpus, "batch_per_gpu": step.batch, "precision": step.precision,
        "recompute": step.recompute, "step_s": step.published_s,
        "predicted_s": None if step.unlike else step.predicted_s, "scaled_s": step.scaled_s,
        "peak_bytes": step.published_bytes, "predicted_bytes": step.predicted_bytes or None,
        "memory_kind": step.memory_kind or None, "presumed": step.presumed or None,
        "unlike": step.unlike or None, "undecided": step.undecided or None,
        "intervals": {name: list(ends) for name, ends in step.intervals.items()},
        "source": step.source, "note": step.note,
    }  # fmt: skip
