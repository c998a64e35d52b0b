"""Published trainings in tables and a sentence: one GPU, several, scaling efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.report.common.document import Table
from perfmodel.report.validation import percent, signed
from reports.validation.score.training_scores import (
    ALL,
    GPT_LIKE,
    PRECISIONS,
    SEVERAL_NODES,
    TrainingScore,
    by_group,
    by_table,
    entries_of,
    score_runs,
)
from reports.validation.trainings.model import MEASURES, Case, Measure
from reports.validation.trainings.series import NETWORKS

if TYPE_CHECKING:
    from reports.validation.run import Validation

MEASURE_NAMES: Mapping[Measure, str] = {
    "one_gpu": "one GPU",
    "many_gpus": "several GPUs",
    "efficiency": "scaling efficiency",
    "scaled": "several, compute scaled",
}
MEASURE_MEANINGS = {
    "one GPU": "throughput of one GPU",
    "several GPUs": "throughput of all GPUs together",
    "scaling efficiency": (
        "throughput per GPU over that of the table's smallest run of the same model, GPU, kind of "
        "host, batch and precision"
    ),
    "several, compute scaled": (
        "throughput of all GPUs with compute scaled to the measured rate of one GPU, so that what "
        "is off is communication and its overlap"
    ),
}
LEAD = (
    "Median / 90th percentile of the absolute error, and bias: the median with its sign, above "
    "zero too optimistic. Every table weighs the same."
)


def scored(score: TrainingScore | None) -> str:
    """Median, 90th percentile and bias, or a dash."""
    if score is None:
        return "-"
    errors = f"{percent(score.median_abs_error)} / {percent(score.p90_abs_error)}"
    return f"{errors}, {signed(score.bias)}"


def fitted_note(validation: Validation) -> str:
    """Say which tables constants were fitted to; empty: none."""
    names = ", ".join(d.id.removeprefix("training-") for d in validation.trainings if d.fitted)
    return f"A constant was fitted to throughputs of one GPU in {names}." if names else ""


def group_table(validation: Validation) -> Table:
    """Errors by network and precision, a column per measure."""
    groups = by_group(entries_of(validation.trainings))
    rows = []
    for kind, name, title in _groups():
        scores = {measure: own.get(kind, {}).get(name) for measure, own in groups.items()}
        rows.append(_row(title, scores))
    header = (
        "network or precision",
        ">tables",
        ">runs",
        *(f">{MEASURE_NAMES[m]}" for m in MEASURES),
    )
    return Table(header, [row for row in rows if row])


def coverage_table(validation: Validation) -> Table:
    """How many published numbers lie inside their intervals, by network and precision."""
    groups = by_group(entries_of(validation.trainings))
    rows = []
    for kind, name, title in _groups():
        scores = {measure: own.get(kind, {}).get(name) for measure, own in groups.items()}
        cells = [_covered(scores.get(measure)) for measure in MEASURES]
        if any(cell != "-" for cell in cells):
            rows.append((title, *cells))
    return Table(("network or precision", *(f">{MEASURE_NAMES[m]}" for m in MEASURES)), rows)


def _covered(score: TrainingScore | None) -> str:
    if score is None or score.inside is None or score.width is None:
        return "-"
    return f"{percent(score.inside)}, {percent(math.expm1(score.width))} wide"


def _groups() -> list[tuple[str, str, str]]:
    """Kind, name and title of each group of runs, in the order of the tables."""
    titled = {ALL: "all", SEVERAL_NODES: "all between nodes", GPT_LIKE: "GPT-like, MFU"}
    names = [
        (ALL, ALL),
        *(("network", name) for name in (*NETWORKS, SEVERAL_NODES)),
        *(("precision", name) for name in PRECISIONS),
        ("model", GPT_LIKE),
    ]
    return [(kind, name, titled.get(name, name)) for kind, name in names]


def _row(title: str, scores: Mapping[Measure, TrainingScore | None]) -> tuple[str, ...]:
    """One row; empty where nothing is compared."""
    compared = [score for score in scores.values() if score is not None]
    if not compared:
        return ()
    tables = max(score.tables for score in compared)
    cells = (scored(scores.get(measure)) for measure in MEASURES)
    return (title, str(tables), str(_runs(scores)), *cells)


def _runs(scores: Mapping[Measure, TrainingScore | None]) -> int:
    """Runs behind a row: of one GPU, and of several in the measure that most of them have."""
    counts = {measure: 0 if score is None else score.runs for measure, score in scores.items()}
    several = [count for measure, count in counts.items() if measure != "one_gpu"]
    return counts.get("one_gpu", 0) + max(several, default=0)


def by_table_table(validation: Validation) -> Table:
    """Errors of each table, over all of its runs and between nodes."""
    rows = []
    for table, groups in by_table(validation.trainings).items():
        title = table.removeprefix("training-")
        for name, text in ((ALL, title), (SEVERAL_NODES, f"{title}, between nodes")):
            scores = {measure: own.get(name) for measure, own in groups.items()}
            if row := _row(text, scores):
                rows.append((row[0], *row[2:]))  # one table
    header = ("table", ">runs", *(f">{MEASURE_NAMES[m]}" for m in MEASURES))
    return Table(header, rows)


def efficiencies(validation: Validation) -> dict[str, list[Case]]:
    """Scaling efficiencies by network, in per cent of the smallest run's throughput per GPU."""
    cases: dict[str, list[Case]] = {name: [] for name in NETWORKS}
    for table, run in entries_of(validation.trainings):
        shares = run.pair("efficiency")
        if shares is not None and run.network in cases:
            published, predicted = (100.0 * share for share in shares)
            name = f"{table.removeprefix('training-')}: {run.case.name}"
            cases[run.network].append(Case(name, published, predicted, "%", run.source))
    return cases


def training_headline(validation: Validation) -> str:
    """Say in one sentence how far scaling efficiency and one GPU's throughput are off.

    The latter of tables to which no constant was fitted.
    """
    groups = by_group(entries_of(validation.trainings))
    whole = groups.get("efficiency", {}).get(ALL, {}).get(ALL)
    unfitted = [data for data in validation.trainings if not data.fitted]
    single = score_runs(entries_of(unfitted), "one_gpu")
    if whole is None:
        return ""
    networks = groups["efficiency"].get("network", {})
    each = "; ".join(
        f"{name} {percent(score.median_abs_error)}, {percent(score.p90_abs_error)}"
        for name in NETWORKS
        if (score := networks.get(name)) is not None
    )
    sentence = (
        f"Scaling efficiency of published trainings ({_tables(whole)}) is off by "
        f"{percent(whole.median_abs_error)} in the median and {percent(whole.p90_abs_error)} at "
        f"the 90th percentile, bias {signed(whole.bias)} ({each})"
    )
    if single is not None:
        sentence += (
            f"; throughput of one GPU ({_tables(single)} that nothing was fitted to) by "
            f"{percent(single.median_abs_error)} and {percent(single.p90_abs_error)}"
        )
    language = groups.get("one_gpu", {}).get("model", {}).get(GPT_LIKE)
    if language is not None:
        sentence += (
            f", utilisation (MFU) of GPT-like models ({_tables(language)}) by "
            f"{percent(language.median_abs_error)} and {percent(language.p90_abs_error)}"
        )
    return sentence


def _tables(score: TrainingScore) -> str:
    return f"{score.tables} table{'s' if score.tables > 1 else ''}"
