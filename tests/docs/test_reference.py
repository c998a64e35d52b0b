"""The reference has every field, command and name that there is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import perfmodel
from docs.extensions import api_pages, command_pages, field_pages, generated_pages
from perfmodel.cli.app import app


@pytest.fixture(scope="module", params=["scenario", "topology"])
def schema(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, str]]:
    printed = json.loads(CliRunner().invoke(app, ["schema", request.param]).stdout)
    make = getattr(field_pages, f"{request.param}_pages")
    return printed, make(printed)


def test_every_field_of_every_section_has_its_row(schema) -> None:
    printed, pages = schema
    text = "\n".join(pages.values())
    fields = [name for part in printed["$defs"].values() for name in part.get("properties", {})]
    assert len(fields) > 80
    assert text.count("\n| `") == len(fields) + len(
        [name for name in printed.get("properties", {}) if name not in pages]
    )
    for name in fields:
        assert f"\n| `{name}` |" in text, name


def test_links_between_fields_lead_somewhere(schema) -> None:
    text = "\n".join(schema[1].values())
    targets = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    assert len(targets) == len(set(targets))
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= set(targets)


def test_types_are_said_in_words() -> None:
    node = {"anyOf": [{"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, {"type": "null"}]}
    assert field_pages.type_words(node, {}) == "whole number from 1 to 9"
    assert field_pages.type_words({"type": "array", "items": {"enum": ["a", "b"]}}, {}) == (
        "list of `a`, `b`"
    )
    assert field_pages.type_words({"type": "string", "examples": ["25 MiB"]}, {}) == (
        "text such as `25 MiB`"
    )


def test_every_command_has_its_flags() -> None:
    pages = command_pages.command_pages()
    for name, command in get_command(app).commands.items():
        for each in getattr(command, "commands", {"": command}).values():
            flags = [max(one.opts, key=len) for one in each.params if one.opts[0][0] == "-"]
            assert [flag for flag in flags if flag not in pages[name]] == []
            assert each.help.splitlines()[0] in pages[name]


def test_every_public_name_has_its_page() -> None:
    words = api_pages.words()
    named = {name for word in words for name in (word.name, *word.others)}
    assert set(perfmodel.__all__) - {"__version__"} <= named
    assert {word.name: word.others for word in words}["sweep"] == ("run_sweep",)
    assert all(api_pages.summary(word) for word in words)


def test_pages_that_are_right_stay_as_they_are(tmp_path) -> None:
    generated_pages.write_all(tmp_path)
    (tmp_path / "api" / "gone.md").write_text("# Gone\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    generated_pages.write_all(tmp_path)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    assert after == {path: at for path, at in before.items() if path.name != "gone.md"}


def test_a_docstring_of_fields_becomes_a_list() -> None:
    made = api_pages.with_definitions(["A thing.", "`size`: bytes", "    of it.", "More."])
    assert made == ["A thing.", "", "`size`", "    bytes", "    of it.", "", "More."]
