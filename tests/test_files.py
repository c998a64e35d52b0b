"""Files: strict YAML with lines, every fault at once, lookup by name, whole or no writing."""

import json
import os
import stat
from typing import Annotated, Literal

import pytest
from pydantic import Field

from perfmodel.errors import InputError
from perfmodel.files import (
    Bandwidth,
    Bytes,
    Count,
    FileModel,
    FlopRate,
    Seconds,
    find_file,
    line_of,
    load_document,
    plain,
    read_yaml,
    shipped,
    validate_document,
    write_atomically,
    write_json,
)


class Cat(FileModel):
    kind: Literal["cat"]
    lives: Count = 9


class Dog(FileModel):
    kind: Literal["dog"]
    bark: str = "wuff"


class Example(FileModel):
    size: Bytes
    speed: Bandwidth = 1.0
    delay: Seconds = 0.0
    compute: FlopRate = 1.0
    ratio: float = 1.0
    items: tuple[Count, ...] = ()
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None


def write(tmp_path, text, name="x.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(tmp_path, text):
    with pytest.raises(InputError) as caught:
        load_document(Example, write(tmp_path, text))
    return caught.value.faults


def test_quantities_are_read_into_si(tmp_path):
    text = "size: 25 MiB\nspeed: 400 Gbit/s\ndelay: 0 s\ncompute: 312 TFLOP/s\n"
    spec = load_document(Example, write(tmp_path, text))
    assert (spec.size, spec.speed, spec.delay, spec.compute) == (25 * 2**20, 50e9, 0, 312e12)


def test_every_fault_is_found_at_once_with_its_line(tmp_path):
    faults = faults_of(
        tmp_path, "size: 25\nspeed: 0 GB/s\ndelay: -1 us\nsped: 3\nratio: .nan\nitems: [1, 0, x]\n"
    )
    found = {(f.field, f.line): (f.found, f.allowed) for f in faults}
    assert found["size", 1] == ("25 (no unit)", "a size such as '25 MiB'")
    assert found["speed", 2] == ("'0 GB/s'", "more than zero")
    assert found["delay", 3] == ("'-1 us'", "zero or more")
    assert "did you mean 'speed'" in found["sped", 4][1]
    assert found["ratio", 5] == ("nan", "a finite number")
    assert found["items.1", 6] == ("0", "greater than 0")
    assert found["items.2", 6] == ("'x'", "a whole number")
    assert len(faults) == 7
    assert all(f.file.endswith("x.yaml") for f in faults)


@pytest.mark.parametrize("value", ["true", "'4'", "4.5", "null", "-1", "1e400"])
def test_a_count_is_a_whole_number_above_zero(tmp_path, value):
    (fault,) = faults_of(tmp_path, f"size: 1 B\nitems: [{value}]\n")
    assert fault.field == "items.0"
    assert fault.line == 2


def test_faults_in_a_union_speak_of_the_member_that_was_chosen(tmp_path):
    (fault,) = faults_of(tmp_path, "size: 1 B\npet:\n  kind: cat\n  barks: loud\n")
    assert (fault.field, fault.line) == ("pet.barks", 4)
    assert "'lives'" in fault.allowed
    assert "'bark'" not in fault.allowed


def test_an_unknown_member_of_a_union_is_told_the_known_ones(tmp_path):
    (fault,) = faults_of(tmp_path, "size: 1 B\npet: {kind: cta}\n")
    assert (fault.field, fault.line, fault.found) == ("pet.kind", 2, "'cta'")
    assert fault.allowed == "one of 'cat', 'dog' (did you mean 'cat'?)"
    (fault,) = faults_of(tmp_path, "size: 1 B\npet: {lives: 3}\n")
    assert (fault.field, fault.found) == ("pet.kind", "nothing")


class Listing(FileModel):
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]


@pytest.mark.parametrize(("value", "field"), [([-1], "ranks.0"), ([], "ranks")])
def test_a_list_is_not_also_too_short_when_its_member_is_wrong(value, field):
    with pytest.raises(InputError) as caught:
        validate_document(Listing, {"ranks": value})
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_missing_field_is_named(tmp_path):
    (fault,) = faults_of(tmp_path, "ratio: 2\n")
    assert (fault.field, fault.found) == ("size", "nothing")


