"""Types of fields that several sections share, and rows of rules between fields."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeGuard

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic_core import CoreSchema

from perfmodel.files import Count, FileModel, check_rows
from perfmodel.memo import T
from perfmodel.units import MOST_COUNT

Name = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True)]
"""A name, or the path of a file."""
Switch = Annotated[bool, Field(strict=True)]
Index = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)]
"""A rank, a node or a step, counted from 0."""
Placement = Literal["packed", "spread", "random"]
"""Which of the free nodes a job gets: neighbours, evenly spread ones, or any (by `seed`)."""


Rules = Iterable[tuple[object, str]]
"""Rows of a mistake, whether it was made, and what is allowed instead."""


def as_text(value: object) -> str:
    """Write a value as a file has it: a switch as a word, a text in quotes."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def is_growing(numbers: Sequence[int]) -> bool:
    """Whether each number is larger than the one before it."""
    return all(before < after for before, after in pairwise(numbers))


Row = tuple[object, str, object, str]
"""Whether a mistake was made, its field, what was found there, and what is allowed."""


def mistakes(rows: Iterable[Row]) -> Iterator[tuple[str, str, str]]:
    """List field, what was found and what is allowed of the rows whose mistake was made."""
    return ((field, str(found), allowed) for is_made, field, found, allowed in rows if is_made)


def refuse(is_mistake: Callable[[Any], object], allowed: str) -> Callable[[T], T]:
    """Return a validator that says what is allowed where a value is a mistake."""

    def check(value: T) -> T:
        check_rows((is_mistake(value), allowed))
        return value

    return check


class Section(FileModel):
    """A section whose fields are checked together, by the rows of `_rules`."""

    def _rules(self) -> Rules:
        return ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check_rows(*self._rules())
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """Fields that are not at their defaults."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}


def kind_alone(usual: str, other_names: Mapping[str, str]) -> BeforeValidator:
    """Take a kind alone for a section, which has the `usual` one where it states none.

    `other_names`: what is allowed in place of kinds that have another name here, by their letters
    and digits.
    """

    def read(value: object) -> object:
        section = {"kind": value} if isinstance(value, str) else value
        kind = section.get("kind") if isinstance(section, Mapping) else None
        folded = re.sub(r"[^a-z0-9]", "", kind.lower()) if isinstance(kind, str) else ""
        if folded in other_names:
            raise ValueError(other_names[folded])
        return {"kind": usual, **section} if isinstance(section, Mapping) else section

    return BeforeValidator(read)


def expand_name(key: str) -> BeforeValidator:
    """Take a name alone for a section that has it in the field `key`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether a value of a file is a whole number: a switch is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def expand_number(key: str) -> BeforeValidator:
    """Take a whole number alone for a section that has it in the field `key`."""
    return BeforeValidator(lambda value: {key: value} if is_whole_number(value) else value)


@dataclass(frozen=True, eq=False)
class OrAlone:
    """Annotation of a section: the JSON schema also accepts what may stand for it alone."""

    alone: Mapping[str, Any]

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self.alone, handler(core_schema)]}


OR_COUNT = OrAlone({"type": "integer", "minimum": 1})
OR_NAME = OrAlone({"type": "string", "minLength": 1})


MOST_MICRO_STEPS = 4096
"""Each is simulated: some ms."""

MicroSteps = Annotated[Count, Field(le=MOST_MICRO_STEPS)]
FloatType = Literal["fp32", "bf16", "fp16"]


def _read_whole(value: object) -> object:
    """Read 5e8 as DeepSpeed's files have it."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else number


Elements = Annotated[Count, BeforeValidator(_read_whole)]
ElementsOrNone = Annotated[Index, BeforeValidator(_read_whole)]
"""Numbers of parameter elements; the second may be 0."""


class StrategyModel(Section):
    """A strategy; what rules between sections ask of its kind is told in strategy_rules.py."""
