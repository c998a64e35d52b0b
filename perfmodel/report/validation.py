"""The comparison of records with predictions: terminal, Markdown, CSV and a page.

How far a fit is from what was measured, size by size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from perfmodel.calibrate.profile import Fit, FittedObservation, Profile
from perfmodel.files import csv_text
from perfmodel.library.corrections import BANDS
from perfmodel.memo import grouped
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Figure,
    Paragraph,
    Section,
    Table,
    bullets_section,
    header,
    paragraphs,
    section,
    table_section,
    tabulate,
)
from perfmodel.report.common.figures import Drawing, axis_layout, lines, new_figure, size_axis
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, INK
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.validate.forecast import Mode, SweepPrediction
from perfmodel.validate.run import StepComparison, Validation, to_json
from perfmodel.validate.scores import BAND_NAMES, LARGE, MODES, DataPoint, Score, by_sweep

MODE_NAMES = {
    "left out": "family left out",
    "datasheet": "datasheet",
    "transferred": "transferred",
    "calibrated": "given profile",
    "nccl tuner": "NCCL's own formula",
    "alpha-beta": "alpha-beta",
}
WEIGHING = "Every table weighs the same, however many sweeps and sizes it has."
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
    >>> signed(0.123).replace(chr(160), " ")
    '+12 %'
    """
    return quantities.signed(fraction, percent)


def pair(score: Score | None) -> str:
    """Median and 90th percentile, or a dash."""
    return f"{percent(score.median_abs_error)} / {percent(score.p90_abs_error)}" if score else "-"


def band_table(bands_of: Mapping[Mode, Mapping[str, Score]]) -> Table:
    """Errors by mode and band of size."""
    return Table(
        ("mode", ">sweeps", *(f">{BAND_NAMES.get(band, band)}" for band in _BANDS)),
        [
            (
                MODE_NAMES[mode],
                str(max(score.sweeps for score in bands_of[mode].values())),
                *(pair(bands_of[mode].get(band)) for band in _BANDS),
            )
            for mode in MODES
            if mode in bands_of
        ],
    )


def sweep_table(
    predicted: Sequence[SweepPrediction], points: Sequence[DataPoint], small_mode: Mode
) -> Table:
    """Every predicted sweep with its errors from 256 KiB on by mode, and below in one mode."""
    scored = by_sweep(points)

    def errors(mode: Mode, band: str) -> Callable[[SweepPrediction], str]:
        return lambda each: pair(scored.get(each.sweep.id, {}).get(mode, {}).get(band))

    return tabulate(
        predicted,
        (
            ("sweep", lambda each: each.sweep.id),
            ("machine", lambda each: each.matched.topology.name),
            (">trust", lambda each: str(each.sweep.trust)),
            *((f">{MODE_NAMES[mode]}", errors(mode, LARGE)) for mode in _modes(predicted)),
            (f">below 256 KiB, {MODE_NAMES[small_mode]}", errors(small_mode, "latency")),
            ("counted", lambda each: "yes" if each.counted else f"no: {each.why_not}"),
        ),
    )


def _modes(predicted: Sequence[SweepPrediction]) -> list[Mode]:
    return [mode for mode in MODES if any(mode in each.forecast.times for each in predicted)]


def step_table(steps: Sequence[StepComparison]) -> Table:
    """Every recorded number of a step beside the predicted one and its interval."""
    return tabulate(
        steps,
        (
            ("step", lambda step: step.id),
            ("quantity", lambda step: step.quantity),
            (">measured", lambda step: f"{step.measured:.4g}"),
            (">predicted", lambda step: f"{step.predicted:.4g}"),
            (
                ">80 % interval",
                lambda step: " \N{EN DASH} ".join(map("{:.4g}".format, step.interval or ())) or "-",
            ),
            (">error", lambda step: signed(step.error)),
            ("source", lambda step: step.source),
        ),
    )


def omissions(predicted: Sequence[SweepPrediction], unmatched: Mapping[str, str]) -> Iterator[str]:
    """Sentences about what is not counted."""
    yield from (
        f"listed, not counted: {each.sweep.id} ({each.why_not})"
        for each in predicted
        if not each.counted
    )
    yield from (f"not predicted: {name}: {reason}" for name, reason in unmatched.items())


def points_csv(predicted: Sequence[SweepPrediction]) -> str:
    """One row per sweep and size; times in microseconds, a column per mode."""
    modes = _modes(predicted)
    rows = (
        (
            each.sweep.id,
            int(each.counted),
            row.nbytes,
            each.forecast.choices[at],
            f"{row.time_s * 1e6:.6g}",
            *(
                f"{each.forecast.times[mode].time_s[at] * 1e6:.5g}"
                if mode in each.forecast.times
                else ""
                for mode in modes
            ),
        )
        for each in predicted
        for at, row in enumerate(each.sweep.rows)
    )
    return csv_text(
        ["sweep_id", "counted", "nbytes", "way", "measured_us", *(f"{mode}_us" for mode in modes)],
        rows,
    )


def headline(validation: Validation) -> str:
    """Say in one sentence how far datasheet predictions, or those of steps, are off."""
    answer = to_json(validation)
    if answer["median_abs_error"] is None:
        return "Nothing could be scored"
    return (
        f"Half of the times of {'collectives from 256 KiB on' if validation.bands else 'steps'} "
        f"are within {percent(answer['median_abs_error'])} and nine of ten within "
        f"{percent(answer['p90_abs_error'])} of what was measured"
    )


