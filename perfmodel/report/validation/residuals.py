"""How far a fit is from what was measured, size by size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.calibrate.profile import Fit, Profile
from perfmodel.calibrate.transfer.model import Transfer
from perfmodel.files import write_atomically
from perfmodel.report.common.palette import CYCLE

COLOURS = CYCLE[:6]


def write_residuals(profile: Profile, path: Path) -> Path:
    """Write a self-contained page: relative error over size, a line per number of ranks."""
    import plotly.graph_objects as go

    figure = go.Figure()
    groups = [(fit, key) for fit in profile.fits for key in _groups(fit)]
    for number, (fit, (collective, ranks)) in enumerate(groups):
        sizes = [
            size
            for size in fit.residuals.sizes
            if (size.collective, size.ranks) == (collective, ranks)
        ]
        figure.add_scatter(
            x=[size.nbytes for size in sizes],
            y=[100 * size.error for size in sizes],
            mode="lines+markers",
            name=f"{fit.rows}: {collective}, {ranks} ranks",
            marker={"color": COLOURS[number % len(COLOURS)]},
        )
    if profile.transfer is not None:
        _add_transfer(figure, profile.transfer, len(groups))
    figure.update_layout(
        title=f"Profile {profile.name}: fitted against measured",
        template="plotly_white",
        xaxis={"title": "size (bytes)", "type": "log"},
        yaxis={"title": "fitted / measured - 1 (%)", "zeroline": True},
    )
    write_atomically(path, figure.to_html(include_plotlyjs=True, full_html=True))
    return path


def _add_transfer(figure: Any, transfer: Transfer, shift: int) -> None:
    """Two lines per run: the mechanism with its factors, dotted, and with what these leave."""
    residual = transfer.residual
    for run, file in enumerate(transfer.files):
        points = [point for point in transfer.points if point.run == run]
        corrections = [residual(point.situation) if residual else 1.0 for point in points]
        for name, factors in (("factors", [1.0] * len(points)), ("and correction", corrections)):
            figure.add_scatter(
                x=[point.nbytes for point in points],
                y=[
                    100 * (point.fitted_s * factor / point.measured_s - 1)
                    for point, factor in zip(points, factors, strict=True)
                ],
                mode="lines+markers",
                name=f"{file}, {points[0].op}, {points[0].ranks} ranks: {name}",
                line={
                    "color": COLOURS[(run + shift) % len(COLOURS)],
                    "dash": "dot" if name == "factors" else "solid",
                },
            )


def _groups(fit: Fit) -> list[tuple[str, int]]:
    return list(dict.fromkeys((size.collective, size.ranks) for size in fit.residuals.sizes))
