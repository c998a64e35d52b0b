"""Whole steps on one GPU: errors with GPUs and models left out of fits, and intervals from them.

A record is a published throughput of one GPU; the table that it counts for is the repository that
published it, so that numbers that stand in two of our files count once. Two rates of convolutional
networks are fitted to steps; nothing of transformers is. Widths of intervals are fitted to both:
eight tenths of the errors of other tables, each table weighing the same, and for generations of
GPUs with few tables those of other generations, each of these weighing the same. Transformers have
one by generation, of published steps on several GPUs, too, as ``reports/validation`` has them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np

from perfmodel.files.csv_rows import read_table
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import KernelConstants, kernel_constants
from perfmodel.workload.roofline import step_s
from reports.kernels.records import DATA, bert_records, bert_samples_per_s
from reports.validation.trainings.llm_steps import llm_run
from reports.validation.trainings.published import LEFT_OUT, single_gpu_run
from reports.validation.trainings.rows.model_names import is_convolutional
from reports.validation.trainings.rows.parse import (
    TrainingRow,
    UnsupportedRow,
    in_common_columns,
    parse_row,
    samples_per_s,
)
from reports.validation.trainings.step_times import compute_precision, row_layer_times, topology_of

STEPS = (0.7, 1.0, 1.4)
"""Factors tried on a constant in one round of a fit."""
CAP = 0.5
"""Larger logarithms of a row count as this in a fit: it is not a row's to decide."""
MOST_ROWS = 6
"""Rows of a GPU in a fit."""
HOST_BOUND = "github.com/stanford-futuredata/gavel"
"""40 to 90 ms of each step do not depend on the batch, on V100, P100 and K80 alike, beside eight
processes that decode images: its steps say nothing of kernels, and enter no fit of them."""
CONVOLUTIONAL = ("resnet", "vgg", "inception", "alexnet", "efficientnet", "convnext")
"""Names of convolutional models begin so."""

FEW_TABLES = 3
"""Tables from which on a generation of GPUs has its own share in the width."""
INSIDE = 0.8
VALIDATION = Path("reports/validation/validation.json")

Family = Literal["convolutional", "transformer"]
Key = Callable[["StepRecord"], str]


@dataclass(frozen=True, eq=False)
class StepRecord:
    """A published step: what ran where, its throughput, and how to predict it."""

    table: str
    gpu: str
    generation: str
    model: str
    family: Family
    precision: str
    published: float
    predict: Callable[[], float]

    def error(self, constants: KernelConstants | None = None) -> float:
        """Logarithm of predicted over measured time."""
        with patch(
            "perfmodel.workload.kernels.device.kernel_constants",
            lambda: constants or kernel_constants(),
        ):
            return math.log(self.published / self.predict())


def step_records() -> list[StepRecord]:
    """All published steps on one GPU."""
    return [*_of_trainings(), *_of_single_gpus(), *_of_language_models(), *_of_berts()]


def _of_trainings() -> Iterator[StepRecord]:
    for path in (*sorted((DATA / "training").glob("*.csv")), *(DATA / "ddp").glob("*.csv")):
        for record in read_table(path, []) if path.name != LEFT_OUT else ():
            cells = in_common_columns(record.cells)
            try:
                row = parse_row(cells)
            except UnsupportedRow:
                continue
            if row.gpus == 1 and not row.unlike:
                gpu = topology_of(row).gpu
                family: Family = "convolutional" if is_convolutional(row.model) else "transformer"
                yield StepRecord(
                    cells.get("source", path.stem),
                    gpu.name,
                    gpu.generation,
                    row.model.text,
                    family,
                    compute_precision(row, gpu),
                    samples_per_s(cells, row),
                    partial(_row_samples_per_s, row),
                )


def _row_samples_per_s(row: TrainingRow) -> float:
    return row.batch / step_s(row_layer_times(row))


