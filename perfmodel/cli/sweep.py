"""``perfmodel sweep``: many variants of a scenario."""

from __future__ import annotations

from contextlib import contextmanager
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
    check_outputs,
    check_report_folder,
    print_blocks,
    print_json,
    print_note,
    progress_bar,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfmodel.studies.sweep import SweepResult


SWEEP_EXAMPLES = (
    "perfmodel sweep sweep-buckets-and-nodes -o out --store sweep.sqlite",
    "perfmodel sweep my-scenario.yaml --set 'sweep.grid={strategy.bucket_cap: [5 MiB, 25 MiB]}'",
    "perfmodel sweep my-scenario.yaml --backend dask --scheduler tcp://10.0.0.5:8786",
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
    from perfmodel.scenario import load_scenario

    question = load_scenario(scenario, set_ or ())

    from perfmodel.studies.sweep import run_sweep, variants
    from perfmodel.studies.sweep.executor import check_backend
    from perfmodel.studies.sweep.export import check_parquet, to_json, write_csv, write_parquet

    check_backend(backend, scheduler, jobs)
    logs = {f"--store (its {end})": Path(f"{store}-{end}") for end in STORE_FILES if store}
    inputs = {"the scenario": Path(scenario), "--profile": Path(profile) if profile else None}
    check_outputs({"--store": store, "--csv": csv, "--parquet": parquet}, inputs | logs)
    if output is not None:
        from perfmodel.report.sweep import FILES

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
    if json:
        print_json(to_json(question.name, question.question, swept))
    else:
        _print(swept)
    if output is not None:
        from perfmodel.report.sweep import write_sweep

        print_note(f"wrote {write_sweep(question, swept, output)}")
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


def _print(swept: SweepResult) -> None:
    """Print the best variants, then what failed."""
    from perfmodel.report.sweep import TERMINAL_ROWS, answered, failed, sweep_lines
    from perfmodel.studies.sweep.run import format_fields

    print_blocks(sweep_lines(swept))
    done, count = len(answered(swept)), len(swept.variants)
    more = f", the {TERMINAL_ROWS} fastest are shown" if done > TERMINAL_ROWS else ", fastest first"
    reused = f", {swept.reused:,} of them from the store" if swept.reused else ""
    print_note(f"{done:,} of {count:,} variants answered{reused}{more if done else ''}")
    for variant, answer in failed(swept)[:TERMINAL_ROWS]:
        print_note(f"failed: {format_fields(variant.set)}: {answer.message}")
    if swept.failed > TERMINAL_ROWS:
        print_note(f"... and {swept.failed - TERMINAL_ROWS:,} more that failed")
