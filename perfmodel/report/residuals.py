"""How far a fit is from what was measured, size by size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.calibrate.profile import Fit, FittedObservation, Profile
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Figure, header, section
from perfmodel.report.common.figures import axis_layout, log_axis, new_figure
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.common.palette import CYCLE, INK

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
