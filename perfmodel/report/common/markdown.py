"""Markdown that shows any text as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MEANT = re.compile(r"[\\`*{}\[\]#|~$!]|(?<!\w)_|_(?!\w)|^>")


def cell(text: str) -> str:
    r"""Write a text so that no renderer takes it for markup, on one line.

    Examples
    --------
    >>> cell("a|b <img src=x> *c*")
    'a\\|b &lt;img src=x> \\*c\\*'
    """
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    return _MEANT.sub(r"\\\g<0>", line)


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, words_at: Iterable[int] = ()
) -> str:
    """Write a table; numbers right, words left (columns `words_at`)."""
    left = set(words_at)
    rule = ["---" if at in left else "---:" for at in range(len(header))]
    lines = [[cell(title) for title in header], rule]
    lines += [[cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
