"""File and line of each field of a scenario, for faults that are found later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault


@dataclass(frozen=True, slots=True)
class SourceMap:
    """The file of a scenario, and the line of each field in it.

    `name`: the file's name without folder and suffix.
    `question`: its first comment line.
    `file`: path as the user would recognise it; None for a scenario made in Python.
    `lines`: one-based line of each dotted field.
    `flags`: dotted fields that ``--set`` gave.
    `content`: the file's plain values, with the flags applied.
    """

    name: str = "scenario"
    question: str = ""
    file: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)

    def locate(self, path: str) -> tuple[str | None, int | None]:
        """File and line of a dotted field, or of the nearest enclosing section with a line.

        Both are None for a field that a flag gave.
        """
        if self.from_flag(path):
            return None, None
        parts = path.split(".")
        lines = (self.lines.get(".".join(parts[:n])) for n in range(len(parts), 0, -1))
        return self.file, next((line for line in lines if line is not None), None)

    def from_flag(self, path: str) -> bool:
        """Whether the value of a dotted field came from ``--set``."""
        return any(path == flag or path.startswith(f"{flag}.") for flag in self.flags)

    def fault(self, path: str, found: str, allowed: str) -> Fault:
        """Return a fault at a dotted field, naming its line or its flag."""
        inside = [flag for flag in self.flags if flag.startswith(f"{path}.")]
        if inside and path not in self.lines:  # flags alone made the section
            return Fault(f"--set {', '.join(inside)}", found, allowed)
        file, line = self.locate(path)
        return Fault(f"--set {path}" if self.from_flag(path) else path, found, allowed, file, line)

    def resolve(self, path: str, value: str) -> Path:
        """Return the path in a field, relative to the file unless a flag gave it."""
        written = Path(os.path.expanduser(value))  # noqa: PTH111  (Path.expanduser raises on "~nobody")
        is_apart = self.file is None or self.from_flag(path)
        return written if is_apart else Path(self.file or "").parent / written

    def beside(self, path: str, value: str) -> str:
        """Return the path of a file named in a field if it exists, else the name as written."""
        candidate = self.resolve(path, value)
        return str(candidate) if os.path.isfile(candidate) else value  # noqa: PTH113  (never raises)


def line_map(document: Any, prefix: str = "") -> dict[str, int]:
    """One-based line of every field of a document read by `perfmodel.files.read_yaml`."""
    lines: dict[str, int] = {}
    marks = getattr(getattr(document, "lc", None), "data", None) or {}
    for key in document if isinstance(document, Mapping) else range(len(document)):
        if key in marks:
            lines[f"{prefix}{key}"] = int(marks[key][0]) + 1
        if isinstance(document[key], Mapping | list):
            lines |= line_map(document[key], f"{prefix}{key}.")
    return lines
