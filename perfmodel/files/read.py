"""Read text and YAML 1.2 strictly, keeping the line of every field; gzip is unpacked.

YAML and JSON are read by libyaml, 15 times as fast as ruamel, where both give the same result.
PyYAML contains libyaml's scanner; plain scalars are converted here by the rules of YAML 1.2. ruamel
reads all documents with anything beyond plain mappings, lists and scalars, and faulty ones, so that
faults have one wording.

Bounds on what a file may hold, found before anything walks through it.

An alias of YAML repeats what it names at the cost of a few characters, and aliases of aliases
multiply: 600 bytes can stand for more values than a machine has memory for.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.files.find import is_shipped

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

LARGEST_REAL = 1e30
SMALLEST_REAL = 1e-60
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
PIECE_BYTES = 1 << 14
"""Gzip data unpacked at once: what follows a member is copied, and a member may have 20 bytes."""
UNPACKED_BYTES = 1 << 20
"""Most bytes that come of a piece at once."""


class GzipError(ValueError):
    """Gzip data that are damaged or end too early."""


def inflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack gzip data of one or many members, at most `UNPACKED_BYTES` at once.

    Raises `GzipError`: damaged, cut off, or followed by something else than zeros.
    """
    stream, is_between = zlib.decompressobj(31), True
    for whole in pieces:
        for start in range(0, len(whole), PIECE_BYTES):
            piece = whole[start : start + PIECE_BYTES]
            while piece := piece.lstrip(b"\0") if is_between else piece:
                try:
                    content = stream.decompress(piece, UNPACKED_BYTES)
                except zlib.error as error:
                    raise GzipError(f"damaged gzip data ({error})") from None
                if content:
                    yield content
                piece, is_between = stream.unconsumed_tail, stream.eof
                if is_between:
                    piece, stream = stream.unused_data, zlib.decompressobj(31)
    if not is_between:
        raise GzipError("gzip data that end too early")


def _unpacked(data: bytes, largest: int) -> bytes:
    """Unpack data of gzip, up to one byte more than `largest`; others are returned."""
    if not data.startswith(GZIP):
        return data
    content = bytearray()
    for piece in inflate([data]):
        content += piece
        if len(content) > largest:
            break
    return bytes(content)


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
                data = stream.read(largest + 1)
            if len(data) <= largest:
                data = _unpacked(data, largest)
            problem = f"more than {largest / 2**20:g} MiB" if len(data) > largest else ""
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        allowed = "a smaller file" if problem.startswith("more") else "a readable file"
        raise InputError(Fault("file", problem, allowed, str(path)))
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
    """Read one YAML 1.2 document; mappings keep their line numbers (``.lc``).

    Files are read by libyaml where its result is the same.

    Raises
    ------
    InputError
        Unreadable, not YAML, a duplicate key, empty, or beyond the bounds of `files.bounds`.
    """
    text = read_text(path, LARGEST_YAML_BYTES)
    if is_shipped(path):
        with suppress(UnsupportedYaml):
            return parse_with_libyaml(text, trusted=True)
    document = parse_yaml(text, str(path))
    if document is None:
        raise InputError(Fault("file", "nothing", "a YAML document", str(path)))
    return document


MOST_TRUSTED_CHARACTERS = 400
"""Most characters of a text that cannot nest so deep that composing it runs out of stack."""


def parse_yaml(text: str, file: str | None = None) -> Any:
    """Parse one YAML 1.2 document, or the value of an option (no `file`); None if it is empty.

    Raises `InputError`: not YAML, a duplicate key, or beyond the bounds of `files.bounds`.
    """
    document = _parse_unbounded(text, file)
    raise_faults(bound_faults(document, file, line_of))
    return document


