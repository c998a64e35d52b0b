"""Words to paste, as parts of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.report.common.document import Block, Code, Paragraph, Section, paragraphs, section

if TYPE_CHECKING:
    from perfmodel.training.words import Words


def words_blocks(words: Mapping[str, Words]) -> list[Block]:
    """What each program is told, and what it has no word for."""
    return [
        block
        for each in words.values()
        for block in (
            Paragraph(f"{each.title}:"),
            Code(each.text),
            *paragraphs([each.remark], "hint"),
        )
    ]


def words_section(words: Mapping[str, Words]) -> Section | None:
    """Make a section of it; None where no program is told anything."""
    return section("What your program is told", "", *words_blocks(words)) if words else None
