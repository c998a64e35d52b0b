"""Predicted beside measured, over recorded sweeps and published trainings.

``python -m reports.validation`` remakes the report beside this file; ``--help`` says the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.calibrate import TransferOption, compare_records
from perfmodel.cli.output import (
    JsonOption,
    ProfileOption,
    check_outputs,
    print_answer,
    print_notes,
)
from perfmodel.errors import PerfmodelError

REPORT = Path(__file__).parent


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder with nccl_sweeps/META.csv (or META.csv) and the times of each sweep; "
            "default: the sweeps that ship with perfmodel, and the tables here.",
        ),
    ] = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Write the report here (page, Markdown, CSV); default: beside this program, with "
            "the records that answers rest on, and nowhere with --data or --json.",
        ),
    ] = None,
    spread: Annotated[
        Path | None,
        typer.Option(
            "--spread", metavar="FILE", help="Write the residual spread for datasheet intervals."
        ),
    ] = None,
    transfer: TransferOption = True,
    all_rows: Annotated[
        bool,
        typer.Option(
            "--all-rows",
            help="Predict every published step, and not a sample of those of split models: hours "
            "of CPU instead of minutes, in one process per core.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare predictions with recorded sweeps and published trainings.

    Each sweep is matched to a machine by the words of META.csv (or by its column topology) and
    predicted from datasheets, from other sweeps of the same hardware, and by two baselines: NCCL's
    own tuner formula, and alpha-beta. What cannot be matched is listed with the reason.

    Of each published training are compared throughput, scaling efficiency against the smallest run
    of its table, and throughput with compute scaled to the measured rate of one GPU; --json has
    every run under "trainings", in "rows".

    Of tables with many steps of split models a few setups are predicted; --all-rows predicts every
    row, and sets the error of each table beside that of its sample.
    """
    folder = output or (None if json or data is not None else REPORT)
    check_outputs({"-o": folder and folder / "validation.html", "--spread": spread})

    from reports.validation.pages.page import write_validation
    from reports.validation.pages.text import validation_lines
    from reports.validation.run import to_json
    from reports.validation.run import validate as compare

    answer = compare_records(compare, data, profile, transfer=transfer, whole=all_rows)
    print_answer(
        answer,
        json=json,
        to_json=to_json,
        lines=validation_lines,
        write=write_validation,
        folder=folder,
    )
    if folder == REPORT and data is None:
        from reports.validation.evidence import write_evidence

        write_evidence(to_json(answer))
    if spread is not None:
        from reports.validation.run import write_spread

        write_spread(answer.spread(), spread)
        print_notes(f"wrote {spread}")


if __name__ == "__main__":
    try:
        typer.run(validate)
    except PerfmodelError as error:
        print_notes(str(error))
        raise SystemExit(error.exit_code) from None
