"""Pages of the site, their code blocks in order, and how each is run.

A block of ``console`` has commands behind ``$`` and what they print; one of ``python`` is run, and
one of ``text`` right after it has what it prints. In both ``...`` stands for anything. A block with
a caption is the file of that name. Where nothing is said to be printed, all that is asked is that
it runs. A comment ``<!-- needs: ... -->`` before a block names what a
reader has and a test has not: its commands are parsed, and Python is compiled.

``python -m tests.docs.pages [PAGE ...]`` writes into pages what their blocks print now; a line
``?`` stands for what is not known yet.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from perfmodel.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("scenario", "topology", "commands", "api")
"""Folders of the reference that are made when the site is built."""

FENCE = re.compile(
    r"(?:<!-- needs: (?P<needs>.*?) -->\n+)?"
    r"^```(?:\{(?P<directive>[\w-]+)\} ?)?(?P<language>[^\n]*?) *\n"
    r"(?:^:caption: (?P<caption>[^\n]*)\n+)?"
    r"(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

LANGUAGES = {"console", "python", "text", "yaml", "json", "csv"}
ELSEWHERE = ("cat", "head", "ls")
"""Commands of the shell that pages show beside those of perfmodel."""


@dataclass(frozen=True)
class Block:
    """A code block; `start` and `end`: where its lines stand in the page."""

    language: str
    needs: str
    caption: str
    body: str
    start: int
    end: int


ANSWERED: dict[str, str] = {}
"""What commands printed that read and wrote no file of a page: pages that share one ask once."""


@dataclass
class Reader:
    """Somebody who types what a page says: a folder, and names of Python."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""

    def python(self, code: str, where: str) -> None:
        """Run Python; what it prints is kept."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, where, "exec"), self.names)
        self.printed = out.getvalue()

    def command(self, line: str) -> str:
        """Run a command; return what it prints."""
        words = shlex.split(line, comments=True)
        if words[0] in ELSEWHERE:
            return subprocess.run(
                words, cwd=self.folder, capture_output=True, text=True, check=True
            ).stdout
        assert words[0] == "perfmodel", line
        alone = not any(self.folder.iterdir())
        if alone and line in ANSWERED:
            return ANSWERED[line]
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
        assert "Warning" not in done.stderr, f"{line}\n{done.stderr}"
        if alone and not any(self.folder.iterdir()):
            ANSWERED[line] = done.output
        return done.output


def pages() -> list[str]:
    """Pages that people wrote, by their paths below ``docs``."""
    found = (path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
    own = [
        path.as_posix()
        for path in found
        if path.parts[0] not in ("_build", "extensions")
        and not (path.parts[0] == "reference" and path.parts[1] in GENERATED)
    ]
    return sorted(own)


def blocks(text: str) -> list[Block]:
    """Code blocks of a page, in order; directives that draw are none."""
    return [
        Block(
            each["language"],
            each["needs"] or "",
            each["caption"] or "",
            each["body"],
            each.start("body"),
            each.end("body"),
        )
        for each in FENCE.finditer(text)
        if each["directive"] in (None, "code-block")
    ]


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Commands of a ``console`` block, each with what it is said to print."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, printed = part.partition("\n")
        while line.endswith("\\"):
            more, _, printed = printed.partition("\n")
            line = f"{line[:-1]} {more.removeprefix('>').strip()}"
        yield line, printed


def parse(line: str) -> None:
    """Parse a command of perfmodel without running it; a misspelt flag raises."""
    words = shlex.split(line, comments=True)
    if words[0] != "perfmodel":
        return
    command, rest = get_command(app), words[1:]
    while rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context("perfmodel", rest, resilient_parsing=False)


def is_alike(said: str, printed: str) -> bool:
    """Whether a page says what is printed, if it says anything."""
    if not said.strip():
        return True
    checker = doctest.OutputChecker()
    said, printed = (
        "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())
        for text in (said, printed)
    )
    return checker.check_output(said, printed, doctest.ELLIPSIS)


def read_aloud(text: str, page: str, folder: Path) -> Iterator[tuple[Block, str, str, str]]:
    """Do what a page says, in a folder; yield each thing that it says is printed, and what was.

    Of each: the block, the line or empty, what the page says, what was printed.
    """
    reader, before = Reader(folder), None
    for block in blocks(text):
        assert block.language in LANGUAGES, f"{page}: a block of {block.language!r}"
        if block.caption:
            (folder / block.caption).write_text(block.body, encoding="utf-8")
        elif block.needs:
            _look_at(block, page)
        elif block.language == "python":
            reader.python(block.body, page)
        elif block.language == "console":
            for line, said in commands(block.body):
                yield block, line, said, reader.command(line)
        elif block.language == "text" and before == "python":
            yield block, "", block.body, reader.printed
        before = "" if block.needs else block.language


def _look_at(block: Block, page: str) -> None:
    """See that a block could be run by somebody who has what it needs."""
    if block.language == "python":
        compile(block.body, page, "exec")
    elif block.language == "console":
        for line, _ in commands(block.body):
            parse(line)


@contextlib.contextmanager
def at(folder: Path) -> Iterator[None]:
    """Work in a folder; warnings are errors."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        os.chdir(before)


# ---------------------------------------------------------------- pages made anew


def renewed(said: str, printed: str) -> str:
    """Return what a page may say now: with ``...`` only lines that it had, as they are printed."""
    old, new = said.strip("\n").splitlines(), printed.strip("\n").splitlines()
    if "..." not in [line.strip() for line in old]:
        return "\n".join(line.rstrip() for line in new) + "\n"
    made, place = [], 0
    for line in old:
        if line.strip() == "...":
            made.append(line)
            continue
        alike = [difflib.SequenceMatcher(None, line, each).ratio() for each in new[place:]]
        place += alike.index(max(alike))
        made.append(new[place].rstrip())
        place += 1
    return "\n".join(made) + "\n"


def renew(page: str) -> None:
    """Write into a page what its blocks print now."""
    path = DOCS / page
    text = path.read_text("utf-8")
    bodies: dict[int, tuple[Block, str]] = {}
    with tempfile.TemporaryDirectory() as folder, at(Path(folder)):
        for block, line, said, printed in read_aloud(text, page, Path(folder)):
            _, body = bodies.get(block.start, (block, block.body))
            if line and not is_alike(said, printed):
                whole = f"$ {line}\n{said}"
                assert whole in body, f"{page}: {line} (a line that is continued)"
                body = body.replace(whole, f"$ {line}\n{renewed(said, printed)}")
            elif not line and not is_alike(said, printed):
                body = renewed(said, printed)
            bodies[block.start] = (block, body)
    for start in sorted(bodies, reverse=True):
        block, body = bodies[start]
        text = text[: block.start] + body + text[block.end :]
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or pages():
        renew(name)
