"""Figures as PNG or SVG files: drawn by kaleido, which drives an installed browser."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from perfmodel.errors import ExecutorUnavailable
from perfmodel.report.common import quantities
from perfmodel.report.common.figures import Drawing, draw_breakdown, draw_memory
from perfmodel.report.common.html import legend
from perfmodel.report.run.pipeline_figure import draw_pipeline
from perfmodel.report.run.scaling import draw_efficiency, draw_step_time, draw_throughput
from perfmodel.report.run.timeline import draw_timeline
from perfmodel.report.topology_figure import draw_topology, topology_caption
from perfmodel.studies.run.result import Result

ImageFormat = Literal["png", "svg"]

WIDTH, _HEAD = 900, 88
_SHARPNESS = {"png": 2, "svg": 1}
_TIMEOUT_S = 90

HOW_TO = (
    "static images need kaleido and a browser of the Chromium family: "
    "pip install 'perfmodel[img]', and apt install chromium (or set BROWSER_PATH to one)"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with the title that it needs outside a page."""

    figure: Drawing
    title: str
    below: str


def check_images() -> None:
    """Refuse before any work if kaleido, which draws images, is missing.

    Raises `ExecutorUnavailable`: says what to install.
    """
    if find_spec("kaleido") is None:
        raise ExecutorUnavailable(f"kaleido is not installed; {HOW_TO}")


def pictures(result: Result) -> dict[str, Picture]:
    """Every figure of a result's page by the name of its file."""
    main = result.main
    setting = f"{result.workload} with {result.strategy} on {result.machine}"
    scaled = f"{setting}, {result.scaling} scaling"
    of_main = f"{setting}, {quantities.gpus(main.gpus)}"
    several, use = len(result.points) > 1, main.parallel_layout
    curves = {
        "throughput": (draw_throughput, f"Throughput, {quantities.samples(result)} per second"),
        "efficiency": (draw_efficiency, "Efficiency, share of linear scaling"),
        "step-time": (draw_step_time, "Step time"),
        "breakdown": (draw_breakdown, "Where the time of a step goes"),
    }
    of_one = {
        "timeline": (draw_timeline, "One step"),
        **({"pipeline": (draw_pipeline, "Stages of one step")} if use and use.stages else {}),
    }
    return {
        **{
            name: Picture(draw(result), title, scaled)
            for name, (draw, title) in curves.items()
            if several or name == "breakdown"
        },
        **{name: Picture(draw(main), title, of_main) for name, (draw, title) in of_one.items()},
        "topology": Picture(
            draw_topology(result.topology, main),
            "Machine and links",
            topology_caption(result.topology),
        ),
        "memory": Picture(draw_memory(main.memory), "Memory per GPU", of_main),
    }


def render(drawn: Mapping[str, Picture], kind: ImageFormat) -> dict[str, bytes]:
    """Draw pictures on white paper, all in one browser.

    `drawn`: by the name of the file, without its ending.
    Returns the files by name; nothing is written.

    Raises `ExecutorUnavailable`: kaleido or a browser is missing; says what to install.
    """
    check_images()
    on_paper = {name: _on_paper(picture) for name, picture in drawn.items()}
    with ThreadPoolExecutor(1) as thread:  # a notebook's own event loop may be running here
        return thread.submit(asyncio.run, _render(on_paper, kind)).result()


async def _render(drawn: Mapping[str, Drawing], kind: ImageFormat) -> dict[str, bytes]:
    kaleido, errors = import_module("kaleido"), import_module("kaleido.errors")  # an optional extra
    images: dict[str, bytes] = {}
    try:
        async with kaleido.Kaleido(n=1, timeout=_TIMEOUT_S, mathjax=False) as browser:
            for name, figure in drawn.items():
                images[f"{name}.{kind}"] = await browser.calc_fig(
                    figure,
                    {
                        "format": kind,
                        "width": WIDTH,
                        "height": figure.layout.height,
                        "scale": _SHARPNESS[kind],
                    },
                )
    except (
        errors.ChromeNotFoundError,
        errors.BrowserFailedError,
        errors.BrowserClosedError,
        errors.KaleidoError,
        OSError,
        RuntimeError,
    ) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". ")[0]
        raise ExecutorUnavailable(f"no image could be drawn ({first}); {HOW_TO}") from None
    return images


def _on_paper(picture: Picture) -> Drawing:
    """Put a title and a legend above a figure, and white behind it."""
    figure, margin = picture.figure, picture.figure.layout.margin
    _name_lines(figure)
    below = escape(picture.below, quote=False)
    height = figure.layout.height + _HEAD
    figure.update_layout(
        paper_bgcolor="white",
        plot_bgcolor="white",
        height=height,
        showlegend=bool(legend(figure)),
        legend={
            "traceorder": "normal",
            "x": 0.008,
            "xref": "container",
            "yanchor": "top",
            "y": 1 - 58 / height,
            "yref": "container",
        },
        margin={"l": 12, "r": 20, "t": _HEAD + (margin.t or 0), "b": max(16, margin.b or 0)},
        title={
            "text": f"<b>{escape(picture.title, quote=False)}</b><br><sup>{below}</sup>",
            "x": 0.012,
            "xref": "container",
            "xanchor": "left",
            "y": 1 - 20 / height,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 18},
        },
    )
    return figure


def _name_lines(figure: Drawing) -> None:
    """Show lines in the legend, not the invisible marks that carry the hover text."""
    for mark in figure.data:
        if mark.type != "scatter" or mark.marker.opacity != 0:
            continue
        lines = [trace for trace in figure.data if trace.name == mark.name and trace is not mark]
        for number, line in enumerate(lines):
            line.showlegend = number == 0
        mark.showlegend = not lines
