"""The tables of a validation, for the terminal, Markdown and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.library.prediction_error import BANDS
from perfmodel.validate.score import scores
from perfmodel.validate.score.scores import BAND_NAMES, LARGE, MODES, Score

if TYPE_CHECKING:
    from perfmodel.validate.run import Validation


MODE_NAMES = {
    "datasheet": "datasheet",
    "transferred": "transferred",
    "calibrated": "given profile",
    "nccl tuner": "NCCL's own formula",
    "alpha-beta": "alpha-beta",
}
_BANDS = (*(band for band, _ in BANDS), LARGE)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; a header that starts with ``>`` heads numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def percent(fraction: float) -> str:
    """Write an error in per cent; one digit below 10 %.

    Examples
    --------
    >>> percent(0.123), percent(0.0123), percent(12.3)
    ('12 %', '1.2 %', '1230 %')
    """
    return f"{100 * fraction:.1f} %" if abs(fraction) < 0.0995 else f"{100 * fraction:.0f} %"


def pair(score: Score | None) -> str:
    """Median and 90th percentile, or a dash."""
    if score is None:
        return "-"
    return f"{percent(score.median_abs_error)} / {percent(score.p90_abs_error)}"


def band_table(found: Validation, *, common: bool = False) -> Table:
    """Errors by mode and band; `common`: on those sweeps that every mode predicts."""
    table = scores.on_common(found.points) if common else found.bands
    names = [BAND_NAMES.get(band, band) for band in _BANDS]
    header = ("mode", ">sweeps", *(f">{name}" for name in names))
    rows = tuple(
        (
            MODE_NAMES[mode],
            str(max(one.sweeps for one in table[mode].values())),
            *(pair(table[mode].get(band)) for band in _BANDS),
        )
        for mode in MODES
        if mode in table
    )
    return Table(header, rows)


def machine_table(found: Validation) -> Table:
    """Errors by kind of machine and mode, from 256 KiB on and below."""
    machines = scores.by_machine(found.points)
    modes = [mode for mode in MODES if any(mode in own for own in machines.values())]
    header = (
        "kind of machine", ">sweeps", *(f">{MODE_NAMES[m]}" for m in modes),
        ">below 256 KiB, datasheet",
    )  # fmt: skip
    rows = []
    for machine, own in machines.items():
        sheet = own.get("datasheet", {})
        count = max((one.sweeps for bands in own.values() for one in bands.values()), default=0)
        rows.append(
            (
                machine, str(count), *(pair(own.get(mode, {}).get(LARGE)) for mode in modes),
                pair(sheet.get("latency")),
            )
        )  # fmt: skip
    return Table(header, tuple(rows))


def coverage_table(found: Validation) -> Table:
    """How often measured times lie in 80 % intervals, with the confidence interval of that."""
    rows = []
    for mode, bands in found.coverages.items():
        for band, one in bands.items():
            rows.append(
                (
                    MODE_NAMES[mode], BAND_NAMES.get(band, band if band == LARGE else "all sizes"),
                    str(one.sweeps), percent(one.share),
                    f"{percent(one.low)} to {percent(one.high)}",
                )
            )  # fmt: skip
    return Table(("mode", "sizes", ">sweeps", ">inside", ">95 % sure"), tuple(rows))


def split_table(found: Validation) -> Table:
    """Datasheet errors of sweeps that constants were fitted on, and of the others."""
    split = found.split()
    names = [BAND_NAMES.get(band, band) for band in _BANDS]
    rows = tuple(
        (
            name,
            str(max(one.sweeps for one in bands.values())),
            *(pair(bands.get(band)) for band in _BANDS),
        )
        for name, bands in split.items()
    )
    return Table(("sweeps that constants were", ">sweeps", *(f">{name}" for name in names)), rows)


def training_table(found: Validation) -> Table:
    """Errors of published trainings and recorded steps."""
    rows = tuple(
        (one.title, str(len(one.cases)), percent(one.median_abs_error or 0.0),
         percent(one.p90_abs_error or 0.0), str(sum(one.left_out.values())))
        for one in found.trainings
        if one.cases
    )  # fmt: skip
    header = ("what", ">numbers", ">median", ">90th percentile", ">left out")
    return Table(header, rows)


def sweep_table(found: Validation) -> Table:
    """Every predicted sweep with its errors from 256 KiB on and below, by mode."""
    by_sweep = scores.by_sweep(found.points)
    modes = [mode for mode in MODES if any(mode in one.times for one in found.predicted)]
    header = (
        "sweep", "machine", ">trust", *(f">{MODE_NAMES[m]}" for m in modes),
        ">below 256 KiB, datasheet", "counted",
    )  # fmt: skip
    rows = []
    for one in found.predicted:
        own = by_sweep.get(one.sweep.id, {})
        small = own.get("datasheet", {}).get("latency")
        rows.append(
            (
                one.sweep.id, one.matched.topology.name, str(one.sweep.trust),
                *(pair(own.get(mode, {}).get(LARGE)) for mode in modes),
                pair(small), "yes" if one.counted else f"no: {one.why_not}",
            )
        )  # fmt: skip
    return Table(header, tuple(rows))


def lists(found: Validation, *, trainings: bool = True) -> Iterator[str]:
    """Lines about what is listed and not counted; also rows of training tables, if wanted."""
    for one in found.predicted:
        if not one.counted:
            yield f"listed, not counted: {one.sweep.id} ({one.why_not})"
    for sweep, reason in found.unmatched.items():
        yield f"not predicted: {sweep}: {reason}"
    for data in found.trainings if trainings else ():
        for reason, count in data.left_out.items():
            yield f"left out of {data.id}: {count} rows: {reason}"