def test_yaml_is_version_1_2(tmp_path):
    document = plain(read_yaml(write(tmp_path, "a: 1e9\nb: no\nc: 0o17\nd: 1.5\ne: 08\n")))
    assert document["a"] == 1e9
    assert document["b"] == "no"
    assert document["c"] == 15
    assert document["d"] == 1.5


def test_anchors_keep_their_type(tmp_path):
    document = plain(read_yaml(write(tmp_path, "a: &x true\nb: *x\n")))
    assert document == {"a": True, "b": True}
    assert document["a"] is True


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key"),
        ("a: [1, 2\n", 2, "expected"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: *nope\n", 1, "undefined alias"),
        ("", None, "nothing"),
        ("# only a comment\n", None, "nothing"),
    ],
)
def test_what_is_not_one_yaml_document_is_refused(tmp_path, text, line, words):
    with pytest.raises(InputError) as caught:
        read_yaml(write(tmp_path, text))
    (fault,) = caught.value.faults
    assert (fault.line, fault.file) == (line, str(tmp_path / "x.yaml"))
    assert words in fault.found


def test_an_alias_that_contains_itself_is_refused(tmp_path):
    with pytest.raises(InputError, match="contains itself"):
        load_document(Example, write(tmp_path, "&a\nsize: 1 B\nitems: *a\n"))


@pytest.mark.parametrize("document", [[1, 2], "text", 3])
def test_a_document_that_is_no_mapping_is_refused(document):
    with pytest.raises(InputError, match=r"f\.yaml.*document"):
        validate_document(Example, document, "f.yaml")


def test_files_that_cannot_be_read(tmp_path):
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path, words in (
        (tmp_path / "absent.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "not text"),
    ):
        with pytest.raises(InputError, match=words):
            load_document(Example, path)


def test_a_file_without_permission(tmp_path, monkeypatch):
    path = write(tmp_path, "size: 1 B\n")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", denied)  # root may read everything
    with pytest.raises(InputError, match=r"x\.yaml: file: found Permission denied"):
        load_document(Example, path)


def test_line_of_walks_lists_and_mappings(tmp_path):
    document = read_yaml(write(tmp_path, "a:\n  - x: 1\n    y: 2\n  - 3\n"))
    assert line_of(document, ["a", 0, "y"]) == 3
    assert line_of(document, ["a", 1]) == 4
    assert line_of(document, ["a", 0, "absent"]) == 2
    assert line_of({"a": 1}, ["a"]) is None


# ---------------------------------------------------------------- lookup


def test_names_are_found_here_first_then_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    name = next(iter(shipped("scenarios")))
    assert find_file(name, "scenarios") == shipped("scenarios")[name]
    user = tmp_path / "home" / ".config" / "perfmodel" / "scenarios" / f"{name}.yaml"
    write_atomically(user, "x: 1\n")
    assert find_file(name, "scenarios") == user
    write_atomically(tmp_path / "scenarios" / f"{name}.yaml", "x: 1\n")
    assert find_file(name, "scenarios").resolve() == tmp_path / "scenarios" / f"{name}.yaml"
    explicit = write(tmp_path, "x: 1\n", "mine.txt")
    assert find_file(str(explicit), "scenarios") == explicit


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50-dgx-a10", "did you mean 'resnet50-dgx-a100'"),
        ("", "allowed"),
        ("no/such/file.yaml", "no such file"),
        ("~nobody-by-that-name/x", "allowed"),
        ("x" * 5000, "allowed"),
        ("a\0b", "allowed"),
    ],
)
def test_what_is_not_found_lists_what_there_is(name, words):
    with pytest.raises(InputError, match="resnet50-dgx-a100") as caught:
        find_file(name, "scenarios", field="SCENARIO")
    assert str(caught.value).startswith("SCENARIO: found ")
    assert words in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="which is a folder"):
        find_file(str(tmp_path), "scenarios")


# ---------------------------------------------------------------- writing


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
