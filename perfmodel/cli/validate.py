"""``perfmodel validate``: predicted beside measured, over recorded sweeps and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import JsonOption, ProfileOption, flags_as_fields, load_profile
from perfmodel.cli.output import check_outputs, print_answer, print_note, progress_bar

VALIDATE_EXAMPLES = (
    "perfmodel validate",
    "perfmodel validate --data my-sweeps -o my-report",
    "perfmodel validate --data my-sweeps --profile mine --json",
)


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
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer/--no-transfer",
            help="Also predict each sweep from the others of the same hardware.",
        ),
    ] = True,
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

    from perfmodel.report.validation import validation_lines
    from perfmodel.studies.sweep.executor import count_cores
    from perfmodel.validate.run import to_json
    from perfmodel.validate.run import validate as compare

    with flags_as_fields({"profile": "--profile"}):
        own = load_profile(profile)
    with progress_bar("predicting sweeps") as progress:
        answer = compare(
            data,
            profile=own,
            transfer=transfer,
            processes=count_cores(),
            progress=progress,
        )
    print_answer(answer, json=json, to_json=to_json, lines=validation_lines)
    if output is not None:
        from perfmodel.report.validation import write_validation

        print_note(f"wrote {write_validation(answer, output)}")
