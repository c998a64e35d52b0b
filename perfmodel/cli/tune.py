"""``perfmodel tune``: the best gradient buckets, or the best settings of another strategy.

``perfmodel sweep``: many variants of a scenario.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
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
    check_outputs,
    check_report_folder,
    load_profile,
    output_option,
    print_answer,
    print_note,
    progress_bar,
    refuse,
    scenario_argument,
)
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfmodel.calibrate import Profile
    from perfmodel.scenario import Scenario
    from perfmodel.studies.sweep import SweepResult
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
    from perfmodel.scenario import load_scenario
    from perfmodel.training.strategies import STRATEGIES

    questions = [load_scenario(name, set_ or ()) for name in scenarios]
    rows = [STRATEGIES.get(question.strategy.kind) for question in questions]
    if not all(row is not None and row.has_buckets for row in rows):
        _refuse_for_settings(questions, all_sizes=all_sizes, horovod=horovod)
        _tune_settings(questions[0], profile, output, json=json)
        return
    if output is not None:
        from perfmodel.report.tuning import FILES

        curves = [f"curve-{number}.csv" for number in range(len(questions))]
        check_report_folder(output, [*FILES, *curves], questions, profile)
    tunings = _tune_each(questions, load_profile(profile), all_sizes=all_sizes, horovod=horovod)
    _report(tunings, output, json=json)


def _refuse_for_settings(questions: list[Scenario], *, all_sizes: bool, horovod: bool) -> None:
    """Refuse what only buckets of DDP have."""
    several, without = "several scenarios, not all with strategy ddp", "a strategy without buckets"
    refused = (
        (len(questions) > 1, Fault("SCENARIO", several, "one of them, or ddp in each")),
        (all_sizes, Fault("--all-sizes", without, "one size, or ddp")),
        (horovod, Fault("--horovod", without, "ddp, or kind: horovod")),
    )
    refuse(fault for stated, fault in refused if stated)


def _tune_settings(
    question: Scenario, profile: str | None, output: Path | None, *, json: bool
) -> None:
    """Tune the settings of a strategy without buckets."""
    from perfmodel.report import tuned_settings
    from perfmodel.report.common.html import write_each
    from perfmodel.studies.tune.settings_search import tune_settings

    check_report_folder(output, tuned_settings.FILES, [question], profile)
    say = print_note if sys.stderr.isatty() else None
    print_answer(
        tune_settings(question, profile=load_profile(profile), progress=say),
        json=json,
        to_json=tuned_settings.settings_json,
        lines=tuned_settings.settings_lines,
        write=partial(write_each, tuned_settings.FILES),
        folder=output,
    )


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
        return
    print_answer(
        choose_minimax_cap(tunings),
        json=json,
        to_json=tuning_text.compromise_json,
        lines=tuning_text.compromise_lines,
        write=tuning.write_compromise,
        folder=output,
    )


STORE_FILES = ("wal", "shm", "journal")
"""Files that SQLite keeps beside its own."""

INTERRUPTED_EXIT = 130
"""128 + SIGINT: what a shell reports for a program that was stopped by Ctrl-C."""


def sweep(
    scenario: Annotated[
        str, scenario_argument("A scenario with a 'sweep' section, by name or file.")
    ],
    set_: SetOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = "loky",
    scheduler: SchedulerOption = None,
    store: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep answers here; run again, it goes on from there."),
    ] = None,
    profile: ProfileOption = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a table.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write a table (pyarrow).")
    ] = None,
    output: Annotated[Path | None, output_option("DIR", "Write sweep.html here.")] = None,
    json: JsonOption = False,
) -> None:
    """Answer many variants of a scenario, in parallel.

    The section 'sweep' has 'grid' (every combination) and 'zip' (lists that go together) of fields
    and values. A variant that fails is listed with its message and does not stop the others; the
    exit code is then 1. Stopped by Ctrl-C or killed, it goes on from the store when run again. With
    -o it writes sweep.html (one file, works offline), sweep.csv and sweep.json.
    """
    from perfmodel.report.sweep import FILES, sweep_lines, write_sweep
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.sweep import run_sweep, variants
    from perfmodel.studies.sweep.executor import check_backend
    from perfmodel.studies.sweep.run import check_parquet, to_json, write_csv, write_parquet

    question = load_scenario(scenario, set_ or ())
    check_backend(backend, scheduler, jobs)
    logs = {f"--store (its {end})": Path(f"{store}-{end}") for end in STORE_FILES if store}
    inputs = {"the scenario": Path(scenario), "--profile": Path(profile) if profile else None}
    check_outputs({"--store": store, "--csv": csv, "--parquet": parquet}, inputs | logs)
    check_report_folder(output, FILES, [question], profile)
    if parquet is not None:
        check_parquet()
    measured = load_profile(profile)
    all_ = variants(question)
    with _exit_on_interrupt(store), progress_bar("sweeping") as progress:
        swept = run_sweep(
            all_,
            jobs=jobs,
            backend=backend,
            scheduler=scheduler,
            store=store,
            profile=measured,
            progress=progress,
        )
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            write(swept, path)
            print_note(f"wrote {path}")
    print_answer(
        swept,
        json=json,
        to_json=partial(to_json, question.name, question.question),
        lines=sweep_lines,
        notes=_sweep_notes,
        write=partial(write_sweep, question),
        folder=output,
    )
    if swept.failed:
        raise typer.Exit(1)


@contextmanager
def _exit_on_interrupt(store: Path | None) -> Iterator[None]:
    """End quietly when the user has had enough."""
    try:
        yield
    except KeyboardInterrupt:
        rest = f"what was done is in {store}: run again to go on" if store else "nothing is kept"
        print_note(f"stopped; {rest}")
        raise typer.Exit(INTERRUPTED_EXIT) from None


def _sweep_notes(swept: SweepResult) -> Iterator[str]:
    """Say how many variants were answered, and what failed."""
    from perfmodel.report.sweep import MOST_TERMINAL_ROWS, answered, failed
    from perfmodel.studies.sweep.run import format_fields

    done, count = len(answered(swept)), len(swept.variants)
    more = (
        f", the {MOST_TERMINAL_ROWS} fastest are shown"
        if done > MOST_TERMINAL_ROWS
        else ", fastest first"
    )
    reused = f", {swept.reused:,} of them from the store" if swept.reused else ""
    yield f"{done:,} of {count:,} variants answered{reused}{more if done else ''}"
    for variant, answer in failed(swept)[:MOST_TERMINAL_ROWS]:
        yield f"failed: {format_fields(variant.set)}: {answer.message}"
    if swept.failed > MOST_TERMINAL_ROWS:
        yield f"... and {swept.failed - MOST_TERMINAL_ROWS:,} more that failed"
