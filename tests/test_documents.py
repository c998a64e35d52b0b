"""Every command in the documents runs, or is marked with what it needs and can be parsed."""

from __future__ import annotations

import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli.app import app
from tests.docs import pages

ROOT = Path(perfmodel.__file__).resolve().parents[1]

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "perfmodel/README.md",
    "scenarios/README.md",
    "topologies/README.md",
    "reports/README.md",
    "reports/gallery/README.md",
)

PAGES = tuple(f"docs/{page}" for page in pages.pages())
"""Pages of the site, whose blocks ``tests/docs`` runs and whose links it follows."""

pytestmark = pytest.mark.skipif(
    not (ROOT / "CONTRIBUTING.md").exists(), reason="documents stand in a checkout only"
)


@dataclass(frozen=True)
class Block:
    """Lines of a code block, and what the mark before it says that they need."""

    document: str
    language: str
    needs: str
    lines: tuple[str, ...]


def blocks(document: str) -> list[Block]:
    """Code blocks of a document, each with the comment right before it."""
    text = (ROOT / document).read_text(encoding="utf-8")
    pattern = re.compile(r"(?:<!-- needs: (.*?) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
    return [
        Block(document, language, needs, tuple(lines.splitlines()))
        for needs, language, lines in pattern.findall(text)
    ]


def commands(needing: bool) -> list[str]:
    """Commands of perfmodel in code blocks, marked ones or the others, each once."""
    lines = [
        line.split("  #")[0].strip().removeprefix(".venv/bin/")
        for document in DOCUMENTS
        if (ROOT / document).exists()
        for block in blocks(document)
        if bool(block.needs) == needing
        for line in block.lines
    ]
    own = {line for line in lines if line.startswith("perfmodel ")}
    # With a page a command does all that it does without; those of the site's pages run there.
    elsewhere = own | commands_of_pages()
    return sorted(line for line in own - commands_of_pages() if f"{line} -o out" not in elsewhere)


def commands_of_pages() -> set[str]:
    """Commands that pages of the site show, which ``tests/docs`` runs."""
    found = (
        line
        for page in PAGES
        for block in blocks(page)
        if not block.needs and block.language == "console"
        for line, _ in pages.commands("\n".join(block.lines))
    )
    return {line.split("  #")[0].strip() for line in found}


def inline(document: str) -> list[str]:
    """Text in backticks outside of code blocks."""
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def parse(line: str) -> None:
    """Parse a command without running it; a misspelt flag or command raises."""
    command = get_command(app)
    words = shlex.split(line)[1:]
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("perfmodel", words, resilient_parsing=False)


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(needing=False))
def test_a_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_without_warnings(shlex.split(line)[1:], monkeypatch)


def run_without_warnings(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command; warnings are errors, also in its processes."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{words}\n{done.output}\n{done.exception!r}"
    assert "Warning" not in done.stderr


@pytest.mark.slow
def test_the_sample_of_events_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that are dead for a while: no division by zero, no NaN."""
    page = blocks("docs/reference/scenarios.md")
    (events,) = (block for block in page if block.lines[0].startswith("events:"))
    assert "8 DGX A100, rail-optimised" in events.lines[0]
    head = (
        "# Sample\nperfmodel: 1\nmodel: {name: resnet50}\ncompute: {precision: fp16}\n"
        "cluster: {node: dgx-a100, nodes: 8, fabric: rail-optimised}\n"
        "training: {batch_per_gpu: 64}\n"
    )
    file = tmp_path / "sample.yaml"
    file.write_text(head + "\n".join(events.lines) + "\n")
    run_without_warnings(["run", str(file), "--json"], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("line", commands(needing=True))
def test_a_command_that_needs_hardware_can_be_parsed(line: str) -> None:
    parse(line)


def marked_python(document: str) -> list[str]:
    """Python in a document that is marked to run, block by block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"<!-- runs -->\n```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if marked_python(d)])
def test_python_that_is_marked_runs(document: str) -> None:
    """Later blocks have the names of earlier ones."""
    names: dict[str, object] = {}
    for block in marked_python(document):
        exec(compile(block, document, "exec"), names)


def test_a_misspelt_command_is_noticed() -> None:
    with pytest.raises(Exception, match="ranjs"):
        parse("perfmodel measure ring --ranjs 4")
    with pytest.raises(KeyError):
        parse("perfmodel mesure ring")


@pytest.mark.parametrize("document", DOCUMENTS + PAGES)
def test_a_command_named_in_a_sentence_exists(document: str) -> None:
    known = get_command(app).commands
    for text in inline(document):
        if match := re.match(r"perfmodel ([a-z]+)", text):
            assert match[1] in known, text


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS + PAGES)
def test_a_file_that_is_named_exists(document: str) -> None:
    folder = (ROOT / document).parent
    named = [text for text in inline(document) if re.fullmatch(r"[\w./-]+\.(py|yaml|md)", text)]
    named += [part for text in inline(document) for part in re.findall(r"python (\S+\.py)", text)]
    for block in blocks(document):
        for line in block.lines:
            named += re.findall(r"(?:tests|reports)/[\w/.]*\w", line.split("  #")[0])
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [] if document in PAGES else re.findall(r"\]\((?!http)([^)#]+)\)", text)
    for name in (*named, *links):
        if re.search(r"\b(NAME|FORMAT|NODE)\b", name):
            continue  # of a recipe: the author's own
        homes = (folder, ROOT, ROOT / "perfmodel")
        anywhere = (found for own in OWN_FOLDERS for found in (ROOT / own).glob(f"**/{name}"))
        fits = any((home / name).exists() for home in homes) or any(anywhere)
        assert fits or name in MADE, f"{document}: {name}"


OWN_FOLDERS = ("perfmodel", "topologies", "scenarios", "tests", "reports", "docs")
"""Folders of the checkout that are searched: an environment beside them has any name."""
MADE = {"report.md", "mine.yaml", "mymodel.yaml"}
"""Files that commands of the documents write, or that a reader does."""


def test_modules_that_are_run_exist() -> None:
    for document in DOCUMENTS + PAGES:
        for name in re.findall(
            r"python -m (?!sphinx)([\w.]+)", (ROOT / document).read_text("utf-8")
        ):
            module = ROOT / name.rstrip(".").replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), name
