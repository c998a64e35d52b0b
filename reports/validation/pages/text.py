"""What a validation says in sentences, in the terminal, and in its Markdown and CSV files."""

from __future__ import annotations

import math

from perfmodel.files import csv_text
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Definitions,
    Paragraph,
    paragraphs,
    section,
    table_section,
)
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.validation import WEIGHING, percent
from perfmodel.validate.scores import LARGE
from reports.validation.pages import strategy_tables, tables, training_tables
from reports.validation.pages.training_tables import MEASURE_MEANINGS, training_headline
from reports.validation.run import Validation
from reports.validation.trainings.model import Case, TrainingRun

TARGETS = (
    "Aimed at, of machines that nothing was fitted to: 8 % in the median and 35 % in the 90th "
    "percentile from 256 KiB on, 15 % and 45 % below; a third less with a profile. Two independent "
    "logs of one machine differ by 1 to 12 % in the median and 5 to 40 % in the 90th percentile."
)


def headline(validation: Validation) -> str:
    """Say in one sentence how far predictions of machines are off that nothing was fitted to."""
    score = validation.bands.get(validation.honest_mode, {}).get(LARGE)
    if score is None:
        return "No sweep could be scored"
    return (
        "From datasheets alone, of machines that nothing was fitted to, half of the times are "
        f"within {percent(score.median_abs_error)} and nine of ten within "
        f"{percent(score.p90_abs_error)} of what was measured"
    )


def sentences(validation: Validation) -> list[str]:
    """Sentences at the head of a report, the most important first; a folder may lack sweeps."""
    trainings = training_headline(validation)
    sweeps = (
        headline(validation) if validation.bands or not (trainings or validation.strategies) else ""
    )
    strategies = strategy_tables.strategy_headline(validation)
    return [text for text in (sweeps, trainings, strategies) if text]


def setting(validation: Validation) -> str:
    """Say what was compared: how many sweeps count, and of how many kinds of machine."""
    counted = sum(prediction.counted for prediction in validation.predicted)
    kinds = len({p.machine for p in validation.points})
    return (
        f"{validation.data}: {counted} counted, {len(validation.predicted) - counted} listed only, "
        f"{len(validation.unmatched)} without a prediction; {kinds} kinds of machine"
    )


MODE_MEANINGS = {
    "family left out": (
        "the machine's parts, and constants shared by machines of a generation of GPU and a kind "
        "of network, fitted again without all machines of this kind: what a prediction of a new "
        "machine is worth (reports/validation/refit/left_out.yaml). Not fitted again: staging "
        "before Ampere, GPUDirect across sockets, direct NVLink 2, TCP flows, and what hosts take"
    ),
    "datasheet": (
        "the same with the constants that ship, which were fitted to most of these sweeps"
    ),
    "transferred": (
        "a profile fitted on other sweeps of the same hardware, of the same collective at any "
        "scale or of another one on the same machine, the sweep itself left out, as are all "
        "machines of its kind from the constants that the profile corrects"
    ),
    "NCCL's own formula": "the cost that NCCL's tuner computes for what it would choose",
    "alpha-beta": "steps of a ring times one latency, plus bytes over the nominal rate",
}


def fitted_lines(validation: Validation) -> list[str]:
    """Say which sweeps the shipped constants were fitted on."""
    if not validation.fitted:
        return ["No constant of the library models was fitted on any of these sweeps."]
    return [f"{fit.constants}: fitted on {', '.join(fit.sweeps)}" for fit in validation.fitted]


# ---------------------------------------------------------------- terminal and Markdown


def validation_lines(validation: Validation) -> list[Block]:
    """Arrange a validation for the terminal: errors, coverage, trainings, what is not counted."""
    errors = "Error of predicted times, counted sweeps (median / 90th percentile)"
    blocks: list[Block] = []
    for title, table in (
        (errors, tables.band_table(validation)),
        ("Measured times inside the 80 % interval", tables.coverage_table(validation)),
        ("Published trainings and steps", tables.training_table(validation)),
        (
            f"Published trainings by network and precision. {training_tables.LEAD}",
            training_tables.group_table(validation),
        ),
        (
            f"Published steps by strategy. {strategy_tables.LEAD}",
            strategy_tables.strategy_table(validation),
        ),
        (
            f"Published steps of split models. {strategy_tables.SPLIT_LEAD}",
            strategy_tables.split_table(validation),
        ),
        (
            f"Published steps, all rows. {strategy_tables.SAMPLE_LEAD}",
            strategy_tables.sample_table(validation),
        ),
        (
            f"Published steps in order. {strategy_tables.ORDER_LEAD}",
            strategy_tables.order_table(validation),
        ),
    ):
        if table.rows:
            blocks += [Paragraph(title), table, Paragraph("")]
    blocks += [*paragraphs(f"{text}." for text in sentences(validation)), Paragraph("")]
    blocks += paragraphs(tables.omissions(validation, trainings=False))
    rows = sum(sum(dataset.left_out.values()) for dataset in validation.trainings)
    left_out = f"{rows} rows of training tables left out: the report and --json say why"
    return blocks + paragraphs([left_out] if rows else [])


