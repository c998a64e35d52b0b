"""``perfmodel sweep``: many variants of a scenario."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import (
    JobsOption,
    JsonOption,
    ProfileOption,
    SetOption,
    load_profile,
    scenario_argument,
)
from perfmodel.cli.output import check_outputs, print_json, print_note, print_table, progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfmodel.studies.sweep import Answer, SweepResult


SWEEP_EXAMPLES = (
    "perfmodel sweep sweep-buckets-and-nodes --store sweep.sqlite --csv sweep.csv",
    "perfmodel sweep my-scenario.yaml --set 'sweep.grid={strategy.bucket_cap: [5 MiB, 25 MiB]}'",
    "perfmodel sweep my-scenario.yaml --backend dask --scheduler tcp://10.0.0.5:8786",
)

SHOWN_ROWS = 40
"""Rows of the table in the terminal; files have all."""

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
    backend: Annotated[
        str, typer.Option(metavar="loky|dask|ray", help="Processes of this machine, or a cluster.")
    ] = "loky",
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of the cluster, such as tcp://10.0.0.5:8786."),
    ] = None,
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
    json: JsonOption = False,
) -> None:
    """Answer many variants of a scenario, in parallel.

    The section 'sweep' has 'grid' (every combination) and 'zip' (lists that go together) of fields
    and values. A variant that fails is listed with its message and does not stop the others; the
    exit code is then 1. Stopped by Ctrl-C or killed, it goes on from the store when run again.
    """
    from perfmodel.scenario import load_scenario

    question = load_scenario(scenario, set_ or ())

    from perfmodel.studies.sweep import run_sweep, variants
    from perfmodel.studies.sweep.executor import check_backend
    from perfmodel.studies.sweep.export import check_parquet, write_csv, write_parquet

    check_backend(backend, scheduler, jobs)
    logs = {f"--store (its {end})": Path(f"{store}-{end}") for end in STORE_FILES if store}
    inputs = {"the scenario": Path(scenario), "--profile": Path(profile) if profile else None}
    check_outputs({"--store": store, "--csv": csv, "--parquet": parquet}, inputs | logs)
    if parquet is not None:
        check_parquet()
    measured = load_profile(profile)
    all_ = variants(question)
    with _exit_on_interrupt(store), progress_bar("sweeping") as progress:
        swept = run_sweep(
            all_, jobs=jobs, backend=backend, scheduler=scheduler, store=store, profile=measured,
            progress=progress,
        )  # fmt: skip
    for path, write in ((csv, write_csv), (parquet, write_parquet)):
        if path is not None:
            write(swept, path)
            print_note(f"wrote {path}")
    if json:
        print_json(to_json(question.name, question.question, swept))
    else:
        _print(swept)
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


def to_json(name: str, question: str, swept: SweepResult) -> dict[str, Any]:
    """Write a sweep as plain data: what was set, and figures in SI units, variant by variant."""
    from perfmodel.files import attributes

    return {
        "scenario": name,
        "question": question,
        "fields": list(swept.fields),
        "count": len(swept.variants),
        **attributes(swept, "failed reused"),
        "variants": [
            attributes(variant, "index set digest") | answer.as_row
            for variant, answer in zip(swept.variants, swept.answers, strict=True)
        ],
    }


def _print(swept: SweepResult) -> None:
    """Print the best variants, then what failed."""
    from perfmodel.report.common import quantities
    from perfmodel.studies.sweep.run import format_fields, format_value

    pairs = list(zip(swept.variants, swept.answers, strict=True))
    done = [(variant, answer) for variant, answer in pairs if answer.status == "ok"]
    done.sort(key=lambda pair: (not pair[1].fits, -(pair[1].samples_per_s or 0.0)))
    headers = (*swept.fields, ">GPUs", ">step", ">exposed", ">samples/s", "bottleneck")
    print_table(
        headers,
        [
            (
                *(format_value(variant.set.get(name)) for name in swept.fields),
                f"{answer.gpus:,}",
                quantities.duration(answer.step_time_s or 0.0),
                quantities.duration(answer.exposed_comm_s or 0.0),
                quantities.count(answer.samples_per_s or 0.0),
                (answer.bottleneck or "") + _memory_note(answer),
            )
            for variant, answer in done[:SHOWN_ROWS]
        ],
    )
    more = f", the {SHOWN_ROWS} fastest are shown" if len(done) > SHOWN_ROWS else ", fastest first"
    reused = f", {swept.reused:,} of them from the store" if swept.reused else ""
    print_note(f"{len(done):,} of {len(pairs):,} variants answered{reused}{more if done else ''}")
    for variant, answer in [pair for pair in pairs if pair[1].status == "failed"][:SHOWN_ROWS]:
        print_note(f"failed: {format_fields(variant.set)}: {answer.message}")
    if swept.failed > SHOWN_ROWS:
        print_note(f"... and {swept.failed - SHOWN_ROWS:,} more that failed")


def _memory_note(answer: Answer) -> str:
    if not answer.fits:
        return " (does not fit in memory)"
    return " (memory is tight)" if answer.tight else ""
