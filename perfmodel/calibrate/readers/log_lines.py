"""Numbers as logs print them, with how far rounding may have moved them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


def number(text: str) -> float | None:
    """Read a number as C prints it; None for "N/A", "nan" and everything else."""
    return float(text) if NUMBER.match(text) else None


@dataclass(frozen=True, slots=True)
class Printed:
    """A number in a log.

    Parameters
    ----------
    value : float
    off : float
        Most that rounding to its last digit may have changed.
    """

    value: float
    off: float

    @property
    def low(self) -> float:
        """The least that was printed so."""
        return self.value - self.off

    @property
    def high(self) -> float:
        """The most that was printed so."""
        return self.value + self.off


def printed(text: str) -> Printed | None:
    """Read a number with its rounding; None for what is none.

    Examples
    --------
    >>> printed("12")
    Printed(value=12.0, off=0.51)
    """
    value = number(text)
    if value is None:
        return None
    mantissa, _, exponent = text.lower().partition("e")
    if len(exponent) > 4:  # beyond any float
        return Printed(value, math.inf)
    digits = len(mantissa.partition(".")[2]) - int(exponent or 0)
    # A little over half of the last digit: what is printed was computed in other steps.
    return Printed(value, 0.51 * 10.0 ** -min(max(digits, -300), 300))


_GROUPED = re.compile(r"\d{1,3}([,.'_])\d{3}(?:\1\d{3})*")
_DECIMAL_COMMA = re.compile(r"(\d+),(\d{1,2})")
_GROUPED_DECIMAL = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def plain_whole(text: str) -> str:
    """A whole number without marks between its thousands.

    Examples
    --------
    >>> plain_whole("1.048.576"), plain_whole("1,024"), plain_whole("4096")
    ('1048576', '1024', '4096')
    """
    grouped = _GROUPED.fullmatch(text)
    return text.replace(grouped[1], "") if grouped else text


def plain_number(text: str) -> str:
    """A number with a point before its decimals: logs have at most two digits behind a comma.

    Examples
    --------
    >>> plain_number("23,83"), plain_number("1,234.5"), plain_number("N/A")
    ('23.83', '1234.5', 'N/A')
    """
    if _GROUPED_DECIMAL.fullmatch(text):
        return text.replace(",", "")
    decimal = _DECIMAL_COMMA.fullmatch(text)
    return f"{decimal[1]}.{decimal[2]}" if decimal else text
