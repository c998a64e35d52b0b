"""Events of a Chrome JSON trace, one after the other: memory does not grow with the file.

The file is decoded piece by piece; each event is parsed by itself where the last one ended. What
no profiler writes (a member as large as a file, brackets nested thousands deep, gzip that grows a
thousandfold) is refused before it fills the memory.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.files.read import GZIP_ERRORS, gzip_problem, unpacked

PIECE_BYTES = 1 << 20
"""Read at once."""

LARGEST_MEMBER = 4 << 20
"""Characters of one event, or of another member of the file. Events with stacks and shapes have
some thousands; a list of 4 MiB takes up to 100 MB in memory."""

MOST_EVENTS = 40_000_000
"""As many as a trace of about 10 GB has."""

BOMB_RATIO, BOMB_FROM_BYTES = 300, 64 << 20
"""Kineto traces shrink 10 to 30 times; beyond 64 MiB of text a larger ratio is no trace."""

MOST_GUESSES = 8
"""Brackets that may be the end of the last whole event in memory."""

_NEXT_OBJECT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*\{")
_SPACES = re.compile(r"[ \t\r\n]*")
_ALLOWED = "a trace of PyTorch's profiler (export_chrome_trace), .json or .json.gz"
_FOREIGN = {
    b"SQLite format 3": "a SQLite database",
    b"PK\x03\x04": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "a file compressed by zstd",
    b"BZh": "a file compressed by bzip2",
    b"\xfd7zXZ": "a file compressed by xz",
    b"\x80\x04": "a pickle",
    b"<": "XML or HTML",
}


def trace_fault(path: Path, text: str, allowed: str = _ALLOWED) -> InputError:
    """Return the error of a file that is no trace."""
    return InputError(Fault("trace", text, allowed, str(path)))


def refuse_trace(fails: object, path: Path, text: str, allowed: str = _ALLOWED) -> None:
    """Raise what is wrong with a file where a check of it fails."""
    refuse_if(fails, "trace", text, allowed, str(path))


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, decompressed; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            return unpacked(file).read(count)
    except (OSError, *GZIP_ERRORS):
        return b""


def _read_bytes(path: Path) -> Iterator[bytes]:
    """Yield decompressed pieces of a file."""
    grown = 0
    try:
        with path.open("rb") as file:
            first = file.read(PIECE_BYTES)
            file.seek(0)
            foreign = next(
                (kind for magic, kind in _FOREIGN.items() if first.startswith(magic)),
                "" if first else "an empty file",
            )
            refuse_trace(foreign, path, foreign)
            for text in iter(partial(unpacked(file).read, PIECE_BYTES), b""):
                grown += len(text)
                refuse_trace(
                    grown > max(BOMB_FROM_BYTES, BOMB_RATIO * file.tell()),
                    path,
                    f"gzip that grows more than {BOMB_RATIO} times",
                )
                yield text
    except GZIP_ERRORS as error:
        raise trace_fault(path, gzip_problem(error)) from None
    except OSError as error:
        raise trace_fault(path, error.strerror or str(error), "a file that can be read") from None


class _Text:
    """The part of the text that is in memory, and how far it is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.pieces, self.parser = path, _read_bytes(path), json.JSONDecoder()
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self.text, self.at, self.ended, self.is_fresh = "", 0, False, True

    def grow(self) -> None:
        """Drop what is read, and add a piece."""
        piece = next(self.pieces, None)
        if piece is None:
            self.ended = True
            return
        self.text = self.text[self.at :] + self.decoder.decode(piece)
        self.at, self.is_fresh = 0, True

    def peek(self, *, needed: bool = False) -> str:
        """Return the next character that is no space; nothing at the end, unless it is needed."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended and needed:
                raise trace_fault(self.path, "a file that ends too early", "a whole trace")
            if self.ended:
                return ""
            self.grow()

    def take(self, allowed: str) -> str:
        """Read one character out of some."""
        character = self.peek(needed=True)
        if character not in allowed:
            choice = " or ".join(repr(each) for each in allowed)
            raise trace_fault(self.path, f"{character!r} where JSON has {choice}")
        self.at += 1
        return character

    def value(self, member: str) -> Any:
        """Read one JSON value."""
        self.peek(needed=True)
        size = f"{LARGEST_MEMBER >> 20} MiB"
        while True:
            with suppress(json.JSONDecodeError):
                return self._parse(member)
            refuse_trace(
                self.ended, self.path, f"{member} that is cut off or no JSON", "a whole trace"
            )
            refuse_trace(
                len(self.text) - self.at > LARGEST_MEMBER,
                self.path,
                f"{member} that is no JSON, or more than {size} of it",
            )
            self.grow()

    def many(self) -> list[Any]:
        """Read all whole objects of a list that are in memory, up to a comma; nothing if unsure.

        What parses as a list up to some bracket is the begin of the list in the file.
        """
        cut = len(self.text)
        for _ in range(MOST_GUESSES if self.is_fresh else 0):
            cut = self.text.rfind("}", self.at, cut)
            if cut < 0:
                return []
            follower = _NEXT_OBJECT.match(self.text, cut + 1)
            if follower is not None:
                with suppress(ValueError, RecursionError):
                    values: list[Any] = json.loads(f"[{self.text[self.at : cut + 1]}]")
                    self.at = follower.end() - 1
                    return values
        self.is_fresh = False
        return []

    def _parse(self, member: str) -> Any:
        try:
            value, end = self.parser.raw_decode(self.text, self.at)
        except RecursionError:
            raise trace_fault(self.path, f"{member} with brackets nested too deep") from None
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python reads no integer of more than 4300 digits
            raise trace_fault(self.path, f"{member} with a number too long") from None
        if end == len(self.text) and not self.ended:
            raise json.JSONDecodeError("it may go on in the next piece", "", end)
        if end - self.at > LARGEST_MEMBER:
            raise trace_fault(self.path, f"{member} of more than {LARGEST_MEMBER >> 20} MiB")
        self.at = end
        return value


def read_events(path: Path, header: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; other members of the file go to `header`, those behind too.

    Raises `InputError`: no trace, or a damaged one; names the file and what is wrong with it.
    """
    text, has_events = _Text(path), False
    if text.peek() != "{":
        begin = text.text[text.at : text.at + 20]
        raise trace_fault(path, f"text that begins with {begin!r}" if begin else "an empty file")
    text.take("{")
    while text.peek() != "}":
        key = text.value("a member's name")
        refuse_trace(not isinstance(key, str), path, f"{key!r} where JSON has a member's name")
        text.take(":")
        if key == "traceEvents" and text.peek() == "[":
            has_events = True
            yield from _events(text)
        else:
            header[key] = text.value(f"member {key[:40]!r}")
        if text.take(",}") == "}":
            break
    refuse_trace(not has_events, path, _describe(header))


def _events(text: _Text) -> Iterator[dict[str, Any]]:
    text.take("[")
    number = 0
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        text.peek()
        many = text.many()
        for event in many or [text.value(f"event {number}")]:
            if not isinstance(event, dict):
                raise trace_fault(text.path, f"event {number} that is no object")
            yield event
            number += 1
        refuse_trace(
            number > MOST_EVENTS, text.path, f"more than {MOST_EVENTS:,} events", "fewer steps"
        )
        if not many and text.take(",]") == "]":
            return


def _describe(header: dict[str, Any]) -> str:
    """Say what a JSON file without events may be."""
    if "nodes" in header and "schema" in header:
        return "an execution trace of PyTorch, which has no times"
    names = ", ".join(repr(name[:30]) for name in list(header)[:5])
    return f"JSON without traceEvents, but with {names or 'nothing'}"
