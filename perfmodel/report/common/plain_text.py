"""Blocks of a report as Markdown that shows any text as text, and in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from textwrap import indent
from typing import TYPE_CHECKING

from perfmodel.escape import printable
from perfmodel.report.common.document import (
    Block,
    Bullets,
    Code,
    Definitions,
    Header,
    Heading,
    Paragraph,
    Section,
    Table,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_MARKUP = re.compile(r"[\\`*{}\[\]#|~$!]|(?<!\w)_|_(?!\w)|^>")


_MARKS = {"headline": "# ", "question": "Question: "}


def escape_markdown(text: str) -> str:
    r"""Write a text so that no renderer takes it for markup, on one line.

    Examples
    --------
    >>> escape_markdown("a|b <img src=x> *c*")
    'a\\|b &lt;img src=x> \\*c\\*'
    """
    line = printable(" ".join(text.split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(r"\\\g<0>", line)


def render_markdown(blocks: Iterable[Block | None]) -> str:
    """Write headings, sentences, lists and tables; other blocks are left out."""
    return "\n\n".join(text for block in blocks if block and (text := _render(block))) + "\n"


def _render(block: Block) -> str:
    text = ""
    match block:
        case Paragraph(text, role):
            text = _MARKS.get(role, "") + escape_markdown(text)
        case Heading(text):
            text = f"### {escape_markdown(text)}"
        case Bullets(lines):
            text = "\n".join(f"- {escape_markdown(line)}" for line in lines)
        case Definitions(entries):
            # a name that is a question needs no colon
            named = {f"{name}{'' if name[-1:] == '?' else ':'}": of for name, of in entries.items()}
            text = _render(Bullets([f"{name} {of}" for name, of in named.items()]))
        case Code(text):
            text = f"```\n{printable(text, lines=True).replace('```', '` ` `')}\n```"
        case Table():
            rule = ["---:" if numeric else "---" for numeric in block.numeric]
            titles, *rows = ([*map(escape_markdown, row)] for row in (block.titles, *block.rows))
            text = "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *rows))
        case Header(paragraphs):
            answer_first = [p for p in paragraphs if p.role == "headline"]
            text = render_markdown(dict.fromkeys([*answer_first, *paragraphs]))
        case Section(title, blocks):
            text = f"## {escape_markdown(title)}\n\n{render_markdown(blocks)}"
    return text.strip()


def plain_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Write text, code and tables in whole lines, for a file or a program; the rest is left out."""
    for block in blocks:
        if isinstance(block, Table):
            yield from _table_lines(block)
        elif isinstance(block, Paragraph | Code):
            yield from _written(block).split("\n")


def _written(block: Paragraph | Code) -> str:
    """Return the lines of a text; those of code are set in."""
    text = printable(block.text, lines=True)
    return indent(text, "  ") if isinstance(block, Code) else text


def _table_lines(block: Table) -> Iterator[str]:
    rows = [[*map(printable, row)] for row in (block.titles, *block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = " " * (3 if block.ruled else 2)
    for at, row in enumerate(rows):
        yield gap.join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, block.numeric, strict=True)
        )
        if block.ruled and not at:
            yield "─" * (sum(widths) + len(gap) * (len(widths) - 1))


_STYLES = {"headline": "bold", "note": "dim"}


def render_terminal(blocks: Iterable[Block], console: Console) -> None:
    """Print text, code and tables on the console of a terminal; other blocks are left out."""
    from rich.text import Text

    for block in blocks:
        if isinstance(block, Table):
            console.print(_terminal_table(block))
        elif isinstance(block, Paragraph | Code):
            role = block.role if isinstance(block, Paragraph) else ""
            console.print(Text(_written(block), style=_STYLES.get(role, "")))


def _terminal_table(block: Table) -> RenderableType:
    from rich import box, table
    from rich.text import Text

    drawn = (
        table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        if block.ruled
        else table.Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    )
    for title, numeric in zip(block.titles, block.numeric, strict=True):
        drawn.add_column(
            Text(printable(title)),
            justify="right" if numeric else "left",
            no_wrap=numeric and not block.ruled,
        )
    for row in block.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn
