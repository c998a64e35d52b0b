"""Protocol Buffers' encoding, as far as Chakra's messages need it.

Written by hand, because generated code fits one version of the protobuf runtime only
(developers.google.com/protocol-buffers/docs/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
MOST_INTEGERS = 1 << 20
"""Of one list: a node depends on tens of others; a list of a megabyte is no trace's."""

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
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


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


def encode_integer(field: int, value: int) -> bytes:
    """Encode an integer field."""
    return encode_varint(field << 3 | VARINT) + encode_varint(value)


def encode_bytes(field: int, value: bytes | str) -> bytes:
    """Encode text, bytes or a message inside a message."""
    content = value.encode() if isinstance(value, str) else value
    return encode_varint(field << 3 | BYTES) + encode_varint(len(content)) + content


def encode_double(field: int, value: float) -> bytes:
    """Encode a number of 64 bits."""
    return encode_varint(field << 3 | FIXED64) + struct.pack("<d", value)


def encode_packed(field: int, values: Iterable[int]) -> bytes:
    """Encode integers one after the other; nothing at all where there are none."""
    content = b"".join(map(encode_varint, values))
    return encode_bytes(field, content) if content else b""


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
        if kind == VARINT:
            value, at = decode_varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = decode_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"a field of type {kind}")
        if at + length > size:
            raise WireError("a field that is cut off")
        yield number, kind, bytes(data[at : at + length])
        at += length


def decode_integers(kind: int, value: int | bytes) -> list[int]:
    """Integers of a repeated field, packed or one by one."""
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
    """Text of a field."""
    if isinstance(value, int):
        raise WireError("a number in place of text")
    return value.decode("utf-8", errors="replace")
