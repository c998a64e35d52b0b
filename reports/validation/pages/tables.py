"""The tables of a validation, for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfmodel.report import validation as report
from perfmodel.report.common.document import Table
from perfmodel.report.validation import MODE_NAMES, pair, percent, signed
from perfmodel.validate.scores import BAND_NAMES, LARGE, MODES
from reports.validation.score import breakdowns

if TYPE_CHECKING:
    from reports.validation.run import Validation


def machine_table(validation: Validation) -> Table:
    """Errors by kind of machine and mode, from 256 KiB on and below."""
    machines = breakdowns.by_machine(validation.points)
    modes = [mode for mode in MODES if any(mode in own for own in machines.values())]
    header = (
        "kind of machine",
        ">sweeps",
        *(f">{MODE_NAMES[m]}" for m in modes),
        f">below 256 KiB, {MODE_NAMES[validation.honest_mode]}",
    )
    rows = []
    for machine, own in machines.items():
        sheet = own.get(validation.honest_mode, {})
        count = max((score.sweeps for bands in own.values() for score in bands.values()), default=0)
        rows.append(
            (
                machine,
                str(count),
                *(pair(own.get(mode, {}).get(LARGE)) for mode in modes),
                pair(sheet.get("latency")),
            )
        )
    return Table(header, tuple(rows))


def coverage_table(validation: Validation) -> Table:
    """How often measured times lie in 80 % intervals, with the confidence interval of that."""
    rows = []
    for mode, bands in validation.coverages.items():
        for band, share in bands.items():
            rows.append(
                (
                    MODE_NAMES[mode],
                    BAND_NAMES.get(band, band if band == LARGE else "all sizes"),
                    str(share.sweeps),
                    percent(share.share),
                    f"{percent(share.low)} to {percent(share.high)}",
                )
            )
    return Table(("mode", "sizes", ">sweeps", ">inside", ">95 % sure"), tuple(rows))


def training_table(validation: Validation) -> Table:
    """Errors of published trainings and recorded steps."""
    rows = tuple(
        (
            dataset.title,
            str(len(dataset.cases)),
            percent(dataset.median_abs_error or 0.0),
            percent(dataset.p90_abs_error or 0.0),
            signed(dataset.bias or 0.0),
            str(sum(dataset.left_out.values())),
        )
        for dataset in validation.trainings
        if dataset.cases
    )
    header = ("what", ">numbers", ">median", ">90th percentile", ">bias", ">left out")
    return Table(header, rows)


def band_table(validation: Validation, *, common: bool = False) -> Table:
    """Errors by mode and band; `common`: on those sweeps that every mode predicts."""
    return report.band_table(
        breakdowns.on_common(validation.points) if common else validation.bands
    )


def sweep_table(validation: Validation) -> Table:
    """Every predicted sweep with its errors from 256 KiB on and below, by mode."""
    return report.sweep_table(validation.predicted, validation.points, validation.honest_mode)


def omissions(validation: Validation, *, trainings: bool = True) -> Iterator[str]:
    """Sentences about what is not counted; with `trainings` also about rows of training tables."""
    yield from report.omissions(validation.predicted, validation.unmatched)
    for dataset in validation.trainings if trainings else ():
        for reason, count in dataset.left_out.items():
            yield f"left out of {dataset.id}: {count} rows: {reason}"
        for reason, count in dataset.not_scaled.items():
            yield f"without scaling of {dataset.id}: {count} rows: {reason}"
