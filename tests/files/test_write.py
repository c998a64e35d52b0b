"""Files written whole or not at all."""

import json
import os
import stat

import pytest

from perfmodel.errors import InputError
from perfmodel.files import (
    write_atomically,
    write_json,
)


def test_writing_replaces_the_whole_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"step_time_s": 0.1, "over": None})
    assert json.loads(path.read_text()) == {"step_time_s": 0.1, "over": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"step_time_s": float("nan")})
    assert "0.1" in path.read_text()


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "a.txt", tmp_path / "folder"):
        with pytest.raises(InputError, match="a place that can be written"):
            write_atomically(path, "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
