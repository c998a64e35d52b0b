"""Answers go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

Progress = Callable[[int, int], None]
"""Called with how many of how many pieces are done."""

SHOW_PROGRESS_AFTER_S = 1.0


def print_json(document: object) -> None:
    """Print one JSON document and nothing else."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns whose header starts with ``>`` stand to the right."""
    from rich import box  # noqa: PLC0415  (0.1 s of import that --help does not need)
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for header in headers:
        right = header.startswith(">")
        shown = header.removeprefix(">").replace("[", r"\[")
        table.add_column(shown, justify="right" if right else "left")
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    print_rich(table)


def print_rich(answer: object) -> None:
    """Print what rich can draw."""
    from rich.console import Console  # noqa: PLC0415  (0.1 s of import that --help does not need)

    # Without a terminal rich would assume 80 columns and cut.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 240
    console = Console(width=width, highlight=False, file=sys.stdout)
    with console.capture() as captured:
        console.print(answer)
    # Spaces that may not break have kept numbers and units together; now they would defeat grep.
    lines = captured.get().replace("\N{NO-BREAK SPACE}", " ").splitlines()
    typer.echo("\n".join(line.rstrip() for line in lines))


def note(text: str) -> None:
    """Say something beside the answer."""
    typer.echo(text, err=True)


@contextmanager
def progress_bar(label: str) -> Iterator[Progress | None]:
    """Give a `Progress` whose bar appears after a second; None if there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(label)
    try:
        yield bar.update
    finally:
        bar.stop()


class _Bar:
    def __init__(self, label: str) -> None:
        self.label = label
        self.began_s = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def update(self, done: int, total: int) -> None:
        if self.bar is None:
            if time.monotonic() - self.began_s < SHOW_PROGRESS_AFTER_S:
                return
            from rich.console import Console  # noqa: PLC0415  (only for work that takes long)
            from rich.progress import Progress as RichProgress  # noqa: PLC0415

            self.bar = RichProgress(console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(self.label, total=total)
            self.bar.start()
        self.bar.update(self.task, completed=done, total=total)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
