"""Types of fields that several sections share, and section ``strategy``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic_core import CoreSchema

from perfmodel.files import Bytes, Count, FileModel

Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Switch = Annotated[bool, Field(strict=True)]
Index = Annotated[int, Field(strict=True, ge=0)]
"""A rank, a node or a step, counted from 0."""
Placement = Literal["packed", "spread", "random"]
"""Which of the free nodes a job gets: neighbours, evenly spread ones, or any (by `seed`)."""


@dataclass(frozen=True)
class OrName:
    """Annotation of a section: the JSON schema also accepts a name alone."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core_schema)]}


class DdpStrategy(FileModel):
    """DistributedDataParallel, with PyTorch's own names and defaults.

    With neither cap nor list the buckets are PyTorch's default (1 MiB first, then 25 MiB). An
    explicit `bucket_cap` drops the small first bucket unless `first_bucket` is given too, as in
    torch 2.13.
    """

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    first_bucket: Bytes | None = None
    bucket_caps: Annotated[tuple[Bytes, ...], Field(min_length=1)] | None = Field(
        default=None, description="one cap per bucket, the last one repeats (bucket_cap_mb_list)"
    )
    find_unused_parameters: Switch = False
    static_graph: Switch = False
    gradient_as_bucket_view: Switch = False
    broadcast_buffers: Switch = True
    accumulate: Count = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: Literal["none", "fp16", "bf16"] = Field(
        default="none", description="gradient compression hook"
    )

    @model_validator(mode="after")
    def _caps_one_way(self) -> DdpStrategy:
        if self.bucket_caps is not None and (self.bucket_cap or self.first_bucket):
            raise ValueError("'bucket_caps', or 'bucket_cap' with 'first_bucket', not both")
        return self


class DataParallelStrategy(FileModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]


def _ddp_unless_named(value: object) -> object:
    return {"kind": "ddp", **value} if isinstance(value, Mapping) else value


Strategy = Annotated[
    Annotated[DdpStrategy | DataParallelStrategy, Field(discriminator="kind")],
    BeforeValidator(_ddp_unless_named),
]
"""Told apart by `kind`; DDP if there is none."""
