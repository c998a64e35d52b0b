"""Blocks of a report as Markdown that shows any text as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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
            text = _render(Bullets(_definitions(entries)))
        case Table():
            text = _table(block)
        case Header(paragraphs):
            answer_first = [p for p in paragraphs if p.role == "headline"]
            text = render_markdown(dict.fromkeys([*answer_first, *paragraphs]))
        case Section(title, blocks):
            text = f"## {escape_markdown(title)}\n\n{render_markdown(blocks)}"
    return text.strip()


def _definitions(entries: Mapping[str, str]) -> list[str]:
    """Sentences; a name that is a question needs no colon."""
    return [
        f"{name}{'' if name.endswith('?') else ':'} {meaning}" for name, meaning in entries.items()
    ]


def _table(block: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in block.numeric]
    lines = [[escape_markdown(title) for title in block.titles], rule]
    lines += [[escape_markdown(cell) for cell in row] for row in block.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
