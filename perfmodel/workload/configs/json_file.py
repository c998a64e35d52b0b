"""Read a JSON object within bounds, and find the line of a field for faults."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.files.bounds import LARGEST_YAML_BYTES, bound_faults
from perfmodel.files.read import read_text

CONFIG_NAME = "config.json"
"""As Hugging Face names the configuration in the folder of a model."""


@dataclass(frozen=True, slots=True)
class JsonFile:
    """An object of JSON, and the text that it stands in."""

    path: Path
    text: str
    content: dict[str, Any]

    def located(self, fault: Fault, section: str = "") -> Fault:
        """Return a fault with this file and the line of its field, within a section of it."""
        field = f"{section}.{fault.field}" if section and fault.field != section else fault.field
        line = line_of_field(self.text, field.split("."))
        return replace(fault, field=field, file=str(self.path), line=line)


def line_of_field(text: str, path: Sequence[str]) -> int | None:
    """One-based line of a field, searched for from outside in."""
    start, line = 0, None
    for name in path:
        match = re.compile(rf'"{re.escape(name)}"\s*:').search(text, start)
        if match is None:
            break
        start, line = match.end(), text.count("\n", 0, match.start()) + 1
    return line


def read_json(path: Path, largest: int = LARGEST_YAML_BYTES, *, infinite: bool = False) -> JsonFile:
    """Read an object.

    `infinite`: whether ``Infinity`` is a number, as in configurations of state-space models; it
        becomes an object with ``__float__``, which is how transformers writes it.
    Raises `InputError`: unreadable, no JSON, no object, or beyond the bounds of `files.bounds`.
    """
    return parse_json(read_text(path, largest), path, infinite=infinite)


def parse_json(text: str, path: Path, *, infinite: bool = False) -> JsonFile:
    """Parse the text of a file; as `read_json`."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise InputError(Fault("file", "nothing", "a JSON object", str(path)))
    try:
        content = json.loads(text, parse_constant=_named_constant if infinite else _refuse_constant)
    except json.JSONDecodeError as error:
        problem = f"what is no JSON ({error.msg}, column {error.colno})"
        raise InputError(Fault("file", problem, "a JSON object", str(path), error.lineno)) from None
    except RecursionError:
        text = "brackets nested too deep"
        raise InputError(Fault("file", text, "a JSON object, less deep", str(path))) from None
    except ValueError as error:  # a constant, or thousands of digits
        problem = str(error).partition(";")[0]
        raise InputError(Fault("file", problem, "finite numbers in JSON", str(path))) from None
    read = JsonFile(path, text, content if isinstance(content, dict) else {})
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else "one value"
        raise InputError(Fault("document", f"{kind} only", "a JSON object", str(path), 1))
    raise_faults(
        bound_faults(
            content, str(path), lambda _, field: line_of_field(text, [str(part) for part in field])
        )
    )
    return read


def _named_constant(word: str) -> dict[str, str]:
    if word == "NaN":
        _refuse_constant(word)
    return {"__float__": word}


def _refuse_constant(word: str) -> float:
    raise ValueError(f"the number {word}")
