"""Strict reading of text and YAML 1.2."""

import gzip

import pytest

from perfmodel.errors import InputError
from perfmodel.files import (
    line_of,
    load_document,
    plain,
    read_text,
    read_yaml,
)
from tests.files.documents import Example, write


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
        ("a: 1\n\tb: 2\n", 2, "tab"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: *nope\n", 1, "undefined alias"),
        ("a: 1\n[b, c]: 2\n", 2, "a key that is a list or a mapping"),
        ("a: 1\nb: !!set {? {c: d}}\n", 2, "a tag, tag:yaml.org,2002:set"),
        ("a: 1\n<<: [{b: 2}, 3]\n", 2, "<< beside what is no mapping"),
        ("? " * 300 + "1\n", 1, "a key that is a list or a mapping"),  # hashed, it never ends
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
    with pytest.raises(InputError, match="an alias in itself"):
        load_document(Example, write(tmp_path, "&a\nsize: 1 B\nitems: *a\n"))


def test_merged_mappings_give_way_to_own_keys(tmp_path):
    """As YAML's merge keys are defined: own keys first, then mappings in their order."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    document = read_yaml(write(tmp_path, text))
    assert document["c"] == {"x": 3, "y": 1, "z": 2}
    assert line_of(document, ["c", "z"]) == 2


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

    monkeypatch.setattr("pathlib.Path.open", denied)  # root may read everything
    with pytest.raises(InputError, match=r"x\.yaml: file: found Permission denied"):
        load_document(Example, path)


def test_line_of_walks_lists_and_mappings(tmp_path):
    document = read_yaml(write(tmp_path, "a:\n  - x: 1\n    y: 2\n  - 3\n"))
    assert line_of(document, ["a", 0, "y"]) == 3
    assert line_of(document, ["a", 1]) == 4
    assert line_of(document, ["a", 0, "absent"]) == 2
    assert line_of({"a": 1}, ["a"]) is None


GROWN = b"x" * (3 * 2**20)


@pytest.mark.parametrize(
    "members",
    [[b"", b"one: 1\n"], [b"one: ", b"1\n"], [b"one: 1\n", *[b""] * 5000]],
    ids=["empty first", "two", "many"],
)
def test_gzip_is_unpacked_whatever_its_name(tmp_path, members):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"".join(map(gzip.compress, members)) + b"\0" * 600)  # tar's padding
    assert plain(read_yaml(path)) == {"one": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(GROWN)[:-9], "gzip data that end too early"),
        (gzip.compress(b"a: 1\n")[:-1], "gzip data that end too early"),
        (gzip.compress(b"a: 1\n") + b"more", "damaged gzip data"),
        (b"\x1f\x8b" + b"a" * 90, "damaged gzip data"),
        (gzip.compress(bytes(200 * 2**20)), "more than 64 MiB"),
        (gzip.compress(gzip.compress(b"a: 1\n")), "not text"),
    ],
    ids=["cut", "cut by a byte", "more behind it", "no deflate", "grows", "twice"],  # no times
)
def test_damaged_and_growing_gzip_is_refused(tmp_path, data, words):
    path = tmp_path / "x.log.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        read_text(path)
