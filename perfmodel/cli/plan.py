"""``perfmodel plan``: which cluster to buy or rent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JsonOption, ProfileOption
from perfmodel.cli.output import print_json, print_note, print_table, progress_bar
from perfmodel.errors import InputError

if TYPE_CHECKING:
    from perfmodel.studies.plan import PlanResult


PLAN_EXAMPLES = (
    "perfmodel plan plan-gpt2-xl -o out",
    "perfmodel plan plan-gpt2-xl --set 'plan.deadline=5 d' --json",
    "perfmodel plan my-scenario.yaml --store steps.sqlite",
)


def plan(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO", help="A scenario with a 'plan' section, by name or file."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write plan.html and tables here."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Replace one field; may be repeated."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", metavar="N", help="Processes; default: all physical cores."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep predicted steps here, and look them up."),
    ] = None,
    profile: ProfileOption = None,
    json: JsonOption = False,
) -> None:
    """Compare candidate clusters: time to train, cost, energy, goodput with failures.

    The section 'plan' has a target (samples, tokens or epochs), candidates (hardware, sizes,
    prices), and if you like failures, deadline, budget and upgrades. A candidate that does not fit
    or is not found is listed with the reason. The exit code is 1 if none can train. With -o it
    writes plan.html (one file, works offline), plan.md, plan.csv and plan.json.
    """
    from perfmodel.scenario import load_scenario

    question = load_scenario(scenario, set_ or ())
    _check_place(output)

    from perfmodel.calibrate import read_profile
    from perfmodel.studies.plan import plan_scenario
    from perfmodel.studies.plan.export import to_json

    measured = None if profile is None else read_profile(profile)
    with progress_bar("simulating") as progress:
        found = plan_scenario(question, profile=measured, jobs=jobs, store=store, progress=progress)
    if json:
        print_json(to_json(found))
    else:
        _print(found)
    if output is not None:
        from perfmodel.report.planning.page import write_plan

        print_note(f"wrote {write_plan(found, output)}")
    if not found.usable:
        raise typer.Exit(1)


def _check_place(output: Path | None) -> None:
    """The folder can be written, before the work is done."""
    from perfmodel.cli.output import check_writable

    fault = None if output is None else check_writable("-o", output / "plan.html")
    if fault is not None:
        raise InputError(fault)


def _print(found: PlanResult) -> None:
    """Print the answer, the options, what was refused, and what luck does."""
    from perfmodel.report.planning import tables
    from perfmodel.report.planning import text as said

    typer.echo(_plain(f"{said.headline(found)}.\n"))
    headers, rows = tables.option_table(found, narrow=True)
    if rows:
        print_table(headers, rows)
        typer.echo("")
    for title, answer in said.answers(found):
        typer.echo(_plain(f"{title}{'' if title.endswith('?') else ':'} {answer}."))
    headers, rows = tables.failure_table(found)
    if rows:
        typer.echo(f"\n{said.LOST}\n")
        print_table(headers, rows)
    for name, why in tables.refused(found):
        typer.echo(_plain(f"left out: {name}: {why}"))
    for line in found.cautions:
        print_note(f"mind: {line}")
    front = " Front: nothing else is both as quick and as cheap." if found.currency else ""
    print_note(f"Efficiency is {found.efficiency_base}.{front}{said.odds(found)}")
    more = "every upgrade of every cluster and " if found.outcomes else ""
    print_note(f"See -o DIR or --json for {more}what all this rests on.")


def _plain(text: str) -> str:
    """Spaces that may not break have kept numbers and units together; here they defeat grep."""
    return text.replace("\N{NO-BREAK SPACE}", " ")
