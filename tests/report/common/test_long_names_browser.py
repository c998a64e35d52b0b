"""A name of 10,000 characters makes no page wider than its window."""

from pathlib import Path

import pytest

from perfmodel.report.common.document import (
    Block,
    Box,
    Bullets,
    Code,
    Definitions,
    Folded,
    Heading,
    Paragraph,
    Table,
    Tile,
    Tiles,
    header,
    section,
)
from perfmodel.report.common.html import render_html

pytestmark = pytest.mark.browser

NAME = 10_000 * "n"

BLOCKS: dict[str, Block] = {
    "header": header(NAME, NAME, [NAME], [NAME], [NAME]),
    "section": section(NAME, NAME),
    "paragraph": Paragraph(NAME),
    "heading": Heading(NAME),
    "bullets": Bullets([NAME]),
    "definitions": Definitions({NAME: NAME}),
    "table": Table((NAME, "b"), [(NAME, NAME)]),
    "tiles": Tiles([Tile(NAME, NAME, NAME)]),
    "code": Code(NAME),
    "box": Box("", [Paragraph(NAME)]),
    "folded": Folded(NAME, [Paragraph(NAME)]),
}


def test_blocks_are_no_wider_than_the_window(browser, tmp_path: Path):
    """All on one page, each in a box of its own, which names what is too wide."""
    page = browser.new_page()
    page.set_default_timeout(180_000)
    file = tmp_path / "names.html"
    boxes = [Box(f"of-{name}", [block]) for name, block in BLOCKS.items()]
    file.write_text(render_html("names", boxes))
    page.goto(file.as_uri())
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        wide = [
            name
            for name in BLOCKS
            if page.evaluate(f"document.querySelector('.of-{name}').scrollWidth") > width
        ]
        assert wide == []
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
