"""File and line of each field of a scenario, for faults that are found later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault
from perfmodel.files import data_folder, line_of


@dataclass(frozen=True, slots=True)
class SourceMap:
    """The file of a scenario, and the line of each field in it.

    `name`: the file's name without folder and suffix.
    `question`: its first comment line.
    `file`: path as the user would recognise it; None for a scenario made in Python.
    `lines`: one-based line of each dotted field.
    `flags`: dotted fields that ``--set`` gave.
    `content`: the file's plain values, with the flags applied.
    `notes`: what sections that a flag changed took along or left, in sentences.
    """

    name: str = "scenario"
    question: str = ""
    file: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """Value of each field that a flag gave, as written; of one within another only that."""
        flags, values = self.flags, dict[str, Any]()
        for flag in flags:
            if not any(flag.startswith(f"{outer}.") for outer in flags):
                value: Any = self.content
                for part in flag.split("."):
                    # a later change may have taken the whole section away
                    own = value or {}
                    value = own[int(part)] if isinstance(own, list) else own.get(part)
                values[flag] = value
        return values

    @property
    def place(self) -> str | None:
        """The file as messages name it: a shipped one without the folder of perfmodel."""
        return self.file and self.file.removeprefix(f"{data_folder('scenarios')}{os.sep}")

    def locate(self, path: str) -> tuple[str | None, int | None]:
        """File and line of a dotted field, or of the nearest enclosing section with a line.

        Both are None for a field that a flag gave.
        """
        if self.from_flag(path):
            return None, None
        parts = path.split(".")
        lines = (self.lines.get(".".join(parts[:n])) for n in range(len(parts), 0, -1))
        return self.place, next((line for line in lines if line is not None), None)

    @property
    def strategy(self) -> Mapping[str, Any]:
        """Section of the strategy as it is stated; a name alone is its kind."""
        stated = self.content.get("strategy") or {}
        return {"kind": stated} if isinstance(stated, str) else stated

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


def format_fields(values: Mapping[str, Any]) -> str:
    """Write fields in one line: ``cluster.nodes=2, strategy.bucket_cap=1 MiB``."""
    return ", ".join(f"{field}={format_value(value)}" for field, value in values.items())


def format_value(value: object) -> str:
    """Write a value as in a file."""
    return value if isinstance(value, str) else json.dumps(value)


def line_map(document: Any, prefix: str = "") -> dict[str, int]:
    """One-based line of every field of a document read by `perfmodel.files.read_yaml`."""
    lines: dict[str, int] = {}
    for key in document if isinstance(document, Mapping) else range(len(document)):
        line = line_of(document, [key])
        if line is not None:
            lines[f"{prefix}{key}"] = line
        if isinstance(document[key], Mapping | list):
            lines |= line_map(document[key], f"{prefix}{key}.")
    return lines
