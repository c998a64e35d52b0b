"""Parse and format quantities with units.

Inside the package every quantity is a float in SI units, and its name ends in ``_s``,
``_bytes``, ``_Bps`` or ``_flops``. Quantities in files and flags have units ("25 MiB",
"400 Gbit/s", "1.3 us", "5 days"). Only the units listed here are allowed, and case matters:
general unit libraries misread units of this field ("200 Gb/s" as gilbert, "16 GT/s" as gigatesla).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from perfmodel.errors import Fault, UnitError, allowed_names

_DECIMAL = {"": 1e0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

BYTES: Mapping[str, float] = {f"{prefix}B": scale for prefix, scale in (_DECIMAL | _BINARY).items()}
"""Bytes per unit of size."""

BANDWIDTHS: Mapping[str, float] = {f"{unit}/s": scale for unit, scale in BYTES.items()} | {
    f"{prefix}{bits}": scale / 8 for bits in ("bit/s", "bps") for prefix, scale in _DECIMAL.items()
}
"""Bytes per second per unit of bandwidth; the ``bps`` family always means bits."""

TIMES: Mapping[str, float] = {
    "ps": 1e-12,
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "ms": 1e-3,
    "s": 1e0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
"""Seconds per unit of time."""

TIME_WORDS: Mapping[str, str] = {
    word: unit
    for unit, spellings in {
        "s": "sec second",
        "min": "mins minute",
        "h": "hr hrs hour",
        "d": "day",
        "ms": "msec millisecond",
        "us": "usec microsecond",
    }.items()
    for spelling in spellings.split()
    for word in (spelling, spelling if spelling.endswith("s") else f"{spelling}s")
}
"""Words for units of time, as people write them: "5 days"."""

FLOP_RATES: Mapping[str, float] = {f"{p}FLOP/s": scale for p, scale in _DECIMAL.items()}
"""Floating-point operations per second per unit."""

POWERS: Mapping[str, float] = {f"{prefix}W": scale for prefix, scale in _DECIMAL.items()}
"""Watts per unit of power."""

LIMITS: Mapping[str, tuple[str, str]] = {
    "a size": ("1 B", "1 PiB"),
    "a bandwidth": ("1 bit/s", "1 PB/s"),
    "a time": ("1e-9 ps", "36_525 d"),
    "a compute rate": ("1 FLOP/s", "1000 PFLOP/s"),
    "a power": ("0.001 W", "1 GW"),
}
"""Smallest and largest quantity of each kind, zero aside: none of one GPU, link or training is
beyond them (the fastest memory has 0.01 PB/s, the fastest GPU 20 PFLOP/s; a century is the longest
time), and within them no product of quantities leaves the range of a float."""

LONGEST_LATENCY_S = 10.0
"""No message waits longer: light takes 2.6 s to the moon and back."""

SHORTEST_MEASURED_S, LONGEST_MEASURED_S = 1e-12, 1e9
"""A time that was measured: no clock resolves less than a picosecond, nothing ran for 30 years."""

MOST_MEASURED_BYTES = 2**50
"""The largest size of `LIMITS`, as sizes of collectives are counted."""

MOST_COUNT = 2**31 - 1
"""Samples, tokens or steps: more of them is taken for a mistake, and products of two stay below
2^63, where NumPy's integers end."""

MOST_PARTS = 65_536
"""Lanes, cables, ports, channels or chunks in flight: no device has more."""

MOST_NODES = 200_000
"""Nodes of one cluster; of more than one GPU each, fewer are built (`build.MOST_GPUS`)."""

_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\d\s_.].*?)?\s*",
    re.ASCII,
)

_LONGEST_TEXT = 200
"""Characters: the pattern takes time that grows with the square of them."""


def parse_quantity(
    text: object, units: Mapping[str, float], *, kind: str, example: str, field: str = "value"
) -> float:
    """Read a number with one of the allowed units.

    Parameters
    ----------
    text : object
        The user's text; only a string can have a unit.
    units : mapping of str to float
        Allowed units and their value in SI.
    kind, example : str
        Phrases for the message, such as "a bandwidth" and "25 GB/s".
    field : str
        Name used in the message.

    Returns
    -------
    float
        The quantity in SI units; finite, may be zero or negative.

    Raises
    ------
    UnitError
        Not a string, no unit, unknown unit, not a finite number, or beyond `LIMITS`.
    """

    def refuse(reason: str, hint: str = "") -> UnitError:
        return UnitError(Fault(field, f"{text!r} ({reason})", f"{kind} such as '{example}'{hint}"))

    if not isinstance(text, str):
        raise refuse("no unit" if isinstance(text, int | float) else "not text with a unit")
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise refuse("not a number with a unit")
    unit = match["unit"]
    if unit is None:
        raise refuse("no unit")
    if units is TIMES:
        unit = TIME_WORDS.get(unit.lower(), unit)
    unit = unit.replace("\u03bc", "\u00b5")  # keyboards type the Greek letter for the micro sign
    if unit not in units:
        raise refuse(f"unknown unit {unit!r}", f", unit {_unit_choice(unit, units)}")
    value = float(match["number"].replace("_", "")) * units[unit]
    if not math.isfinite(value):
        raise refuse("not a finite number")
    if kind in LIMITS:
        least, most = LIMITS[kind]
        if value and not _in_units(least, units) <= abs(value) <= _in_units(most, units) * 1.0001:
            raise refuse("beyond what there is", f", from {least} to {most}")
    return value


