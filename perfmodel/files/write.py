"""Write files whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.escape import spreadsheet_safe
from perfmodel.files.read import parse_scalar
from perfmodel.files.validate import require_finite


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, then renamed.

    Raises
    ------
    InputError
        The folder cannot be made or written to.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            Fault("output", error.strerror or str(error), "a place that can be written", str(path))
        ) from None


def write_json(path: Path, document: object) -> None:
    """Write plain data as JSON with `write_atomically`; all numbers must be finite."""
    write_atomically(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


@cache
def _yaml_dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Quotes text that YAML 1.2 takes for a number, and 1.1 does not."""

        def represent_str(self, text: str) -> Any:
            style = None if isinstance(parse_scalar(text), str) else "'"
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    return partial(yaml.dump, Dumper=Dumper, sort_keys=False)


def yaml_text(document: object, comment: str) -> str:
    """Write plain data as YAML below a comment; a list of scalars stands on one line."""
    return f"# {comment}\n{_yaml_dumper()(document, width=120, default_flow_style=None)}"


def flow_yaml(value: object) -> str:
    """Write a value as YAML on one line.

    Examples
    --------
    >>> flow_yaml({"name": "gpu[0-7]", "rate": "25 GB/s", "of": "1e3", "no": [1.5, True]})
    "{name: 'gpu[0-7]', rate: 25 GB/s, of: '1e3', 'no': [1.5, true]}"
    """
    text = _yaml_dumper()(value, width=math.inf, default_flow_style=True)
    return str(text).removesuffix("...\n").rstrip("\n")


def csv_text(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table as CSV, without formulas; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(spreadsheet_safe, titles))
    writer.writerows(map(spreadsheet_safe, row) for row in rows)
    return text.getvalue()


def as_json(value: Any, field: str = "document", *, infinite_as_null: bool = False) -> Any:
    """Turn dataclasses, mappings and sequences into the dicts and lists that ``json`` writes.

    Parameters
    ----------
    value : object
    field : str
        Name of the value in messages.
    infinite_as_null : bool
        Write infinity as null, which means "without limit".

    Raises
    ------
    InputError
        A number is infinite or not a number; names the field.
    """
    if isinstance(value, float):
        return None if infinite_as_null and math.isinf(value) else require_finite(value, field)
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {
            key: as_json(inner, f"{field}.{key}", infinite_as_null=infinite_as_null)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            as_json(inner, f"{field}[{position}]", infinite_as_null=infinite_as_null)
            for position, inner in enumerate(value)
        ]
    return value


def attributes(source: object, names: str) -> dict[str, Any]:
    """Return attributes of an object by name, in the order of `names`, which spaces separate."""
    return {name: getattr(source, name) for name in names.split()}
