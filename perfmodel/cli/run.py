"""``perfmodel run``: a scenario becomes a result and a report."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfmodel.cli.output import (
    BackendOption,
    FidelityOption,
    JsonOption,
    ProfileOption,
    SchedulerOption,
    SetOption,
    check_report_folder,
    load_profile,
    output_option,
    print_answer,
    print_notes,
    print_written,
    progress_bar,
    read_question,
    scenario_argument,
)
from perfmodel.errors import Fault, raise_faults, refuse_if

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.report.explorer.grid import Grid
    from perfmodel.scenario import Scenario
    from perfmodel.studies.run.result import Result


WARN_FROM_MIN = 2.0


def run(
    scenario: Annotated[
        str, scenario_argument("A scenario by name (see 'perfmodel scenarios') or file.")
    ],
    output: Annotated[Path | None, output_option("DIR", "Write report and timeline here.")] = None,
    set_: SetOption = None,
    fidelity: FidelityOption = None,
    profile: ProfileOption = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", metavar="N", help="Processes for strategy auto; default: 1."),
    ] = None,
    backend: BackendOption = "loky",
    scheduler: SchedulerOption = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, metavar="N", help="End the search of strategy auto with the best so far."
        ),
    ] = math.inf,
    explore: Annotated[
        bool,
        typer.Option("--explore", help="Simulate many settings for sliders in report.html."),
    ] = False,
    points: Annotated[
        int,
        typer.Option(
            min=54, metavar="N", help="Settings for --explore, at most; 480 give more ticks."
        ),
    ] = 140,
    images: Annotated[
        Literal["png", "svg"] | None,
        typer.Option(help="Write the figures as images too (extra 'img', a Chromium)."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate a scenario: step time, what limits it, scaling.

    Without --json it prints one line per cluster size. With -o it writes report.html (one file,
    works offline), report.md, tables as CSV, timeline.json (opens in Perfetto and in
    HolisticTraceAnalysis; where ranks differ, ranks/ has one of each kind) and result.json.
    --explore adds sliders to report.html: bucket cap, hook, accumulation, batch, degrees, network,
    GPUs, as far as the scenario has them. The layouts of strategy auto may be simulated in several
    processes, or on a cluster; the answer is the same.
    """
    raise_faults(
        Fault(flag, "no -o DIR", "a folder to write to: -o DIR")
        for flag, is_set in {"--explore": explore, "--images": images is not None}.items()
        if is_set and output is None
    )
    if images is not None:
        from perfmodel.report.common.images import check_images

        check_images()
    from perfmodel.scenario import change_scenario

    question = read_question(scenario, set_)
    if output is not None:
        from perfmodel.report.run.page import FILES

        drawn = [] if images is None else [f"images/report.{images}"]  # a file in place of images
        check_report_folder(output, [*FILES, *drawn], [question], profile)

    refuse_if(
        seconds < math.inf and question.strategy.kind != "auto",
        "--seconds",
        f"{seconds:g}",
        "nothing without strategy.kind: auto",
    )

    from perfmodel.report.run.text import result_lines, to_json
    from perfmodel.studies.run import run_scenario

    workers = None
    if (jobs, backend, scheduler) != (None, "loky", None):
        from perfmodel.studies.sweep.executor import search_workers

        workers = search_workers(question, jobs, backend, scheduler)
    measured, began_s = load_profile(profile), time.monotonic()
    with progress_bar("simulating") as progress:
        result = run_scenario(
            question,
            fidelity=fidelity,
            profile=measured,
            progress=progress,
            workers=workers,
            seconds=seconds,
        )
    each_s = (time.monotonic() - began_s) / len(result.points)
    print_answer(result, json=json, to_json=to_json, lines=result_lines)
    if output is not None:
        from perfmodel.report.run.page import write_report

        changes = {} if result.search is None else dict(result.search.winner.changes)
        changes |= {} if fidelity is None else {"fidelity": fidelity}
        question = change_scenario(question, changes) if changes else question
        grid = _simulate_grid(question, result, measured, points, each_s) if explore else None
        print_written(write_report(result, output, grid=grid, images=images))


def _simulate_grid(
    question: Scenario, result: Result, measured: Profile | None, points: int, each_s: float
) -> Grid:
    """Simulate what the explorer's sliders reach, `points` settings at most; say if it is long."""
    from perfmodel.report.explorer.axes import design_of
    from perfmodel.report.explorer.grid import explore
    from perfmodel.studies.sweep.executor import count_cores

    design = design_of(question, result, points)
    minutes = len(design.points) * each_s / count_cores() / 60
    if minutes > WARN_FROM_MIN:
        print_notes(
            f"--explore: {len(design.points)} settings may take {math.ceil(minutes)} minutes; "
            "--points N simulates fewer (54 or more)"
        )
    with progress_bar("simulating settings") as progress:
        return explore(question, result, design, profile=measured, progress=progress)
