"""Parsers of the fields of a parameter file: shapes, data types, truth values, times."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from perfmodel.errors import allowed_names
from perfmodel.units import TIMES, parse_time
from perfmodel.workload.model import ITEM_BYTES

TRAINABLE = frozenset({"fp64", "fp32", "bf16", "fp16", "fp8"})
"""Data types that can have a gradient."""

MOST_ELEMENTS = 10**13
"""Elements of one tensor: ten times the parameters of the largest models."""

MOST_S = 1e6
"""Seconds of one layer."""

DTYPES: Mapping[str, str] = {
    **{name: name for name in ITEM_BYTES if name != "tf32"},
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "long": "int64",
    "int": "int32",
}
"""Accepted names, NumPy's and PyTorch's among them."""

_TRUTH: Mapping[str, bool] = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
}


def parse_shape(value: object) -> tuple[int, ...]:
    """Read a shape: a list, or text such as "64x3x7x7", "(64, 3)" or "torch.Size([64])".

    Raises `ValueError`: what is allowed.

    Examples
    --------
    >>> parse_shape("64x3x7x7")
    (64, 3, 7, 7)
    """
    allowed = "whole numbers above zero, such as 64x3x7x7 or [64, 3, 7, 7]"
    if isinstance(value, list | tuple):
        sizes = list(value)
    else:
        text = str(value).strip().removeprefix("torch.Size(").strip("()[] ,")
        parts = re.split(r"\s*[x*,]\s*|\s+", text) if text else []
        sizes = [int(word) if re.fullmatch(r"\d{1,18}", word) else word for word in parts]
    if any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
        raise ValueError(allowed)
    if isinstance(value, str) and not value.strip():
        raise ValueError(allowed)
    if len(sizes) > 64 or math.prod(sizes) > MOST_ELEMENTS:
        raise ValueError(f"{allowed}, at most {MOST_ELEMENTS:g} elements in all")
    return tuple(sizes)


def list_first(names: Sequence[str], limit: int = 5) -> str:
    """Quote the first names for a message.

    Examples
    --------
    >>> list_first(["conv", "fc"], limit=1)
    "'conv' ..."
    """
    return ", ".join(map(repr, names[:limit])) + (" ..." if names[limit:] else "")


def parse_numel(text: str) -> int:
    """Read a number of elements.

    Raises `ValueError`: what is allowed.
    """
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < 1:
        raise ValueError("a whole number above zero")
    if int(text) > MOST_ELEMENTS:
        raise ValueError(f"at most {MOST_ELEMENTS:,} elements")
    return int(text)


def parse_dtype(value: object) -> str:
    """Read a data type: "fp32", "float32", "torch.bfloat16" ...

    Raises `ValueError`: what is allowed.
    """
    word = str(value).strip().removeprefix("torch.")
    if word not in DTYPES:
        raise ValueError(allowed_names(DTYPES, word))
    return DTYPES[word]


def parse_truth(text: str) -> bool:
    """Read true or false.

    Raises `ValueError`: what is allowed.
    """
    word = text.strip().lower()
    if word not in _TRUTH:
        raise ValueError("true or false")
    return _TRUTH[word]


def parse_duration(text: str, unit: str | None) -> float:
    """Read a time of zero or more: with its unit, or a number in the column's unit; seconds.

    Raises `ValueError`: what is allowed.
    """
    if unit is None:
        value = parse_time(text.strip() or None)
    else:
        try:
            value = float(text) * TIMES[unit]
        except ValueError:
            raise ValueError(f"a number ({unit})") from None
    if not 0 <= value <= MOST_S:
        raise ValueError(f"a time of zero or more, at most {MOST_S:g} s")
    return value
