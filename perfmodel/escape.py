"""Text from files, flags and names, shown as text: what a terminal would obey is escaped.

Escape sequences of a terminal can move its cursor or write its clipboard, and characters that
change the direction of writing can make a line read as another; neither is ever printed as it is.
"""

from __future__ import annotations

import codecs
import unicodedata

_SPACES = frozenset("\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}")
"""Spaces of our own, between a number and its unit."""

_PLAIN = {
    "\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{EN DASH}": "-",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{MINUS SIGN}": "-",
    "\N{THIN SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
"""What stands for our own characters in an encoding without them."""

PLAIN_ERRORS = "perfmodel.plain"
"""Name of the rule for characters that the encoding of a terminal lacks."""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters, marks of direction and whatever else has no shape of its own.

    `lines`: keep line ends and tabs, of text that is longer than one line.

    Examples
    --------
    >>> printable("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _SPACES or (lines and c in "\n\t") else _escaped(c)
        for c in text
    )


def _escaped(character: str) -> str:
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def spreadsheet_safe(cell: object) -> object:
    """Return a cell of a CSV that no spreadsheet takes for a formula; numbers stay as they are.

    Examples
    --------
    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("-3.5")
    ("'=1+1", '-3.5')
    """
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text[:1] in set("=+-@") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or _escaped(c) for c in characters), error.end


codecs.register_error(PLAIN_ERRORS, _replace)
