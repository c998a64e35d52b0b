"""Read text and YAML 1.2 strictly, keeping the line of every field; gzip is unpacked.

PyYAML says what stands in a text, by libyaml where it is installed; its own constructors follow
YAML 1.1, in which ``no`` is false, so that documents are made here, by YAML 1.2's core schema.

Bounds on what a file may hold, found before anything walks through it.

An alias of YAML repeats what it names at the cost of a few characters, and aliases of aliases
multiply: 600 bytes can stand for more values than a machine has memory for.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from perfmodel.errors import Fault, InputError, raise_faults, refuse_if

LARGEST_BYTES = 64 * 2**20
"""Largest file that is read: logs of nccl-tests and NCCL_DEBUG=INFO have some MB."""

LARGEST_YAML_BYTES = 4 * 2**20
"""Largest YAML: the parser reads about a quarter of a MB in a second; the profile of 30 sweeps has
half of one."""

MOST_VALUES = 500_000
"""Values of a document, aliases written out."""

MOST_LEVELS = 60
"""Levels of a document; ours have eight."""

LARGEST_WHOLE = 2**53
"""Largest number up to which every whole number is a float."""

SMALLEST_REAL, LARGEST_REAL = 1e-60, 1e30
"""Numbers without a unit: squares of them stay within the range of a float."""

LONGEST_TEXT = 20_000
"""Characters of one text."""

_Path = tuple[str | int, ...]


def bound_faults(
    document: Any, file: str | None, line_of: Callable[[Any, _Path], int | None]
) -> list[Fault]:
    """Return what is beyond the bounds: too many values, too deep, numbers no float can hold.

    `document`: as parsed, with aliases as repeated objects.
    `line_of`: finds the line of a path.
    """
    faults: list[Fault] = []
    # Each value with its place: its key, the place of what it is in, and how deep it is.
    pending: list[tuple[Any, _Place | None]] = [(document, None)]
    count = 0
    while pending:
        value, place = pending.pop()
        count += 1
        depth = place[2] if place else 0
        if count > MOST_VALUES:
            text = f"more than {MOST_VALUES:,} values, aliases written out"
            return [Fault("document", text, "fewer values", file)]
        if depth > MOST_LEVELS:
            text = f"more than {MOST_LEVELS} levels, one inside the other; or an alias in itself"
            return [Fault("document", text, "a tree of values, less deep", file)]
        if type(value) not in PLAIN and isinstance(value, Mapping):
            pending += [(child, (key, place, depth + 1)) for key, child in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(child, (at, place, depth + 1)) for at, child in enumerate(value)]
        elif problem := _problem(value):
            path = _path_of(place)
            field = ".".join(map(str, path)) or "document"
            faults.append(Fault(field, *problem, file, line_of(document, path)))
    return faults[::-1]


_Place = tuple[str | int, Any, int]


def _path_of(place: _Place | None) -> _Path:
    """Keys from the document down to a place."""
    return () if place is None else (*_path_of(place[1]), place[0])


def _problem(value: Any) -> tuple[str, str] | None:
    """What was found and what is allowed, where a scalar is beyond the bounds."""
    if isinstance(value, str):
        if len(value) <= LONGEST_TEXT:
            return None
        return f"a text of {len(value):,} characters", f"at most {LONGEST_TEXT:,}"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        digits = int(math.log10(abs(value))) + 1
        return f"a whole number of {digits} digits", f"at most {LARGEST_WHOLE:,} (2^53)"
    real = isinstance(value, float) and value != 0 and math.isfinite(value)
    if real and not SMALLEST_REAL <= abs(value) <= LARGEST_REAL:
        return repr(float(value)), f"0, or from {SMALLEST_REAL:g} to {LARGEST_REAL:g}"
    return None


GZIP = b"\x1f\x8b"
"""First bytes of each member of gzip data."""
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)


def gzip_problem(error: Exception) -> str:
    """What is wrong with gzip data whose reading raised one of `GZIP_ERRORS`."""
    early = isinstance(error, EOFError)
    return "gzip data that end too early" if early else f"damaged gzip data ({error})"


def unpacked(file: BinaryIO) -> BinaryIO:
    """Return a stream of what a file holds, decompressed if it begins as gzip data do."""
    is_packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file


def read_bytes(path: Path, largest: int = LARGEST_BYTES) -> bytes:
    """Read a file of at most `largest` bytes, unpacked; raise `InputError` if that fails.

    Devices and pipes, which may never end, are refused.
    """
    problem = ""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            problem = "a device or pipe"
        else:
            with path.open("rb") as stream:
                data = unpacked(stream).read(largest + 1)
            problem = f"more than {largest / 2**20:g} MiB" if len(data) > largest else ""
    except GZIP_ERRORS as error:
        problem = gzip_problem(error)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        problem = getattr(error, "strerror", None) or str(error)
    allowed = "a smaller file" if problem.startswith("more") else "a readable file"
    refuse_if(problem, "file", problem, allowed, str(path))
    return data


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """Read a UTF-8 file; raise `InputError` if that fails."""
    try:
        text = read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            Fault("file", f"bytes that are not text ({error.reason})", "UTF-8 text", str(path))
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def first_comment(text: str) -> str:
    r"""Return the first comment line, or "" if something else comes first.

    Examples
    --------
    >>> first_comment("# yaml-language-server: $schema=x\n# How fast?\nperfmodel: 1")
    'How fast?'
    """
    lines = map(str.strip, text.removeprefix("\ufeff").splitlines())
    kept = (
        line for line in lines if line not in {"", "---"} and "yaml-language-server" not in line
    )
    first = next(kept, "")
    return first.lstrip("#").strip() if first.startswith("#") else ""


def read_yaml(path: Path) -> Any:
    """Read one YAML 1.2 document; mappings and lists know the lines of their fields.

    Raises
    ------
    InputError
        Unreadable, not YAML, a duplicate key, empty, or beyond the bounds of what files may hold.
    """
    document = parse_yaml(read_text(path, LARGEST_YAML_BYTES), str(path))
    refuse_if(document is None, "file", "nothing", "a YAML document", str(path))
    return document


def parse_yaml(text: str, file: str | None = None) -> Any:
    """Parse one YAML 1.2 document, or the value of an option (no `file`); None if it is empty.

    Raises `InputError`: not YAML, a duplicate key, or beyond the bounds of what files may hold.
    """
    yaml = import_module("yaml")  # imported here: many commands read no file
    allowed = "YAML 1.2 without tags, indented by spaces, whose keys are words, each given once"
    try:
        document = _YamlReader(yaml, text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = (error.problem or "not YAML").splitlines()[0].removeprefix("found ")
        raise InputError(Fault("file", problem, allowed, file, line)) from None
    # ValueError: half of a pair of codes, or more digits than Python converts
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(Fault("file", str(error).splitlines()[0], allowed, file)) from None
    raise_faults(bound_faults(document, file, line_of))
    return document


def line_of(document: Any, path: Sequence[str | int]) -> int | None:
    """Return the one-based line of a field in a document read by `read_yaml`."""
    line: int | None = None
    for part in path:
        try:
            if isinstance(document, LinedMapping | LinedList):
                line = document.lines[part] + 1
            document = document[part]
        except (KeyError, IndexError, TypeError):
            break
    return line


PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of scalars that are what they are; others, as NumPy's, are made into them."""