def _in_units(text: str, units: Mapping[str, float]) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * units[unit]


def _unit_choice(unit: str, units: Mapping[str, float]) -> str:
    """Phrase the allowed units; both readings if a letter b may mean bits or bytes."""
    if unit.endswith("T/s"):  # transfers per second: a rate of the pins, whatever the lanes
        return (
            f"{allowed_names(units)}: transfers do not say how wide the link is, give bytes or bits"
        )
    meant = [name for name in units if _spelling(name) == _spelling(unit)]
    if not meant:
        return allowed_names(units, unit)
    hint = " or ".join(repr(name) for name in sorted(meant))
    return f"{allowed_names(units)} (did you mean {hint}?)"


def _spelling(unit: str) -> str:
    return unit.lower().replace("bits", "b").replace("bit", "b").replace("bps", "b/s")


def parse_bytes(text: object, field: str = "value") -> float:
    """Read a size such as ``"25 MiB"``; bytes.

    Examples
    --------
    >>> parse_bytes("25 MiB")
    26214400.0
    """
    return parse_quantity(text, BYTES, kind="a size", example="25 MiB", field=field)


def parse_bandwidth(text: object, field: str = "value") -> float:
    """Read a bandwidth such as ``"400 Gbit/s"``; bytes per second.

    Examples
    --------
    >>> parse_bandwidth("400 Gbit/s") == parse_bandwidth("50 GB/s") == 50e9
    True
    """
    return parse_quantity(text, BANDWIDTHS, kind="a bandwidth", example="25 GB/s", field=field)


def parse_time(text: object, field: str = "value") -> float:
    """Read a time such as ``"1.3 us"``; seconds.

    Examples
    --------
    >>> parse_time("20 ms")
    0.02
    """
    return parse_quantity(text, TIMES, kind="a time", example="1.3 us", field=field)


def parse_flop_rate(text: object, field: str = "value") -> float:
    """Read a compute rate such as ``"312 TFLOP/s"``; operations per second.

    Examples
    --------
    >>> parse_flop_rate("312 TFLOP/s")
    312000000000000.0
    """
    return parse_quantity(
        text, FLOP_RATES, kind="a compute rate", example="312 TFLOP/s", field=field
    )


def parse_power(text: object, field: str = "value") -> float:
    """Read a power such as ``"6.5 kW"``; watts.

    Examples
    --------
    >>> parse_power("6.5 kW")
    6500.0
    """
    return parse_quantity(text, POWERS, kind="a power", example="700 W", field=field)


def _scaled(value: float, units: list[tuple[str, float]]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {units[0][0]}"
    fits = [(name, scale) for name, scale in units if abs(value) >= scale * 0.99995]
    name, scale = fits[-1] if fits else units[0]
    return f"{value / scale:.4g} {name}"


def format_bytes(nbytes: float) -> str:
    """Write a size with a binary prefix, to four digits.

    Examples
    --------
    >>> format_bytes(26214400)
    '25 MiB'
    """
    return _scaled(nbytes, [("B", 1.0), *((f"{p}B", s) for p, s in _BINARY.items())])


def format_bandwidth(rate_Bps: float) -> str:
    """Write a bandwidth with a decimal prefix.

    Examples
    --------
    >>> format_bandwidth(25e9)
    '25 GB/s'
    """
    return _scaled(rate_Bps, [(f"{p}B/s", s) for p, s in _DECIMAL.items()])


def format_time(time_s: float) -> str:
    """Write a time in the largest unit that keeps it at one or more.

    Examples
    --------
    >>> format_time(0.0125)
    '12.5 ms'
    """
    units = [(name, TIMES[name]) for name in ("ps", "ns", "us", "ms", "s", "min", "h", "d")]
    return "0 s" if time_s == 0 else _scaled(time_s, units)
