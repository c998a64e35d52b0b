"""Find a shipped file or a user's own by name or by path."""

from __future__ import annotations

import os
from pathlib import Path

from perfmodel.errors import Fault, InputError, allowed_names

USER_FOLDER = Path("~/.config/perfmodel")
"""Folder of a user's own topologies and scenarios, searched after the working directory."""

_PACKAGE = Path(__file__).resolve().parents[1]


def data_folder(kind: str) -> Path:
    """Return the folder of shipped files: `kind` is ``"topologies"`` or ``"scenarios"``.

    An installed wheel holds them inside the package; a checkout holds them beside it.
    """
    bundled = _PACKAGE / "_data" / kind
    return bundled if bundled.is_dir() else _PACKAGE.parent / kind


def list_shipped(kind: str) -> dict[str, Path]:
    """Return the shipped files of a kind by name (path below the folder, without suffix)."""
    root = data_folder(kind)
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def is_shipped(path: Path) -> bool:
    """Whether a file is part of perfmodel: its package, and shipped topologies and scenarios."""
    homes = (_PACKAGE, data_folder("topologies"), data_folder("scenarios"))
    return any(path.resolve().is_relative_to(home) for home in homes)


def path_of(name: str) -> Path:
    """Return a user's path; ``~nobody`` stays as it is, where `Path.expanduser` raises."""
    return Path(os.path.expanduser(name))  # noqa: PTH111


def is_file(path: Path) -> bool:
    """Whether a file exists; where `Path.is_file` raises, as for too long a name, it does not."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Tell whether a folder exists, whatever its name."""
    return os.path.isdir(path)  # noqa: PTH112


def find_file(name: str, kind: str, *, field: str = "name") -> Path:
    """Find a file by path or by name.

    Order: an existing path; then ``NAME.yaml`` in the working directory's `kind` folder, the
    user's folder and the shipped files.

    Raises
    ------
    InputError
        Nothing by that name; the message lists the names that exist and the nearest one.
    """
    path = path_of(name)
    if is_file(path):
        return path
    for root in (Path(kind), USER_FOLDER.expanduser() / kind, data_folder(kind)):
        candidate = root / f"{name}.yaml"
        if name and is_file(candidate):
            return candidate
    is_path = path.suffix in {".yaml", ".yml", ".json"} or os.sep in name
    absent = ", and there is no such file" if is_path else ""
    text = repr(name) + (", which is a folder" if is_folder(path) else absent)
    raise InputError(
        Fault(field, text, f"a file's path or {allowed_names(list_shipped(kind), path.stem)}")
    )