def _sections(validation: Validation) -> list[Section | None]:
    """Tables that all forms of the report share."""
    return [
        table_section(
            "Errors by size and mode",
            f"Median / 90th percentile of counted sweeps. {WEIGHING}",
            band_table(validation.bands),
        ),
        table_section(
            "Intervals",
            "Measured times inside 80 % intervals.",
            tabulate(
                validation.coverages.items(),
                (
                    ("mode", lambda row: MODE_NAMES[row[0]]),
                    (">inside", lambda row: percent(row[1])),
                ),
            ),
        ),
        table_section("Steps", "", step_table(validation.steps)),
        table_section(
            "Sweep by sweep",
            "",
            sweep_table(validation.predicted, validation.points, "datasheet"),
        ),
    ]


def validation_lines(validation: Validation) -> list[Block]:
    """Arrange a comparison for the terminal: tables, the headline, what is not counted."""
    return [
        *(
            block
            for part in _sections(validation)[:3]
            if part is not None
            for block in (Paragraph(part.title), *part.blocks, Paragraph(""))
        ),
        Paragraph(f"{headline(validation)}."),
        Paragraph(""),
        *paragraphs(omissions(validation.predicted, validation.unmatched)),
    ]


def write_validation(validation: Validation, folder: Path) -> Path:
    """Write the report into a folder.

    ``validation.html``, ``validation.md``, ``validation.json`` (as ``--json`` prints it),
    ``result.xlsx`` and ``points.csv`` (every size of every sweep in every mode). Returns and raises
    as `write_report_files`.
    """
    parts = [
        *_sections(validation),
        bullets_section(
            "What is not counted, and why",
            list(omissions(validation.predicted, validation.unmatched)),
        ),
        table_section(
            "Sources and assumptions",
            "",
            tabulate(
                validation.predicted,
                (
                    ("sweep", lambda each: each.sweep.id),
                    ("source", lambda each: each.sweep.source),
                    (
                        "assumptions",
                        lambda each: "; ".join((*each.matched.assumptions, *each.sweep.notes)),
                    ),
                ),
            ),
        ),
    ]
    title, first = "Predicted versus measured", headline(validation)
    document = to_json(validation)
    return write_report_files(
        folder,
        {
            "validation.html": render_html(title, [header(validation.data, first, []), *parts]),
            "validation.md": render_markdown(
                [
                    Paragraph(title, "headline"),
                    *paragraphs([f"{first}.", f"{validation.data}."]),
                    *parts,
                ]
            ),
            "validation.json": document,
            SPREADSHEET: spreadsheet(document),
            "points.csv": points_csv(validation.predicted),
        },
    )


COLOURS = CYCLE[:6]


def write_residuals(profile: Profile, path: Path) -> Path:
    """Write a self-contained page: relative error over size, a line per number of ranks.

    Returns and raises as `write_report_files`.
    """
    errors = sorted(
        abs(point.fitted_s / point.measured_s - 1) for fit in profile.fits for point in fit.points
    )
    median = quantities.percent(errors[len(errors) // 2]) if errors else "nothing"
    title = f"Profile {profile.name}"
    page = render_html(
        title,
        [
            header(
                title,
                f"Half of {len(errors):,} measured times are within {median} of the fit",
                ["The profile was fitted to these times: of others it may be further off."],
            ),
            section(
                "Fitted against measured",
                "Fitted time over measured time, less one: above zero the profile is slower than "
                "what was measured. A line for each number of ranks, or for each file of a table.",
                Figure(draw_residuals(profile), "residuals", "Lines: error of the fit by size"),
            ),
        ],
    )
    return write_report_files(path.parent, {path.name: page})


def draw_residuals(profile: Profile) -> Drawing:
    """Draw relative errors over size; of factors also those with the correction by size."""
    groups = [
        (fit, name, points) for fit in profile.fits for (_, name), points in _groups(fit).items()
    ]
    sizes = [point.nbytes for *_, points in groups for point in points] or [1, 2]
    first = math.floor(math.log2(max(min(sizes), 1.0)))
    last = math.ceil(math.log2(max(*sizes, 2.0)))
    traces = []
    for number, (fit, name, points) in enumerate(groups):
        line, plain = {"color": COLOURS[number % len(COLOURS)]}, [1.0] * len(points)
        if fit.residual is None:
            traces.append(_line(name, points, plain, line))
        else:
            traces += [
                _line(f"{name}: factors", points, plain, line | {"dash": "dot"}),
                _line(
                    f"{name}: and correction",
                    points,
                    list(map(fit.residual, (point.context for point in points))),
                    line,
                ),
            ]
    figure = new_figure(
        460,
        traces,
        x=size_axis((2.0**first / 1.3, 2.0**last * 1.3), range(first, last + 1)),
        y=axis_layout("error of the fit", ticksuffix=" %"),
    )
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    return figure


def _groups(fit: Fit) -> dict[tuple[int, str], list[FittedObservation]]:
    """Points by line: of numbers one per number of ranks, of factors one per run."""

    def line_of(point: FittedObservation) -> tuple[int, str]:
        name = f"{point.op}, {point.ranks} ranks"
        return (
            (point.run, f"{fit.files[point.run]}, {name}")
            if fit.gpu
            else (0, f"{fit.rows}: {name}")
        )

    return grouped((line_of(point), point) for point in fit.points)


def _line(
    name: str,
    points: Sequence[FittedObservation],
    factors: Sequence[float],
    line: Mapping[str, str],
) -> dict[str, Any]:
    errors = [
        100 * (point.fitted_s * factor / point.measured_s - 1)
        for point, factor in zip(points, factors, strict=True)
    ]
    return lines(
        name,
        [max(point.nbytes, 1) for point in points],
        errors,
        line,
        mode="lines+markers",
        hovertext=[
            f"<b>{quantities.size(point.nbytes)}</b>, {escape(name, quote=False)}<br>"
            f"measured {quantities.duration(point.measured_s)}, {error:+.1f} %"
            for point, error in zip(points, errors, strict=True)
        ],
    )
