"""Lines of a log without what job launchers put before them, and numbers in them."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEFORE = re.compile(
    r"^\s*(?:"
    r"\[\d+,\d+\](?:<std\w+>)?:?"  # Open MPI's --tag-output
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:?"  # timestamps
    r"|\[?\d\d:\d\d:\d\d[\d.,]*\]?:?"
    r"|\d+:(?=\s)"  # srun --label
    r"|[\w.-]+\s*\|(?=\s)"  # container names
    r")[ \t]?"
)

NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


def plain(line: str) -> str:
    """Return a line without colours, launcher prefixes and timestamps; spaces at its end go too."""
    text = _ANSI.sub("", line).rstrip()
    for _ in range(3):
        shorter = _BEFORE.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text


def number(text: str) -> float | None:
    """Read a number as C prints it; None for "N/A", "nan" and everything else."""
    return float(text) if NUMBER.match(text) else None
