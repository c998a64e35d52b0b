"""The command tree; errors in the input become messages and exit codes, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perfmodel.cli import (
    buckets,
    calibrate,
    collective,
    compare,
    measure,
    plan,
    run,
    scenarios,
    sweep,
    topology,
    topology_import,
    tune,
    validate,
    verify,
)
from perfmodel.errors import PerfmodelError
from perfmodel.version import __version__

SIGPIPE_EXIT = 141
"""128 + SIGPIPE: what a shell reports for a program whose output is no longer read."""


class Commands(TyperGroup):
    """The group of all commands; turns expected errors into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of ours become lines on stderr and an exit code."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except PerfmodelError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # Nobody reads stdout any more. Later flushes, the interpreter's own too, must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SIGPIPE_EXIT) from None
        else:
            return answer


def _version(requested: bool) -> None:
    if requested:
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


def example(*lines: str) -> str:
    """Write the epilog of a command, whose first character keeps click from joining lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_Row = tuple[str, Callable[..., None], tuple[str, ...]]
"""Name, function and examples of a command."""

_COMMANDS: tuple[_Row, ...] = (
    ("run", run.run, run.RUN_EXAMPLES),
    ("tune", tune.tune, tune.TUNE_EXAMPLES),
    ("compare", compare.compare, compare.COMPARE_EXAMPLES),
    ("sweep", sweep.sweep, sweep.SWEEP_EXAMPLES),
    ("plan", plan.plan, plan.PLAN_EXAMPLES),
    ("collective", collective.collective, collective.COLLECTIVE_EXAMPLES),
    ("buckets", buckets.buckets, buckets.BUCKETS_EXAMPLES),
    ("verify", verify.verify, verify.VERIFY_EXAMPLES),
    ("measure", measure.measure, measure.MEASURE_EXAMPLES),
    ("calibrate", calibrate.calibrate, calibrate.CALIBRATE_EXAMPLES),
    ("validate", validate.validate, validate.VALIDATE_EXAMPLES),
    ("scenarios", scenarios.scenarios, scenarios.SCENARIOS_EXAMPLES),
    ("models", buckets.models, buckets.MODELS_EXAMPLES),
    ("schema", scenarios.schema, scenarios.SCHEMA_EXAMPLES),
)

_HARDWARE: tuple[_Row, ...] = (
    ("list", topology.topologies, topology.LIST_EXAMPLES),
    ("show", topology.show, topology.SHOW_EXAMPLES),
    ("import", topology_import.import_, topology_import.IMPORT_EXAMPLES),
    ("discover", topology_import.discover, topology_import.DISCOVER_EXAMPLES),
    ("check", topology.check, topology.CHECK_EXAMPLES),
)
"""Commands below ``perfmodel topology``."""


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
    for name, command, lines in _COMMANDS:
        root.command(name, epilog=example(*lines))(command)
    hardware = typer.Typer(
        help="List, show, check and import hardware descriptions.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for name, command, lines in _HARDWARE:
        hardware.command(name, epilog=example(*lines))(command)
    root.add_typer(hardware, name="topology")
    return root


app = _build()


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="perfmodel")
