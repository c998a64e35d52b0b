"""``perfmodel tune``: the best gradient buckets, or the best settings of another strategy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JsonOption, ProfileOption, SetOption, load_profile, output_option
from perfmodel.cli.output import check_report_folder, print_blocks, print_json, print_note
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
    if len(tunings) == 1:
        _report_one(tunings[0], output, json=json)
    else:
        _report_all(tunings, output, json=json)


def _has_buckets(question: Scenario) -> bool:
    from perfmodel.training.strategies import STRATEGIES

    row = STRATEGIES.get(question.strategy.kind)
    return row is not None and row.has_buckets


def _refuse_for_settings(questions: list[Scenario], *, all_sizes: bool, horovod: bool) -> None:
    """Refuse what only buckets of DDP have."""
    faults = []
    if len(questions) > 1:
        several = "several scenarios, not all with strategy ddp"
        faults.append(Fault("SCENARIO", several, "one of them, or ddp in each"))
    if all_sizes:
        faults.append(Fault("--all-sizes", "a strategy without buckets", "one size, or ddp"))
    if horovod:
        faults.append(Fault("--horovod", "a strategy without buckets", "ddp, or kind: horovod"))
    if faults:
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
    if json:
        print_json(settings.settings_json(tuned))
    else:
        print_blocks(settings.settings_lines(tuned))
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


def _report_one(tuned: TuneResult, output: Path | None, *, json: bool) -> None:
    if json:
        from perfmodel.report.tuning.export import tuned_json

        print_json(tuned_json(tuned))
    else:
        from perfmodel.report.tuning.text import tuned_lines

        print_blocks(tuned_lines(tuned))
    if output is not None:
        from perfmodel.report.tuning.page import write_tuned

        print_note(f"wrote {write_tuned(tuned, output)}")


def _report_all(tunings: list[TuneResult], output: Path | None, *, json: bool) -> None:
    from perfmodel.studies.tune.recommendation import choose_minimax_cap

    compromise = choose_minimax_cap(tunings)
    if json:
        from perfmodel.report.tuning.export import compromise_json

        print_json(compromise_json(compromise))
    else:
        from perfmodel.report.tuning.text import compromise_lines

        print_blocks(compromise_lines(compromise))
    if output is not None:
        from perfmodel.report.tuning.page import write_compromise

        print_note(f"wrote {write_compromise(compromise, output)}")
