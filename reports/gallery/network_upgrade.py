"""What a faster network buys: BERT-large on 16 servers of 8 V100 with 25 Gbit/s each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gallery.study import Study, as_csv
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.images import Picture
from perfmodel.report.common.palette import INK, WORK
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.report.explorer.axes import design_of
from perfmodel.report.explorer.grid import explore
from perfmodel.report.run.page import write_report
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import SizeResult

SCENARIO = "bert-large-v100-25g"

UPGRADES: Mapping[str, Mapping[str, object]] = {
    "25 Gbit/s, as it is": {},
    "half the latency": {"what_if.network_latency": 0.5},
    "50 Gbit/s": {"what_if.network_bandwidth": 2},
    "100 Gbit/s": {"what_if.network_bandwidth": 4},
    "200 Gbit/s": {"what_if.network_bandwidth": 8},
    "infinitely fast, hosts as they are": {"what_if.network_bandwidth": "infinite"},
}
"""What is changed of all links between nodes."""


def upgraded(name: str) -> SizeResult:
    """Run the scenario at its largest size with one upgrade."""
    question = load_scenario(SCENARIO, ["scale=null"])
    return run_scenario(change_scenario(question, UPGRADES[name])).main


def study() -> Study:
    """Run every upgrade."""
    points = {name: upgraded(name) for name in UPGRADES}
    return Study(
        title="What a faster network buys: BERT-large on 128 V100",
        text=_text(points),
        tables={"network-upgrade.csv": upgrades_csv(points)},
        pictures={"network-upgrade": _picture(points)},
        pages={"network-upgrade": _write},
    )


def _write(folder: Path) -> Path:
    """Write the report with an explorer, in which all other networks can be tried."""
    question = load_scenario(SCENARIO)
    result = run_scenario(question)
    return write_report(result, folder, grid=explore(question, result, design_of(question, result)))


def upgrades_csv(points: Mapping[str, SizeResult]) -> str:
    """One row per upgrade."""
    titles = (
        "network",
        "gpus",
        "step_time_s",
        "step_low_s",
        "step_high_s",
        "samples_per_s",
        "exposed_comm_s",
        "bottleneck",
    )
    return as_csv(
        titles,
        [
            (
                name,
                p.gpus,
                p.step_time_s,
                *(p.interval_s or ("", "")),
                p.samples_per_s,
                p.exposed_comm_s,
                p.bottleneck,
            )
            for name, p in points.items()
        ],
    )


def _text(points: Mapping[str, SizeResult]) -> str:
    first = next(iter(points.values()))
    header = (
        "Network between nodes",
        ">Step",
        ">80 % interval",
        ">Sequences/s",
        ">Quicker by",
        ">Waiting for communication",
        "Bottleneck",
    )
    rows = [
        (
            name,
            quantities.duration(p.step_time_s),
            "none" if p.interval_s is None else quantities.span(*p.interval_s, quantities.duration),
            quantities.count(p.samples_per_s),
            f"{first.step_time_s / p.step_time_s:.2f} x",
            quantities.duration(p.exposed_comm_s),
            p.bottleneck,
        )
        for name, p in points.items()
    ]
    listed = render_markdown([Table(header, rows)])
    return (
        "Sixteen servers of 8 V100 with one 25 Gbit/s adapter each, DistributedDataParallel with "
        "PyTorch's default buckets; all links between nodes made faster, everything else kept "
        "(`what_if`).\n\n"
        "![Step time by network](network-upgrade.png)\n\n"
        f"{listed}\n"
        "One model makes all rows: where one is too quick, the others are mostly so too, and "
        "ratios are surer than times.\n\n"
        "Numbers: [network-upgrade.csv](network-upgrade.csv). Any other network, bucket cap or "
        f"size can be tried with sliders: `perfmodel run {SCENARIO} -o out --explore`."
    )


def _picture(points: Mapping[str, SizeResult]) -> Picture:
    figure = new_figure(330, barmode="stack", bargap=0.35)
    names = list(points)[::-1]
    for part, colour in (
        ("everything else", WORK["backward"]),
        ("exposed communication", WORK["exposed communication"]),
    ):
        waits = part == "exposed communication"
        figure.add_bar(
            orientation="h",
            y=names,
            name=part,
            marker={"color": colour},
            x=[
                1e3
                * (
                    points[n].exposed_comm_s
                    if waits
                    else points[n].step_time_s - points[n].exposed_comm_s
                )
                for n in names
            ],
        )
    known = {name: p.interval_s or (p.step_time_s, p.step_time_s) for name, p in points.items()}
    steps = [points[name].step_time_s for name in names]
    figure.add_scatter(
        x=[1e3 * step_s for step_s in steps],
        y=names,
        mode="markers",
        name="80\N{NO-BREAK SPACE}% interval",
        marker={"symbol": "line-ew-open", "color": INK},
        error_x={
            "array": [1e3 * (known[n][1] - s) for n, s in zip(names, steps, strict=True)],
            "arrayminus": [1e3 * (s - known[n][0]) for n, s in zip(names, steps, strict=True)],
            "color": INK,
            "thickness": 1.5,
            "width": 5,
        },
    )
    for name in names:
        ends = quantities.span(*known[name], quantities.duration)
        text = f"{quantities.duration(points[name].step_time_s)} ({ends})"
        figure.add_annotation(
            x=1e3 * known[name][1],
            y=name,
            text=text,
            bgcolor="white",
            showarrow=False,
            xanchor="left",
            xshift=6,
            font={"color": INK, "size": 13},
        )
    longest = 1e3 * max(high_s for _, high_s in known.values())
    figure.update_xaxes(**axis_layout("step time (ms)", range=[0, 1.32 * longest]))
    figure.update_yaxes(**axis_layout(showgrid=False, ticklabelposition="outside"))
    below = "BERT-large on 128 V100 in 16 servers, DistributedDataParallel, weak scaling"
    return Picture(figure, "What a faster network buys", below)
