"""YAML that is written is read back as it was, whatever its strings are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.files.read import parse_yaml, plain
from perfmodel.topology.from_text.template_builder import rate
from perfmodel.topology.importers.imported import template_text
from perfmodel.topology.templates.build import load_node, template_names

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.sampled_from(
        [
            "25 GB/s",
            "0.3 us",
            "true",
            "no",
            "null",
            "1e3",
            "a: b",
            "- x",
            "# c",
            "0x1",
            "NVIDIA A100 data sheet, 12 NVLinks",
            "",
            " ",
            "{a",
            "2.0",
            ".5",
            "1_000",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20),
)
DOCUMENTS = st.dictionaries(
    st.text("abcdefgh_-", min_size=1, max_size=8),
    st.one_of(
        SCALARS,
        st.lists(SCALARS, max_size=3),
        st.lists(st.dictionaries(st.sampled_from("abc"), SCALARS, max_size=3), max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "1"]), SCALARS, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


@given(DOCUMENTS)
def test_any_document_comes_back(document: dict[str, Any]) -> None:
    assert plain(parse_yaml(template_text(document, ["a comment", "two\nlines"]))) == document


def test_comments_stand_beside_their_entries() -> None:
    text = template_text({"edges": [{"a": 1}, {"a": 2}]}, ["head"], {"edges": {1: "line 7"}})
    assert text == "# head\nedges:\n  - {a: 1}\n  - {a: 2}  # line 7\n"


def test_rates_keep_their_digits() -> None:
    assert rate(14.0625e9) == "14.0625 GB/s"
    assert rate(31.5e9) == "31.5 GB/s"


def test_links_of_one_name_are_the_same_in_all_templates() -> None:
    """What a machine is made of does not depend on who described it; numbers of other fits do."""
    found: dict[str, set[tuple[float, float]]] = {}
    for name in template_names():
        for link, spec in load_node(name).links.items():
            if spec.kind == "nvlink" or link in {"pcie3", "pcie5"}:
                found.setdefault(link, set()).add((spec.bandwidth, spec.efficiency))
    assert {link: len(numbers) for link, numbers in found.items()} == dict.fromkeys(found, 1)


@pytest.mark.parametrize("evil", ["a\nb: 1", "a\r\nb: 1", "a\x85b: 1", "a\u2028b: 1", "\x7f"])
def test_words_of_strangers_stay_in_their_comments_and_values(evil: str) -> None:
    document = {"name": evil, "edges": [{"to": evil}]}
    text = template_text(document, [evil], {"edges": {0: evil}})
    assert plain(parse_yaml(text)) == document
