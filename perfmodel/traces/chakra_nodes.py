"""Nodes of a Chakra execution trace, and files of them.

Fields and numbers are those of ``et_def.proto`` (mlcommons/chakra, schema/protobuf): a file is a
``GlobalMetadata`` and then ``Node`` messages, each behind its length.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from perfmodel.errors import refuse_if
from perfmodel.files.read import read_bytes

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10
MOST_INTEGERS = 1 << 20
"""Longest list: a node depends on tens of others; a list of a megabyte is no trace's."""

Field = tuple[int, int, int | bytes]
"""Number of the field, wire type, and what it holds."""


class WireError(ValueError):
    """Bytes that are no message."""


def encode_varint(value: int) -> bytes:
    """Encode an integer; negative ones as 64 bits of two's complement.

    Examples
    --------
    >>> encode_varint(300).hex()
    'ac02'
    """
    value &= (1 << 64) - 1
    last = max(value.bit_length() - 1, 0) // 7
    return bytes([*(value >> 7 * at & 0x7F | 0x80 for at in range(last)), value >> 7 * last])


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode an integer; return it and where it ends.

    Raises `WireError`: it is cut off, or longer than 64 bits.
    """
    value = shift = 0
    for position in range(at, min(len(data), at + _LONGEST_VARINT)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), position + 1
        shift += 7
    raise WireError("an integer that is cut off or too long")


def signed(value: int) -> int:
    """Read 64 bits as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def encode_field(number: int, value: float | bytes | str) -> bytes:
    """Encode a field: an integer, a number of 64 bits, or text, bytes or a message inside it."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    if isinstance(value, float):
        return encode_varint(number << 3 | FIXED64) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


def encode_packed(number: int, values: Iterable[int]) -> bytes:
    """Encode integers one after the other; nothing at all where there are none."""
    content = b"".join(map(encode_varint, values))
    return encode_field(number, content) if content else b""


def decode_fields(data: bytes | memoryview) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises `WireError`: a field that is cut off, or of no known type.
    """
    at, size = 0, len(data)
    while at < size:
        tag, at = decode_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field without number")
        length = FIXED_BYTES.get(kind, 0)
        if kind in (VARINT, BYTES):
            value, at = decode_varint(data, at)
            if kind == VARINT:
                yield number, kind, value
                continue
            length = value
        elif not length:
            raise WireError(f"a field of type {kind}")
        if at + length > size:
            raise WireError("a field that is cut off")
        yield number, kind, bytes(data[at : at + length])
        at += length


def decode_integers(kind: int, value: int | bytes) -> list[int]:
    """Return the integers of a repeated field, packed or one by one."""
    if isinstance(value, int):
        return [value]
    if kind != BYTES:
        raise WireError("integers of a fixed size")
    values, at = [], 0
    while at < len(value):
        number, at = decode_varint(value, at)
        values.append(number)
        if len(values) > MOST_INTEGERS:
            raise WireError(f"more than {MOST_INTEGERS:,} integers in a list")
    return values


def decode_text(value: int | bytes) -> str:
    """Return the text of a field."""
    if isinstance(value, int):
        raise WireError("a number in place of text")
    return value.decode("utf-8", errors="replace")


METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
"""Kinds of nodes (``NodeType``)."""

COLLECTIVES: Mapping[str, int] = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}
"""Numbers of collectives (``CollectiveCommType``)."""

SCHEMA_VERSION: Final = "0.0.4"
ALLOWED = "a Chakra execution trace (.et, protobuf)"
LARGEST_BYTES = 256 << 20
MOST_NODES = 500_000
"""Nodes of a rank; reading as many from a file as large takes up to 460 MB, as measured."""

Value = bool | int | float | str | tuple[int, ...]
"""Types of an attribute's value."""
_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of one rank.

    `kind`: of ``NodeType``.
    `data_deps`, `ctrl_deps`: nodes that have ended before.
    `duration_us`: whole microseconds, as the schema has them.
    `attributes`: by name.
    """

    number: int
    name: str
    kind: int
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)


# ---------------------------------------------------------------- write

_INT32, _INT64, _UINT64, _BOOL, _STRING = 7, 9, 13, 27, 29
_FIELDS: Mapping[type, int] = {bool: _BOOL, float: 3, str: _STRING, tuple: 14}
"""Fields of an attribute's value by its type: bool, double, string and list of uint64."""
_INTEGER_FIELDS = {
    **dict.fromkeys(("comm_size", "tensor_size"), _UINT64),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), _INT32),
}
"""Fields of the integers that Chakra's own generator writes as uint64 and int32; others: int64."""


def encode_trace(nodes: Iterable[TraceNode]) -> bytes:
    """Encode the file of one rank."""
    return b"".join(
        encode_varint(len(message)) + message
        for message in [encode_field(1, SCHEMA_VERSION), *map(_encode_node, nodes)]
    )


def _encode_node(node: TraceNode) -> bytes:
    return b"".join(
        (
            encode_field(1, node.number),
            encode_field(2, node.name),
            encode_field(3, node.kind),
            encode_packed(4, node.ctrl_deps),
            encode_packed(5, node.data_deps),
            encode_field(7, node.duration_us) if node.duration_us else b"",
            *(encode_field(10, _encode_attribute(*each)) for each in node.attributes.items()),
        )
    )


