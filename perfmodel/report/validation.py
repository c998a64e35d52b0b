"""The comparison of records with predictions: terminal, Markdown, CSV and a page.

How far a fit is from what was measured, size by size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.calibrate.profile import Fit, FittedObservation, Profile
from perfmodel.files import csv_text
from perfmodel.library.corrections import BANDS
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Figure,
    Paragraph,
    Section,
    Table,
    header,
    paragraphs,
    section,
    table_section,
)
from perfmodel.report.common.figures import axis_layout, log_axis, new_figure
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, INK
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.validate.forecast import Mode, SweepPrediction
from perfmodel.validate.run import Validation, to_json
from perfmodel.validate.scores import BAND_NAMES, LARGE, MODES, DataPoint, Score, by_sweep
from perfmodel.validate.steps import StepComparison

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
    if score is None:
        return "-"
    return f"{percent(score.median_abs_error)} / {percent(score.p90_abs_error)}"


def band_table(bands_of: Mapping[Mode, Mapping[str, Score]]) -> Table:
    """Errors by mode and band of size."""
    rows = [
        (
            MODE_NAMES[mode],
            str(max(score.sweeps for score in bands_of[mode].values())),
            *(pair(bands_of[mode].get(band)) for band in _BANDS),
        )
        for mode in MODES
        if mode in bands_of
    ]
    return Table(("mode", ">sweeps", *(f">{BAND_NAMES.get(band, band)}" for band in _BANDS)), rows)


def sweep_table(
    predicted: Sequence[SweepPrediction], points: Sequence[DataPoint], small_mode: Mode
) -> Table:
    """Every predicted sweep with its errors from 256 KiB on by mode, and below in one mode."""
    scored = by_sweep(points)
    modes = [mode for mode in MODES if any(mode in prediction.times for prediction in predicted)]
    titles = (
        "sweep",
        "machine",
        ">trust",
        *(f">{MODE_NAMES[mode]}" for mode in modes),
        f">below 256 KiB, {MODE_NAMES[small_mode]}",
        "counted",
    )
    rows = []
    for prediction in predicted:
        own = scored.get(prediction.sweep.id, {})
        rows.append(
            (
                prediction.sweep.id,
                prediction.matched.topology.name,
                str(prediction.sweep.trust),
                *(pair(own.get(mode, {}).get(LARGE)) for mode in modes),
                pair(own.get(small_mode, {}).get("latency")),
                "yes" if prediction.counted else f"no: {prediction.why_not}",
            )
        )
    return Table(titles, rows)


def step_table(steps: Sequence[StepComparison]) -> Table:
    """Every recorded number of a step beside the predicted one and its interval."""
    titles = ("step", "quantity", ">measured", ">predicted", ">80 % interval", ">error", "source")
    rows = []
    for step in steps:
        ends = step.interval
        interval = "-" if ends is None else f"{ends[0]:.4g} \N{EN DASH} {ends[1]:.4g}"
        numbers = (f"{step.measured:.4g}", f"{step.predicted:.4g}", interval, signed(step.error))
        rows.append((step.id, step.quantity, *numbers, step.source))
    return Table(titles, rows)


def omissions(predicted: Sequence[SweepPrediction], unmatched: Mapping[str, str]) -> Iterator[str]:
    """Sentences about what is not counted."""
    for prediction in predicted:
        if not prediction.counted:
            yield f"listed, not counted: {prediction.sweep.id} ({prediction.why_not})"
    for name, reason in unmatched.items():
        yield f"not predicted: {name}: {reason}"


def points_csv(predicted: Sequence[SweepPrediction]) -> str:
    """One row per sweep and size; times in microseconds, a column per mode."""
    modes = [mode for mode in MODES if any(mode in each.times for each in predicted)]
    titles = ("sweep_id", "counted", "nbytes", "way", "measured_us", *(f"{m}_us" for m in modes))
    rows: list[tuple[object, ...]] = []
    for prediction in predicted:
        sweep, predictions = prediction.sweep, prediction.times
        for at, row in enumerate(sweep.rows):
            times = [
                f"{predictions[mode].time_s[at] * 1e6:.5g}" if mode in predictions else ""
                for mode in modes
            ]
            counted, path = int(prediction.counted), prediction.choices[at]
            rows.append((sweep.id, counted, row.nbytes, path, f"{row.time_s * 1e6:.6g}", *times))
    return csv_text(titles, rows)


def headline(validation: Validation) -> str:
    """Say in one sentence how far datasheet predictions, or those of steps, are off."""
    answer = to_json(validation)
    if answer["median_abs_error"] is None:
        return "Nothing could be scored"
    what = "collectives from 256 KiB on" if validation.bands else "steps"
    return (
        f"Half of the times of {what} are within {percent(answer['median_abs_error'])} and nine of "
        f"ten within {percent(answer['p90_abs_error'])} of what was measured"
    )


def _sections(validation: Validation) -> list[Section | None]:
    """Tables that all forms of the report share."""
    inside = [(MODE_NAMES[mode], percent(share)) for mode, share in validation.coverages.items()]
    return [
        table_section(
            "Errors by size and mode",
            f"Median / 90th percentile of counted sweeps. {WEIGHING}",
            band_table(validation.bands),
        ),
        table_section(
            "Intervals", "Measured times inside 80 % intervals.", Table(("mode", ">inside"), inside)
        ),
        table_section(
            "Steps",
            "",
            step_table(validation.steps),
        ),
        table_section(
            "Sweep by sweep",
            "",
            sweep_table(validation.predicted, validation.points, "datasheet"),
        ),
    ]


def validation_lines(validation: Validation) -> list[Block]:
    """Arrange a comparison for the terminal: tables, the headline, what is not counted."""
    blocks: list[Block] = []
    for part in _sections(validation)[:3]:
        if part is not None:
            blocks += [Paragraph(part.title), *part.blocks, Paragraph("")]
    blocks += [*paragraphs([f"{headline(validation)}."]), Paragraph("")]
    return blocks + paragraphs(omissions(validation.predicted, validation.unmatched))


def write_validation(validation: Validation, folder: Path) -> Path:
    """Write the report into a folder.

    ``validation.html``, ``validation.md``, ``validation.json`` (as ``--json`` prints it) and
    ``points.csv`` (every size of every sweep in every mode). Returns and raises as
    `write_report_files`.
    """
    left_out = list(omissions(validation.predicted, validation.unmatched))
    sources = [
        (p.sweep.id, p.sweep.source, "; ".join((*p.matched.assumptions, *p.sweep.notes)))
        for p in validation.predicted
    ]
    parts = [
        *_sections(validation),
        section("What is not counted, and why", "", Bullets(left_out)) if left_out else None,
        table_section(
            "Sources and assumptions", "", Table(("sweep", "source", "assumptions"), sources)
        ),
    ]
    title, first = "Predicted versus measured", headline(validation)
    files = {
        "validation.html": render_html(title, [header(validation.data, first, []), *parts]),
        "validation.md": render_markdown(
            [
                Paragraph(title, "headline"),
                Paragraph(f"{first}."),
                Paragraph(f"{validation.data}."),
                *parts,
            ]
        ),
        "validation.json": to_json(validation),
        "points.csv": points_csv(validation.predicted),
    }
    return write_report_files(folder, files)


COLOURS = CYCLE[:6]
_LABELS = 6
_LEAD = (
    "Fitted time over measured time, less one: above zero the profile is slower than what was "
    "measured. A line for each number of ranks, or for each file of a table."
)


def write_residuals(profile: Profile, path: Path) -> Path:
    """Write a self-contained page: relative error over size, a line per number of ranks.

    Returns and raises as `write_report_files`.
    """
    errors = [
        abs(point.fitted_s / point.measured_s - 1) for fit in profile.fits for point in fit.points
    ]
    median = quantities.percent(sorted(errors)[len(errors) // 2]) if errors else "nothing"
    head = header(
        f"Profile {profile.name}",
        f"Half of {len(errors):,} measured times are within {median} of the fit",
        ["The profile was fitted to these times: of others it may be further off."],
    )
    figure = Figure(draw_residuals(profile), "residuals", "Lines: error of the fit by size")
    page = render_html(
        f"Profile {profile.name}", [head, section("Fitted against measured", _LEAD, figure)]
    )
    return write_report_files(path.parent, {path.name: page})


def draw_residuals(profile: Profile) -> go.Figure:
    """Draw relative errors over size; of factors also those with the correction by size."""
    figure = new_figure(460)
    groups = [
        (fit, name, points) for fit in profile.fits for (_, name), points in _groups(fit).items()
    ]
    for number, (fit, name, points) in enumerate(groups):
        line = {"color": COLOURS[number % len(COLOURS)]}
        plain = [1.0] * len(points)
        if fit.residual is None:
            _add_line(figure, name, points, plain, line)
            continue
        _add_line(figure, f"{name}: factors", points, plain, line | {"dash": "dot"})
        corrections = [fit.residual(point.context) for point in points]
        _add_line(figure, f"{name}: and correction", points, corrections, line)
    figure.add_hline(y=0, line={"color": INK, "width": 1})
    figure.update_xaxes(**_size_axis([point.nbytes for *_, points in groups for point in points]))
    figure.update_yaxes(**axis_layout("error of the fit", ticksuffix=" %"))
    return figure


def _size_axis(sizes: Sequence[float]) -> dict[str, Any]:
    """Describe a logarithmic axis of sizes, labelled at powers of two."""
    low, high = (min(sizes), max(sizes)) if sizes else (1.0, 2.0)
    first, last = math.floor(math.log2(max(low, 1.0))), math.ceil(math.log2(max(high, 2.0)))
    step = max(1, -(-(last - first) // (_LABELS - 1)))
    ticks = [2.0**power for power in range(first, last + 1, step)]
    return log_axis(
        "size",
        (2.0**first / 1.3, 2.0**last * 1.3),
        ticks,
        lambda nbytes: quantities.whole(quantities.size(nbytes)),
    )


def _groups(fit: Fit) -> dict[tuple[int, str], list[FittedObservation]]:
    """Points by line: of numbers one per number of ranks, of factors one per run."""
    groups: dict[tuple[int, str], list[FittedObservation]] = {}
    for point in fit.points:
        name = f"{point.op}, {point.ranks} ranks"
        if fit.gpu:
            key = (point.run, f"{fit.files[point.run]}, {name}")
        else:
            key = (0, f"{fit.rows}: {name}")
        groups.setdefault(key, []).append(point)
    return groups


def _add_line(
    figure: go.Figure,
    name: str,
    points: Sequence[FittedObservation],
    factors: Sequence[float],
    line: Mapping[str, str],
) -> None:
    errors = [
        100 * (point.fitted_s * factor / point.measured_s - 1)
        for point, factor in zip(points, factors, strict=True)
    ]
    figure.add_scatter(
        x=[max(point.nbytes, 1) for point in points],
        y=errors,
        name=name,
        line=line,
        mode="lines+markers",
        hoverinfo="text",
        hovertext=[
            f"<b>{quantities.size(point.nbytes)}</b>, {escape(name, quote=False)}<br>"
            f"measured {quantities.duration(point.measured_s)}, {error:+.1f} %"
            for point, error in zip(points, errors, strict=True)
        ],
    )
