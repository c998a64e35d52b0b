"""Files found by name or path."""

import pytest

from perfmodel.errors import InputError
from perfmodel.files import (
    find_file,
    list_shipped,
    write_atomically,
)
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario


def write(tmp_path, text, name="x.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_names_are_found_here_first_then_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    name = next(iter(list_shipped("scenarios")))
    assert find_file(name, "scenarios") == list_shipped("scenarios")[name]
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


@pytest.mark.parametrize(
    "text",
    [
        "model.name={name}",
        "model={{file: {name}}}",
        "cluster.fabric={name}",
        "cluster.node={name}",
        "compute={{source: file, times: {name}, precision: fp16}}",
    ],
)
def test_a_name_too_long_for_the_file_system_is_a_fault_of_its_field(text):
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario("resnet50-dgx-a100", [text.format(name="n" * 300)]))
    fields = [fault.field.removeprefix("--set ") for fault in caught.value.faults]
    assert fields[0].startswith(text.partition("=")[0])
