"""The fitted numbers of a library model: those whose source in its file is ``fitted``.

``left_out.yaml`` has them as refitted without each family of machines. A family is a kind of
machine (`perfmodel.library.corrections.kind_of_machine`): generation of GPU, what joins those
of a host, and what joins hosts. The file is made by ``python reports/calibration/refit_nccl.py
--write``, which fits the numbers to all recorded sweeps, and again to those of all other families.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel, load_document
from perfmodel.library.model import CommLibrary, Variant, load_library

Kind = Literal["time", "rate", "share"]

FITTED = "fitted"
"""Source of the numbers that a refit may change."""

_KINDS: Mapping[str, Kind] = {
    "launch": "time",
    "unevenness": "time",
    "each_peer": "time",
    "copy_rate": "rate",
    "switch_efficiency": "share",
    "network_efficiency": "share",
    "two_way_efficiency": "share",
}
"""Fields that may be fitted, beside the steps of a protocol."""

_SOURCES = {
    "unevenness": "unevenness",
    "launch": "launch",
    "copy_rate": "copy",
    "each_peer": "each_peer",
    "two_way_efficiency": "two_way",
}

Place = tuple[str | int, ...]
"""Keys from the library down to the number."""


@dataclass(frozen=True, slots=True)
class FittedNumber:
    """One number of a library's file that was fitted.

    Parameters
    ----------
    place : Place
    kind : {"time", "rate", "share"}
    value : float
        SI.
    name : str
        The place in words: of a variant, by the hardware and algorithms that it is of, so that it
        is the same wherever the variant stands in the file.
    parents : tuple of Place
        Numbers that would hold in its place without it: of protocols, or of variants that say less
        of the hardware. Empty for a number of a protocol.
    """

    place: Place
    kind: Kind
    value: float
    name: str
    parents: tuple[Place, ...] = ()


def _words(place: Place) -> str:
    return ".".join(str(key) for key in place)


def variant_label(variant: Variant) -> str:
    """What a variant is of, in words.

    Examples
    --------
    >>> variant_label(Variant(generations=("ampere", "ada"), protocols=("ll",), source="fitted"))
    'ampere+ada ll'
    """
    conditions = (variant.generations, variant.networks, variant.algorithms, variant.protocols)
    return " ".join("+".join(names) for names in conditions if names)


def fitted_numbers(library: CommLibrary) -> list[FittedNumber]:
    """Every fitted number of a library, those of protocols first."""
    return [*_of_protocols(library), *_of_variants(library)]


def _of_protocols(library: CommLibrary) -> Iterator[FittedNumber]:
    for name, protocol in library.protocols.items():
        for field, source in _SOURCES.items():
            value = getattr(protocol, field)
            if protocol.cited.get(source) == FITTED and value:
                place = ("protocols", name, field)
                yield FittedNumber(place, _KINDS[field], value, _words(place))
        if protocol.step.source == FITTED:
            for hop in ("nvlink", "pcie", "network"):
                if value := getattr(protocol.step, hop):
                    hop_place = ("protocols", name, "step", hop)
                    yield FittedNumber(hop_place, "time", value, _words(hop_place))


def _of_variants(library: CommLibrary) -> Iterator[FittedNumber]:
    for at, variant in enumerate(library.variants):
        if variant.source != FITTED:
            continue
        for field, value in stated(variant).items():
            kind = _KINDS.get(field[0], "time")
            parents = tuple(dict.fromkeys(_parents(library, at, field)))
            name = f"{variant_label(variant)}: {_words(field)}"
            yield FittedNumber(("variants", at, *field), kind, value, name, parents)


def stated(variant: Variant) -> dict[tuple[str, ...], float]:
    """Numbers that a variant states, by field (a step: and hop)."""
    values: dict[tuple[str, ...], float | None] = {
        (field,): getattr(variant, field, None) for field in _KINDS
    }
    values |= {("step", hop): value for hop, value in variant.step.items()}
    return {field: value for field, value in values.items() if value is not None}


def _parents(library: CommLibrary, at: int, field: tuple[str, ...]) -> Iterator[Place]:
    """The number that holds without a variant, for each of its protocols."""
    variant = library.variants[at]
    for protocol in variant.protocols or tuple(library.protocols):
        place: Place = ("protocols", protocol, *field)
        for earlier, other in enumerate(library.variants[:at]):
            if field in stated(other) and _covers(other, variant, protocol):
                place = ("variants", earlier, *field)
        yield place


def _covers(general: Variant, special: Variant, protocol: str) -> bool:
    """Whether a variant holds wherever another does, for a protocol."""
    pairs = [
        (general.generations, special.generations),
        (general.networks, special.networks),
        (general.algorithms, special.algorithms),
    ]
    return (not general.protocols or protocol in general.protocols) and all(
        not wide or (narrow and set(narrow) <= set(wide)) for wide, narrow in pairs
    )


def number_at(library: CommLibrary, place: Place) -> float:
    """Number at a place; SI."""
    node: Any = library
    for key in place:
        node = node[key] if not hasattr(node, str(key)) else getattr(node, str(key))
    return float(node)


def with_numbers(library: CommLibrary, values: Mapping[Place, float]) -> CommLibrary:
    """Return a library with other numbers at some places."""
    protocols, variants = dict(library.protocols), list(library.variants)
    for (section, key, *field), value in values.items():
        if section == "protocols":
            protocols[str(key)] = _with(protocols[str(key)], field, value)
        else:
            variants[int(key)] = _with(variants[int(key)], field, value)
    return library.model_copy(update={"protocols": protocols, "variants": tuple(variants)})


def _with(part: Any, field: Sequence[str | int], value: float) -> Any:
    first = str(field[0])
    if len(field) == 1:
        return part.model_copy(update={first: value})
    inner, changed = getattr(part, first), {str(field[1]): value}
    inner = {**inner, **changed} if isinstance(inner, dict) else inner.model_copy(update=changed)
    return part.model_copy(update={first: inner})


# ---------------------------------------------------------------- without a family of machines

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
    unknown = sorted(changed.keys() - places.keys())
    if unknown:
        raise InputError(
            Fault(
                f"{FILE.name}: {family}",
                ", ".join(repr(name) for name in unknown),
                "what nccl.yaml marks as fitted (reports/calibration/refit_nccl.py --write)",
            )
        )
    return with_numbers(library, {places[name]: value for name, value in changed.items()})


def changes(whole: Sequence[FittedNumber], other: Sequence[FittedNumber]) -> dict[str, float]:
    """Numbers of a refit that are not those of the whole fit; SI, by name."""
    return {
        b.name: b.value
        for a, b in zip(whole, other, strict=True)
        if abs(b.value / a.value - 1) > SAME
    }
