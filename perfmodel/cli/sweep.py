"""``perfmodel sweep``: many variants of a scenario."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.options import JsonOption, ProfileOption
from perfmodel.cli.output import print_json, print_note, print_table, progress_bar
from perfmodel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfmodel.studies.sweep import Swept


SWEEP_EXAMPLES = (
    "perfmodel sweep sweep-buckets-and-nodes --store sweep.sqlite --csv sweep.csv",
    "perfmodel sweep my-scenario.yaml --set 'sweep.grid={strategy.bucket_cap: [5 MiB, 25 MiB]}'",
    "perfmodel sweep my-scenario.yaml --backend dask --scheduler tcp://10.0.0.5:8786",
)

SHOWN_ROWS = 40
"""Rows of the table in the terminal; files have all."""

INTERRUPTED_EXIT = 130
"""128 + SIGINT: what a shell reports for a program that was stopped by Ctrl-C."""


def sweep(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO", help="A scenario with a 'sweep' section, by name or file."
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Replace one field; may be repeated."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", metavar="N", help="Processes; default: all physical cores."),
    ] = None,
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

    from perfmodel.calibrate import read_profile
    from perfmodel.studies.sweep import run_sweep, variants
    from perfmodel.studies.sweep.executor import check_backend
    from perfmodel.studies.sweep.export import check_parquet, write_csv, write_parquet

    check_backend(backend, scheduler, jobs)
    _check_places({"--csv": csv, "--parquet": parquet})
    if parquet is not None:
        check_parquet()
    measured = None if profile is None else read_profile(profile)
    all_ = variants(question)
    with _stoppable(store), progress_bar("sweeping") as progress:
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


def _check_places(files: Mapping[str, Path | None]) -> None:
    """Refuse before the work is done what could not be written afterwards."""
    from perfmodel.cli.output import check_writable

    tried = [check_writable(flag, path) for flag, path in files.items() if path is not None]
    if faults := [fault for fault in tried if fault is not None]:
        raise InputError(faults)


@contextmanager
def _stoppable(store: Path | None) -> Iterator[None]:
    """End quietly when the user has had enough."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"what was done is in {store}: run again to go on" if store else "nothing is kept"
        print_note(f"stopped; {kept}")
        raise typer.Exit(INTERRUPTED_EXIT) from None


def to_json(name: str, question: str, swept: Swept) -> dict[str, Any]:
    """Write a sweep as plain data: what was set, and figures in SI units, variant by variant."""
    return {
        "scenario": name,
        "question": question,
        "fields": list(swept.fields),
        "count": len(swept.variants),
        "failed": swept.failed,
        "reused": swept.reused,
        "variants": [
            {"index": variant.index, "set": dict(variant.set), "digest": variant.digest}
            | found.as_row
            for variant, found in zip(swept.variants, swept.answers, strict=True)
        ],
    }


def _print(swept: Swept) -> None:
    """Print the best variants, then what failed."""
    from perfmodel.report.common import quantities
    from perfmodel.studies.sweep.run import as_text, set_as_text

    pairs = list(zip(swept.variants, swept.answers, strict=True))
    done = [(variant, found) for variant, found in pairs if found.status == "ok"]
    done.sort(key=lambda pair: (not pair[1].fits, -(pair[1].samples_per_s or 0.0)))
    headers = (*swept.fields, ">GPUs", ">step", ">exposed", ">samples/s", "bottleneck")
    print_table(
        headers,
        [
            (
                *(as_text(variant.set.get(name)) for name in swept.fields),
                f"{found.gpus:,}",
                quantities.duration(found.step_time_s or 0.0),
                quantities.duration(found.exposed_comm_s or 0.0),
                quantities.count(found.samples_per_s or 0.0),
                (found.bottleneck or "") + ("" if found.fits else " (does not fit in memory)"),
            )
            for variant, found in done[:SHOWN_ROWS]
        ],
    )
    more = f", the {SHOWN_ROWS} fastest are shown" if len(done) > SHOWN_ROWS else ", fastest first"
    reused = f", {swept.reused:,} of them from the store" if swept.reused else ""
    print_note(f"{len(done):,} of {len(pairs):,} variants answered{reused}{more if done else ''}")
    for variant, found in [pair for pair in pairs if pair[1].status == "failed"][:SHOWN_ROWS]:
        print_note(f"failed: {set_as_text(variant.set)}: {found.message}")
    if swept.failed > SHOWN_ROWS:
        print_note(f"... and {swept.failed - SHOWN_ROWS:,} more that failed")
