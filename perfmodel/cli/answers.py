"""``perfmodel run``: a scenario becomes a result and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.output import note, print_json, print_rich, progress_bar
from perfmodel.cli.words import Fidelity, Json, ProfileName

RUN_EXAMPLES = (
    "perfmodel run resnet50-dgx-a100 -o out",
    "perfmodel run bert-large-v100-25g --set 'strategy.bucket_cap=50 MiB' --json",
)


def run(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO", help="A scenario by name (see 'perfmodel scenarios') or file."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write report and timeline here."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Replace one field; may be repeated."),
    ] = None,
    fidelity: Fidelity = None,
    profile: ProfileName = None,
    json: Json = False,
) -> None:
    """Simulate a scenario: step time, what limits it, scaling.

    Without --json it prints one line per cluster size. With -o it writes report.html (one file,
    works offline), timeline.json (opens in Perfetto), summary.csv and result.json.
    """
    from perfmodel.scenario import load_scenario  # noqa: PLC0415  (imports stay out of --help)

    question = load_scenario(scenario, set_ or ())

    from perfmodel.calibrate import read_profile  # noqa: PLC0415
    from perfmodel.report.contract import to_json  # noqa: PLC0415
    from perfmodel.study import run_scenario  # noqa: PLC0415

    measured = None if profile is None else read_profile(profile)
    with progress_bar("simulating") as progress:
        result = run_scenario(question, fidelity=fidelity, profile=measured, progress=progress)
    if json:
        print_json(to_json(result))
    else:
        from perfmodel.report.text import print_result  # noqa: PLC0415

        print_rich(print_result(result))
    if output is not None:
        from perfmodel.report.html import write_report  # noqa: PLC0415

        note(f"wrote {write_report(result, output)}")
