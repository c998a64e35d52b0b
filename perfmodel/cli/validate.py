"""``perfmodel validate``: predicted beside measured, over recorded sweeps and trainings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JsonOption, ProfileOption, rename_fields
from perfmodel.cli.output import print_json, print_note, print_table, progress_bar
from perfmodel.errors import InputError

if TYPE_CHECKING:
    from perfmodel.validate.run import Validation


VALIDATE_EXAMPLES = (
    "perfmodel validate",
    "perfmodel validate --data my-sweeps -o my-report",
    "perfmodel validate --data my-sweeps --profile mine --json",
)

REPORT = Path("reports/validation")


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder with nccl_sweeps/META.csv (or META.csv) and the times of each sweep; "
            "default: the records that ship with perfmodel.",
        ),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Write the report here (page, Markdown, CSV); default: reports/validation, and "
            "nowhere with --data or --json.",
        ),
    ] = None,
    spread: Annotated[
        Path | None,
        typer.Option(
            "--spread", metavar="FILE", help="Write the residual spread for datasheet intervals."
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
    """Compare predictions with recorded sweeps and published trainings.

    Each sweep is matched to a machine by the words of META.csv (or by its column topology) and
    predicted from datasheets, from other sweeps of the same hardware, and by two baselines: NCCL's
    own tuner formula, and alpha-beta. What cannot be matched is listed with the reason.
    """
    folder = output or (None if json or data is not None else REPORT)
    _check_places(folder, spread)

    from perfmodel.calibrate import read_profile
    from perfmodel.studies.sweep.executor import cores
    from perfmodel.validate.run import to_json
    from perfmodel.validate.run import validate as compare

    try:
        own = None if profile is None else read_profile(profile)
    except InputError as error:
        raise rename_fields(error, {"profile": "--profile"}) from None
    with progress_bar("predicting sweeps") as progress:
        found = compare(data, profile=own, transfer=transfer, processes=cores(), progress=progress)
    if json:
        print_json(to_json(found))
    else:
        _print(found)
    if folder is not None:
        from perfmodel.report.validation.page import write_validation

        print_note(f"wrote {write_validation(found, folder)}")
    if spread is not None:
        from perfmodel.library.prediction_error import write_spread

        write_spread(found.spread(), spread)
        print_note(f"wrote {spread}")


def _check_places(folder: Path | None, spread: Path | None) -> None:
    """Both places can be written, before the work is done."""
    from perfmodel.cli.output import check_writable

    wanted = []
    if folder is not None:
        wanted.append(check_writable("-o", folder / "validation.html"))
    if spread is not None:
        wanted.append(check_writable("--spread", spread))
    faults = [fault for fault in wanted if fault is not None]
    if faults:
        raise InputError(faults)


def _print(found: Validation) -> None:
    from perfmodel.report.validation.tables import band_table, coverage_table, lists, training_table

    for title, table in (
        ("Error of predicted times, counted sweeps (median / 90th percentile)", band_table(found)),
        ("Measured times inside the 80 % interval", coverage_table(found)),
        ("Published trainings and steps", training_table(found)),
    ):
        if table.rows:
            typer.echo(title)
            print_table(table.header, table.rows)
            typer.echo("")
    for line in lists(found, trainings=False):
        typer.echo(line)
    rows = sum(sum(one.left_out.values()) for one in found.trainings)
    if rows:
        typer.echo(f"{rows} rows of training tables left out: the report and --json say why")
