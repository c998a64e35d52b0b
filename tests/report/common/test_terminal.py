"""Text of others in a terminal is text: no control characters, no markup, no pictures."""

from __future__ import annotations

import pytest

from perfmodel.cli.output import print_blocks, print_note, print_text
from perfmodel.report.common.document import Paragraph, Table

HOSTILE = "\x1b[31mred\u202e [/foo] [bold]x[/bold] :smile: \x07"
SHOWN = "\\x1b[31mred\\u202e [/foo] [bold]x[/bold] :smile: \\x07"


def test_tables_and_paragraphs_show_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_blocks([Paragraph(HOSTILE), Table((HOSTILE,), [(HOSTILE,)])])
    assert capsys.readouterr().out.count(SHOWN) == 3


def test_texts_and_notes_show_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE)
    print_note(HOSTILE)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{SHOWN}\n", f"{SHOWN}\n")
