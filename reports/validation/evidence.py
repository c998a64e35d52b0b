"""Records of measured steps that ship, by which answers say what they rest on.

    python -m reports.validation.evidence

Writes ``perfmodel/studies/run/evidence.csv``, as ``python -m reports.validation`` does: records
that were in view from ``validation.json``, predicted by what ships, and those of the ledger whose
rows are here with their first predictions. Rows of one source and setting are one record.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from perfmodel.files import csv_text, write_atomically
from perfmodel.memo import grouped
from perfmodel.studies.run.evidence import (
    FILE,
    JOIN,
    KINDS,
    Grade,
    Record,
    Setting,
    chip_of,
    covered_by,
    make_setting,
    network_between,
    rate,
)
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.validate.read import sweeps_folder
from perfmodel.validate.run import match_all, shipped_folder
from perfmodel.validate.scores import weighted_quantile
from perfmodel.workload import zoo
from reports.validation.entries.entry import Entry, Prediction, read_entries, rows_of
from reports.validation.entries.own_runs import settings_of
from reports.validation.entries.steps import FOLDER, ONE_GPU, STATED
from reports.validation.strategies.predicted_step import predict_step
from reports.validation.strategies.stated_step import read_step
from reports.validation.trainings.published import single_gpu_run

HERE = Path(__file__).parent
VALIDATION = HERE / "validation.json"
STRANGERS = ("strangers", "strangers_2")
DIGITS = 4
"""Of numbers in the file."""

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step time, and the ends of its 80 % interval, over the predicted one.

    `first`: version that predicted it before anybody had looked; empty: it was in view.
    """

    table: str
    model: str
    setting: Setting
    first: str
    source: str
    measured: float
    ends: Ends | None


# ---------------------------------------------------------------- records in view


def steps_in_view(document: Mapping[str, Any]) -> Iterator[MeasuredStep]:
    """Read the steps that ``validation.json`` compares from data sheets."""
    for row in document["trainings"]["rows"]:
        rate = row["predicted_samples_per_s"]
        ends = row["intervals"].get("one_gpu" if row["gpus"] == 1 else "many_gpus")
        if rate is not None:
            yield _in_view(
                row, rate / row["samples_per_s"], ends and (rate / ends[1], rate / ends[0])
            )
    for row in document["strategies"]["rows"]:
        step_s, ends = row["predicted_s"], row["intervals"].get("step")
        if step_s is not None and row["step_s"] and not row["undecided"]:
            yield _in_view(
                row, row["step_s"] / step_s, ends and (ends[0] / step_s, ends[1] / step_s)
            )


def _in_view(row: Mapping[str, Any], measured: float, ends: Ends | None) -> MeasuredStep:
    setting = Setting(**row["setting"] | {"strategy": tuple(row["setting"]["strategy"])})
    return MeasuredStep(row["table"], row["model"], setting, "", row["source"], measured, ends)


def sweeps_in_view(document: Mapping[str, Any]) -> Iterator[Record]:
    """Read the sweeps of collectives that count, predicted without their family of machines."""
    errors = {
        each["id"]: each["median_abs_error"]
        for mode in ("datasheet", "left out")
        for each in document["datasets"]
        if each["mode"] == mode and each.get("counted")
    }
    for sweep, found in match_all(sweeps_folder(shipped_folder()))[0]:
        if sweep.id in errors:
            gpu, network = found.topology.gpu, network_between(found.topology, sweep.nodes)
            setting = Setting(
                gpu.name, SWEEP, chip_of(gpu), "none", (SWEEP,), network, sweep.nranks, 1.0, 0.0
            )
            words = f"{found.op} of nccl-tests", setting, len(sweep.rows), errors[sweep.id]
            yield Record(sweep.table or sweep.id, *words, None, None, "", sweep.source)


SWEEP = "sweep"
"""Kind of model, and strategy, of a collective alone."""

# ---------------------------------------------------------------- first predictions


def first_steps(entries: Iterable[Entry]) -> Iterator[MeasuredStep]:
    """Find the steps of the ledger whose rows are in this repository."""
    known = dict(_settings())
    for entry in entries:
        line = entry.prediction
        if line.kind != "step" or (line.table, line.row) not in known:
            continue
        model, setting, source = known[line.table, line.row]
        yield MeasuredStep(
            line.table,
            model,
            setting,
            entry.origin.version,
            source,
            line.measured / line.predicted,
            _ends(line),
        )


def _ends(line: Prediction) -> Ends | None:
    if line.low is None or line.high is None:
        return None
    return line.low / line.predicted, line.high / line.predicted