def plain(document: Any) -> Any:
    """Return the document as plain dicts, lists and scalars.

    Raises
    ------
    InputError
        Beyond the bounds of `files.bounds`, such as an alias that contains itself.
    """
    if not isinstance(document, LinedMapping | LinedList):  # which were when they were read
        raise_faults(bound_faults(document, None, line_of))
    return _to_plain(document)


def _to_plain(document: Any) -> Any:
    if type(document) in PLAIN:
        return document
    if isinstance(document, Mapping):
        return {str(key): _to_plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_to_plain(item) for item in document]
    for kind in (int, float, str):
        if isinstance(document, kind):
            return kind(document)
    return document


_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_REAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

_CONSTANTS = {"": None, "~": None} | {
    spelling: value
    for word, value in (
        ("null", None),
        ("true", True),
        ("false", False),
        (".nan", math.nan),
        (".inf", math.inf),
        ("+.inf", math.inf),
        ("-.inf", -math.inf),
    )
    for spelling in (word, word.capitalize(), word.upper(), word.replace("i", "I"))
}


class LinedMapping(dict[Any, Any]):
    """A mapping that knows the line of each key, counted from 0."""

    __slots__ = ("lines",)
    lines: dict[Any, int]


class LinedList(list[Any]):
    """A list that knows the line of each item, counted from 0."""

    __slots__ = ("lines",)
    lines: Any


