"""Tables of what ships have all of it."""

from __future__ import annotations

import yaml

from docs.extensions import api_pages, catalog_tables
from perfmodel.collectives.catalog import ALGORITHMS
from tests.docs.pages import DOCS


def test_every_algorithm_is_described() -> None:
    rows = [line.strip("| ").split(" | ") for line in catalog_tables.algorithms().splitlines()[2:]]
    assert [(op, name) for op, name, _ in rows] == [
        (f"`{op}`", f"`{name}`") for op, named in ALGORITHMS.items() for name in named
    ]
    assert all(does.endswith(".") for *_, does in rows)


def test_every_listed_price_and_rate_has_its_date() -> None:
    file = DOCS.parent / "perfmodel" / "studies" / "plan" / "prices.yaml"
    listed = yaml.safe_load(file.read_text("utf-8"))
    for part, text in (
        ("prices", catalog_tables.prices()),
        ("failures", catalog_tables.failures()),
    ):
        rows = text.splitlines()[2:]
        assert len(rows) == len(listed[part])
        for row, line in zip(rows, listed[part], strict=True):
            assert f"`{line['gpu']}`" in row
            assert f"| {line['date']} |" in row


def test_a_twin_has_class_methods() -> None:
    text = api_pages.docstring_markdown("perfmodel.collectives.schedule.Schedule")
    assert "## from_rounds" in text
    assert "(src, dst, chunk, adds," in text
