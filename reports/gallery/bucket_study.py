"""Which buckets: ResNet-50 and BERT-large on three networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gallery.study import HERE, Study, as_csv
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.report.common.figures import axis_layout, new_figure
from perfmodel.report.common.images import Picture
from perfmodel.report.common.palette import INK, QUIET_INK
from perfmodel.report.common.plain_text import render_markdown
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.tune.model import Choice, TuneResult
from perfmodel.studies.tune.run import tune_scenario

if TYPE_CHECKING:
    import plotly.graph_objects as go

MODELS = {"ResNet-50": "resnet50-8-servers", "BERT-large": "bert-large-8-servers"}

NETWORKS: dict[str, dict[str, object]] = {
    "10 Gbit/s, TCP": {"cluster.node": "ethernet-10g"},
    "25 Gbit/s, RoCE": {},
    "100 Gbit/s, RoCE": {"what_if.network_bandwidth": 4},
}
"""The same servers with other adapters. For 100 Gbit/s the links of the 25 Gbit/s servers are four
times as fast: the shipped servers with 100 Gbit/s have other GPUs."""

COLOURS = ("#d55e00", "#0072b2", "#009e73")
CAPS_MB = (
    0.25,
    0.5,
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    12,
    16,
    20,
    25,
    32,
    40,
    50,
    64,
    80,
    98,
    128,
    200,
    256,
    400,
    512,
    800,
    1024,
    1300,
)
"""Caps in the table; the picture has all that differ."""

CASES = ("model", "network", "gpus")


@dataclass(frozen=True, slots=True)
class Case:
    """One model on one network."""

    model: str
    network: str
    tuned: TuneResult

    @property
    def key(self) -> tuple[object, ...]:
        """First columns of a table."""
        return self.model, self.network, self.tuned.gpus


def scenario_of(model: str, network: str) -> Scenario:
    """Return the question of one case."""
    return change_scenario(load_scenario(HERE / f"{MODELS[model]}.yaml"), NETWORKS[network])


def case_of(model: str, network: str) -> Case:
    """Tune one model on one network."""
    return Case(model, network, tune_scenario(scenario_of(model, network)))


def curve_csv(cases: Sequence[Case]) -> str:
    """Step time for a choice of uniform caps."""
    titles = (*CASES, "bucket_cap_mb", "buckets", "step_time_s", "exposed_comm_s", "over_best_list")
    rows = [
        (
            *case.key,
            cap,
            at.buckets,
            at.step_time_s,
            at.exposed_comm_s,
            at.step_time_s / case.tuned.best_list.step_time_s - 1,
        )
        for case in cases
        for cap in CAPS_MB
        if cap <= case.tuned.curve[-1].low_mb * 1.3
        for at in (case.tuned.at(cap),)
    ]
    return as_csv(titles, rows)


def choices_csv(cases: Sequence[Case]) -> str:
    """PyTorch's default and the best of each kind."""
    titles = (*CASES, "choice", "caps_mb", "buckets", "step_time_s", "exposed_comm_s")
    rows = [
        (
            *case.key,
            name,
            caps_of(choice),
            len(choice.buckets),
            choice.step_time_s,
            choice.exposed_comm_s,
        )
        for case in cases
        for name, choice in choices(case.tuned)
    ]
    return as_csv(titles, rows)


def choices(tuned: TuneResult) -> list[tuple[str, Choice]]:
    """Name what is compared."""
    return [
        ("PyTorch's default", tuned.default),
        ("best uniform cap", tuned.best_uniform),
        ("best list", tuned.best_list),
    ]


def caps_of(choice: Choice) -> str:
    """Caps as they are given to DistributedDataParallel."""
    if choice.bucket_cap_mb_list is not None:
        return " ".join(f"{cap:.9g}" for cap in choice.bucket_cap_mb_list)
    return "" if choice.bucket_cap_mb is None else f"{choice.bucket_cap_mb:.9g}"


def study() -> Study:
    """Tune all cases."""
    cases = [case_of(model, network) for model in MODELS for network in NETWORKS]
    return Study(
        title="Which buckets: ResNet-50 and BERT-large on three networks",
        text=_text(cases),
        tables={"bucket-caps.csv": curve_csv(cases), "bucket-choices.csv": choices_csv(cases)},
        pictures={"bucket-caps": _picture(cases)},
    )


def _text(cases: Sequence[Case]) -> str:
    rows = []
    for case in cases:
        tuned = case.tuned
        bound, uniform, best = tuned.lower_bound_s, tuned.best_uniform, tuned.best_list
        caps = len(best.bucket_cap_mb_list or ())
        rows.append(
            (
                case.model,
                case.network,
                quantities.duration(tuned.default.step_time_s),
                f"{quantities.duration(uniform.step_time_s)} at {uniform.bucket_cap_mb:g} MiB",
                f"{quantities.duration(best.step_time_s)}, {caps} caps",
                quantities.percent_column(tuned.regret(tuned.default)),
                "unknown" if bound is None else quantities.duration(bound),
            )
        )
    header = (
        "Model",
        "Network",
        ">Default (1, then 25 MiB)",
        ">Best uniform cap",
        ">Best list",
        ">Default is longer by",
        ">Lower bound",
    )
    listed = render_markdown([Table(header, rows)])
    return (
        "Eight servers with one V100 each; step time under DistributedDataParallel for every "
        "`bucket_cap_mb`, beside PyTorch's default (1 MiB, then 25 MiB) and the best "
        "`bucket_cap_mb_list`. For 100 Gbit/s the links of the 25 Gbit/s servers are four times as "
        "fast (`what_if`), so that all three have the same GPU.\n\n"
        "![Step time over the bucket cap, relative to the best list](bucket-caps.png)\n\n"
        f"{listed}\n"
        "The jumps of the upper curves are real: a slightly larger cap moves a layer into another "
        "bucket, and where the network keeps up, the step waits for the last bucket only. "
        f"{_largest_jump(cases)}\n\n"
        "`perfmodel tune reports/gallery/resnet50-8-servers.yaml` prints the lists to paste; "
        "[bucket-choices.csv](bucket-choices.csv) has them for all cases and "
        "[bucket-caps.csv](bucket-caps.csv) the curves."
    )


def _largest_jump(cases: Sequence[Case]) -> str:
    """Sentence about the largest jump on the fastest network, up to half of the largest cap."""
    case = [case for case in cases if case.model == next(iter(MODELS))][-1]
    curve = [at for at in case.tuned.curve if at.low_mb <= case.tuned.curve[-1].low_mb / 2]
    before, after = max(pairwise(curve), key=lambda pair: pair[1].step_time_s - pair[0].step_time_s)
    times = [quantities.duration(at.step_time_s) for at in (before, after)]
    return (
        f"{case.model} at {case.network} takes {times[0]} with a cap just below "
        f"{after.low_mb:g} MiB, and {times[1]} from there on."
    )


def _picture(cases: Sequence[Case]) -> Picture:
    """Step time over the cap, relative to the best list; a panel per model."""
    figure = new_figure(430)
    for number, model in enumerate(MODELS):
        own = [case for case in cases if case.model == model]
        name = "" if number == 0 else str(number + 1)
        for case, colour in zip(own, COLOURS, strict=True):
            _add_curve(figure, case, colour, name, legend=number == 0)
        left, right = (0.0, 0.47) if number == 0 else (0.54, 1.0)
        largest = max(case.tuned.curve[-1].low_mb for case in own)
        ticks = [cap for cap in (1, 5, 25, 100, 400, 1000) if cap <= 1.1 * largest]
        figure.update_layout(
            {
                f"xaxis{name}": axis_layout(
                    "bucket_cap_mb",
                    type="log",
                    domain=[left, right],
                    anchor=f"y{name}",
                    range=[math.log10(0.5), math.log10(1.15 * largest)],
                    tickvals=ticks,
                    ticktext=[f"{cap:,}" for cap in ticks],
                ),
                f"yaxis{name}": axis_layout(
                    "step time over the best list" if number == 0 else "",
                    range=[0, 25],
                    ticksuffix=" %",
                    anchor=f"x{name}",
                    domain=[0, 1],
                ),
            }
        )
        figure.add_annotation(
            text=f"<b>{model}</b>",
            x=(left + right) / 2,
            y=0.99,
            xref="paper",
            yref="paper",
            xanchor="center",
            yanchor="top",
            showarrow=False,
            font={"size": 15},
        )
    figure.add_annotation(
        text="The jumps are no noise: a slightly<br>larger cap moves a layer into<br>"
        "another bucket, and the size of<br>the last one decides the wait.",
        x=0.2,
        y=0.88,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="top",
        align="left",
        showarrow=False,
        font={"size": 12, "color": QUIET_INK},
    )
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        name="PyTorch's default",
        marker={"symbol": "diamond", "size": 11, "color": QUIET_INK},
    )
    below = "8 servers with one V100 each; 0 % is the best bucket_cap_mb_list"
    return Picture(figure, "What the bucket size costs, by network", below)


def _add_curve(figure: go.Figure, case: Case, colour: str, name: str, *, legend: bool) -> None:
    tuned, best = case.tuned, case.tuned.best_list.step_time_s
    figure.add_scatter(
        x=[point.bucket_cap_mb for point in tuned.curve],
        y=[100 * (point.step_time_s / best - 1) for point in tuned.curve],
        mode="lines",
        name=case.network,
        line={"color": colour, "width": 1.8, "shape": "hv"},
        showlegend=legend,
        xaxis=f"x{name}",
        yaxis=f"y{name}",
    )
    figure.add_scatter(
        x=[25],
        y=[100 * (tuned.default.step_time_s / best - 1)],
        mode="markers",
        marker={
            "symbol": "diamond",
            "size": 11,
            "color": colour,
            "line": {"color": INK, "width": 1},
        },
        showlegend=False,
        xaxis=f"x{name}",
        yaxis=f"y{name}",
    )
