"""The strategy section of a scenario: one class for each strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from perfmodel.files import Bytes, Count, FileModel
from perfmodel.scenario.sections.base import Switch

MOST_MICRO_STEPS = 1024
"""Each is simulated: some ms."""

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
    accumulate: Annotated[Count, Field(le=MOST_MICRO_STEPS)] = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: Hook = Field(default="none", description="gradient compression hook")

    @model_validator(mode="after")
    def _check_caps(self) -> DdpStrategy:
        if self.bucket_caps is not None and (self.bucket_cap or self.first_bucket):
            raise ValueError("'bucket_caps', or 'bucket_cap' with 'first_bucket', not both")
        return self


class DataParallelStrategy(FileModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]
    one_node_only: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False
    accumulate: ClassVar[int] = 1
    hook: ClassVar[Hook] = "none"


class FsdpStrategy(FileModel):
    """FullyShardedDataParallel (version 1) or fully_shard (version 2), with PyTorch's names."""

    kind: Literal["fsdp"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    hook: ClassVar[Hook] = "none"
    version: Literal[1, 2] = Field(default=2, description="2: fully_shard, one tensor at a time")
    wrap: Literal["block", "layer", "model"] = Field(
        default="block", description="what is gathered at once"
    )
    reshard_after_forward: Switch = Field(
        default=True, description="false: units stay whole until backward (SHARD_GRAD_OP)"
    )
    regather_gpus: Count | None = Field(
        default=None, description="GPUs that hold a unit between them after forward"
    )
    shard_gpus: Count | None = Field(
        default=None, description="GPUs that a unit is split over, the others hold copies (HSDP)"
    )
    backward_prefetch: Literal["pre", "post", "none"] = "pre"
    limit_all_gathers: Switch = True
    param_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    reduce_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    accumulate: Annotated[Count, Field(le=MOST_MICRO_STEPS)] = 1
    reduce_each: Switch = Field(
        default=True, description="false: only the last micro-step reduces gradients"
    )


def _ddp_unless_named(value: object) -> object:
    return {"kind": "ddp", **value} if isinstance(value, Mapping) else value


StrategySection = Annotated[
    Annotated[DdpStrategy | DataParallelStrategy | FsdpStrategy, Field(discriminator="kind")],
    BeforeValidator(_ddp_unless_named),
]
"""The strategies by `kind`; DDP without one. Each class has a row of the same kind in
`perfmodel.training.strategies`, and says `accumulate`, `hook`, `one_node_only`, and whether its
communication `overlaps` layers."""
