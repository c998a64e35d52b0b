"""How far a fit is from what was measured, size by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.calibrate.profile import Fit, FittedObservation, Profile
from perfmodel.files import write_atomically
from perfmodel.report.common.document import Figure, header
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import CYCLE

COLOURS = CYCLE[:6]
HEIGHT = 480
"""Pixels."""
ZERO = "Zero is the measured time; above it the fit takes longer."


def write_residuals(profile: Profile, path: Path) -> Path:
    """Write a self-contained page: relative error over size, a line per number of ranks."""
    figure = new_figure(
        HEIGHT,
        xaxis=axis_layout("size in bytes", type="log", dtick=1),
        yaxis=axis_layout("fitted / measured - 1, in %", zeroline=True),
    )
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
    title = f"Profile {profile.name}: fitted against measured"
    head = header(f"Profile {profile.name}", "Fitted against measured", [], [], [ZERO])
    drawn = Figure(figure, "residuals", "Lines: relative error of the fit by size")
    write_atomically(path, render_html(title, [head, drawn]))
    return path


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
    figure: Any, name: str, points: Sequence[FittedObservation], factors: Sequence[float],
    line: Mapping[str, str],
) -> None:  # fmt: skip
    figure.add_scatter(
        x=[point.nbytes for point in points],
        y=[
            100 * (point.fitted_s * factor / point.measured_s - 1)
            for point, factor in zip(points, factors, strict=True)
        ],
        mode="lines+markers", name=name, line=line,
    )  # fmt: skip
