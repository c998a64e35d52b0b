"""Every code block of every page is run, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, at, blocks, commands, is_alike, pages, read_aloud, renewed

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="pages stand in a checkout only")


@pytest.mark.slow
@pytest.mark.timeout(900)  # some ask a dozen questions
@pytest.mark.parametrize("page", pages())
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text("utf-8")
    with at(tmp_path):
        for _, line, said, printed in read_aloud(text, page, tmp_path):
            assert is_alike(said, printed), f"{page}: {line}\n{printed}"


@pytest.mark.parametrize("page", pages())
def test_yaml_and_json_of_a_page_can_be_read(page: str) -> None:
    for block in blocks((DOCS / page).read_text("utf-8")):
        if block.language in ("yaml", "json"):
            assert yaml.safe_load(block.body) is not None, block.body


def test_blocks_of_a_page() -> None:
    text = (
        "```{code-block} yaml\n:caption: mine.yaml\n\na: 1\n```\n"
        "<!-- needs: a cluster -->\n```console\n$ perfmodel run mine.yaml\n```\n"
        "```{schedule-steps} ring\nranks: 4\n```\n"
    )
    first, second = blocks(text)
    assert (first.language, first.caption, first.body) == ("yaml", "mine.yaml", "a: 1\n")
    assert second.needs == "a cluster"
    assert list(commands(second.body)) == [("perfmodel run mine.yaml", "")]


def test_a_wrong_number_is_noticed() -> None:
    assert is_alike("a step takes 108 ms\n...\n", "a step takes 108 ms\nand more\n")
    assert not is_alike("a step takes 107 ms\n", "a step takes 108 ms\n")
    assert is_alike("", "whatever a command prints that is shown without it\n")


def test_a_page_is_renewed_line_by_line() -> None:
    printed = "step  108 ms\nMFU 19 %\nFits: 9 GiB\n"
    said = "step  107 ms\n...\nFits: 8 GiB\n"
    assert renewed(said, printed) == "step  108 ms\n...\nFits: 9 GiB\n"
    assert renewed("?\n", printed) == printed
