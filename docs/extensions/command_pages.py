"""A page for each command, from the help that it prints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from typer.main import get_command

from perfmodel.cli.app import COMMANDS, build_app

HELP = ["-h", "--help"]


def command_pages() -> dict[str, str]:
    """Return Markdown by page: one for each command, those of a group on one."""
    root: Any = get_command(build_app())
    pages = {}
    for name in COMMANDS:
        command = root.commands[name]
        inner: Mapping[str, Any] = getattr(command, "commands", {})
        lines = [f"# `perfmodel {name}`", "", _summary(command), ""]
        for word, each in inner.items():
            lines += [f"## `perfmodel {name} {word}`", "", _summary(each), ""]
            lines += _help(each, f"perfmodel {name} {word}")
        pages[name] = "\n".join(lines if inner else [*lines, *_help(command, f"perfmodel {name}")])
    return pages


def summaries() -> dict[str, str]:
    """First sentence of each command's help."""
    root: Any = get_command(build_app())
    return {name: _summary(root.commands[name]) for name in COMMANDS}


def _summary(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


def _help(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(
        name, [], resilient_parsing=True, terminal_width=96, help_option_names=HELP
    )
    yield from ("```text", command.get_help(context), "```", "")
