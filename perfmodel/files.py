"""Files in and out: find by name, read YAML strictly, report every fault, write atomically.

YAML is version 1.2 (ruamel.yaml): ``1e9`` is a number, ``no`` is a word, a key given twice is
an error. A file is validated by a pydantic model, and each fault becomes one line that names the
file, the line, the field, what was found and what is allowed.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from perfmodel.errors import Fault, InputError, one_of
from perfmodel.units import parse_bandwidth, parse_bytes, parse_flop_rate, parse_time

USER_FOLDER = Path("~/.config/perfmodel")
"""Where a user's own topologies and scenarios are looked for, after the working directory."""


class Spec(BaseModel):
    """Base of every file contract: unknown fields are faults and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]})


def _at_least_zero(value: float) -> float:
    if value < 0:
        raise ValueError("zero or more")
    return value


def _above_zero(value: float) -> float:
    if value <= 0:
        raise ValueError("more than zero")
    return value


def _parsed(value: object, parse: Any, check: Any) -> float:
    return float(check(parse(value)))


Bytes = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_bytes, _above_zero)),
    _schema("25 MiB"),
]
"""A size above zero, written with its unit; bytes."""

Bandwidth = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_bandwidth, _above_zero)),
    _schema("25 GB/s"),
]
"""A bandwidth above zero, written with its unit; bytes per second."""

Seconds = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_time, _at_least_zero)),
    _schema("1.3 us"),
]
"""A time of zero or more, written with its unit; seconds."""

FlopRate = Annotated[
    float,
    BeforeValidator(lambda v: _parsed(v, parse_flop_rate, _above_zero)),
    _schema("312 TFLOP/s"),
]
"""A compute rate above zero, written with its unit; operations per second."""

SpecT = TypeVar("SpecT", bound=BaseModel)


# ---------------------------------------------------------------- finding


def data_folder(kind: str) -> Path:
    """Return the folder of shipped files: `kind` is ``"topologies"`` or ``"scenarios"``.

    An installed wheel holds them inside the package; a checkout holds them beside it.
    """
    package = Path(__file__).resolve().parent
    bundled = package / "_data" / kind
    return bundled if bundled.is_dir() else package.parent / kind


def shipped(kind: str) -> dict[str, Path]:
    """Return the shipped files of a kind by name (path below the folder, without suffix)."""
    root = data_folder(kind)
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def find_file(name: str, kind: str, *, field: str = "name") -> Path:
    """Find a file by path or by name.

    Order: an existing path; then ``NAME.yaml`` in the working directory's `kind` folder, the
    user's folder and the shipped files.

    Raises
    ------
    InputError
        Nothing by that name; the message lists what there is, the nearest name first.
    """
    as_path = Path(name).expanduser()
    if as_path.is_file():
        return as_path
    if as_path.suffix in {".yaml", ".yml", ".json"} or (os.sep in name and as_path.parent.is_dir()):
        if not (data_folder(kind) / f"{name}.yaml").is_file():
            raise InputError(Fault(field, f"{name!r}, which is no readable file", "a file's path"))
    for root in (Path(kind), USER_FOLDER.expanduser() / kind, data_folder(kind)):
        candidate = root / f"{name}.yaml"
        if candidate.is_file():
            return candidate
    raise InputError(
        Fault(field, repr(name), f"a file's path or {one_of(shipped(kind), name)}")
    )


# ---------------------------------------------------------------- reading


def read_text(path: Path) -> str:
    """Read a UTF-8 file, turning what can go wrong into an `InputError`."""
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

    Raises
    ------
    InputError
        Unreadable, not YAML, a duplicate key, or empty.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415  (0.1 s of import that most commands do not need)
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    text = read_text(path)
    try:
        document = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = (error.problem or "not YAML").splitlines()[0]
        raise InputError(
            Fault("file", problem, "YAML 1.2 with each key given once", str(path), line)
        ) from None
    except (YAMLError, ValueError) as error:
        first = (str(error).splitlines() or ["unreadable"])[0]
        raise InputError(Fault("file", first, "YAML 1.2", str(path))) from None
    if document is None:
        raise InputError(Fault("file", "nothing", "a YAML document", str(path)))
    return document


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
    """Return the document as plain dicts, lists and scalars."""
    if isinstance(document, Mapping):
        return {str(key): plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [plain(item) for item in document]
    if isinstance(document, bool) or document is None:
        return document
    for kind in (int, float, str):
        if isinstance(document, kind):
            return kind(document)
    return document


def validate(model: type[SpecT], document: Any, file: str | None = None) -> SpecT:
    """Check a document against its contract.

    Raises
    ------
    InputError
        With every fault at once.
    """
    try:
        return model.model_validate(plain(document))
    except ValidationError as error:
        raise InputError(
            Fault(
                field=_dotted(details["loc"]) or "document",
                found=_found(details),
                allowed=_allowed(details, model),
                file=file,
                line=line_of(document, _data_path(document, details["loc"])),
            )
            for details in error.errors()
        ) from None


def load(model: type[SpecT], path: Path) -> SpecT:
    """Read a YAML file and check it against its contract."""
    return validate(model, read_yaml(path), str(path))


# ---------------------------------------------------------------- wording of faults


def _data_path(document: Any, loc: Sequence[str | int]) -> list[str | int]:
    """Drop the tags that pydantic puts into a path for members of a union."""
    path: list[str | int] = []
    here = plain(document)
    for part in loc:
        if (isinstance(here, Mapping) and part in here) or (isinstance(here, list) and isinstance(part, int) and part < len(here)):
            here = here[part]
        else:
            continue
        path.append(part)
    return path


def _dotted(loc: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in loc if not str(part).startswith("function-"))


def _found(details: ErrorDetails) -> str:
    if details["type"] == "missing":
        return "nothing"
    if details["type"] == "extra_forbidden":
        return f"an unknown field with {details['input']!r}"
    cause = (details.get("ctx") or {}).get("error")
    if isinstance(cause, InputError):
        return cause.faults[0].found
    text = repr(details["input"])
    return text if len(text) <= 80 else text[:77] + "..."


def _allowed(details: ErrorDetails, model: type[BaseModel]) -> str:
    context = details.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, InputError):
        return cause.faults[0].allowed
    if details["type"] == "extra_forbidden":
        name = str(details["loc"][-1])
        return f"the fields of this section, {one_of(_siblings(model, details['loc']), name)}"
    if details["type"] == "missing":
        return "a value: this field is required"
    if details["type"] == "literal_error":
        return "one of " + str(context.get("expected", "")).replace(" or ", ", ")
    if isinstance(cause, ValueError):
        return str(cause)
    return details["msg"][0].lower() + details["msg"][1:]


def _siblings(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Field names valid at the place where an unknown field stands."""
    current: type[BaseModel] | None = model
    for part in loc[:-1]:
        if current is None:
            break
        info = current.model_fields.get(str(part))
        if info is not None:
            current = next(_models_in(info.annotation), None)
        else:  # an index, a mapping key or the tag of a union member
            current = next((m for m in _models_in(current) if m.__name__ == part), current)
    return [info.alias or name for name, info in (current or model).model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


# ---------------------------------------------------------------- writing


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: into a neighbour, then renamed.

    Raises
    ------
    InputError
        The folder cannot be made or written to.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            Fault("output", error.strerror or str(error), "a place that can be written", str(path))
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def finite(value: float, field: str) -> float:
    """Return a number that is neither infinite nor NaN, or raise `InputError`."""
    if not math.isfinite(value):
        raise InputError(Fault(field, repr(value), "a finite number"))
    return value
