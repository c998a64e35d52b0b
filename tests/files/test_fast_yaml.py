"""YAML by libyaml: what it reads is what ruamel reads; the rest is left to ruamel."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel
from perfmodel.errors import InputError
from perfmodel.files import data_folder, line_of, plain, read_yaml
from perfmodel.files import read as by_libyaml
from perfmodel.files import read as reading
from perfmodel.files.find import is_shipped
from perfmodel.files.read import MOST_LEVELS, UnsupportedYaml, parse_with_libyaml, parse_yaml

pytest.importorskip("yaml.cyaml", reason="needs libyaml")
SHIPPED = sorted(
    path
    for root in (
        Path(perfmodel.__file__).parent,
        data_folder("topologies"),
        data_folder("scenarios"),
    )
    for path in root.rglob("*.yaml")
)


def typed(value):
    """A value that is equal only to one of the same types."""
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, repr(value)


def paths(document, path=()):
    """Paths of all fields."""
    yield path
    keys = range(len(document)) if isinstance(document, list) else document
    for key in keys if isinstance(document, dict | list) else ():
        yield from paths(document[key], (*path, key))


def lines(document):
    """Line of every field."""
    return {path: line_of(document, path) for path in paths(document)}


def same(text):
    """Whether it is read quickly; if so, as ruamel reads it."""
    try:
        quickly = parse_with_libyaml(text, trusted=False)
    except UnsupportedYaml:
        return False
    slowly = reading._load_with_ruamel(text)
    assert typed(plain(quickly)) == typed(plain(slowly))
    assert lines(quickly) == lines(slowly)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_shipped_files_are_read_quickly_and_as_ruamel_reads_them(path):
    assert same(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "word",
    [
        "0",
        "-0",
        "+1",
        "12",
        "007",
        "1_000",
        "0x10",
        "0o17",
        "0b11",
        "1e9",
        "1E-9",
        "+1.5",
        ".5",
        "-.5",
        ".5e3",
        "1.",
        "1.e3",
        "1.5e+3",
        "1e",
        "1e+",
        "08",
        "3.11.7",
        ".inf",
        "-.INF",
        ".nan",
        "~",
        "null",
        "Null",
        "NULL",
        "true",
        "True",
        "TRUE",
        "tRUE",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
        "2026-11-21",
        "2.28",
        "1:30",
        "=",
        "-",
        "_",
        ".",
        "..",
        "e5",
        "nan",
        "inf",
        "08bbc06",
        "12e34a",
        "25",
        "'no'",
        '"1"',
        "''",
        '"a\\tb"',
        "1.2.3",
        "-x",
        "~x",
        "k**3",
        "a&b",
        "a!b",
        "a#b",
    ],
)
def test_words_mean_the_same(word):
    for text in (f"a: {word}\n", f"- {word}\n- [x, {word}]\n", f"{word}: 1\n", f"{{a: {word}}}\n"):
        try:
            parse_yaml(text)
        except InputError:
            with pytest.raises(UnsupportedYaml):
                parse_with_libyaml(text, trusted=True)
        else:
            same(text)


@pytest.mark.parametrize("word", ["0", "-12", "1e9", "2.5", "true", "null", "25 MiB", "a_b", "'1'"])
def test_usual_words_are_read_quickly(word):
    assert same(f"a: {word}\n")


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: !!str 1\n",
        "%YAML 1.1\n---\na: yes\n",
        "a: {<<: {b: 1}}\n",
        "a: |\n  text\n",
        "a: 1\na: 2\n",
        "? [a]\n: 1\n",
        "",
        "# nothing\n",
        "a: [1\n",
        "--- 1\n--- 2\n",
        "a: 2026-11-21\n",
        "a:\t1\n",
        "1.5: a\n",
        "a: 0x10\n",
        "\ufeffa: 1\n",
    ],
)
def test_the_unusual_and_the_faulty_is_left_to_ruamel(text):
    with pytest.raises(UnsupportedYaml):
        parse_with_libyaml(text, trusted=True)


PLAIN = st.text("abcxeE019+-._:#,'\"~=<>|*&![]{}%@`? \n", max_size=12)
WORD = st.one_of(
    PLAIN, st.integers().map(str), st.floats(allow_nan=False).map(str), st.sampled_from("yn~-=")
)


@given(st.lists(st.tuples(st.sampled_from("abc"), WORD), min_size=1, max_size=4))
def test_whatever_is_read_quickly_is_read_the_same(fields):
    text = "".join(f"{key}{at}: {word}\n" for at, (key, word) in enumerate(fields))
    try:
        parse_with_libyaml(text, trusted=True)
        parse_yaml(text)
    except (UnsupportedYaml, InputError):
        return  # what libyaml makes of a file that is wrong does not matter for files that ship
    same(text)


REALS = st.floats(-1e30, 1e30).filter(lambda x: not x or abs(x) > 1e-60)  # what files may hold
WHOLES = st.integers(-(2**53), 2**53)
NESTED = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLES, REALS, st.text("ab 1:")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab1", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(NESTED.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, True]))
def test_nested_documents_are_read_the_same(value, flow):
    import yaml

    text = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False)
    same(text)


@given(NESTED.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, 1]))
def test_json_is_read_the_same(value, indent):
    same(json.dumps(value, indent=indent))


@pytest.mark.slow
def test_a_users_file_is_read_quickly_up_to_as_many_levels_as_a_document_may_have(
    tmp_path, monkeypatch
):
    path = tmp_path / "own.yaml"
    path.write_text("a: 1\nb: [1, {c: 2}]\n")
    assert not is_shipped(path)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_load_with_ruamel", lambda _: pytest.fail("by libyaml"))
        assert read_yaml(path) == {"a": 1, "b": [1, {"c": 2}]}
    for levels in (MOST_LEVELS + 2, 100_000):
        for text in ("[" * levels + "]" * levels, "a: " + "- " * levels + "b"):
            with pytest.raises(UnsupportedYaml):
                parse_with_libyaml(text, trusted=False)
            path.write_text(text)
            with pytest.raises(InputError):
                read_yaml(path)
    at_most = "[" * MOST_LEVELS + "1" + "]" * MOST_LEVELS
    assert parse_with_libyaml(at_most, trusted=False)


@pytest.mark.parametrize(
    "text", ["a: " + "9" * 5000, '{"a": -' + "1" * 5000 + "}", "a: b" + "c" * 400 + "\udc80"]
)
def test_what_python_cannot_convert_is_a_fault_of_the_file(text):
    """Of a number with too many digits, and of half a pair of codes, as a shell may hand it on."""
    with pytest.raises(UnsupportedYaml):
        parse_with_libyaml(text, trusted=False)
    with pytest.raises(InputError):
        parse_yaml(text)


def test_shipped_files_are_known_by_any_path(monkeypatch):
    for path in SHIPPED:
        assert is_shipped(path)
    monkeypatch.chdir(data_folder("scenarios"))
    assert is_shipped(Path("resnet50-dgx-a100.yaml"))
    assert is_shipped(Path("../topologies/gpus.yaml"))


def test_without_libyaml_ruamel_reads_all(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(by_libyaml, "import_module", missing)
    with pytest.raises(UnsupportedYaml):
        parse_with_libyaml("a: 1\n", trusted=True)
    path = data_folder("topologies") / "fabrics" / "rail-optimised.yaml"
    assert line_of(read_yaml(path), ["kind"]) == 3


def test_a_fault_in_a_shipped_file_has_its_line(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "is_shipped", lambda _: True)
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n  - c: 2\n    d: 3\n")
    assert line_of(read_yaml(path), ["b", 0, "d"]) == 4
    path.write_text("a: 1\na: 2\n")
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    assert caught.value.faults[0].line == 2
