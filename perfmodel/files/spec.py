"""Base class of all file models, and types of fields that are quantities."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from perfmodel.units import parse_bandwidth, parse_bytes, parse_flop_rate, parse_power, parse_time


class FileModel(BaseModel):
    """Base of all file models: unknown fields are faults, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


def _at_least_zero(value: float) -> float:
    if value < 0:
        raise ValueError("zero or more")
    return value


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError("more than zero")
    return value


def _parsed(value: object, parse: Any, check: Any) -> float:
    return float(check(parse(value)))


Bytes = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_bytes, _above_zero)),
    _schema("25 MiB"),
]
"""A size above zero, written with its unit; bytes."""

Bandwidth = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_bandwidth, _above_zero)),
    _schema("25 GB/s"),
]
"""A bandwidth above zero, written with its unit; bytes per second."""

Seconds = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_time, _at_least_zero)),
    _schema("1.3 us"),
]
"""A time of zero or more, written with its unit; seconds."""

FlopRate = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_flop_rate, _above_zero)),
    _schema("312 TFLOP/s"),
]
"""A compute rate above zero, written with its unit; operations per second."""

Power = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_power, _above_zero)),
    _schema("700 W"),
]
"""A power above zero, written with its unit; watts."""

Count = Annotated[int, Field(strict=True, gt=0)]
"""A whole number above zero; neither ``true`` nor ``"4"`` nor ``4.5`` is one."""
