"""Megatron-Core's data parallelism in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from perfmodel.files import Count, FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.counts import MicroSteps
from perfmodel.scenario.sections.strategies.zero import Elements


class MegatronStrategy(FileModel):
    """``DistributedDataParallelConfig`` of Megatron-Core, with its own names and defaults.

    The model trains in the dtype of its tensors (``--bf16`` is ``model.dtype: bf16``).
    """

    kind: Literal["megatron"]
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
