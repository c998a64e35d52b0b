"""The command tree; errors in the input become messages and exit codes, never a traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from perfmodel.errors import Fault, PerfmodelError, nearest
from perfmodel.escape import PLAIN_ERRORS, printable
from perfmodel.version import __version__

_CHOICE = re.compile(r"'(?P<found>[^']*)' is not one of (?P<names>'.*')\.")
"""How click refuses what is none of a flag's values."""

SIGPIPE_EXIT = 141
"""128 + SIGPIPE: what a shell reports for a program whose output is no longer read."""


class Commands(TyperGroup):
    """The group of all commands; turns expected errors into messages and exit codes."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the flags of the root; what a terminal would obey is escaped in messages."""
        with _plain_messages():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of ours become lines on stderr and an exit code."""
        try:
            with _plain_messages():
                answer = super().invoke(ctx)
            sys.stdout.flush()
        except PerfmodelError as error:
            typer.echo(printable(str(error), lines=True), err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(SIGPIPE_EXIT) from None
        except OSError as error:  # files are read and written where the errors of each are caught
            _discard_stdout()
            reason = error.strerror or str(error)
            fault = Fault("stdout", reason, "a place that can be written")
            if isinstance(error.filename, str):
                fault = Fault("file", reason, "a file that can be used", error.filename)
            typer.echo(printable(str(fault)), err=True)
            raise typer.Exit(2) from None
        else:
            return answer


@contextmanager
def _plain_messages() -> Iterator[None]:
    """Escape what messages about flags repeat of them."""
    try:
        yield
    except Exception as error:
        # typer brings its own copy of click, whose classes have no public name
        if isinstance(text := getattr(error, "message", None), str):
            text = text.replace("Value error, ", "", 1)  # pydantic's, which says nothing here
            text = _with_nearest(text)
            error.message = printable(text, lines=True)  # type: ignore[attr-defined]
        raise


def _with_nearest(text: str) -> str:
    """Add the name that was meant to click's message about a choice."""
    match = _CHOICE.fullmatch(text)
    if match is None:
        return text
    meant = nearest(re.findall(r"'([^']*)'", match["names"]), match["found"])
    return f"{text} Did you mean {meant!r}?" if meant else text


def _discard_stdout() -> None:
    """Later flushes, the interpreter's own too, must not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


COMMANDS = {
    "run": "run",
    "tune": "tune",
    "compare": "compare",
    "sweep": "tune",
    "plan": "run",
    "advise": "run",
    "collective": "collective",
    "buckets": "buckets",
    "trace": "trace",
    "export": "trace",
    "verify": "collective",
    "capture": "catalogue",
    "measure": "measure",
    "calibrate": "calibrate",
    "validate": "validate",
    "scenarios": "catalogue",
    "models": "catalogue",
    "schema": "catalogue",
    "doctor": "catalogue",
    "init": "init",
    "topology": "topology",
}
"""Module of each command, in the order of the help."""

TOPOLOGY_COMMANDS = {
    "list": "topology",
    "show": "topology",
    "import": "topology",
    "discover": "topology",
    "check": "topology",
}

FUNCTIONS = {"list": "topologies", "import": "import_"}
"""Functions that cannot bear the name of their command."""


def build_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the tree of some commands; only their modules are imported."""
    root = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    root.callback()(_root)
    for name in commands:
        if name != "topology":
            _add_command(root, name, COMMANDS)
            continue
        hardware = typer.Typer(
            help="List, show, check and import hardware descriptions.",
            no_args_is_help=True,
            rich_markup_mode=None,
        )
        for subcommand in TOPOLOGY_COMMANDS:
            _add_command(hardware, subcommand, TOPOLOGY_COMMANDS)
        root.add_typer(hardware, name="topology")
    return root


def _add_command(group: typer.Typer, name: str, modules: Mapping[str, str]) -> None:
    module = import_module(f"perfmodel.cli.{modules[name]}")
    lines = getattr(module, f"{name.upper()}_EXAMPLES")
    group.command(name, epilog=example(*lines))(getattr(module, FUNCTIONS.get(name, name)))


if TYPE_CHECKING:
    app: typer.Typer


def __getattr__(name: str) -> Any:
    if name == "app":  # all commands
        return build_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Entry point of the console script."""
    # OpenBLAS starts a thread for each core, which spin while modules load: a tenth of a small run.
    # The matrices here are small, and sums should not depend on the number of cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # reads all installed packages
    _prepare_streams()
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    build_app([first] if first in COMMANDS else COMMANDS)(prog_name="perfmodel")


def _prepare_streams() -> None:
    """Let any encoding of a terminal do, and streams that were closed before the start."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN_ERRORS)
