"""``perfmodel tune``: the best gradient buckets, or the best settings of another strategy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JsonOption, ProfileOption, SetOption, load_profile, output_option
from perfmodel.cli.output import check_report_folder, print_answer, print_note
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile
    from perfmodel.scenario import Scenario
    from perfmodel.studies.tune.model import TuneResult


TUNE_EXAMPLES = (
    "perfmodel tune bucket-size-slow-ethernet",
    "perfmodel tune resnet50-dgx-a100 -o out",
    "perfmodel tune resnet50-dgx-a100 --set strategy.kind=horovod",
    "perfmodel tune bert-large-v100-25g bert-large-v100-100g",
    "perfmodel tune resnet50-dgx-a100 --all-sizes --json",
)


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
    from perfmodel.scenario import load_scenario

    questions = [load_scenario(name, set_ or ()) for name in scenarios]
    if not all(_has_buckets(question) for question in questions):
        _refuse_for_settings(questions, all_sizes=all_sizes, horovod=horovod)
        _tune_settings(questions[0], profile, output, json=json)
        return
    if output is not None:
        from perfmodel.report.tuning.page import FILES

        curves = [f"curve-{number}.csv" for number in range(len(questions))]
        check_report_folder(output, [*FILES, *curves], questions, profile)
    tunings = _tune_each(questions, load_profile(profile), all_sizes=all_sizes, horovod=horovod)
    _report(tunings, output, json=json)


def _has_buckets(question: Scenario) -> bool:
    from perfmodel.training.strategies import STRATEGIES

    row = STRATEGIES.get(question.strategy.kind)
    return row is not None and row.has_buckets


def _refuse_for_settings(questions: list[Scenario], *, all_sizes: bool, horovod: bool) -> None:
    """Refuse what only buckets of DDP have."""
    several, without = "several scenarios, not all with strategy ddp", "a strategy without buckets"
    refused = (
        (len(questions) > 1, Fault("SCENARIO", several, "one of them, or ddp in each")),
        (all_sizes, Fault("--all-sizes", without, "one size, or ddp")),
        (horovod, Fault("--horovod", without, "ddp, or kind: horovod")),
    )
    if faults := [fault for stated, fault in refused if stated]:
        raise InputError(faults)


def _tune_settings(
    question: Scenario, profile: str | None, output: Path | None, *, json: bool
) -> None:
    """Tune the settings of a strategy without buckets."""
    from perfmodel.report.tuning import settings
    from perfmodel.studies.tune.settings_search import tune_settings

    if output is not None:
        check_report_folder(output, settings.FILES, [question], profile)
    say = print_note if sys.stderr.isatty() else None
    tuned = tune_settings(question, profile=load_profile(profile), progress=say)
    print_answer(tuned, json=json, to_json=settings.settings_json, lines=settings.settings_lines)
    if output is not None:
        print_note(f"wrote {settings.write_settings(tuned, output)}")


def _tune_each(
    questions: list[Scenario], profile: Profile | None, *, all_sizes: bool, horovod: bool
) -> list[TuneResult]:
    from perfmodel.studies.tune.run import list_sizes, tune_scenario

    say = print_note if sys.stderr.isatty() else None
    tunings = []
    for question in questions:
        sizes = list_sizes(question) if all_sizes else (None,)
        if not sizes:
            raise InputError(Fault("--all-sizes", "one GPU only", "a size of 2 GPUs or more"))
        tunings += [
            tune_scenario(question, profile=profile, size=size, horovod=horovod, progress=say)
            for size in sizes
        ]
    return tunings


def _report(tunings: list[TuneResult], output: Path | None, *, json: bool) -> None:
    """Print one tuning, or the setting that serves several best, and write its page."""
    from perfmodel.report.tuning import text
    from perfmodel.studies.tune.recommendation import choose_minimax_cap

    if len(tunings) == 1:
        (tuned,) = tunings
        print_answer(tuned, json=json, to_json=text.tuned_json, lines=text.tuned_lines)
    else:
        shared = choose_minimax_cap(tunings)
        print_answer(shared, json=json, to_json=text.compromise_json, lines=text.compromise_lines)
    if output is not None:
        from perfmodel.report.tuning.page import write_compromise, write_tuned

        one = len(tunings) == 1
        place = write_tuned(tuned, output) if one else write_compromise(shared, output)
        print_note(f"wrote {place}")
