"""Tables of trainings that state something else than the code that they come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from perfmodel.files import FileModel, load_document


class Erratum(FileModel):
    """Columns of some rows, and where it stands what they should say."""

    dataset: str
    """How the column `dataset` begins."""
    model: str
    """What the column `model` contains, in any case."""
    columns: dict[str, str]
    source: str

    def fits(self, cells: Mapping[str, str]) -> bool:
        """Whether it is about this row."""
        named = self.model in cells.get("model", "").lower()
        return named and cells.get("dataset", "").startswith(self.dataset)


class Errata(FileModel):
    """The file of errata (``errata.yaml``)."""

    perfmodel: Literal[1]
    kind: Literal["errata"]
    errata: list[Erratum]


@cache
def shipped_errata() -> tuple[Erratum, ...]:
    """Return what ships with perfmodel."""
    return tuple(load_document(Errata, Path(__file__).with_suffix(".yaml")).errata)


def correct(cells: Mapping[str, str]) -> dict[str, str]:
    """Return a row with the columns that its table states wrongly as they should be.

    Examples
    --------
    >>> correct({"dataset": "pollux_osdi21", "model": "ResNet-50 ImageNet", "precision": "FP32"})[
    ...     "precision"
    ... ]
    'FP16/AMP'
    """
    corrected = dict(cells)
    for each in shipped_errata():
        if each.fits(cells):
            corrected |= each.columns
    return corrected
