"""Markdown of a document: any text stays text."""

from __future__ import annotations

from perfmodel.report.common.document import (
    Bullets,
    Code,
    Definitions,
    Header,
    Paragraph,
    Table,
    section,
)
from perfmodel.report.common.plain_text import escape_markdown, render_markdown


def test_markdown_shows_hostile_text_as_text() -> None:
    assert escape_markdown("<img src=x onerror=alert(1)>") == "&lt;img src=x onerror=alert(1)>"
    assert escape_markdown("a|b\nc") == "a\\|b c"
    assert escape_markdown("[x](javascript:alert(1))") == "\\[x\\](javascript:alert(1))"
    assert escape_markdown("gpu_memory _x_") == "gpu_memory \\_x\\_"
    assert escape_markdown("a\x1b[31mb\u202ec") == "a\\\\x1b\\[31mb\\\\u202ec"
    assert render_markdown([Table((">a|",), [("<b>",)])]) == "| a\\| |\n| ---: |\n| &lt;b> |\n"


def test_blocks_in_order() -> None:
    header = Header([Paragraph("a setting", "setting"), Paragraph("It is so", "headline")])
    body = section(
        "Why", "Lead.", Bullets(["one", "two"]), Definitions({"Is it?": "yes", "x": "1"}), None
    )
    text = render_markdown([header, body, Code("*a*\n```")])
    assert text == (
        "# It is so\n\na setting\n\n## Why\n\nLead.\n\n- one\n- two\n\n- Is it? yes\n- x: 1\n"
        "\n```\n*a*\n` ` `\n```\n"
    )
