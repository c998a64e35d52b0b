"""Base class of all file models, and types of fields that are quantities."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
)

from perfmodel.units import (
    LONGEST_LATENCY_S,
    MOST_COUNT,
    MOST_NODES,
    MOST_PARTS,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_power,
    parse_time,
)


class FileModel(BaseModel):
    """Base of all file models: unknown fields are faults, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class ShippedTable(FileModel):
    """A table that lies beside the code; `perfmodel`: version of its format."""

    perfmodel: int


def check_rows(*rows: tuple[object, str]) -> None:
    """Raise `ValueError` with what is allowed instead of the first mistake among some rows."""
    for is_mistake, allowed in rows:
        if is_mistake:
            raise ValueError(allowed)


AS_WRITTEN = {"as_written": True}
"""Context of `model_dump` with which quantities come out with their units, as files have them."""


def _unit(unit: str) -> PlainSerializer:
    """Write a quantity with its unit where a dump asks for it (`AS_WRITTEN`)."""

    def write(value: Any, info: SerializationInfo) -> Any:
        return f"{value!r} {unit}" if info.context == AS_WRITTEN and value is not None else value

    return PlainSerializer(write, when_used="json")


def _schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


def _quantity(
    parse: Callable[[object], float], *, zero: bool = False, most: float = math.inf
) -> BeforeValidator:
    """Read text with a unit, above zero, or zero as well; `most`: of a latency."""

    def validate(value: object) -> float:
        number = parse(value)
        check_rows(
            (number > most, f"a latency of at most {most:g} s"),
            (
                number < 0 or (number == 0 and not zero),
                "zero or more" if zero else "more than zero",
            ),
        )
        return float(number)

    return BeforeValidator(validate)


Bytes = Annotated[float, _quantity(parse_bytes), _schema("25 MiB"), _unit("B")]
"""A size above zero, written with its unit; bytes."""

SizeOrNothing = Annotated[float, _quantity(parse_bytes, zero=True), _schema("25 MiB"), _unit("B")]
"""A size of zero or more, written with its unit; bytes."""

Bandwidth = Annotated[float, _quantity(parse_bandwidth), _schema("25 GB/s"), _unit("B/s")]
"""A bandwidth above zero, written with its unit; bytes per second."""

Seconds = Annotated[float, _quantity(parse_time, zero=True), _schema("1.3 us"), _unit("s")]
"""A time of zero or more, written with its unit; seconds."""

Latency = Annotated[
    float, _quantity(parse_time, zero=True, most=LONGEST_LATENCY_S), _schema("1.3 us"), _unit("s")
]
"""What one message or call waits, written with its unit; seconds."""


LEAST_BARE_BPS, LARGEST_BARE_S = 1e6, 0.01
"""A link that is slower, or later, is meant in another unit, unless it is written with its unit."""


def _in_si(
    parse: Callable[[object], float], allowed: str, is_meant: Callable[[float], bool]
) -> BeforeValidator:
    """A number in SI units, if it can be meant so, or text with a unit."""

    def read(value: object) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            number = parse(value)
            if number >= 0:
                return number
        elif is_meant(float(value)):
            return float(value)
        raise ValueError(allowed)

    return BeforeValidator(read)


LinkBandwidth = Annotated[
    float,
    _in_si(
        parse_bandwidth,
        "bytes per second, finite and a million or more, or text such as '25 GB/s'",
        lambda number: LEAST_BARE_BPS <= number < math.inf,
    ),
    Field(gt=0),
]
"""Bandwidth of an edge of a graph: bytes per second as a number, or text with its unit."""

LinkLatency = Annotated[
    float,
    _in_si(
        parse_time,
        "seconds, from zero to a hundredth, or text such as '1.3 us'",
        lambda number: 0 <= number <= LARGEST_BARE_S,
    ),
]
"""Latency of an edge of a graph: seconds as a number, or text with its unit."""

FlopRate = Annotated[float, _quantity(parse_flop_rate), _schema("312 TFLOP/s"), _unit("FLOP/s")]
"""A compute rate above zero, written with its unit; operations per second."""

Power = Annotated[float, _quantity(parse_power), _schema("700 W"), _unit("W")]
"""A power above zero, written with its unit; watts."""

Count = Annotated[int, Field(strict=True, gt=0, le=MOST_COUNT)]
"""A whole number above zero; neither ``true`` nor ``"4"`` nor ``4.5`` is one."""

Parts = Annotated[int, Field(strict=True, ge=1, le=MOST_PARTS)]
"""How many parts of one kind a device, a cable or a library has; a whole number above zero."""

Nodes = Annotated[int, Field(strict=True, gt=0, le=MOST_NODES)]
"""How many nodes; a whole number above zero."""

Factor = Annotated[float, Field(strict=True, ge=1, le=1e9)]
"""How many times longer, slower or more; one or more."""
