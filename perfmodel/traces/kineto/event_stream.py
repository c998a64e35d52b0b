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
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files.read import GZIP, GzipError, inflate

PIECE_BYTES = 1 << 20
"""Read at once."""

LARGEST_MEMBER = 4 << 20
"""Characters of one event, or of another member of the file. Events with stacks and shapes have
some thousands; a list of 4 MiB takes up to 100 MB in memory."""

MOST_EVENTS = 40_000_000
"""As many as a trace of about 10 GB has."""

BOMB_RATIO, BOMB_FROM_BYTES = 300, 64 << 20
"""Kineto traces shrink 10 to 30 times; beyond 64 MiB of text a larger ratio is no trace."""

GUESSES = 8
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


def _read_bytes(path: Path) -> Iterator[bytes]:
    """Decompressed pieces of a file."""
    try:
        with path.open("rb") as file:
            first = file.read(PIECE_BYTES)
            if not first:
                raise trace_fault(path, "an empty file")
            if first.startswith(GZIP):
                yield from _inflate(path, file, first)
                return
            for magic, kind in _FOREIGN.items():
                if first.startswith(magic):
                    raise trace_fault(path, kind)
            while first:
                yield first
                first = file.read(PIECE_BYTES)
    except OSError as error:
        raise trace_fault(path, error.strerror or str(error), "a file that can be read") from None


def _inflate(path: Path, file: Any, first: bytes) -> Iterator[bytes]:
    consumed = grown = 0

    def pieces() -> Iterator[bytes]:
        nonlocal consumed
        piece = first
        while piece:
            consumed += len(piece)
            yield piece
            piece = file.read(PIECE_BYTES)

    try:
        for text in inflate(pieces()):
            grown += len(text)
            if grown > max(BOMB_FROM_BYTES, BOMB_RATIO * consumed):
                raise trace_fault(path, f"gzip that grows more than {BOMB_RATIO} times")
            yield text
    except GzipError as error:
        raise trace_fault(path, str(error)) from None


class _Text:
    """The part of the text that is in memory, and how far it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pieces = _read_bytes(path)
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self.text, self.at, self.ended, self.is_fresh = "", 0, False, True
        self.parser = json.JSONDecoder()

    def grow(self) -> None:
        """Drop what is read, and add a piece."""
        piece = next(self.pieces, None)
        if piece is None:
            self.ended = True
            return
        self.text = self.text[self.at :] + self.decoder.decode(piece)
        self.at, self.is_fresh = 0, True

    def peek(self) -> str:
        """Return the next character that is no space; nothing at the end."""
        while True:
            self.at = _SPACES.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.grow()

    def take(self, allowed: str) -> str:
        """Read one character out of some."""
        character = self.peek()
        if not character:
            raise trace_fault(self.path, "a file that ends too early", "a whole trace")
        if character not in allowed:
            choice = " or ".join(repr(each) for each in allowed)
            raise trace_fault(self.path, f"{character!r} where JSON has {choice}")
        self.at += 1
        return character

    def value(self, member: str) -> Any:
        """Read one JSON value."""
        if not self.peek():
            raise trace_fault(self.path, "a file that ends too early", "a whole trace")
        while True:
            with suppress(json.JSONDecodeError):
                return self._parse(member)
            if self.ended or len(self.text) - self.at > LARGEST_MEMBER:
                break
            self.grow()
        if self.ended:
            raise trace_fault(self.path, f"{member} that is cut off or no JSON", "a whole trace")
        size = f"{LARGEST_MEMBER >> 20} MiB"
        raise trace_fault(self.path, f"{member} that is no JSON, or more than {size} of it")

    def many(self) -> list[Any]:
        """Read all whole objects of a list that are in memory, up to a comma; nothing if unsure.

        What parses as a list up to some bracket is the begin of the list in the file.
        """
        cut = len(self.text)
        for _ in range(GUESSES if self.is_fresh else 0):
            cut = self.text.rfind("}", self.at, cut)
            if cut < 0:
                return []
            follower = _NEXT_OBJECT.match(self.text, cut + 1)
            if follower is None:
                continue
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
            size = f"more than {LARGEST_MEMBER >> 20} MiB"
            raise trace_fault(self.path, f"{member} of {size}")
        self.at = end
        return value


def read_events(
    path: Path, header: dict[str, Any], *, member: str = "traceEvents"
) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; other members of the file go to `header`, those behind too.

    `member`: that holds the events.

    Raises `InputError`: no trace, or a damaged one; names the file and what is wrong with it.
    """
    text = _Text(path)
    if text.peek() == "":
        raise trace_fault(path, "an empty file")
    if text.peek() != "{":
        raise trace_fault(path, f"text that begins with {text.text[text.at : text.at + 20]!r}")
    text.take("{")
    has_events = False
    while text.peek() != "}":
        key = text.value("a member's name")
        if not isinstance(key, str):
            raise trace_fault(path, f"{key!r} where JSON has a member's name")
        text.take(":")
        if key == member and text.peek() == "[":
            has_events = True
            yield from _events(text)
        else:
            header[key] = text.value(f"member {key[:40]!r}")
        if text.take(",}") == "}":
            break
    if not has_events:
        raise trace_fault(path, _describe(header))


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
        if number > MOST_EVENTS:
            raise trace_fault(text.path, f"more than {MOST_EVENTS:,} events", "fewer steps")
        if not many and text.take(",]") == "]":
            return


def _describe(header: dict[str, Any]) -> str:
    """Say what a JSON file without events may be."""
    if "nodes" in header and "schema" in header:
        return "an execution trace of PyTorch, which has no times: `perfmodel trace` sums it up"
    names = ", ".join(repr(name[:30]) for name in list(header)[:5])
    return f"JSON without traceEvents, but with {names or 'nothing'}"