def _of_single_gpus() -> Iterator[StepRecord]:
    for record in read_table(DATA / "single_gpu.csv", []):
        cells = record.cells
        table = cells["source"].split(",")[0].split(" (")[0]
        yield _record(table, cells["gpu"], cells, lambda c=cells: single_gpu_run(c).predicted)


def _of_language_models() -> Iterator[StepRecord]:
    for record in read_table(DATA / "llm_steps.csv", []):
        cells = record.cells
        yield _record(cells["table"], cells["gpu"], cells, lambda c=cells: llm_run(c).predicted)


def _of_berts() -> Iterator[StepRecord]:
    for record in bert_records():
        cells = record.cells
        yield _record(record.table, record.gpu, cells, partial(bert_samples_per_s, record))


@cache
def strategy_records() -> tuple[StepRecord, ...]:
    """Published steps on one GPU and several, with times that the last validation predicted."""
    rows = json.loads(VALIDATION.read_text("utf-8"))["strategies"]["rows"]
    compared = (
        row
        for row in rows
        if row["step_s"] and row["predicted_s"] and not (row["unlike"] or row["undecided"])
    )
    return tuple(
        StepRecord(
            row["table"],
            gpu,
            load_gpu(gpu).generation,
            row["model"],
            "convolutional" if row["model"].startswith("ResNet") else "transformer",
            row["precision"].partition(" ")[0],
            1 / row["step_s"],
            lambda predicted_s=row["predicted_s"]: 1 / predicted_s,
        )
        for row in compared
        if (gpu := row["gpu"].partition(" at ")[0])
    )


def _record(
    table: str, gpu: str, cells: Mapping[str, str], predict: Callable[[], float]
) -> StepRecord:
    model = cells["model"]
    convolutional = model.startswith(CONVOLUTIONAL)
    family: Family = "convolutional" if convolutional else "transformer"
    generation = load_gpu(gpu).generation
    published = float(cells["samples_per_s"])
    return StepRecord(table, gpu, generation, model, family, cells["precision"], published, predict)


# ---------------------------------------------------------------- fits without some records


def errors_without(records: Sequence[StepRecord], key: Key) -> list[float]:
    """Errors of all records, each by rates fitted without those that share its key."""
    fitted = {
        value: _fit([r for r in records if r.family == "convolutional" and key(r) != value])
        for value in {key(record) for record in records if record.family == "convolutional"}
    }
    return [record.error(fitted.get(key(record))) for record in records]


def _fit(records: Sequence[StepRecord]) -> KernelConstants:
    """Fit the rates of feature maps and copies, each GPU weighing the same."""
    by_gpu: dict[str, list[StepRecord]] = defaultdict(list)
    for record in records:
        if record.table != HOST_BOUND:
            by_gpu[record.gpu].append(record)

    def cost(constants: KernelConstants) -> float:
        return statistics.fmean(
            statistics.fmean(min(abs(r.error(constants)), CAP) for r in rows[:MOST_ROWS])
            for rows in by_gpu.values()
        )

    best = kernel_constants()
    lowest = cost(best)
    for name in ("map_elements_per_s", "copy_elements_per_s"):
        start = best.convolution
        for factor in STEPS:
            changed = replace(start, **{name: getattr(start, name) * factor})
            tried = replace(best, convolution=changed)
            if (tried_cost := cost(tried)) < lowest:
                best, lowest = tried, tried_cost
    return best


# ---------------------------------------------------------------- widths of intervals


@dataclass(frozen=True)
class Widths:
    """Half widths of 80 % intervals of a logarithm.

    `families`: of GPUs whose generation many tables have. `unseen`: of others.
    `generations`: of transformers on GPUs whose generation many tables have.
    """

    families: dict[str, float]
    unseen: float
    seen: tuple[str, ...]
    generations: dict[str, float]

    def of(self, record: StepRecord) -> float:
        """Half width of a step."""
        if record.family == "transformer" and record.generation in self.generations:
            return self.generations[record.generation]
        own = self.families[record.family]
        return own if record.generation in self.seen else max(own, self.unseen)


