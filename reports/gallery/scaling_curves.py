"""How far it scales: GPT-2 XL and BERT-large on 1 to 1,024 GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gallery.study import HERE, Study, as_csv
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.images import Picture
from perfmodel.report.common.palette import channels
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.run.page import write_report
from perfmodel.report.run.scaling import knee_sentence
from perfmodel.report.run.sizes import size_gains
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result

CURVES = {
    "GPT-2 XL on DGX A100": ("gpt2-xl-dgx-a100-1024", "#0072b2"),
    "BERT-large on DGX A100": ("bert-large-dgx-a100-1024", "#009e73"),
    "BERT-large on 8 x V100, 100 Gbit/s": ("bert-large-v100-100g-1024", "#d55e00"),
}
"""Names, scenarios beside this file, and colours."""


def study() -> Study:
    """Run all curves."""
    results = {
        name: run_scenario(load_scenario(HERE / f"{file}.yaml"))
        for name, (file, _) in CURVES.items()
    }
    return Study(
        title="How far it scales: GPT-2 XL and BERT-large on 1 to 1,024 GPUs",
        text=_text(results),
        tables={"scaling-curves.csv": curves_csv(results)},
        pictures={"scaling-curves": _picture(results)},
        pages={CURVES[name][0]: partial(_write, result) for name, result in results.items()},
    )


def _write(result: Result, folder: Path) -> Path:
    return write_report(result, folder)


def curves_csv(results: Mapping[str, Result]) -> str:
    """Every size of every curve."""
    titles = (
        "curve",
        "gpus",
        "nodes",
        "step_time_s",
        "step_low_s",
        "step_high_s",
        "samples_per_s",
        "scaling_efficiency",
        "marginal_efficiency",
        "exposed_comm_s",
        "bottleneck",
    )
    rows = [
        (
            name,
            row.point.gpus,
            row.point.nodes,
            row.point.step_time_s,
            *(row.point.interval_s or ("", "")),
            row.point.samples_per_s,
            row.point.scaling_efficiency,
            "" if row.marginal is None else row.marginal,
            row.point.exposed_comm_s,
            row.point.bottleneck,
        )
        for name, result in results.items()
        for row in size_gains(result)
    ]
    return as_csv(titles, rows)


def _text(results: Mapping[str, Result]) -> str:
    shown = (1, 8, 64, 256, 1024)
    sizes = (f">{gpus:,}" for gpus in shown)
    header = ("Curve", *sizes, ">80 % interval of the step at 1,024")
    rows = [
        (name, *_efficiencies(result, shown), _interval(result)) for name, result in results.items()
    ]
    listed = render_markdown([Table(header, rows)])
    knees = "\n".join(f"- {name}: {knee_sentence(result)}" for name, result in results.items())
    return (
        "Throughput as a share of linear scaling, batch per GPU fixed, from one GPU on; the band "
        "is the 80 % interval, carried from the spread of recorded collectives.\n\n"
        "![Scaling efficiency up to 1,024 GPUs](scaling-curves.png)\n\n"
        f"Efficiency by number of GPUs:\n\n{listed}\n{knees}\n\n"
        "All sizes: [scaling-curves.csv](scaling-curves.csv). The full report of a curve: "
        "`perfmodel run reports/gallery/gpt2-xl-dgx-a100-1024.yaml -o out`."
    )


def _efficiencies(result: Result, sizes: Sequence[int]) -> list[str]:
    return [
        quantities.percent(point.scaling_efficiency)
        for point in result.points
        if point.gpus in sizes
    ]


def _interval(result: Result) -> str:
    step, ends = quantities.duration(result.main.step_time_s), result.main.interval_s
    return step if ends is None else f"{step} ({quantities.span(*ends, quantities.duration)})"


def _picture(results: Mapping[str, Result]) -> Picture:
    figure = new_figure(430)
    for name, result in results.items():
        colour = CURVES[name][1]
        rows = [(row.point.gpus, row.efficiency) for row in size_gains(result)]
        known = [(gpus, ends) for gpus, ends in rows if ends is not None]
        xs = [gpus for gpus, _ in known]
        figure.add_scatter(
            x=xs + xs[::-1],
            y=[100 * ends[1] for _, ends in known] + [100 * ends[0] for _, ends in known][::-1],
            mode="lines",
            fill="toself",
            line={"width": 0},
            showlegend=False,
            hoverinfo="skip",
            fillcolor="rgba({},{},{},0.17)".format(*channels(colour)),
        )
        figure.add_scatter(
            x=[point.gpus for point in result.points],
            y=[100 * point.scaling_efficiency for point in result.points],
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 3},
            marker={"size": 8},
        )
    ticks = [point.gpus for point in next(iter(results.values())).points]
    figure.update_xaxes(
        **axis_layout(
            "GPUs",
            type="log",
            range=[-0.07, math.log10(1024) + 0.07],
            tickvals=ticks,
            ticktext=[f"{gpus:,}" for gpus in ticks],
        )
    )
    figure.update_yaxes(**axis_layout("share of linear scaling", range=[0, 105], ticksuffix=" %"))
    below = "weak scaling; the band is the 80 % interval of the prediction"
    return Picture(figure, "Scaling efficiency to 1,024 GPUs", below)
