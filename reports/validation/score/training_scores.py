"""Error statistics of published trainings: by measure, network and precision; by table.

Every table weighs the same in a score, however many runs it lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.files import as_json
from perfmodel.validate.scores import weighted_quantile
from reports.validation.trainings.llm_steps import LLM
from reports.validation.trainings.model import MEASURES, Dataset, Measure, Pair, TrainingRun
from reports.validation.trainings.series import NETWORKS, ONE_GPU

ALL = "all"
SEVERAL_NODES = "several nodes"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
GPT_LIKE = "GPT-like"
"""Language models, of which utilisation of the GPU's peak is printed."""

Entry = tuple[str, TrainingRun]
"""A run and the table that lists it."""


@dataclass(frozen=True, slots=True)
class TrainingScore:
    """Errors of predicted over published, less one; every table weighs the same.

    `bias`: median with its sign: above zero the prediction is too optimistic.
    `inside`: share of published numbers inside their 80 % interval; None: none has one.
    `width`: of these intervals, the median of the logarithm of high over low.
    """

    tables: int
    runs: int
    median_abs_error: float
    p90_abs_error: float
    bias: float
    inside: float | None = None
    width: float | None = None


def score_runs(entries: Iterable[Entry], measure: Measure) -> TrainingScore | None:
    """Score a measure over some runs; None if none of them has it."""
    compared = [
        (table, run, pair) for table, run in entries if (pair := run.pair(measure)) is not None
    ]
    if not compared:
        return None
    pairs = [(table, pair) for table, _, pair in compared]
    errors = np.array([predicted / published - 1.0 for _, (published, predicted) in pairs])
    _, at, counts = np.unique(
        [table for table, _ in pairs], return_inverse=True, return_counts=True
    )
    weights = 1.0 / counts[at]
    return TrainingScore(
        tables=len(counts),
        runs=len(pairs),
        median_abs_error=weighted_median(np.abs(errors), weights),
        p90_abs_error=weighted_quantile(np.abs(errors), weights, 0.9),
        bias=weighted_median(errors, weights),
        **coverage_of(
            [(run.intervals.get(measure), pair[0]) for _, run, pair in compared], weights
        ),
    )


def coverage_of(
    published: Sequence[tuple[Pair | None, float]], weights: NDArray[np.float64]
) -> dict[str, float]:
    """Share of published numbers inside their interval, and how wide it is; empty without any."""
    stated = [at for at, (interval, _) in enumerate(published) if interval is not None]
    if not stated:
        return {}
    ends = np.array([published[at][0] for at in stated])
    numbers, own = np.array([published[at][1] for at in stated]), weights[stated]
    inside = (ends[:, 0] <= numbers) & (numbers <= ends[:, 1])
    return {
        "inside": float(own[inside].sum() / own.sum()),
        "width": weighted_median(np.log(ends[:, 1] / ends[:, 0]), own),
    }


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Weighted median; the middle of two values that share it, so that no sign is preferred."""
    low = weighted_quantile(values, weights, 0.5)
    return (low - weighted_quantile(-values, weights, 0.5)) / 2


def entries_of(datasets: Iterable[Dataset]) -> list[Entry]:
    """All runs of all tables."""
    return [(dataset.id, run) for dataset in datasets for run in dataset.runs]


def by_group(entries: Sequence[Entry]) -> dict[Measure, dict[str, dict[str, TrainingScore]]]:
    """Score each measure over all runs ("all"), by network ("network"), by precision and by model.

    "several nodes" stands among the networks for all runs that leave their node.
    """
    table: dict[Measure, dict[str, dict[str, TrainingScore]]] = {}
    for measure in MEASURES:
        groups = {
            ALL: {ALL: list(entries)},
            "network": {name: [e for e in entries if e[1].network == name] for name in NETWORKS}
            | {SEVERAL_NODES: [e for e in entries if e[1].nodes > 1]},
            "precision": {p: [e for e in entries if e[1].precision == p] for p in PRECISIONS},
            "model": {GPT_LIKE: [e for e in entries if e[0].startswith(LLM)]},
        }
        for kind, named in groups.items():
            for name, own in named.items():
                scored = score_runs(own, measure)
                if scored is not None:
                    table.setdefault(measure, {}).setdefault(kind, {})[name] = scored
    return table


def by_table(datasets: Iterable[Dataset]) -> dict[str, dict[Measure, dict[str, TrainingScore]]]:
    """Score each table by measure, over all of its runs and by network."""
    return {
        dataset.id: {
            measure: groups.get(ALL, {}) | groups.get("network", {})
            for measure, groups in by_group(entries_of([dataset])).items()
        }
        for dataset in datasets
        if dataset.runs
    }


def trainings_json(datasets: Sequence[Dataset]) -> Mapping[str, Any]:
    """Return the entry ``trainings`` of ``reports.validation --json``: scores, and every run."""
    return {
        "measures": as_json(by_group(entries_of(datasets)), "trainings"),
        "tables": as_json(by_table(datasets), "trainings"),
        "rows": [row_json(table, run) for table, run in entries_of(datasets)],
    }


def row_json(table: str, run: TrainingRun) -> dict[str, Any]:
    """Return one run; what is not compared is null."""
    published, predicted = run.efficiency or (None, None)
    return {
        "table": table,
        "model": run.model,
        "gpu": run.gpu,
        "nodes": run.nodes,
        "gpus": run.gpus,
        "batch_per_gpu": run.batch,
        "precision": run.precision,
        "network": None if run.network == ONE_GPU else run.network,
        "samples_per_s": run.published,
        "predicted_samples_per_s": None if run.unlike else run.predicted,
        "base_gpus": run.base_gpus,
        "efficiency": published,
        "predicted_efficiency": None if run.unlike else predicted,
        "scaled_samples_per_s": run.scaled,
        "intervals": {name: list(ends) for name, ends in run.intervals.items()},
        "source": run.source,
        "setting": run.setting and as_json(run.setting._asdict(), "setting"),
    }
