"""Text of others in a terminal is text: no control characters, no markup, no pictures."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.cli.output import print_blocks, print_notes, print_text
from perfmodel.report.common.document import Paragraph, Table

HOSTILE = "\x1b[31mred\u202e [/foo] [bold]x[/bold] :smile: \x07"
SHOWN = "\\x1b[31mred\\u202e [/foo] [bold]x[/bold] :smile: \\x07"


def test_tables_and_paragraphs_show_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_blocks([Paragraph(HOSTILE), Table((HOSTILE,), [(HOSTILE,)])])
    assert capsys.readouterr().out.count(SHOWN) == 3


def test_texts_and_notes_show_what_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(HOSTILE)
    print_notes(HOSTILE)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"{SHOWN}\n", f"{SHOWN}\n")


@pytest.mark.parametrize("words", [["run", "--\x1b[31m"], ["\x1b[31m"], ["topology", "\x1b[31m"]])
def test_messages_about_flags_show_what_stands_there(words: list[str]) -> None:
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "\\x1b[31m" in refused.stderr
    assert "\x1b" not in refused.stderr
