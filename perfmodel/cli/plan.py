"""``perfmodel plan``: which cluster to buy or rent.

``perfmodel advise``: what to change in a scenario, and what that costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import (
    BackendOption,
    JobsOption,
    JsonOption,
    ProfileOption,
    SchedulerOption,
    SetOption,
    load_profile,
    output_option,
    scenario_argument,
)
from perfmodel.cli.output import (
    check_report_folder,
    print_answer,
    progress_bar,
)

if TYPE_CHECKING:
    from perfmodel.studies.plan import PlanResult

PLAN_EXAMPLES = (
    "perfmodel plan plan-gpt2-xl -o out",
    "perfmodel plan plan-gpt2-xl --set 'plan.deadline=5 d' --json",
    "perfmodel plan my-scenario.yaml --store steps.sqlite",
)


def plan(
    scenario: Annotated[
        str, scenario_argument("A scenario with a 'plan' section, by name or file.")
    ],
    output: Annotated[Path | None, output_option("DIR", "Write plan.html and tables here.")] = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = "loky",
    scheduler: SchedulerOption = None,
    store: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep predicted steps here, and look them up."),
    ] = None,
    profile: ProfileOption = None,
    json: JsonOption = False,
) -> None:
    """Compare candidate clusters: time to train, cost, energy, goodput with failures.

    The section 'plan' has a target (samples, tokens or epochs), candidates (hardware, sizes,
    prices), and if you like failures, deadline, budget and upgrades. A candidate that does not fit
    or is not found is listed with the reason. The exit code is 1 if none can train. With -o it
    writes plan.html (one file, works offline), plan.md, plan.csv and plan.json.
    """
    from perfmodel.report.planning.page import FILES, plan_lines, write_plan
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.plan import plan_scenario
    from perfmodel.studies.plan.export import to_json

    question = load_scenario(scenario, set_ or ())
    check_report_folder(output, FILES, [question], profile, store=store)
    with progress_bar("simulating") as progress:
        answer = plan_scenario(
            question,
            profile=load_profile(profile),
            jobs=jobs,
            backend=backend,
            scheduler=scheduler,
            store=store,
            progress=progress,
        )
    print_answer(
        answer,
        json=json,
        to_json=to_json,
        lines=plan_lines,
        notes=_plan_notes,
        write=write_plan,
        folder=output,
    )
    if not answer.usable:
        raise typer.Exit(1)


def _plan_notes(answer: PlanResult) -> Iterator[str]:
    """Say what the numbers leave out."""
    from perfmodel.report.planning.text import explain_in_time

    yield from (f"note: {line}" for line in answer.cautions)
    front = " Front: nothing else is both as quick and as cheap." if answer.currency else ""
    yield f"Efficiency is {answer.efficiency_base}.{front}{explain_in_time(answer)}"
    more = "every upgrade of every cluster and " if answer.outcomes else ""
    yield f"See -o DIR or --json for {more}what all this rests on."


ADVISE_EXAMPLES = (
    "perfmodel advise bucket-size-slow-ethernet",
    "perfmodel advise resnet50-dgx-a100 --set cluster.nodes=4 -o out",
    "perfmodel advise my-scenario.yaml --json",
)


def advise(
    scenario: Annotated[
        str, scenario_argument("A scenario by name (see 'perfmodel scenarios') or file.")
    ],
    output: Annotated[Path | None, output_option("DIR", "Write advice.html here.")] = None,
    set_: SetOption = None,
    profile: ProfileOption = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> None:
    """Say what to change in a scenario: each change alone, and the best few together.

    Buckets, gradient hook, batch, micro-batches, precision, strategy, kernels, recomputation,
    degrees, network adapters and oversubscription are simulated; gains are samples per second,
    with 80 % intervals; what does not fit the memory is not proposed. With -o it writes
    advice.html (one file, works offline) and advice.json.
    """
    from perfmodel.report.advice import FILES, advice_lines, write_advice
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.advise.model import to_json
    from perfmodel.studies.advise.run import advise_scenario

    question = load_scenario(scenario, set_ or ())
    check_report_folder(output, FILES, [question], profile)
    measured = load_profile(profile)
    with progress_bar("simulating changes") as progress:
        advice = advise_scenario(question, profile=measured, jobs=jobs, progress=progress)
    print_answer(
        advice, json=json, to_json=to_json, lines=advice_lines, write=write_advice, folder=output
    )
