"""A damaged store: the right rows or a refusal that names the file and what to do; never others."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.studies.sweep import Answer, Store
from reports.robustness import damage

ANSWERS = damage.ANSWERS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of eight rows, half of them still in its write-ahead log."""
    folder = tmp_path_factory.mktemp("whole")
    damage.make_store(folder)
    return folder


def read(path: Path) -> dict[str, Answer] | str:
    """Rows of a store, and of all rows once those that are missing were added; or a refusal."""
    try:
        with Store(path) as store:
            first = store.find(ANSWERS)
            for key in ANSWERS.keys() - first.keys():
                store.add(key, {"x": key}, ANSWERS[key])
            assert store.find(ANSWERS) == ANSWERS
    except InputError as error:
        return refusal(error, path)
    return first


def refusal(error: InputError, path: Path) -> str:
    """What was found; the message names the file and what to do."""
    (fault,) = error.faults
    assert (fault.field, fault.file) == ("--store", str(path))
    assert fault.allowed.startswith(("a new file", "a store", "a place"))
    assert str(error).isprintable()
    return fault.found


@settings(max_examples=40)
@given(st.sampled_from(damage.KINDS), st.randoms(use_true_random=False))
def test_damage_of_any_kind(whole: Path, kind: Callable[..., None], chance) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(whole, Path(folder) / "copy"))
        kind(copy, chance)
        outcome = read(copy / damage.NAME)
        if not isinstance(outcome, str):
            assert outcome.items() <= ANSWERS.items()


def test_without_damage_all_rows_are_there(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    assert (copy / f"{damage.NAME}-wal").stat().st_size > 0
    assert read(copy / damage.NAME) == ANSWERS


@pytest.mark.parametrize("column", ["key", "status", "question", "answer", "checksum"])
def test_a_row_that_was_edited_is_named(whole: Path, tmp_path: Path, column: str) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "copy")) / damage.NAME
    base = sqlite3.connect(path)
    base.execute(f"UPDATE answers SET {column} = 'x' || {column} WHERE key LIKE '%3'")
    base.commit()
    base.close()
    found = read(path)
    assert isinstance(found, str)
    assert found.startswith("1 of 8 rows damaged or edited (the first has the key b'")


def test_the_command_refuses_with_a_sentence(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "copy")) / damage.NAME
    base = sqlite3.connect(path)
    base.execute("UPDATE answers SET answer = replace(answer, '0.25', '0.20')")
    base.commit()
    base.close()
    words = ["sweep", "sweep-buckets-and-nodes", "--store", str(path), "-j", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"{path}: --store: found 1 of 8 rows damaged or edited" in done.stderr
    assert "move this file away, or delete it, and run again" in done.stderr


# ---------------------------------------------------------------- files that are no store


@pytest.mark.parametrize("size", [1, 2, 511])
def test_a_short_file_is_not_taken_over(tmp_path: Path, size: int) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"x" * size)
    assert read(path) == f"a file of {size} bytes that is no store"
    assert path.read_bytes() == b"x" * size


def test_an_empty_database_of_another_program_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version=7")
    base.execute("CREATE TABLE soon (x)")
    base.execute("DROP TABLE soon")
    base.close()
    before = path.read_bytes()
    assert before
    assert read(path) == "another program's database"
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.touch()
    assert read(path) == {}
    assert read(path) == ANSWERS
