"""What a command may end with: an answer, plain lines about wrong input, never a traceback."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from perfmodel.errors import PerfmodelError

SIGPIPE_EXIT = 141
"""128 + SIGPIPE: what a shell reports for a program whose reader went away."""


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
            # The reader has left. Later flushes, the interpreter's own included, must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SIGPIPE_EXIT) from None
        else:
            return answer
