"""A captured model as the document of a model file, and its text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def write_document(document: Mapping[str, Any], comments: Sequence[str]) -> str:
    """Write the document as YAML that is read and edited by people: a line per tensor and layer."""
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines.append(f"{name}:")
            lines += [f"  - {_flow(each)}" for each in value]
        else:
            lines.append(f"{name}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and not _is_plain(value):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _is_plain(text: str) -> bool:
    """Whether YAML reads a text as itself without quotes."""
    letters = all(letter.isalnum() or letter in "._-/ " for letter in text)
    reserved = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan"}
    first = text[:1].isalpha() or (text[:1].isdigit() and text.endswith(" B"))
    return letters and first and text == text.strip() and text.lower() not in reserved
