"""Run one input in this process, and say what is wrong with how the command ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.inputs import Input

NAMED = re.compile(r"^(\S.*?): found .+; allowed: .+", re.DOTALL)
USAGE = re.compile(r"^Usage: ", re.MULTILINE)
ALLOWED_EXITS = (0, 1, 2)
STRATEGY = re.compile(rb'strategy"?:[\s{]*"?kind"?:\s*"?(\w+)')


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: what is wrong with that, if anything, and its exit code.

    `command`, `strategy`: what was asked; the strategy "" where there is no scenario.
    """

    problem: str | None
    code: int | None
    command: str
    strategy: str


def check(given: Input, folder: Path) -> Ending:
    """Run a command on files that are written to `folder`, which is made the current one.

    Wrong are a traceback, a warning, another exit code than 0, 1 and 2, a control character in the
    output, JSON that holds NaN, and an exit code 2 whose message names no field or no file.
    """
    for name, content in given.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    os.chdir(folder)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            code = _call(given.arguments)
        except BaseException as error:  # noqa: BLE001  (a fuzzer wants all of them)
            return Ending(_last_place(error), None, *subject_of(given))
    printed, message = (_text(stream) for stream in (out, err))
    problem = _find_problem(given, code, printed, message) or _files_problem(given, folder)
    return Ending(problem, code, *subject_of(given))


def subject_of(given: Input) -> tuple[str, str]:
    """The command and the strategy of its scenario."""
    texts = [content for name, content in given.files.items() if name.endswith((".yaml", ".yml"))]
    found = next(filter(None, map(STRATEGY.search, texts)), None)
    return given.arguments[0], found[1].decode() if found else ""


def _files_problem(given: Input, folder: Path) -> str | None:
    """Say what is wrong with the files: inputs that changed, control characters in tables."""
    for name, content in given.files.items():
        if not name.startswith("own.sqlite") and (folder / name).read_bytes() != content:
            return f"{name} was overwritten"
    for path in sorted(folder.rglob("*")):
        written = path.is_file() and path.relative_to(folder).as_posix() not in given.files
        if written and path.suffix in {".md", ".csv", ".html", ".json"}:
            control = _control_characters(path.read_text(encoding="utf-8"))
            if control and path.suffix != ".html":  # plotly.js has some
                return f"{path.name} has {control!r}"
    return None


def _control_characters(text: str) -> list[str]:
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t\u00a0\u202f\u2009"})


def _call(arguments: tuple[str, ...]) -> int:
    from perfmodel.cli.app import COMMANDS, build_app

    command = arguments[0]
    try:
        app = build_app([command] if command in COMMANDS else COMMANDS)
        app(list(arguments), prog_name="perfmodel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


def _last_place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "perfmodel" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
    return f"{type(error).__name__} in {place}: {str(error)[:120]!r}"


def _find_problem(given: Input, code: int, printed: str, message: str) -> str | None:
    if code not in ALLOWED_EXITS:
        return f"exit code {code}"
    for stream, text in (("stdout", printed), ("stderr", message)):
        if control := _control_characters(text):
            return f"{stream} has {control!r}"
    if code == 2:
        return _message_problem(given, printed, message)
    if code == 0 and "--json" in given.arguments:
        try:
            json.loads(printed, parse_constant=_refuse_constant)
        except ValueError as error:
            return f"no JSON: {error}"
    return None


def _message_problem(given: Input, printed: str, message: str) -> str | None:
    if printed.strip():
        return f"printed beside exit code 2: {printed[:80]!r}"
    if USAGE.search(message):  # of a flag, which it names
        return None
    lines = message.splitlines()
    if len(lines) > 40:
        return f"{len(lines)} lines of message"
    faults = [line for line in lines if NAMED.match(line)]
    if not faults:
        return f"no field named: {message[-120:]!r}"
    place = faults[0].partition(": found ")[0]
    files = place.startswith(("/", "..")) or any(
        name in line for name in given.files for line in faults
    )
    flag = place.startswith("-") or place.split(".")[0].isupper() or "--" in place
    damaged = given.arguments[0] != "verify" and "own" in " ".join(given.arguments)
    return f"no file named: {faults[0][:160]!r}" if damaged and not (files or flag) else None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} in JSON")


def main(seed: int, limit_bytes: int) -> None:
    """Answer numbers of inputs on stdin with what is wrong, one JSON line each."""
    import resource
    import shutil
    import tempfile

    from tests.fuzz.inputs import make_input

    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder = Path(tempfile.mkdtemp())
        try:
            ending = asdict(check(make_input(seed, int(line)), folder))
        finally:
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(ending), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
