"""DistributedDataParallel in a scenario."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from perfmodel.files import Bytes, FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.counts import MicroSteps

Hook = Literal["none", "fp16", "bf16"]


class DdpStrategy(FileModel):
    """DistributedDataParallel, with PyTorch's own names and defaults.

    With neither cap nor list the buckets are PyTorch's default (1 MiB first, then 25 MiB). An
    explicit `bucket_cap` drops the small first bucket unless `first_bucket` is given too, as in
    torch 2.13.
    """

    kind: Literal["ddp"] = "ddp"
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    bucket_cap: Bytes | None = None
    first_bucket: Bytes | None = None
    bucket_caps: Annotated[tuple[Bytes, ...], Field(min_length=1)] | None = Field(
        default=None, description="one cap per bucket, the last one repeats (bucket_cap_mb_list)"
    )
    find_unused_parameters: Switch = False
    static_graph: Switch = False
    gradient_as_bucket_view: Switch = False
    broadcast_buffers: Switch = True
    accumulate: MicroSteps = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: Hook = Field(default="none", description="gradient compression hook")

    @model_validator(mode="after")
    def _check_caps(self) -> DdpStrategy:
        if self.bucket_caps is not None and (self.bucket_cap or self.first_bucket):
            raise ValueError("'bucket_caps', or 'bucket_cap' with 'first_bucket', not both")
        return self
