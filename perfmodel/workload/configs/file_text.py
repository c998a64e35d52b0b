"""Texts that describe models: JSON objects within bounds, and arguments of a command line.

Faults of JSON name the line of their field; arguments are as typed, in a script, or in YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults, refuse_if
from perfmodel.files import plain
from perfmodel.files.pasted_text import PRINTED, PRINTED_PYTHON
from perfmodel.files.read import LARGEST_YAML_BYTES, bound_faults, parse_yaml, read_text

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
        return replace(
            fault, field=field, file=str(self.path), line=line_of_field(self.text, field.split("."))
        )


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
    refuse_if(not text.strip(), "file", "nothing", "a JSON object", str(path))
    try:
        content = json.loads(text, parse_constant=_named_constant if infinite else _refuse_constant)
    except json.JSONDecodeError as error:
        problem, allowed = f"what is no JSON ({error.msg}, column {error.colno})", "a JSON object"
        if re.match(PRINTED_PYTHON, text, re.MULTILINE):
            problem, allowed = PRINTED, f"{allowed}, as json.dump writes it"
        raise InputError(Fault("file", problem, allowed, str(path), error.lineno)) from None
    except RecursionError:
        text = "brackets nested too deep"
        raise InputError(Fault("file", text, "a JSON object, less deep", str(path))) from None
    except ValueError as error:  # a constant, or thousands of digits
        problem = str(error).partition(";")[0]
        raise InputError(Fault("file", problem, "finite numbers in JSON", str(path))) from None
    refuse_if(
        not isinstance(content, dict),
        "document",
        f"{'a list' if isinstance(content, list) else 'one value'} only",
        "a JSON object",
        str(path),
        1,
    )
    raise_faults(
        bound_faults(
            content, str(path), lambda _, field: line_of_field(text, [str(part) for part in field])
        )
    )
    return JsonFile(path, text, content)


def _named_constant(word: str) -> dict[str, str]:
    if word == "NaN":
        _refuse_constant(word)
    return {"__float__": word}


def _refuse_constant(word: str) -> float:
    raise ValueError(f"the number {word}")


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
        refuse_if(
            not values,
            "megatron",
            "no argument",
            "arguments such as --num-layers 24, or YAML of them",
            str(path),
        )
        return ArgumentText(values, str(path))
    document = plain(parse_yaml(text, str(path)))
    if isinstance(document, Mapping):
        sections = [document[key] for key in ("MODEL_ARGS", "model_args") if key in document]
        document = sections[0] if sections else document
    refuse_if(
        not isinstance(document, Mapping),
        "megatron",
        "no mapping",
        "arguments and their values",
        str(path),
    )
    values = {str(key).lstrip("-").replace("-", "_"): value for key, value in document.items()}
    words = {key: value for key, value in values.items() if isinstance(value, str)}
    return ArgumentText(values | {key: _parse_value([words[key]]) for key in words}, str(path))


def _parse_text(text: str) -> dict[str, Any]:
    """Arguments of a command line or a script, by name; the last one counts."""
    text = re.sub(r"(^|\s)#[^\n]*", " ", text).replace("\\\n", " ")
    values: dict[str, Any] = {}
    name, parts = "", list[str]()
    for token in [*re.sub(r"[\"'`;]", " ", text).split(), "--"]:
        if token.startswith("--"):
            if name:
                values[name] = _parse_value(parts)
            name, _, inline = token[2:].partition("=")
            name, parts = name.replace("-", "_"), [inline] if inline else []
        elif name:
            parts.append(token)
    return values


def _parse_value(parts: list[str]) -> object:
    """Return what the words after a flag of a script mean: a number, true or false, or text.

    No word, as a flag alone has, is true; a closing bracket ends the value.
    """
    usable = [part for part in parts[:1] if part not in (")", "(")]
    if not usable:
        return True
    word = usable[0] if usable[0].startswith("(") else usable[0].rstrip(")")
    if re.fullmatch(r"[+-]?\d{1,18}", word):
        return int(word)
    if re.fullmatch(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18})([eE][+-]?\d{1,3})?", word):
        return float(word)
    return {"true": True, "false": False}.get(word.lower(), word)
