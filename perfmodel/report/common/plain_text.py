"""Blocks of a report as Markdown that shows any text as text, and in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfmodel.escape import printable
from perfmodel.report.common.document import (
    Block,
    Bullets,
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


_STYLES = {"headline": "bold", "note": "dim"}


def render_terminal(blocks: Iterable[Block], console: Console) -> None:
    """Print paragraphs and tables on a console; other blocks are left out.

    Lines are broken for people only: what a program or a file gets has whole sentences.
    """
    from rich.text import Text

    for block in blocks:
        if isinstance(block, Table):
            console.print(_terminal_table(block))
        elif isinstance(block, Paragraph):
            text = Text(printable(block.text, lines=True), style=_STYLES.get(block.role, ""))
            console.print(text, soft_wrap=not console.is_terminal)


def _terminal_table(block: Table) -> RenderableType:
    from rich import box, table
    from rich.text import Text

    drawn = table.Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if block.ruled:
        drawn = table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for title, numeric in zip(block.titles, block.numeric, strict=True):
        drawn.add_column(
            Text(printable(title)),
            justify="right" if numeric else "left",
            no_wrap=numeric and not block.ruled,
        )
    for row in block.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn
