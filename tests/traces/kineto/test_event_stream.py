"""What is no trace is refused in few words, and before it fills the memory."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.traces.kineto import event_stream
from perfmodel.traces.kineto.rank_trace import read_rank
from tests.traces.kineto.made_trace import MadeTrace

EVENT = '{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1}'

FOREIGN = {
    "empty": (b"", "an empty file"),
    "blank": (b"  \n ", "an empty file"),
    "text": (b"hello", "text that begins with 'hello'"),
    "a list": (b"[]", "text that begins with"),
    "no events": (b"{}", "JSON without traceEvents"),
    "other JSON": (b'{"nodes": [], "schema": "1.1.1"}', "an execution trace of PyTorch"),
    "SQLite": (b"SQLite format 3\0", "a SQLite database"),
    "XML": (b"<system/>", "XML"),
    "ZIP": (b"PK\x03\x04", "a ZIP archive"),
    "cut off": (b'{"traceEvents": [' + EVENT.encode()[:-9], "event 0 that is cut off"),
    "cut between": (b'{"traceEvents": [' + EVENT.encode() + b",", "ends too early"),
    "no list end": (b'{"traceEvents": [' + EVENT.encode(), "ends too early"),
    "numbers": (b'{"traceEvents": [1, 2]}', "event 0 that is no object"),
    "no comma": (b'{"traceEvents": [{} {}]}', "where JSON has ',' or ']'"),
    "key": (b"{1: 2}", "where JSON has a member's name"),
    "nested": (b'{"traceEvents": [' + b"[" * 100_000, "nested too deep"),
    "nested args": (
        b'{"traceEvents": [' + b'{"args":' * 50_000 + b"0" + b"}" * 50_000,
        "nested too deep",
    ),
    "not numbers": (
        b'{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","ts":"1","dur":1}]}',
        "ts '1' of 'a'",
    ),
    "endless": (
        b'{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","ts":NaN,"dur":1}]}',
        "ts nan of 'a'",
    ),
    "long number": (b'{"traceEvents": [{"ts": ' + b"1" * 5000 + b"}]}", "a number too long"),
    "backwards": (
        b'{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":-1}]}',
        "dur -1 of 'a'",
    ),
    "other program": (
        b'{"traceEvents": [{"ph":"X","cat":"v8","name":"a","ts":1,"dur":1}]}',
        "another program",
    ),
    "inference": (b'{"traceEvents": [' + EVENT.encode() + b"]}", "no backward pass"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(tmp_path: Path, kind: str) -> None:
    content, message = FOREIGN[kind]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_rank(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("share", [0.2, 0.7, 0.99])
def test_torn_copies(tmp_path: Path, share: float) -> None:
    text = json.dumps(MadeTrace(steps=2).document()).encode()
    for name, content in (("plain", text), ("zipped", gzip.compress(text, 1))):
        path = tmp_path / name
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(InputError, match=r"ends? too early|cut off"):
            read_rank(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps(MadeTrace(steps=2).document()).encode(), 1))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(data))
    with pytest.raises(InputError):
        read_rank(path)


def _spaces(megabytes: int) -> bytes:
    """Gzip of so many MiB of spaces behind the begin of a trace."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [stream.compress(b'{"traceEvents": [')]
    pieces += [stream.compress(b" " * (1 << 20)) for _ in range(megabytes)]
    return b"".join([*pieces, stream.flush()])


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "bomb": (lambda: _spaces(4), "gzip that grows more than 300 times"),
    "endless text": (lambda: b'{"traceEvents": [{"name": "' + b"a" * 300_000, "or more than"),
    "endless member": (lambda: b'{"a": [' + b"[]," * 200_000, "or more than"),
    "large member": (lambda: b'{"a": [' + b"[]," * 46_000 + b"0]}", "of more than"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_not_read_to_the_end(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits of a hundredth; what they are worth in memory stands in the benchmarks."""
    monkeypatch.setattr(event_stream, "BOMB_FROM_BYTES", 1 << 19)
    monkeypatch.setattr(event_stream, "LARGEST_MEMBER", 1 << 17)
    monkeypatch.setattr(event_stream, "PIECE_BYTES", 1 << 16)
    make, message = HOSTILE[kind]
    path = tmp_path / "trace.json"
    path.write_bytes(make())
    read = 0

    def counted(*args: object) -> object:
        nonlocal read
        read += 1
        return pieces(*args)

    pieces = event_stream._Text.grow
    monkeypatch.setattr(event_stream._Text, "grow", counted)
    with pytest.raises(InputError) as error:
        read_rank(path)
    assert message in str(error.value)
    assert read < 20


def test_gzip_of_several_members_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + json.dumps(MadeTrace(steps=2).document()).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:1000], 1) + gzip.compress(text[1000:], 1))
    assert len(read_rank(path).steps) == 2
