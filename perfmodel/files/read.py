"""Read text and YAML 1.2 strictly, keeping the line of every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files.fast_yaml import UnsupportedYaml, parse_with_libyaml
from perfmodel.files.find import is_shipped


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raise `InputError` if that fails."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            Fault("file", f"bytes that are not text ({error.reason})", "UTF-8 text", str(path))
        ) from None
    except OSError as error:
        raise InputError(
            Fault("file", error.strerror or str(error), "a readable file", str(path))
        ) from None


def read_yaml(path: Path) -> Any:
    """Read one YAML 1.2 document; mappings keep their line numbers (``.lc``).

    Shipped files are read by libyaml where its result is the same.

    Raises
    ------
    InputError
        Unreadable, not YAML, a duplicate key, or empty.
    """
    document = _parse(read_text(path), path)
    if document is None:
        raise InputError(Fault("file", "nothing", "a YAML document", str(path)))
    return document


def _parse(text: str, path: Path) -> Any:
    if is_shipped(path):
        with suppress(UnsupportedYaml):
            return parse_with_libyaml(text)
    return parse_yaml(text, str(path))


SHORT = 400
"""Most characters of a text that cannot nest so deep that libyaml runs out of stack: the value of
an option, for which importing ruamel would take longer than the rest of the command."""


def parse_yaml(text: str, file: str | None = None) -> Any:
    """Parse one YAML 1.2 document, or the value of an option (no `file`); None if it is empty.

    Raises `InputError`: not YAML, or a duplicate key.
    """
    if file is None and len(text) <= SHORT:
        with suppress(UnsupportedYaml):
            return parse_with_libyaml(text)
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = (error.problem or "not YAML").splitlines()[0]
        raise InputError(
            Fault("file", problem, "YAML 1.2 with each key given once", file, line)
        ) from None
    except (YAMLError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or ["unreadable"])[0]
        raise InputError(Fault("file", first, "YAML 1.2", file)) from None


def line_of(document: Any, path: Sequence[str | int]) -> int | None:
    """Return the one-based line of a field in a document read by `read_yaml`."""
    line: int | None = None
    for part in path:
        marks = getattr(document, "lc", None)
        try:
            if marks is not None:
                line = int(marks.data[part][0]) + 1
            document = document[part]
        except (KeyError, IndexError, TypeError):
            break
    return line


def plain(document: Any) -> Any:
    """Return the document as plain dicts, lists and scalars.

    Raises
    ------
    InputError
        An alias that contains itself.
    """
    try:
        return _to_plain(document)
    except RecursionError:
        raise InputError(
            Fault("document", "an alias that contains itself", "a tree of values")
        ) from None


def _to_plain(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {str(key): _to_plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_to_plain(item) for item in document]
    if isinstance(document, bool) or document is None:
        return document
    if type(document).__name__ == "ScalarBoolean":  # ruamel's boolean with an anchor: an int
        return bool(document)
    for kind in (int, float, str):
        if isinstance(document, kind):
            return kind(document)
    return document
