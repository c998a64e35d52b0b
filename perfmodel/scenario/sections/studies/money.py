"""Money in files: an amount with its currency, such as "2.50 USD/h".

Currencies are three capital letters (ISO 4217) and are never converted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from perfmodel.errors import Fault, UnitError

_MONEY = re.compile(
    r"(?P<number>\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<currency>[A-Z]{3})"
    r"(?:\s*/\s*(?P<per>\S+))?",
    re.ASCII,
)

_SIGNS = {"$": "USD", "\u20ac": "EUR", "\u00a3": "GBP", "\u00a5": "JPY or CNY"}

MOST_MONEY = 1e15
"""More than all there is, in any currency."""

_NOT_MONEY = "not an amount of money"

_MISTAKES = (
    (",", "a comma, which may mean thousands or decimals; write 1_000.50"),
    (r"^\s*-", "less than zero"),
    (r"^\s*[\d._]+\s*(/|$)", "no currency"),
    (r"[a-z]{3}\b|^\s*[A-Z]{3}\s*\d", "a currency is three capital letters after the number"),
)
"""Patterns of common mistakes, and their explanation."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of one currency.

    Parameters
    ----------
    amount : float
        Zero or more.
    currency : str
        Three capital letters, such as "USD".
    """

    amount: float
    currency: str


def parse_money(
    text: object, *, per: Mapping[str, float] | None = None, example: str = "100_000 USD"
) -> Money:
    """Read an amount of money.

    `text`: the user's text.
    `per`: units allowed after a slash, and their size in the unit of the result; "" if the slash
        may be left out. Default: no slash.
    `example`: for the message.
    The amount is per unit of size 1.

    Raises `UnitError`: no currency, a sign instead of one, a comma, or a price per something else.

    Examples
    --------
    >>> parse_money("120 USD/MWh", per={"kWh": 1.0, "MWh": 1000.0})
    Money(amount=0.12, currency='USD')
    """
    if isinstance(text, Money):
        return text
    units = per or {"": 1.0}
    match = _MONEY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _make_error(text, _explain(text), example)
    unit = match["per"] or ""
    if unit not in units:
        slashes = " or ".join(f"'/{word}'" for word in units if word) or "no slash"
        raise _make_error(
            text, f"per {unit!r}" if unit else "per nothing", f"{example}', with {slashes}"
        )
    amount = float(match["number"].replace("_", "")) / units[unit]
    if amount > MOST_MONEY:
        raise _make_error(text, "beyond what there is", example)
    return Money(amount, match["currency"])


def _explain(text: object) -> str:
    """Explain why a text is not money."""
    if not isinstance(text, str):
        return "no currency" if isinstance(text, int | float) else "not an amount of money"
    sign = next((currency for sign, currency in _SIGNS.items() if sign in text), None)
    if sign is not None:
        return f"a sign, which several currencies share; write {sign}"
    return next((reason for pattern, reason in _MISTAKES if re.search(pattern, text)), _NOT_MONEY)


def _make_error(text: object, reason: str, example: str) -> UnitError:
    quoted = example if "'" in example else f"{example}'"
    return UnitError(Fault("value", f"{text!r} ({reason})", f"an amount such as '{quoted}"))


def _schema(*examples: str) -> WithJsonSchema:
    pattern = r"^\s*\d[\d_]*(\.\d+)?([eE][+-]?\d+)?\s*[A-Z]{3}(\s*/\s*\S+)?\s*$"
    shape: dict[str, Any] = {"type": "string", "pattern": pattern, "examples": list(examples)}
    return WithJsonSchema(shape)


_PER_HOUR = {"h": 1.0, "": 1.0}
_PER_KWH = {"kWh": 1.0, "MWh": 1000.0}

Price = Annotated[Money, BeforeValidator(parse_money), _schema("100_000 USD")]
"""An amount of money, such as "100_000 USD"."""

HourlyPrice = Annotated[
    Money,
    BeforeValidator(lambda v: parse_money(v, per=_PER_HOUR, example="2.50 USD/h")),
    _schema("2.50 USD/h"),
]
"""Money per hour, such as "2.50 USD/h"; "/h" may be left out."""

EnergyPrice = Annotated[
    Money,
    BeforeValidator(lambda v: parse_money(v, per=_PER_KWH, example="0.15 USD/kWh")),
    _schema("0.15 USD/kWh", "120 EUR/MWh"),
]
"""Money per kilowatt-hour, such as "0.15 USD/kWh"."""
