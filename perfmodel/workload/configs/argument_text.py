"""Arguments of a command line: as typed, in a script, or in YAML, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import plain
from perfmodel.files.read import parse_yaml, read_text

LARGEST_SCRIPT = 256 * 1024


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """Arguments by name, as text or as YAML has them, and where they stand."""

    values: Mapping[str, Any]
    file: str | None = None


def is_argument_file(text: str) -> bool:
    """Whether a text is the path of a file, and no arguments themselves."""
    return "--" not in text


def typed_arguments(text: str) -> ArgumentText:
    """Read arguments as typed."""
    return ArgumentText(_parse_text(text))


def read_arguments(path: Path) -> ArgumentText:
    """Read a file of arguments: a script, or YAML or JSON of them.

    Raises `InputError`: it holds none.
    """
    text = read_text(path, LARGEST_SCRIPT)
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        values = _parse_text(text)
        allowed = "arguments such as --num-layers 24, or YAML of them"
        if not values:
            raise InputError(Fault("megatron", "no argument", allowed, str(path)))
        return ArgumentText(values, str(path))
    document = plain(parse_yaml(text, str(path)))
    if isinstance(document, Mapping):
        sections = [document[key] for key in ("MODEL_ARGS", "model_args") if key in document]
        document = sections[0] if sections else document
    if not isinstance(document, Mapping):
        raise InputError(Fault("megatron", "no mapping", "arguments and their values", str(path)))
    values = {str(key).lstrip("-").replace("-", "_"): value for key, value in document.items()}
    words = {key: value for key, value in values.items() if isinstance(value, str)}
    return ArgumentText(values | {key: _parse_value([words[key]]) for key in words}, str(path))


def _parse_text(text: str) -> dict[str, Any]:
    """Arguments of a command line or a script, by name; the last one counts."""
    text = re.sub(r"(^|\s)#[^\n]*", " ", text).replace("\\\n", " ")
    tokens = re.sub(r"[\"'`;]", " ", text).split()
    values: dict[str, Any] = {}
    name, parts = "", list[str]()
    for token in [*tokens, "--"]:
        if token.startswith("--"):
            if name:
                values[name] = _parse_value(parts)
            name, _, inline = token[2:].partition("=")
            name, parts = name.replace("-", "_"), [inline] if inline else []
        elif name:
            parts.append(token)
    return values


def _parse_value(parts: list[str]) -> object:
    """Nothing is true; numbers are numbers; a bracket of a script ends the value."""
    usable = [part for part in parts[:1] if part not in (")", "(")]
    if not usable:
        return True
    word = usable[0] if usable[0].startswith("(") else usable[0].rstrip(")")
    if re.fullmatch(r"[+-]?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18})([eE][+-]?\d{1,3})?", word):
        return float(word)
    return {"true": True, "false": False}.get(word.lower(), word)