def validation_markdown(validation: Validation) -> str:
    """Write the same tables as Markdown."""
    errors = f"Median / 90th percentile. {TARGETS} {WEIGHING}"
    common = tables.band_table(validation, common=True)
    inside = "Measured times inside 80 % intervals, which come from other sweeps."
    omissions = Bullets(list(tables.omissions(validation)))
    beside_sample = strategy_tables.sample_table(validation)
    return render_markdown(
        [
            Paragraph("Predicted versus measured", "headline"),
            *paragraphs(f"{text}." for text in sentences(validation)),
            Paragraph(f"{setting(validation)}."),
            Paragraph("Remade by python -m reports.validation."),
            table_section("Errors by size and mode", errors, tables.band_table(validation)),
            table_section("On the sweeps that every mode predicts", "", common),
            table_section(
                "By kind of machine", "From 256 KiB on.", tables.machine_table(validation)
            ),
            table_section("Intervals", inside, tables.coverage_table(validation)),
            table_section("Trainings", "", tables.training_table(validation)),
            table_section(
                "Trainings by network and precision",
                f"{training_tables.LEAD} {training_tables.fitted_note(validation)}",
                training_tables.group_table(validation),
            ),
            table_section(
                "Trainings: published numbers inside 80 % intervals",
                "How many, and how far the ends of an interval are apart in the median.",
                training_tables.coverage_table(validation),
            ),
            table_section(
                "Trainings by table",
                training_tables.LEAD,
                training_tables.by_table_table(validation),
            ),
            table_section(
                "Steps by strategy",
                strategy_tables.LEAD,
                strategy_tables.strategy_table(validation),
            ),
            table_section(
                "Steps by strategy: measured times inside 80 % intervals",
                "How many, and how far the ends of an interval are apart in the median.",
                strategy_tables.coverage_table(validation),
            ),
            table_section(
                "Steps of strategies by table",
                strategy_tables.TABLES_LEAD,
                strategy_tables.source_table(validation),
            ),
            table_section(
                "Steps of split models",
                strategy_tables.SPLIT_LEAD,
                strategy_tables.split_table(validation),
            ),
            *(
                [
                    table_section(
                        "Steps of strategies: sample and all rows",
                        strategy_tables.SAMPLE_LEAD,
                        beside_sample,
                    )
                ]
                if beside_sample.rows
                else []
            ),
            table_section(
                "Steps of strategies: the quicker of two settings",
                strategy_tables.ORDER_LEAD,
                strategy_tables.order_table(validation),
            ),
            table_section("Sweep by sweep", "", tables.sweep_table(validation)),
            section("What was fitted on what", "", Bullets(fitted_lines(validation))),
            section("What is not counted, and why", "", omissions),
            section("Modes", "", Definitions(MODE_MEANINGS)),
            section("Trainings: what is compared", "", Definitions(MEASURE_MEANINGS)),
            section(
                "Steps of strategies: what is compared",
                "",
                Definitions(strategy_tables.QUANTITY_MEANINGS),
            ),
        ]
    )


# ---------------------------------------------------------------- CSV


def trainings_csv(validation: Validation) -> str:
    """One row per published number of a training, with its scaling where it has one."""
    titles = (
        "dataset",
        "case",
        "published",
        "predicted",
        "unit",
        "error",
        "network",
        "base_gpus",
        "efficiency",
        "predicted_efficiency",
        "scaled",
        "source",
    )
    rows: list[tuple[object, ...]] = []
    for data in validation.trainings:
        if data.runs:
            cases = [run.case for run in data.runs]
            if len(data.cases) == len(cases):  # in their own unit
                cases = list(data.cases)
            pairs = zip(cases, data.runs, strict=True)
            rows += [_training_row(data.id, case, run) for case, run in pairs]
        else:
            rows += [_training_row(data.id, case, None) for case in data.cases]
    return csv_text(titles, rows)


def _training_row(table: str, case: Case, run: TrainingRun | None) -> tuple[object, ...]:
    """Cells of one number; what is not compared is empty."""
    unlike = run is not None and run.unlike
    throughput = ("", "") if unlike else (f"{case.predicted:.6g}", f"{case.error:.4f}")
    scaling: tuple[object, ...] = ("", "", "", "", "")
    if run is not None:
        measured, predicted = (f"{share:.4f}" for share in run.efficiency or (math.nan, math.nan))
        scaling = (
            run.network,
            run.base_gpus or "",
            measured if run.base else "",
            predicted if run.base and not unlike else "",
            "" if run.scaled is None else f"{run.scaled:.6g}",
        )
    return (
        table,
        case.name,
        f"{case.published:.6g}",
        throughput[0],
        case.unit,
        throughput[1],
        *scaling,
        case.source,
    )
