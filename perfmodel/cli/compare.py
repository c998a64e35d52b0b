"""``perfmodel compare``: scenarios side by side; ``sweep``: many variants of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
    print_notes,
    progress_bar,
    read_question,
    scenario_argument,
)
from perfmodel.errors import Fault, InputError, raise_faults, refuse_if

if TYPE_CHECKING:
    from perfmodel.scenario import Scenario
    from perfmodel.studies.comparison import Comparison
    from perfmodel.studies.sweep import SweepResult


def compare(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios by name or file.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="With one SCENARIO: a variation of it, each a column. With several: for all.",
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="'A=X; B=Y'",
            help="A variation of one SCENARIO in several fields; may be repeated.",
        ),
    ] = None,
    attribute: Annotated[
        bool,
        typer.Option(
            "--attribute",
            help="Also: what if the network were infinitely fast, latency zero, compute twice as "
            "fast ...",
        ),
    ] = False,
    jobs: JobsOption = None,
    output: Annotated[Path | None, output_option("DIR", "Write compare.html here.")] = None,
    profile: ProfileOption = None,
    json: JsonOption = False,
) -> None:
    """Put scenarios, or variations of one, side by side: what changed, by how much, and why.

    All are compared with the first, at the size that each asks about. With -o it writes
    compare.html (one file, works offline), compare.csv and compare.json.
    """
    columns = _columns(scenarios, set_ or [], with_ or [])
    refuse_if(
        len(columns) < 2 and not attribute,
        "SCENARIO",
        "one scenario alone",
        "two or more, a variation (--set, --with), or --attribute",
    )

    from perfmodel.report.common.html import write_each
    from perfmodel.report.comparison import FILES, comparison_lines
    from perfmodel.studies.compare import compare as compare_columns
    from perfmodel.studies.comparison import to_json

    check_report_folder(output, FILES, columns.values(), profile)
    with progress_bar("simulating") as progress:
        comparison = compare_columns(
            columns,
            profile=load_profile(profile),
            attribute=attribute,
            jobs=jobs,
            progress=progress,
        )
    print_answer(
        comparison,
        json=json,
        to_json=to_json,
        lines=comparison_lines,
        notes=_comparison_notes,
        write=partial(write_each, FILES),
        folder=output,
    )


def _columns(names: list[str], sets: list[str], withs: list[str]) -> dict[str, Scenario]:
    """Scenarios by label; all faults of all of them at once."""
    split = {text: [part.strip() for part in text.split(";") if part.strip()] for text in withs}
    refuse_if(len(names) > 1 and withs, "--with", "several scenarios", "variations of one")
    refuse_if(
        not all(split.values()), "--with", "nothing", "fields such as 'strategy.hook=fp16; A=B'"
    )
    stems = [Path(name).stem for name in names]
    variations = (
        [
            (stems[0], names[0], []),
            *((text, names[0], [text]) for text in sets),
            *((text, names[0], split[text]) for text in withs),
        ]
        if len(names) == 1
        else [
            (name if stems.count(stem) > 1 else stem, name, sets)
            for name, stem in zip(names, stems, strict=True)
        ]
    )
    columns: dict[str, Scenario] = {}
    faults: list[Fault] = []
    for at, (label, name, overrides) in enumerate(variations, 1):
        try:
            own = label if label not in columns else f"{label} ({at})"
            columns[own] = read_question(name, overrides)
        except InputError as error:
            flag = "--with" if label in withs else "--set"
            faults += [replace(f, field=f.field.replace("--set", flag, 1)) for f in error.faults]
    raise_faults(faults)
    return columns


def _comparison_notes(comparison: Comparison) -> Iterator[str]:
    """Say what failed and what the numbers rest on."""
    yield from (
        f"{imagined.what}, {side.label}: {message}"
        for imagined in comparison.what_ifs
        for side, message in zip(comparison.sides, imagined.messages, strict=True)
        if message
    )
    yield from comparison.assumptions[: 2 if comparison.what_ifs else 1]


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
    from perfmodel.studies.sweep import run_sweep, variants
    from perfmodel.studies.sweep.executor import check_backend
    from perfmodel.studies.sweep.run import check_parquet, to_json, write_csv, write_parquet

    question = read_question(scenario, set_)
    check_backend(backend, scheduler, jobs)
    logs = {f"--store (its {end})": Path(f"{store}-{end}") for end in STORE_FILES if store}
    inputs = {"the scenario": Path(scenario), "--profile": Path(profile) if profile else None}
    check_outputs({"--store": store, "--csv": csv, "--parquet": parquet}, inputs | logs)
    check_report_folder(output, FILES, [question], profile)
    if parquet is not None:
        check_parquet()
    measured, all_ = load_profile(profile), variants(question)
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
            print_notes(f"wrote {path}")
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
        print_notes(f"stopped; {rest}")
        raise typer.Exit(INTERRUPTED_EXIT) from None


def _sweep_notes(swept: SweepResult) -> Iterator[str]:
    """Say how many variants were answered, and what failed."""
    from perfmodel.report.common.document import join_applying
    from perfmodel.report.sweep import MOST_TERMINAL_ROWS, answered, failed
    from perfmodel.scenario.source_map import format_fields

    done = len(answered(swept))
    yield join_applying(
        (True, f"{done:,} of {len(swept.variants):,} variants answered"),
        (swept.reused, f", {swept.reused:,} of them from the store"),
        (0 < done <= MOST_TERMINAL_ROWS, ", fastest first"),
        (done > MOST_TERMINAL_ROWS, f", the {MOST_TERMINAL_ROWS} fastest are shown"),
        by="",
    )
    for variant, answer in failed(swept)[:MOST_TERMINAL_ROWS]:
        yield f"failed: {format_fields(variant.set)}: {answer.message}"
    if swept.failed > MOST_TERMINAL_ROWS:
        yield f"... and {swept.failed - MOST_TERMINAL_ROWS:,} more that failed"
