"""Write the pages of the reference before Sphinx looks for pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from docs.extensions import api_pages, command_pages, field_pages
from perfmodel.cli.app import build_app

FIRST_LINES = {
    "scenario": (
        "Scenario fields",
        """\
Every field of a scenario file, as `perfmodel schema scenario` prints them. Quantities carry units;
a field that does not exist is refused, with the nearest one that does.""",
    ),
    "topology": (
        "Topology fields",
        """\
Every field of the files that describe hardware, as `perfmodel schema topology` prints them: a node,
a fabric, a table of GPUs.""",
    ),
    "commands": (
        "Commands",
        """\
Every command with its flags, as `--help` prints them. Exit codes: 0 done, 1 the answer is a
failure, 2 the input is wrong.""",
    ),
    "api": (
        "Python",
        "What `import perfmodel as pm` offers. Each name is imported when it is first used.",
    ),
}
"""Title of each folder's first page, and what it says."""


def write_all(folder: Path) -> None:
    """Write all generated pages below a folder; files that are right stay as they are."""
    schemas = {name: _schema(name) for name in ("scenario", "topology")}
    pages = {
        "scenario": field_pages.scenario_pages(schemas["scenario"]),
        "topology": field_pages.topology_pages(schemas["topology"]),
        "commands": command_pages.command_pages(),
        "api": api_pages.api_pages(),
    }
    summaries: Mapping[str, Mapping[str, str]] = {
        "commands": command_pages.summaries(),
        "api": {word.name: api_pages.summary(word) for word in api_pages.words()},
    }
    for name, own in pages.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        files = {f"{page}.md": text for page, text in own.items()}
        files["index.md"] = _index(name, own, summaries.get(name, {}))
        for file in {each.name for each in (folder / name).glob("*.md")} - set(files):
            (folder / name / file).unlink()
        for file, text in files.items():
            _write(folder / name / file, text)


def _schema(name: str) -> Any:
    done = CliRunner().invoke(build_app(["schema"]), ["schema", name])
    return json.loads(done.stdout)


def _index(name: str, pages: Mapping[str, str], summaries: Mapping[str, str]) -> str:
    title, about = FIRST_LINES[name]
    lines = [f"# {title}", "", about, ""]
    for page, text in pages.items():
        says = summaries.get(page) or _first_paragraph(text)
        lines.append(f"- [{_title(text)}]({page}.md): {says}")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _first_paragraph(text: str) -> str:
    words = text.split("\n\n")[1]
    return "" if words.startswith("|") else words


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")
