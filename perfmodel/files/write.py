"""Write files whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from perfmodel.errors import Fault, InputError


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
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            Fault("output", error.strerror or str(error), "a place that can be written", str(path))
        ) from None


def write_json(path: Path, document: object) -> None:
    """Write plain data as JSON with `write_atomically`; all numbers must be finite."""
    write_atomically(path, json.dumps(document, indent=2, allow_nan=False) + "\n")


def _umask() -> int:  # the only way to read it is to set it
    mask = os.umask(0)
    os.umask(mask)
    return mask
