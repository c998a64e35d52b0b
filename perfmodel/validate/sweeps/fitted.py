"""Which recorded sweeps the shipped constants were fitted on (``fitted.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfmodel.files import FileModel, load_document


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants, and the sweeps that they were fitted on."""

    constants: str
    sweeps: tuple[str, ...]


class _Entry(FileModel):
    constants: str
    sweeps: tuple[str, ...]


class _File(FileModel):
    perfmodel: Literal[1]
    kind: Literal["fitted"]
    fitted_on: tuple[_Entry, ...]


def fitted_on(path: Path | None = None) -> tuple[Fitted, ...]:
    """Read what was fitted on what.

    Raises
    ------
    InputError
        Everything that is wrong in the file, with lines.
    """
    shipped = Path(__file__).with_suffix(".yaml")
    entries = load_document(_File, path or shipped).fitted_on
    return tuple(Fitted(entry.constants, entry.sweeps) for entry in entries)
