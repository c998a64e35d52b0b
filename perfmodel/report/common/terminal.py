"""Blocks of a report in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfmodel.escape import printable
from perfmodel.report.common.document import Block, Paragraph, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_STYLES = {"headline": "bold", "note": "dim"}


def render_terminal(blocks: Iterable[Block], console: Console) -> None:
    """Print paragraphs and tables on a console; other blocks are left out.

    Lines are broken for people only: what a program or a file gets has whole sentences.
    """
    from rich.text import Text

    for block in blocks:
        if isinstance(block, Table):
            console.print(_table(block))
        elif isinstance(block, Paragraph):
            text = Text(printable(block.text, lines=True), style=_STYLES.get(block.role, ""))
            console.print(text, soft_wrap=not console.is_terminal)


def _table(block: Table) -> RenderableType:
    from rich import box, table
    from rich.text import Text

    if block.ruled:
        drawn = table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    else:
        drawn = table.Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, numeric in zip(block.titles, block.numeric, strict=True):
        drawn.add_column(
            Text(printable(title)),
            justify="right" if numeric else "left",
            no_wrap=numeric and not block.ruled,
        )
    for row in block.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn
