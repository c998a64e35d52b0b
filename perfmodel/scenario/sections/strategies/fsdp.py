"""Fully sharded training in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from perfmodel.files import Count, FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.counts import MicroSteps


class FsdpStrategy(FileModel):
    """FullyShardedDataParallel (version 1) or fully_shard (version 2), with PyTorch's names."""

    kind: Literal["fsdp"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
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
    accumulate: MicroSteps = 1
    reduce_each: Switch = Field(
        default=True, description="false: only the last micro-step reduces gradients"
    )

    @property
    def regathers_recomputed(self) -> bool:
        """Whether a recomputed block is gathered once more than it is without recomputation.

        That is so where FullyShardedDataParallel wraps parts of the block; `fully_shard` keeps
        what forward in backward gathers.
        """
        return self.version == 1 and self.wrap == "layer"
