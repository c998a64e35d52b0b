"""Places that a command will write to, tried before the work and not after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from perfmodel.errors import Fault


def place_fault(flag: str, path: Path) -> Fault | None:
    """Say why a file cannot be written there; None if it can. Folders that lack may be made."""
    shown = repr(str(path))
    try:
        if path.is_dir():
            return Fault(flag, f"{shown} (a folder)", "a file")
        if path.exists() and not path.is_file():
            return Fault(flag, f"{shown} (a device or pipe)", "a file")
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        # Only trying tells: rights do not, on a file system that is full or cannot be written.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}."):
            return None
    except OSError as error:
        why = error.strerror or str(error)
        return Fault(flag, f"{shown} ({why})", "a place that can be written")
