"""The command tree: names, groups, and what happens to errors."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli import (
    answers,
    calibrating,
    comparing,
    importing,
    listing,
    machines,
    measuring,
    model,
    planning,
    sweeping,
    tuning,
    validating,
)
from perfmodel.cli.guard import Commands
from perfmodel.version import __version__


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfmodel {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict a training step on hardware that you do not own yet: how long, limited by what.

    Exit codes: 0 done, 1 the answer is a failure, 2 the input is wrong.
    """


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)


def example(*lines: str) -> str:
    """Epilog of a command; the mark keeps its lines apart."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _build() -> typer.Typer:
    root = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    root.callback()(_root)
    for name, command, lines in (
        ("run", answers.run, answers.RUN_EXAMPLES),
        ("tune", tuning.tune, tuning.TUNE_EXAMPLES),
        ("compare", comparing.compare, comparing.COMPARE_EXAMPLES),
        ("sweep", sweeping.sweep, sweeping.SWEEP_EXAMPLES),
        ("plan", planning.plan, planning.PLAN_EXAMPLES),
        ("collective", machines.collective, machines.COLLECTIVE_EXAMPLES),
        ("buckets", model.buckets, model.BUCKETS_EXAMPLES),
        ("verify", machines.verify, machines.VERIFY_EXAMPLES),
        ("measure", measuring.measure, measuring.MEASURE_EXAMPLES),
        ("calibrate", calibrating.calibrate, calibrating.CALIBRATE_EXAMPLES),
        ("validate", validating.validate, validating.VALIDATE_EXAMPLES),
        ("scenarios", listing.scenarios, listing.SCENARIOS_EXAMPLES),
        ("models", model.models, model.MODELS_EXAMPLES),
        ("schema", listing.schema, listing.SCHEMA_EXAMPLES),
    ):
        root.command(name, epilog=example(*lines))(command)
    topology = _group("List, show, check and import hardware descriptions.")
    topology.command("list", epilog=example("perfmodel topology list"))(listing.topologies)
    topology.command("show", epilog=example(*machines.SHOW_EXAMPLES))(machines.show)
    topology.command("import", epilog=example(*importing.IMPORT_EXAMPLES))(importing.import_)
    topology.command("discover", epilog=example(*importing.DISCOVER_EXAMPLES))(importing.discover)
    topology.command("check", epilog=example(*machines.CHECK_EXAMPLES))(machines.check)
    root.add_typer(topology, name="topology")
    return root


app = _build()


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="perfmodel")
