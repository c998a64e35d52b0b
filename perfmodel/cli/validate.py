"""``perfmodel validate``: predicted beside measured, over recorded sweeps and steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from perfmodel.cli.output import (
    JsonOption,
    ProfileOption,
    check_outputs,
    load_profile,
    print_answer,
    progress_bar,
)

T = TypeVar("T")

TransferOption = Annotated[
    bool,
    typer.Option(
        "--transfer/--no-transfer",
        help="Also predict each sweep from the others of the same hardware.",
    ),
]


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder with META.csv (or nccl_sweeps/META.csv) and the times of each sweep, with "
            "steps.csv, or with both; default: the recorded sweeps that ship with perfmodel.",
        ),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Write the report here (page, Markdown, JSON, CSV).",
        ),
    ] = None,
    transfer: TransferOption = True,
    json: JsonOption = False,
) -> None:
    """Compare predictions with recorded sweeps of collectives and recorded training steps.

    Each sweep is matched to a machine by the words of META.csv (or by its column topology) and
    predicted from datasheets, and from other sweeps of the same hardware. What cannot be matched
    is listed with the reason.

    Each row of steps.csv names a scenario, and what was measured: step_s, peak_GB, or both. Other
    columns are fields of the scenario, as for --set (cluster.nodes).
    """
    check_outputs({"-o": output and output / "validation.html"})

    from perfmodel.report.validation import validation_lines, write_validation
    from perfmodel.validate.run import to_json
    from perfmodel.validate.run import validate as compare

    print_answer(
        compare_records(compare, data, profile, transfer=transfer),
        json=json,
        to_json=to_json,
        lines=validation_lines,
        write=write_validation,
        folder=output,
    )


def compare_records(
    compare: Callable[..., T], data: Path | None, profile: str | None, **options: bool
) -> T:
    """Compare records with predictions on all cores, with a bar for people who wait.

    `compare`: `perfmodel.validate.run.validate`, or a function that takes more `options`.
    """
    from perfmodel.studies.sweep.executor import count_cores

    own = load_profile(profile)
    with progress_bar("predicting sweeps") as progress:
        return compare(data, profile=own, processes=count_cores(), progress=progress, **options)