def _settings() -> Iterator[tuple[tuple[str, str], tuple[str, Setting, str]]]:
    """Read the model, setting and source of each row of strangers, and of our own, by its line."""
    for name in STRANGERS:
        folder = HERE / "data" / name / FOLDER
        for cells in rows_of(folder / STATED):
            if cells["step_s"]:
                step = predict_step(read_step(cells))
                found = step.stated.model, step.setting, cells["source"]
                yield (cells["table"], cells["id"]), found
        for cells in rows_of(folder / ONE_GPU):
            run = single_gpu_run(cells)
            assert run.setting is not None
            yield (cells["table"], cells["model"]), (run.model, run.setting, run.source)
    gpu = load_gpu("h100-sxm5-80gb")
    for row, cells in settings_of("h100"):
        length = cells["sequence_length"]
        model = zoo.build_model(cells["model"], sequence_length=int(length) if length else None)
        setting = make_setting(model, gpu, cells["precision"], (), "", 1, int(cells["batch"]))
        yield ("one_gpu, h100", row), (cells["model"], setting, "reports/experiments/one_gpu")


# ---------------------------------------------------------------- file

COLUMNS = (
    *("table", "model", "gpu", *KINDS, "gpus", "parameters", "samples"),
    *("rows", "error", "inside", "width", "first", "source"),
)


def evidence_csv(document: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """Write the file. `document`: ``validation.json``."""
    steps = (*steps_in_view(document), *first_steps(entries))
    groups = grouped(((each.table, each.model, each.setting, each.first), each) for each in steps)
    rows = (*map(_record, groups.values()), *sweeps_in_view(document))
    return csv_text(COLUMNS, map(_row, rows))


def _record(steps: Sequence[MeasuredStep]) -> Record:
    """Steps of one setting and source."""
    step = steps[0]
    ends = [(each.measured, *each.ends) for each in steps if each.ends]
    return Record(
        step.table,
        step.model,
        step.setting,
        len(steps),
        statistics.median(1 / each.measured - 1 for each in steps),
        statistics.mean(low <= measured <= high for measured, low, high in ends) if ends else None,
        statistics.median(high / low - 1 for _, low, high in ends) if ends else None,
        step.first,
        step.source,
    )


def _row(record: Record) -> list[object]:
    setting = record.setting
    kinds = (JOIN.join(v) if isinstance(v := getattr(setting, k), tuple) else v for k in KINDS)
    return [
        *(record.table, record.model, setting.gpu, *kinds, setting.gpus),
        *map(_rounded, (setting.parameters, setting.samples)),
        record.rows,
        *map(_rounded, (record.error, record.inside, record.width)),
        record.first,
        record.source,
    ]


def _rounded(number: float | None) -> str | None:
    return None if number is None else f"{number:.{DIGITS}g}"


# ---------------------------------------------------------------- how far off a grade is


@dataclass(frozen=True, slots=True)
class GradeScore:
    """How far off records of one grade are, each table weighing the same.

    `median`, `p90`: of the size of errors; `bias`: median of the errors.
    `inside`: share of steps in their 80 % interval; `width`: median of high over low end less one.
    """

    records: int
    tables: int
    median: float
    p90: float
    bias: float
    inside: float
    width: float


def grade_scores(records: Sequence[Record], *, first: bool) -> dict[Grade, GradeScore]:
    """Grade records by others, and score those of each grade.

    `first`: those that were predicted before anybody had looked, by those that were in view then;
        otherwise those in view, each by those of other tables.
    """
    in_view = [each for each in records if not each.first]
    pairs = []
    for record in records:
        if record.setting.samples and bool(record.first) == first:
            others = [each for each in in_view if each.table != record.table]
            known = covered_by(load_gpu(record.setting.gpu))
            pairs.append((rate(record.setting, others, covered=known).grade, record))
    found = grouped(pairs)
    return {grade: _score(found[grade]) for grade in get_args(Grade) if grade in found}


def _score(records: Sequence[Record]) -> GradeScore:
    sized = Counter(each.table for each in records)
    weights = np.array([1 / sized[each.table] for each in records])
    errors = np.array([each.error for each in records])
    bounded = [(each, weight) for each, weight in zip(records, weights, strict=True) if each.width]
    inside, widths = ([getattr(e, name) for e, _ in bounded] for name in ("inside", "width"))
    own = np.array([weight for _, weight in bounded])
    return GradeScore(
        len(records),
        len(sized),
        weighted_quantile(np.abs(errors), weights, 0.5),
        weighted_quantile(np.abs(errors), weights, 0.9),
        weighted_quantile(errors, weights, 0.5),
        float(np.average(inside, weights=own)),
        weighted_quantile(np.array(widths), own, 0.5),
    )


def write_evidence(document: Mapping[str, Any]) -> None:
    """Write the file that ships."""
    write_atomically(FILE, evidence_csv(document, read_entries()))


if __name__ == "__main__":
    write_evidence(json.loads(VALIDATION.read_text("utf-8")))