class _YamlReader:
    """Makes a document of the events of a YAML text."""

    def __init__(self, yaml: Any, text: str) -> None:
        scanner = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        self.yaml, self.events = yaml, yaml.parse(text, Loader=scanner)
        self.anchors: dict[str | None, Any] = {}

    def document(self) -> Any:
        """Read the one document of a text; None if there is none."""
        _, begin = next(self.events), next(self.events)
        if isinstance(begin, self.yaml.StreamEndEvent):
            return None
        document = self._value(next(self.events), 0)
        _, end = next(self.events), next(self.events)
        self._refuse_if(not isinstance(end, self.yaml.StreamEndEvent), "another document", end)
        return document

    def _refuse_if(self, fails: bool, found: str, event: Any) -> None:
        if fails:
            raise self.yaml.MarkedYAMLError(problem=found, problem_mark=event.start_mark)

    def _value(self, event: Any, levels: int) -> Any:
        if isinstance(event, self.yaml.AliasEvent):
            self._refuse_if(event.anchor not in self.anchors, "an undefined alias", event)
            return self.anchors[event.anchor]
        self._refuse_if(event.tag not in {None, "!"}, f"a tag, {event.tag}", event)
        if isinstance(event, self.yaml.ScalarEvent):
            value = event.value if event.style else parse_scalar(event.value)
            self.anchors[event.anchor] = value
            return value
        self._refuse_if(levels > MOST_LEVELS, f"more than {MOST_LEVELS} levels", event)
        # known by its anchor before what it holds, which may be itself
        if isinstance(event, self.yaml.SequenceStartEvent):
            items = self.anchors[event.anchor] = LinedList()
            self._fill_list(items, levels + 1)
            return items
        mapping = self.anchors[event.anchor] = LinedMapping()
        self._fill_mapping(mapping, levels + 1)
        return mapping

    def _fill_list(self, items: LinedList, levels: int) -> None:
        items.lines = []
        for event in self.events:
            if isinstance(event, self.yaml.SequenceEndEvent):
                return
            items.lines.append(event.start_mark.line)
            items.append(self._value(event, levels))

    def _fill_mapping(self, mapping: LinedMapping, levels: int) -> None:
        mapping.lines, merged = {}, []
        for event in self.events:
            if isinstance(event, self.yaml.MappingEndEvent):
                break
            is_word = not isinstance(event, self.yaml.CollectionStartEvent)
            self._refuse_if(not is_word, "a key that is a list or a mapping", event)
            key = self._value(event, levels)
            self._refuse_if(key in mapping, f"duplicate key {key!r}", event)
            value = self._value(next(self.events), levels)
            if key == "<<":
                merged += value if isinstance(value, LinedList) else [value]
                self._refuse_if(
                    not all(isinstance(each, LinedMapping) for each in merged),
                    "<< beside what is no mapping",
                    event,
                )
            else:
                mapping[key], mapping.lines[key] = value, event.start_mark.line
        for other in merged:  # which a mapping's own keys, and earlier ones, go before
            for key in other.keys() - mapping.keys():
                mapping[key], mapping.lines[key] = other[key], other.lines[key]


def parse_scalar(text: str) -> Any:
    """Convert a plain scalar by the core schema of YAML 1.2, and underscores in whole numbers."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0].isalpha():  # not a number: most values are words
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    return int(text, 0) if _BASED.fullmatch(text) else text
