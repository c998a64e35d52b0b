"""Types of fields that several sections share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, StringConstraints
from pydantic_core import CoreSchema

from perfmodel.files import Count, FileModel
from perfmodel.units import MOST_COUNT

Name = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True)]
"""A name, or the path of a file."""
Switch = Annotated[bool, Field(strict=True)]
Index = Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)]
"""A rank, a node or a step, counted from 0."""
Placement = Literal["packed", "spread", "random"]
"""Which of the free nodes a job gets: neighbours, evenly spread ones, or any (by `seed`)."""


def expand_name(key: str) -> BeforeValidator:
    """Take a name alone for a section that has it in the field `key`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


@dataclass(frozen=True)
class OrCount:
    """Annotation of a section: the JSON schema also accepts a whole number alone."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 1}, handler(core_schema)]}


@dataclass(frozen=True)
class OrName:
    """Annotation of a section: the JSON schema also accepts a name alone."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core_schema)]}


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


class StrategyModel(FileModel):
    """What rules between sections ask of every strategy; a strategy states what differs.

    `keeps_masters`: its optimizer always keeps fp32 copies of the parameters.
    `one_node_only`: it drives the GPUs of one node.
    `overlaps`: its collectives run beside layers.
    `has_whole_models`: its workers hold whole models by nature, in no fp8 that anybody knows.
    `reduces_experts`: it averages gradients of experts among the ranks that hold them.
    `wraps_modules`: it may wrap a module that lies on several GPUs of a process.
    """

    keeps_masters: ClassVar[bool] = False
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    has_whole_models: ClassVar[bool] = False
    reduces_experts: ClassVar[bool] = False
    wraps_modules: ClassVar[bool] = False
