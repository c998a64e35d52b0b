"""The library's constants refitted without each family of machines (``left_out.yaml``).

A family is a kind of machine (`perfmodel.library.prediction_error.kind_of_machine`): generation of
GPU, what joins those of a host, and what joins hosts. The file is made by
``python reports/calibration/refit_nccl.py --write``, which fits the numbers marked ``fitted`` in
``perfmodel/library/nccl.yaml`` to all recorded sweeps, and again to those of all other families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from perfmodel.files import FileModel, load_document
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.validate.refit.numbers import FittedNumber, fitted_numbers, with_numbers

FILE = Path(__file__).with_name("left_out.yaml")

SAME = 0.002
"""Relative change below which a number is not written: the shipped one serves."""


class LeftOut(FileModel):
    """Contents of ``left_out.yaml``: by family, the numbers that change without it."""

    perfmodel: Literal[1] = 1
    kind: Literal["left-out"] = "left-out"
    source: str
    families: Mapping[str, Mapping[str, float]]


@cache
def left_out() -> LeftOut:
    """Read the refitted numbers."""
    return load_document(LeftOut, FILE)


@cache
def library_without(family: str) -> CommLibrary | None:
    """NCCL's model fitted without a family of machines; None for a family that had no part."""
    changed = left_out().families.get(family)
    if changed is None:
        return None
    library = load_library("nccl")
    places = {number.name: number.place for number in fitted_numbers(library)}
    return with_numbers(library, {places[name]: value for name, value in changed.items()})


def changes(whole: Sequence[FittedNumber], other: Sequence[FittedNumber]) -> dict[str, float]:
    """Numbers of a refit that are not those of the whole fit; SI, by name."""
    return {
        b.name: b.value
        for a, b in zip(whole, other, strict=True)
        if abs(b.value / a.value - 1) > SAME
    }
