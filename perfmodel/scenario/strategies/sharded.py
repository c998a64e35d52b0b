"""Sharded training of PyTorch (FullyShardedDataParallel, fully_shard) and Megatron-Core."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from perfmodel.files import Count, FileModel
from perfmodel.scenario.sections.base import Elements, FloatType, Index, MicroSteps, Name, Switch

Units = Annotated[Index, BeforeValidator(lambda value: int(value) if value is True else value)]
"""A number of units; true for one."""


class FsdpStrategy(FileModel):
    """FullyShardedDataParallel (version 1) or fully_shard (version 2), with PyTorch's names."""

    kind: Literal["fsdp"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    version: Literal[1, 2] = Field(default=2, description="2: fully_shard, one tensor at a time")
    wrap: (
        Literal["block", "layer", "size", "model"]
        | Annotated[tuple[Name, ...], Field(min_length=1)]
    ) = Field(
        default="block",
        description="what is gathered at once: each block, each layer, modules by their size, the "
        "whole model, or a list of paths such as 'model.layers.*' and 'lm_head'",
    )
    wrap_elements: Count | None = Field(
        default=None,
        description="parameters of a unit, at least, with 'wrap: size'; default: 100,000,000",
    )
    reshard_after_forward: Switch | Count = Field(
        default=True,
        description="false: units stay whole until backward (SHARD_GRAD_OP); a number: so many "
        "GPUs hold a unit between them (version 2)",
    )
    reshard_root: Switch = Field(
        default=False, description="the outermost unit is freed after forward, too (version 2)"
    )
    shard_gpus: Count | None = Field(
        default=None, description="GPUs that a unit is split over, the others hold copies (HSDP)"
    )
    forward_prefetch: Units = Field(
        default=0, description="units gathered before the layers of the one in hand; true for one"
    )
    backward_prefetch: Literal["pre", "post", "none"] = "pre"
    limit_all_gathers: Switch = True
    param_dtype: FloatType | None = Field(
        default=None, description="that parameters are gathered in; default: their own"
    )
    reduce_dtype: FloatType | None = Field(
        default=None, description="that gradients are reduced in; default: 'param_dtype'"
    )
    buffer_dtype: FloatType | None = Field(
        default=None, description="that buffers are kept in (version 1)"
    )
    use_orig_params: Switch = Field(
        default=False, description="parameters begin at multiples of 16 bytes (version 1)"
    )
    offload: Switch = Field(
        default=False,
        description="parameters, gradients and optimizer states lie in host memory, and the "
        "optimizer runs there",
    )
    sync_module_states: Switch = Field(
        default=False, description="rank 0's states are broadcast before the first step (version 1)"
    )
    clip_norm: Switch = Field(
        default=False, description="gradients are clipped by their norm over all GPUs"
    )
    accumulate: MicroSteps = 1
    sync: Literal["each", "last", "shards"] = Field(
        default="each",
        description="micro-steps that reduce gradients: each; the last one (no_sync); or each to "
        "shards, and the last one over copies (version 2)",
    )
    reshard_after_backward: Switch = Field(
        default=True,
        description="false: units stay whole after micro-steps that reduce nothing (version 2)",
    )
    reduce_buffers: Count = Field(
        default=1, description="inputs of reductions that are kept at once (version 2)"
    )
    separate_reduce: Switch = Field(
        default=False, description="reductions have a communicator of their own (version 2)"
    )

    @property
    def regathers_recomputed(self) -> bool:
        """Whether a recomputed block is gathered once more than it is without recomputation.

        That is so where FullyShardedDataParallel wraps parts of the block; `fully_shard` keeps
        what forward in backward gathers.
        """
        return self.version == 1 and self.wrap not in ("block", "model")


class MegatronStrategy(FileModel):
    """``DistributedDataParallelConfig`` of Megatron-Core, with its own names and defaults.

    The model trains in the dtype of its tensors (``--bf16`` is ``model.dtype: bf16``).
    """

    kind: Literal["megatron"]
    keeps_masters: ClassVar[bool] = True
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    use_distributed_optimizer: Switch = Field(
        default=False, description="optimizer states are split over the GPUs"
    )
    overlap_grad_reduce: Switch = Field(
        default=False, description="gradients are reduced beside backward, bucket by bucket"
    )
    overlap_param_gather: Switch = Field(
        default=False, description="parameters are gathered beside the next forward"
    )
    bucket_size: Elements | None = Field(
        default=None,
        description="elements; by default 40 million, and at least a million for each GPU",
    )
    grad_reduce_in_fp32: Switch = False
    average_in_collective: Switch = False
    pad_buckets_for_high_nccl_busbw: Switch = False
    gradient_accumulation_fusion: Switch = Field(
        default=True, description="kernels of weight gradients add to the buffer themselves"
    )
    num_distributed_optimizer_instances: Count = Field(
        default=1, description="groups of GPUs that each hold all optimizer states"
    )
    accumulate: MicroSteps = 1

    @model_validator(mode="after")
    def _check_overlap(self) -> MegatronStrategy:
        if self.overlap_param_gather and not self.use_distributed_optimizer:
            raise ValueError("'overlap_param_gather' with 'use_distributed_optimizer: true' alone")
        if self.overlap_param_gather and not self.overlap_grad_reduce:
            raise ValueError("'overlap_param_gather' with 'overlap_grad_reduce: true' alone")
        if self.bucket_size is not None and not self.overlap_grad_reduce:
            raise ValueError("'bucket_size' with 'overlap_grad_reduce: true' alone")
        if self.num_distributed_optimizer_instances > 1 and not self.use_distributed_optimizer:
            raise ValueError(
                "'num_distributed_optimizer_instances' with 'use_distributed_optimizer: true' alone"
            )
        return self
