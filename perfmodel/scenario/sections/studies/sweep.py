"""Section ``sweep``: variants of a scenario."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from perfmodel.files import FileModel

MOST_VARIANTS = 100_000
"""Most variants: at some ms each, more would take minutes to days and are taken for a mistake."""

_FIELD = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z0-9_]+)*")
_NOT_VARIED = ("perfmodel", "sweep", "plan")


def _check_field(name: str) -> str:
    if not _FIELD.fullmatch(name):
        raise ValueError("a dotted field as for --set, such as 'strategy.bucket_cap'")
    if name.partition(".")[0] in _NOT_VARIED:
        raise ValueError(f"a field of the question, not of {name.partition('.')[0]!r}")
    if name.partition(".")[0] == "scale":
        raise ValueError("cluster.nodes or cluster.gpus_per_node: a variant is a whole cluster")
    return name


FieldName = Annotated[str, AfterValidator(_check_field)]


def _check_not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("a list of one value or more")
    return values


Values = Annotated[
    tuple[Any, ...], AfterValidator(_check_not_empty), Field(json_schema_extra={"minItems": 1})
]


class SweepSection(FileModel):
    """Fields and their values, by dotted names as for ``--set``.

    Every combination of the values of `grid`, each with every position of `zip`, whose lists have
    the same length and advance together.
    """

    grid: dict[FieldName, Values] = Field(
        default_factory=dict,
        description="every combination of these, such as cluster.nodes: [1, 2]",
    )
    zip: dict[FieldName, Values] = Field(
        default_factory=dict, description="lists of the same length that go together"
    )

    @property
    def size(self) -> int:
        """Number of variants."""
        rows = min((len(values) for values in self.zip.values()), default=1)
        return rows * math.prod(len(values) for values in self.grid.values())

    @property
    def axes(self) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        """Each field with its section ("grid" or "zip") and its values."""
        for section in ("grid", "zip"):
            for field, values in getattr(self, section).items():
                yield section, field, values

    @model_validator(mode="after")
    def _check_axes(self) -> SweepSection:
        if not self.grid and not self.zip:
            raise ValueError("'grid' or 'zip' with a field and its values")
        lengths = {field: len(values) for field, values in self.zip.items()}
        if len(set(lengths.values())) > 1:
            lengths_text = ", ".join(f"{field} has {count}" for field, count in lengths.items())
            raise ValueError(f"lists of one length in 'zip', but {lengths_text}")
        names = [field for _, field, _ in self.axes]
        for name in names:
            nested = [other for other in names if other.startswith(f"{name}.")]
            if names.count(name) > 1:
                raise ValueError(f"each field once, but {name!r} is in 'grid' and in 'zip'")
            if nested:
                raise ValueError(f"fields apart from each other, but {nested[0]!r} is in {name!r}")
        if self.size > MOST_VARIANTS:
            factors = " x ".join(str(len(values)) for values in self.grid.values())
            rows = f" x {next(iter(lengths.values()))} of zip" if lengths else ""
            raise ValueError(
                f"at most {MOST_VARIANTS:,} variants, but there are {self.size:,} "
                f"({factors or 1}{rows})"
            )
        return self
