"""What to choose: settings (``tune``), a cluster (``plan``), or changes (``advise``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import (
    BackendOption,
    JobsOption,
    JsonOption,
    ProfileOption,
    SchedulerOption,
    SetOption,
    check_report_folder,
    load_profile,
    output_option,
    print_answer,
    print_notes,
    progress_bar,
    read_question,
    scenario_argument,
)
from perfmodel.errors import failed, raise_faults, refuse_if

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.scenario import Scenario
    from perfmodel.studies.plan import PlanResult
    from perfmodel.studies.tune.model import TuneResult


def tune(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Scenarios by name or file; several: one cap for all of them.",
        ),
    ],
    output: Annotated[Path | None, output_option("DIR", "Write page, JSON and curve here.")] = None,
    set_: SetOption = None,
    profile: ProfileOption = None,
    all_sizes: Annotated[
        bool,
        typer.Option("--all-sizes", help="One cap for all sizes of the scaling curve."),
    ] = False,
    horovod: Annotated[
        bool, typer.Option("--horovod", help="Tune Horovod's fusion threshold as well.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Find the best gradient buckets, or the best settings of another strategy.

    Every partition into buckets that some bucket_cap_mb makes is looked at, and the best list
    (bucket_cap_mb_list, torch 2.13) is searched for. Of other strategies the fields of their
    section that change the time alone are searched (fsdp: wrap, ...; horovod: fusion_threshold,
    ...); what does not fit the memory is left out. With -o it writes tune.html (one file, works
    offline), tune.json and, for buckets, curve.csv.
    """
    from perfmodel.training.strategies import STRATEGIES

    questions = [read_question(name, set_) for name in scenarios]
    rows = [STRATEGIES.get(question.strategy.kind) for question in questions]
    if not all(row is not None and row.buckets for row in rows):
        several, without = (
            "several scenarios, not all with strategy ddp",
            "a strategy without buckets",
        )
        raise_faults(
            failed(
                (len(questions) > 1, "SCENARIO", several, "one of them, or ddp in each"),
                (all_sizes, "--all-sizes", without, "one size, or ddp"),
                (horovod, "--horovod", without, "ddp, or kind: horovod"),
            )
        )
        _tune_settings(questions[0], profile, output, json=json)
        return
    if output is not None:
        from perfmodel.report.tuning import FILES

        curves = [f"curve-{number}.csv" for number in range(len(questions))]
        check_report_folder(output, [*FILES, *curves], questions, profile)
    _report(
        _tune_each(questions, load_profile(profile), all_sizes=all_sizes, horovod=horovod),
        output,
        json=json,
    )


def _tune_settings(
    question: Scenario, profile: str | None, output: Path | None, *, json: bool
) -> None:
    """Tune the settings of a strategy without buckets."""
    from perfmodel.report import tuned_settings
    from perfmodel.report.common.html import write_each
    from perfmodel.studies.tune.settings_search import tune_settings

    check_report_folder(output, tuned_settings.FILES, [question], profile)
    print_answer(
        tune_settings(question, profile=load_profile(profile), progress=_stages()),
        json=json,
        to_json=tuned_settings.settings_json,
        lines=tuned_settings.settings_lines,
        write=partial(write_each, tuned_settings.FILES),
        folder=output,
    )


def _stages() -> Callable[[str], None] | None:
    """Print the stages of a search for somebody who waits at a terminal."""
    return print_notes if sys.stderr.isatty() else None


def _tune_each(
    questions: list[Scenario], profile: Profile | None, *, all_sizes: bool, horovod: bool
) -> list[TuneResult]:
    from perfmodel.studies.tune.run import list_sizes, tune_scenario

    say, tunings = _stages(), []
    for question in questions:
        sizes = list_sizes(question) if all_sizes else (None,)
        refuse_if(not sizes, "--all-sizes", "one GPU only", "a size of 2 GPUs or more")
        tunings += [
            tune_scenario(question, profile=profile, size=size, horovod=horovod, progress=say)
            for size in sizes
        ]
    return tunings


def _report(tunings: list[TuneResult], output: Path | None, *, json: bool) -> None:
    """Print one tuning, or the setting that serves several best, and write its page."""
    from perfmodel.report import tuning, tuning_text
    from perfmodel.report.common.html import write_each
    from perfmodel.studies.tune.recommendation import choose_minimax_cap

    if len(tunings) == 1:
        print_answer(
            tunings[0],
            json=json,
            to_json=tuning_text.tuned_json,
            lines=tuning_text.tuned_lines,
            write=partial(write_each, tuning.FILES),
            folder=output,
        )
    else:
        print_answer(
            choose_minimax_cap(tunings),
            json=json,
            to_json=tuning_text.compromise_json,
            lines=tuning_text.compromise_lines,
            write=tuning.write_compromise,
            folder=output,
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
    prices: Annotated[
        str | None,
        typer.Option(metavar="FILE|list", help="For candidates that state none."),
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
    from perfmodel.report.common.html import write_each
    from perfmodel.report.plan import FILES, plan_lines
    from perfmodel.studies.plan import plan_scenario
    from perfmodel.studies.plan.export import to_json

    listed = () if prices is None else (f"plan.prices={prices!r}",)
    question = read_question(scenario, (*(set_ or ()), *listed))
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
        write=partial(write_each, FILES),
        folder=output,
    )
    if not answer.usable:
        raise typer.Exit(1)


def _plan_notes(answer: PlanResult) -> Iterator[str]:
    """Say what the numbers leave out."""
    from perfmodel.report.plan_text import explain_in_time

    yield from (f"note: {line}" for line in answer.cautions)
    front = " Front: nothing else is both as quick and as cheap." if answer.currency else ""
    more = "every upgrade of every cluster and " if answer.outcomes else ""
    yield from (
        f"Efficiency is {answer.efficiency_base}.{front}{explain_in_time(answer)}",
        f"See -o DIR or --json for {more}what all this rests on.",
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
    from perfmodel.report.advice import FILES, advice_lines
    from perfmodel.report.common.html import write_each
    from perfmodel.studies.advise.model import to_json
    from perfmodel.studies.advise.run import advise_scenario

    question = read_question(scenario, set_)
    check_report_folder(output, FILES, [question], profile)
    with progress_bar("simulating changes") as progress:
        advice = advise_scenario(
            question, profile=load_profile(profile), jobs=jobs, progress=progress
        )
    print_answer(
        advice,
        json=json,
        to_json=to_json,
        lines=advice_lines,
        write=partial(write_each, FILES),
        folder=output,
    )