def widths(
    records: Sequence[StepRecord],
    errors: Sequence[float],
    key: Key | None = None,
    without: str = "",
) -> Widths:
    """Fit them to errors, and to those of steps on several GPUs.

    `without`: value of `key` of steps on several GPUs that are left out.
    """
    sizes = np.abs(errors)
    pairs = [*zip(records, errors, strict=True)]
    by_family: dict[str, float] = {}
    for family in sorted({record.family for record in records}):
        own = [at for at, record in enumerate(records) if record.family == family]
        by_family[family] = quantile(sizes[own], table_weights([records[at] for at in own]))
    tables: dict[str, set[str]] = defaultdict(set)
    for record in records:
        tables[record.generation].add(record.table)
    seen = tuple(sorted(name for name, own in tables.items() if len(own) >= FEW_TABLES))
    weights = [
        weight / len(tables[record.generation])
        for record, weight in zip(records, table_weights(records, by_generation=True), strict=True)
    ]
    return Widths(by_family, quantile(sizes, weights), seen, _of_generations(pairs, key, without))


def _of_generations(
    pairs: Sequence[tuple[StepRecord, float]], key: Key | None, without: str
) -> dict[str, float]:
    """Widths of transformers in 16 bits and more by generation."""
    several = [(r, r.error()) for r in strategy_records() if key is None or key(r) != without]
    by_generation: dict[str, list[tuple[StepRecord, float]]] = defaultdict(list)
    for record, error in (*pairs, *several):
        if record.family == "transformer" and record.precision != "fp8":
            by_generation[record.generation].append((record, error))
    return {
        name: quantile([abs(error) for _, error in own], table_weights([r for r, _ in own]))
        for name, own in sorted(by_generation.items())
        if len({record.table for record, _ in own}) >= FEW_TABLES
    }


def table_weights(records: Sequence[StepRecord], *, by_generation: bool = False) -> list[float]:
    """Weights that make tables count the same, or tables of each generation."""
    keys = [(r.table, r.generation if by_generation else "") for r in records]
    counts = Counter(keys)
    return [1.0 / counts[key] for key in keys]


def quantile(sizes: Sequence[float], weights: Sequence[float], share: float = INSIDE) -> float:
    """Smallest size that so much of the weight does not exceed."""
    order = np.argsort(sizes)
    passed = np.cumsum(np.asarray(weights)[order])
    at = int(np.searchsorted(passed, share * passed[-1]))
    return float(np.asarray(sizes)[order][at])


def coverage(
    records: Sequence[StepRecord], errors: Sequence[float], key: Key
) -> tuple[float, float]:
    """Share of errors inside widths fitted without all that share their key; half of the widths.

    Each key weighs the same, and in it each table.
    """
    inside, used = [], []
    for value in sorted({key(record) for record in records}):
        others = [at for at, record in enumerate(records) if key(record) != value]
        fitted = widths([records[at] for at in others], [errors[at] for at in others], key, value)
        own = [at for at, record in enumerate(records) if key(record) == value]
        weights = table_weights([records[at] for at in own])
        half = [fitted.of(records[at]) for at in own]
        held = [abs(errors[at]) <= width for at, width in zip(own, half, strict=True)]
        inside.append(float(np.average(held, weights=weights)))
        used.append(statistics.median(half))
    return statistics.fmean(inside), statistics.median(used)


def print_coverage(records: Sequence[StepRecord], errors: Sequence[float]) -> None:
    """Print how many published steps lie in intervals made without tables, models, generations."""
    print("\n80 % intervals of steps, fitted without   inside   width")
    keys: dict[str, Key] = {
        "the table": lambda r: r.table,
        "the model": lambda r: r.model,
        "the GPU": lambda r: r.gpu,
        "the generation": lambda r: r.generation,
    }
    for name, key in keys.items():
        inside, half = coverage(records, errors, key)
        print(f"{name:40} {inside:8.0%} {math.expm1(2 * half):7.0%}")
