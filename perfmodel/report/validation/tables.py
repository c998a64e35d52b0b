"""The tables of a validation, for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from perfmodel.library.corrections import BANDS
from perfmodel.report.common.document import Table
from perfmodel.validate.score import scores
from perfmodel.validate.score.scores import BAND_NAMES, LARGE, MODES, Score

if TYPE_CHECKING:
    from perfmodel.validate.run import Validation


MODE_NAMES = {
    "left out": "family left out",
    "datasheet": "datasheet",
    "transferred": "transferred",
    "calibrated": "given profile",
    "nccl tuner": "NCCL's own formula",
    "alpha-beta": "alpha-beta",
}
_BANDS = (*(band for band, _ in BANDS), LARGE)


def percent(fraction: float) -> str:
    """Write an error in per cent; one digit below 10 %; the space does not break.

    Examples
    --------
    >>> [percent(f).replace(chr(160), " ") for f in (0.123, 0.0123, 12.3)]
    ['12 %', '1.2 %', '1230 %']
    """
    digits = 1 if abs(fraction) < 0.0995 else 0
    return f"{100 * fraction:.{digits}f}\N{NO-BREAK SPACE}%"


def signed(fraction: float) -> str:
    """Write an error with its sign; the space does not break.

    Examples
    --------
    >>> [signed(f).replace(chr(160), " ") for f in (0.123, -0.0123)]
    ['+12 %', '-1.2 %']
    """
    return ("+" if fraction >= 0 else "") + percent(fraction)


def pair(score: Score | None) -> str:
    """Median and 90th percentile, or a dash."""
    if score is None:
        return "-"
    return f"{percent(score.median_abs_error)} / {percent(score.p90_abs_error)}"


def band_table(validation: Validation, *, common: bool = False) -> Table:
    """Errors by mode and band; `common`: on those sweeps that every mode predicts."""
    table = scores.on_common(validation.points) if common else validation.bands
    return _bands_table("mode", {MODE_NAMES[mode]: table[mode] for mode in MODES if mode in table})


def _bands_table(title: str, named: Mapping[str, Mapping[str, Score]]) -> Table:
    """Errors by band, a row per name."""
    rows = tuple(
        (
            name,
            str(max(score.sweeps for score in bands.values())),
            *(pair(bands.get(band)) for band in _BANDS),
        )
        for name, bands in named.items()
    )
    return Table((title, ">sweeps", *(f">{BAND_NAMES.get(band, band)}" for band in _BANDS)), rows)


def machine_table(validation: Validation) -> Table:
    """Errors by kind of machine and mode, from 256 KiB on and below."""
    machines = scores.by_machine(validation.points)
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


def sweep_table(validation: Validation) -> Table:
    """Every predicted sweep with its errors from 256 KiB on and below, by mode."""
    by_sweep = scores.by_sweep(validation.points)
    modes = [
        mode
        for mode in MODES
        if any(mode in prediction.times for prediction in validation.predicted)
    ]
    header = (
        "sweep",
        "machine",
        ">trust",
        *(f">{MODE_NAMES[m]}" for m in modes),
        f">below 256 KiB, {MODE_NAMES[validation.honest_mode]}",
        "counted",
    )
    rows = []
    for prediction in validation.predicted:
        own = by_sweep.get(prediction.sweep.id, {})
        small = own.get(validation.honest_mode, {}).get("latency")
        rows.append(
            (
                prediction.sweep.id,
                prediction.matched.topology.name,
                str(prediction.sweep.trust),
                *(pair(own.get(mode, {}).get(LARGE)) for mode in modes),
                pair(small),
                "yes" if prediction.counted else f"no: {prediction.why_not}",
            )
        )
    return Table(header, tuple(rows))


def omissions(validation: Validation, *, trainings: bool = True) -> Iterator[str]:
    """Sentences about what is not counted; with `trainings` also about rows of training tables."""
    for prediction in validation.predicted:
        if not prediction.counted:
            yield f"listed, not counted: {prediction.sweep.id} ({prediction.why_not})"
    for sweep, reason in validation.unmatched.items():
        yield f"not predicted: {sweep}: {reason}"
    for dataset in validation.trainings if trainings else ():
        for reason, count in dataset.left_out.items():
            yield f"left out of {dataset.id}: {count} rows: {reason}"
        for reason, count in dataset.not_scaled.items():
            yield f"without scaling of {dataset.id}: {count} rows: {reason}"