def _parse_unbounded(text: str, file: str | None) -> Any:
    with suppress(UnsupportedYaml):
        return parse_with_libyaml(
            text, trusted=file is None and len(text) <= MOST_TRUSTED_CHARACTERS
        )
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _load_with_ruamel(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = (error.problem or "not YAML").splitlines()[0].removeprefix("found ")
        allowed = (
            "spaces where a line is indented: YAML has no tabs there"
            if "'\\t'" in problem
            else "YAML 1.2 whose keys are words, each given once"
        )
        raise InputError(Fault("file", problem, allowed, file, line)) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(
            Fault("file", (str(error).splitlines() or ["unreadable"])[0], "YAML 1.2", file)
        ) from None
    except Exception as error:  # noqa: BLE001  (ruamel's own, on keys that are no scalars)
        problem = f"what is no YAML ({type(error).__name__}: {error})"
        raise InputError(Fault("file", problem, "YAML 1.2 whose keys are words", file)) from None


def _load_with_ruamel(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
    from ruamel.yaml.nodes import MappingNode, ScalarNode

    class Constructor(RoundTripConstructor):
        """Refuses keys that are lists or mappings: hashing nested ones takes exponential time."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            for key, _ in node.value if isinstance(node, MappingNode) else ():
                if not isinstance(key, ScalarNode):
                    raise ConstructorError(
                        None, None, "a key that is a list or a mapping", key.start_mark
                    )
            return super().construct_object(node, deep)

    parser = YAML(typ="rt", pure=True)
    parser.Constructor = Constructor
    return parser.load(text)


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


PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types of scalars that are what they are; those of ruamel are made from them."""


def plain(document: Any) -> Any:
    """Return the document as plain dicts, lists and scalars.

    Raises
    ------
    InputError
        Beyond the bounds of `files.bounds`, such as an alias that contains itself.
    """
    raise_faults(bound_faults(document, None, line_of))
    return _to_plain(document)


def _to_plain(document: Any) -> Any:
    if type(document) in PLAIN:
        return document
    if isinstance(document, Mapping):
        return {str(key): _to_plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_to_plain(item) for item in document]
    if type(document).__name__ == "ScalarBoolean":  # ruamel's boolean with an anchor: an int
        return bool(document)
    for kind in (int, float, str):
        if isinstance(document, kind):
            return kind(document)
    return document


_UNSUPPORTED = re.compile(
    r"(?:^|[\s\[{,:])[&*!]\S|^%|<<|[\t\r\x85\u2028\u2029\ufeff]|[|>][-+0-9]*\s*$", re.MULTILINE
)
"""Anchors, aliases, tags, directives, merge keys, unusual line ends and blocks of text, or text
that resembles them."""

_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_REAL = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[box][0-9a-f_]+|(?=[0-9._])[0-9_]*\.?[0-9_]*(?:e[-+]?[0-9]*)?|\.inf|\.nan)"
    r"|[0-9]{4}-[0-9].*|=",
    re.IGNORECASE | re.DOTALL,
)
"""Numbers in other notations, dates, and text that resembles them."""

_CONSTANTS = {"": None, "~": None} | {
    spelling: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for spelling in (word, word.capitalize(), word.upper())
}


class UnsupportedYaml(Exception):
    """A document that ruamel must read."""


class LinedMapping(dict[Any, Any]):
    """A mapping with ruamel's line numbers: ``lc.data[key][0]``, from 0."""

    __slots__ = ("lc",)
    lc: SimpleNamespace


class LinedList(list[Any]):
    """A list with ruamel's line numbers: ``lc.data[index][0]``, from 0."""

    __slots__ = ("lc",)
    lc: SimpleNamespace


def parse_with_libyaml(text: str, *, trusted: bool) -> Any:
    """Parse one YAML 1.2 document.

    `trusted`: whether the text ships or is short. Composing follows nesting until the stack ends;
        of others the levels are counted first, from events, which need no stack.

    Raises
    ------
    UnsupportedYaml
        There is no libyaml, the document is faulty, empty or too deep, or it holds something
        beyond plain mappings, lists and scalars.
    """
    if _UNSUPPORTED.search(text):
        raise UnsupportedYaml
    try:
        yaml = import_module("yaml")  # imported here: many commands read no file
        if not trusted:
            _check_levels(yaml.parse(text, Loader=yaml.CBaseLoader))
        node = yaml.compose(text, Loader=yaml.CBaseLoader)
        if node is not None:
            return _convert_node(node)
    # ValueError: half of a pair of codes, or more digits than Python converts
    except (ImportError, AttributeError, ValueError):
        raise UnsupportedYaml from None
    except yaml.YAMLError:
        raise UnsupportedYaml from None
    raise UnsupportedYaml


_LEVELS = {
    "MappingStartEvent": 1,
    "SequenceStartEvent": 1,
    "MappingEndEvent": -1,
    "SequenceEndEvent": -1,
}
"""Levels that an event of a document begins, or ends."""


def _check_levels(events: Iterable[Any]) -> None:
    """Raise `UnsupportedYaml` at the first level that no document may have."""
    levels = accumulate(_LEVELS.get(type(event).__name__, 0) for event in events)
    if any(level > MOST_LEVELS for level in levels):
        raise UnsupportedYaml


def _convert_node(node: Any) -> Any:
    if node.id == "scalar":
        return node.value if node.style in {"'", '"'} else _parse_scalar(node.value)
    if node.id == "sequence":
        items = LinedList(map(_convert_node, node.value))
        lines = {at: (child.start_mark.line,) for at, child in enumerate(node.value)}
        items.lc = SimpleNamespace(data=lines)
        return items
    mapping, lines = LinedMapping(), {}
    for key_node, child in node.value:
        key = _convert_node(key_node)
        if type(key) not in {str, int} or key in mapping:
            raise UnsupportedYaml
        mapping[key] = _convert_node(child)
        lines[key] = (key_node.start_mark.line,)
    mapping.lc = SimpleNamespace(data=lines)
    return mapping


def _parse_scalar(text: str) -> Any:
    """Convert a plain scalar by the rules of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0].isalpha():  # neither a number nor a date, most values are words
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if _AMBIGUOUS.fullmatch(text):
        raise UnsupportedYaml
    return text
