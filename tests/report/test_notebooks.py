"""The notebooks of reports/notebooks show what their cells give now, and no path of a machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import perfmodel

ROOT = Path(perfmodel.__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "reports" / "notebooks").is_dir(), reason="notebooks stand in a checkout only"
)

NAMES = ("algorithms_on_a_fat_tree", "capacity_study", "own_dragonfly", "own_strategy")


def stored(name: str) -> dict[str, object]:
    path = ROOT / "reports" / "notebooks" / f"{name}.ipynb"
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_its_cells_give(name: str) -> None:
    from reports.notebooks.execute import execute, plain_texts

    before = stored(name)
    after = execute(before, pictures=False)
    changed = "python -m reports.notebooks.execute writes them anew"
    assert plain_texts(before) == plain_texts(after), changed
    assert sum(map(bool, plain_texts(after))) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_names_no_machine(name: str) -> None:
    text = json.dumps(stored(name))
    assert not re.search(r"/(home|tmp|work|usr|Users)/", text)
    assert '"output_type": "error"' not in text
    assert ("image/png" in text) == (name == "capacity_study")
