"""Which sweeps the shipped constants were fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from perfmodel.files import FileModel, load_document


class Fitted(FileModel):
    """Constants, and the sweeps that they were fitted on."""

    constants: str
    sweeps: tuple[str, ...]


class _FittedFile(FileModel):
    perfmodel: Literal[1]
    kind: Literal["fitted"]
    fitted_on: tuple[Fitted, ...]


def fitted_on(path: Path | None = None) -> tuple[Fitted, ...]:
    """Read which sweeps the shipped constants were fitted on (``fitted.yaml``).

    Raises
    ------
    InputError
        Everything that is wrong in the file, with lines.
    """
    shipped = Path(__file__).with_name("fitted.yaml")
    return load_document(_FittedFile, path or shipped).fitted_on
