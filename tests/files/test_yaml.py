"""YAML 1.2: what is read is what ruamel reads, which has other code."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

import perfmodel
from perfmodel.errors import InputError
from perfmodel.files import data_folder, line_of, plain, read_yaml
from perfmodel.files.find import is_shipped
from perfmodel.files.read import MOST_LEVELS, parse_yaml

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


def by_ruamel(text):
    return YAML(typ="rt", pure=True).load(text)


def by_line(document, path=()):
    """Line of every field, as ruamel has it."""
    keys = range(len(document)) if isinstance(document, list) else document
    for key in keys if isinstance(document, dict | list) else ():
        yield (*path, key), document.lc.data[key][0] + 1
        yield from by_line(document[key], (*path, key))


def check_same(text):
    """Hold what is read to what ruamel reads, values and lines."""
    found, expected = parse_yaml(text), by_ruamel(text)
    assert typed(plain(found)) == typed(plain(expected))
    assert {path: line for path, line in lines(found).items() if path} == dict(by_line(expected))


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: "/".join(path.parts[-2:]))
def test_shipped_files_are_read_as_ruamel_reads_them(path):
    check_same(path.read_text(encoding="utf-8"))


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
        "1e9",
        "1E-9",
        "+1.5",
        ".5",
        "-.5",
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
        "2.28",
        "1:30",
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
            expected = by_ruamel(text)
        except YAMLError:
            with pytest.raises(InputError):
                parse_yaml(text)
        else:
            assert typed(plain(parse_yaml(text))) == typed(plain(expected))


@pytest.mark.parametrize(
    ("word", "value"),
    [("0b11", "0b11"), (".5e3", 500.0), ("-.5", -0.5), ("2026-11-21", "2026-11-21"), ("=", "=")],
)
def test_words_mean_what_the_core_schema_says(word, value):
    """YAML 1.2.2, section 10.3.2: it has no numbers of base 2, and no dates."""
    assert typed(parse_yaml(f"a: {word}")) == [(("str", "'a'"), typed(value))]


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: &x {b: [1, 2]}\nc: *x\n",
        "a: |\n  text\n  more\nb: 1\n",
        "a: >-\n  text\n  more\nb: 1\n",
        "a: 'x\n  y'\nb: 1\n",
        "%YAML 1.2\n---\na: yes\n",
        "--- # one\na: 1\n...\n",
    ],
)
def test_documents_of_every_kind_are_read_the_same(text):
    check_same(text)


PLAIN = st.text("abcxeE019+-._:#,'\"~=<>|*&![]{}%@`? \n", max_size=12)
WORD = st.one_of(
    PLAIN, st.integers().map(str), st.floats(allow_nan=False).map(str), st.sampled_from("yn~-=")
)


@given(st.lists(st.tuples(st.sampled_from("abc"), WORD), min_size=1, max_size=4))
def test_whatever_both_read_is_the_same(fields):
    text = "".join(f"{key}{at}: {word}\n" for at, (key, word) in enumerate(fields))
    try:
        expected = by_ruamel(text)
    except (YAMLError, ValueError):
        return  # libyaml and ruamel do not agree on all that is wrong
    with suppress(InputError):
        assert typed(plain(parse_yaml(text))) == typed(plain(expected))


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
    check_same(text)


@given(NESTED.filter(lambda value: isinstance(value, dict | list)), st.sampled_from([None, 1]))
def test_json_is_read_the_same(value, indent):
    check_same(json.dumps(value, indent=indent))


def test_a_document_has_as_many_levels_as_it_may():
    for levels in (MOST_LEVELS + 2, 100_000):
        for text in ("[" * levels + "]" * levels, "a: " + "- " * levels + "b"):
            with pytest.raises(InputError):
                parse_yaml(text)
    assert parse_yaml("[" * MOST_LEVELS + "1" + "]" * MOST_LEVELS)


@pytest.mark.parametrize(
    "text", ["a: " + "9" * 5000, '{"a": -' + "1" * 5000 + "}", "a: b" + "c" * 400 + "\udc80"]
)
def test_what_python_cannot_convert_is_a_fault_of_the_file(text):
    """Of a number with too many digits, and of half a pair of codes, as a shell may hand it on."""
    with pytest.raises(InputError):
        parse_yaml(text)


def test_without_libyaml_python_reads_the_same(monkeypatch):
    path = data_folder("topologies") / "fabrics" / "rail-optimised.yaml"
    expected = read_yaml(path)
    monkeypatch.delattr("yaml.CBaseLoader")
    found = read_yaml(path)
    assert (typed(found), lines(found)) == (typed(expected), lines(expected))


def test_shipped_files_are_known_by_any_path(monkeypatch):
    for path in SHIPPED:
        assert is_shipped(path)
    monkeypatch.chdir(data_folder("scenarios"))
    assert is_shipped(Path("resnet50-dgx-a100.yaml"))
    assert is_shipped(Path("../topologies/gpus.yaml"))