def _encode_attribute(name: str, value: Value) -> bytes:
    number = _FIELDS.get(type(value)) or _INTEGER_FIELDS.get(name, _INT64)
    content = encode_packed(1, value) if isinstance(value, tuple) else value
    return encode_field(1, name) + encode_field(number, content)


# ---------------------------------------------------------------- read


def read_trace(
    path: Path, *, is_read: Callable[[str], bool] | None = None
) -> tuple[TraceNode, ...]:
    """Read the file of one rank.

    `is_read`: of an attribute's name, whether it is kept; all are where nothing is given.
    Raises `InputError`: no Chakra trace, or a damaged one.
    """
    nodes: list[TraceNode] = []
    decoder, problem = _NodeDecoder(is_read), "no nodes"
    try:
        for number, message in enumerate(_messages(memoryview(read_bytes(path, LARGEST_BYTES)))):
            if number == 0:
                _check_metadata(message)
            else:
                nodes.append(decoder.node(message))
    except WireError as error:
        problem = f"message {len(nodes)}: {error}"
        nodes.clear()
    refuse_if(not nodes, "trace", problem, ALLOWED, str(path))
    return tuple(nodes)


def _messages(data: memoryview) -> Iterator[memoryview]:
    """Yield the messages of a file, each behind its length."""
    at = 0
    for number in itertools.count():
        if at == len(data):
            return
        if number >= MOST_NODES:
            raise WireError(f"more than {MOST_NODES:,} nodes")
        length, at = decode_varint(data, at)
        if at + length > len(data):
            raise WireError("it is cut off")
        yield data[at : at + length]
        at += length


def _check_metadata(data: memoryview) -> None:
    if any(number not in (1, 2) or kind != BYTES for number, kind, _ in decode_fields(data)):
        raise WireError("no metadata at the begin")


class _NodeDecoder:
    """Decodes the nodes of a file; equal texts, numbers and lists of them are one object.

    Millions of small objects, of 30 bytes and more each, are most of what a trace needs.
    """

    def __init__(self, is_read: Callable[[str], bool] | None) -> None:
        self._is_read = is_read
        self._shared: dict[Hashable, Any] = {}

    def node(self, data: memoryview) -> TraceNode:
        """Decode one node."""
        name, integers = "", {1: 0, 3: 0, 7: 0}
        depends: dict[int, list[int]] = {4: [], 5: []}
        attributes: dict[str, Value] = {}
        for field_, wire, value in decode_fields(data):
            if field_ in depends:
                depends[field_] += decode_integers(wire, value)
            elif field_ == 2:
                name = decode_text(value)
            elif field_ == 10 and isinstance(value, bytes):
                key, content = _decode_attribute(value)
                if self._is_read is None or self._is_read(key):
                    attributes[self._one(key)] = (
                        self._one(content) if isinstance(content, str) else content
                    )
            elif field_ in integers and isinstance(value, int):
                integers[field_] = value
        number, kind, duration = integers.values()
        control, inputs = (tuple(map(self._one, depends[field_])) for field_ in (4, 5))
        number, shared = self._one(number), self._one_of(attributes)
        return TraceNode(number, name, kind, inputs, control, duration, shared)

    def _one(self, value: _T) -> _T:
        """Return the object of this value that was seen first."""
        return cast("_T", self._shared.setdefault(value, value))

    def _one_of(self, attributes: dict[str, Value]) -> Mapping[str, Value]:
        """Return attributes that many nodes have, such as one flag, once."""
        if len(attributes) > 1:
            return attributes
        key = tuple((name, type(value), value) for name, value in attributes.items())
        return cast("Mapping[str, Value]", self._shared.setdefault(key, attributes))


def _zigzag(value: int) -> int:
    """Read an integer whose last bit is its sign."""
    return value >> 1 ^ -(value & 1)


_OF_VARINT: Mapping[int, Callable[[int], Value]] = {
    _INT32: signed,
    _INT64: signed,
    15: _zigzag,
    17: _zigzag,
    _BOOL: bool,
}
"""What an integer means by its field; of all others it is unsigned."""
_PACKED = {FIXED64: ({19: "<Q", 25: "<q"}, "<d"), FIXED32: ({5: "<f", 23: "<I", 21: "<I"}, "<i")}
"""Codes of `struct` by wire type and field, and the code of all other fields."""


def _decode_attribute(data: bytes) -> tuple[str, Value]:
    name: str = ""
    content: Value = 0
    for number, wire, value in decode_fields(data):
        if number == 1:
            name = decode_text(value)
        elif isinstance(value, int):
            content = _OF_VARINT.get(number, int)(value)
        elif wire in _PACKED:
            codes, other = _PACKED[wire]
            content = struct.unpack(codes.get(number, other), value)[0]
        elif number in (_STRING, 31):
            content = decode_text(value)
        elif number != 2:
            content = _decode_list(value)
    return name, content


def _decode_list(data: bytes) -> tuple[int, ...]:
    """Return whole numbers of a list; text and fractions, which nothing here reads, are empty."""
    fields = [(wire, value) for number, wire, value in decode_fields(data) if number == 1]
    with suppress(WireError):
        return tuple(itertools.chain.from_iterable(itertools.starmap(decode_integers, fields)))
    return ()
