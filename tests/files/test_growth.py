"""Readers take time in proportion to the file: what repeats is not gone through again each time."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.errors import InputError
from perfmodel.files import FileModel, validate_document
from perfmodel.files.validate import MOST_NEAREST
from perfmodel.topology.importers.import_file import import_file

FACTOR = 4
"""How many times larger the second file is; a reader that is quadratic takes 16 times as long."""

MOST = 9.0
"""Ratio of CPU times between that of a linear reader, 4, and that of a quadratic one."""


def growth(
    read: Callable[[Path], object], path: Path, write: Callable[[int], str], n: int
) -> float:
    """Ratio of CPU times of two files, each the quickest of three."""

    def cpu_s(count: int) -> float:
        path.write_text(write(count))
        times = []
        for _ in range(3):
            began_s = time.process_time()
            with suppress(InputError):
                read(path)
            times.append(time.process_time() - began_s)
        return min(times)

    return cpu_s(FACTOR * n) / cpu_s(n)


def test_documents_one_after_another(tmp_path: Path) -> None:
    ratio = growth(lambda p: read_files([p]), tmp_path / "x.json", lambda n: "{}" * n, 25_000)
    assert ratio < MOST


@pytest.mark.slow
def test_comments_of_an_xml(tmp_path: Path) -> None:
    def write(count: int) -> str:
        return f"{'<!--a-->' * count}<system>{'<!--a-->' * count}</system>"

    assert growth(import_file, tmp_path / "x.xml", write, 100_000) < MOST


class Section(FileModel):
    size: int = 0


def test_the_nearest_name_is_searched_for_a_few_unknown_keys_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[str] = []
    search = difflib.get_close_matches

    def count(word: str, *rest: object, **more: object) -> list[str]:
        searches.append(word)
        return search(word, *rest, **more)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(difflib, "get_close_matches", count)
    with pytest.raises(InputError) as refused:
        validate_document(Section, {f"sise{n}": 1 for n in range(4000)})
    assert len(refused.value.faults) == 4000
    assert len(searches) == MOST_NEAREST
