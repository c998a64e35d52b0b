"""Published steps of strategies in tables and a sentence: step time, scaled, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.report.common.document import Table
from perfmodel.report.validation import percent
from reports.validation.pages.training_tables import scored
from reports.validation.score.strategy_scores import (
    ALL,
    by_source,
    by_strategy,
    of_split_models,
    orders,
    sampled,
    score_steps,
    step_entries,
)
from reports.validation.score.training_scores import TrainingScore
from reports.validation.strategies.model import QUANTITIES, Quantity

if TYPE_CHECKING:
    from reports.validation.run import Validation

QUANTITY_NAMES: Mapping[Quantity, str] = {
    "step": "step time",
    "scaled": "compute scaled",
    "memory": "peak memory",
}
QUANTITY_MEANINGS = {
    "step time": "seconds of a step, from data sheets alone",
    "compute scaled": (
        "the same with compute scaled so that the smallest run of the table on the same GPU, in "
        "the same precision, comes out as measured; that run itself is not counted"
    ),
    "peak memory": (
        "bytes of the fullest GPU as the table counts them: allocated, reserved by the allocator, "
        "or in use on the device; rows that state a peak"
    ),
}
LEAD = (
    "Median / 90th percentile of the absolute error, and bias: the median with its sign, above "
    "zero too long or too much; rows compared in brackets. Every table weighs the same. 'all "
    "stated': rows whose tables name GPU, network and batch."
)
TABLES_LEAD = "Median / 90th percentile of the absolute error, and bias; rows in brackets."
SPLIT_LEAD = (
    "Models of which tensors, tokens, experts or layers are split over GPUs: as above, by GPU and "
    "by precision. Of long tables a few settings are predicted, evenly spaced, unless all rows are "
    "asked for (--all-rows)."
)
SAMPLE_LEAD = (
    "Every row was predicted. The error of those tables of which otherwise a few settings are "
    "predicted: of these, and of all rows."
)
ORDER_LEAD = (
    "Two settings of one table for the same model whose published times of a GPU for a sample "
    "differ by more than 5 %: how often the quicker one is predicted to be."
)

Scores = Mapping[Quantity, TrainingScore]


def strategy_table(validation: Validation) -> Table:
    """Errors by strategy, a column per quantity."""
    scores = by_strategy(step_entries(validation.strategies))
    names = dict.fromkeys(name for groups in scores.values() for name in groups)
    rows = []
    for name in names:
        own = {quantity: groups[name] for quantity, groups in scores.items() if name in groups}
        tables = max(score.tables for score in own.values())
        rows.append((name, str(tables), *_cells(own)))
    return Table(("strategy", ">tables", *_titles()), rows)


def source_table(validation: Validation) -> Table:
    """Errors of each table, a column per quantity."""
    rows = [(name, *_cells(own)) for name, own in by_source(validation.strategies).items()]
    return Table(("table", *_titles()), rows)


def sample_table(validation: Validation) -> Table:
    """Errors of step time and peak memory, of a table's sample and of all its rows.

    Tables of which every row is sampled are left out, but count for `ALL`.
    """
    compared: tuple[Quantity, ...] = ("step", "memory")
    header = [f">{QUANTITY_NAMES[q]}, {rows}" for q in compared for rows in ("sample", "all rows")]
    groups = {ALL: list(validation.strategies)}
    groups |= {t.id: [t] for t in validation.strategies if not all(s.sampled for s in t.steps)}
    rows = []
    for name, tables in groups.items() if len(groups) > 1 else ():
        of_sample, of_all = step_entries(sampled(tables)), step_entries(tables)
        cells = [
            _cell(score_steps(entries, quantity))
            for quantity in compared
            for entries in (of_sample, of_all)
        ]
        rows.append((name, *cells))
    return Table(("table", *header), rows)


def coverage_table(validation: Validation) -> Table:
    """How many measured steps lie inside their intervals, by strategy."""
    scores = by_strategy(step_entries(validation.strategies))
    names = dict.fromkeys(name for groups in scores.values() for name in groups)
    timed: tuple[Quantity, ...] = ("step", "scaled")
    rows = [
        (name, *(_covered(scores.get(quantity, {}).get(name)) for quantity in timed))
        for name in names
    ]
    header = ("strategy", *(f">{QUANTITY_NAMES[quantity]}" for quantity in timed))
    return Table(header, [row for row in rows if set(row[1:]) != {"-"}])


def split_table(validation: Validation) -> Table:
    """Errors of models that are split over GPUs, by GPU and precision."""
    scores = of_split_models(step_entries(validation.strategies))
    names = dict.fromkeys(name for groups in scores.values() for name in groups)
    rows = [
        (name, *_cells({quantity: own[name] for quantity, own in scores.items() if name in own}))
        for name in names
    ]
    return Table(("GPU or precision", *_titles()), rows)


def order_table(validation: Validation) -> Table:
    """Pairs of settings in the right order, of all tables and of each."""
    rows = [
        (name, str(order.pairs), percent(order.right / order.pairs))
        for name, order in orders(validation.strategies).items()
        if order is not None
    ]
    return Table(("table", ">pairs", ">in the right order"), rows)


def strategy_headline(validation: Validation) -> str:
    """Say in one sentence how far steps of strategies are off; empty: there are none."""
    scores = by_strategy(step_entries(validation.strategies))
    parts = [
        f"{QUANTITY_NAMES[quantity]} by {percent(score.median_abs_error)} in the median and "
        f"{percent(score.p90_abs_error)} at the 90th percentile ({score.runs} rows, "
        f"{score.tables} tables)"
        for quantity in QUANTITIES
        if (score := scores.get(quantity, {}).get(ALL)) is not None
    ]
    return f"Published steps of strategies are off: {'; '.join(parts)}" if parts else ""


def _titles() -> tuple[str, ...]:
    return tuple(f">{QUANTITY_NAMES[quantity]}" for quantity in QUANTITIES)


def _cells(own: Scores) -> tuple[str, ...]:
    return tuple(_cell(own.get(quantity)) for quantity in QUANTITIES)


def _cell(score: TrainingScore | None) -> str:
    return "-" if score is None else f"{scored(score)} ({score.runs})"


def _covered(score: TrainingScore | None) -> str:
    if score is None or score.inside is None or score.width is None:
        return "-"
    return f"{percent(score.inside)}, {percent(math.expm1(score.width))} wide"
