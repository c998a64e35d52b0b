"""DistributedDataParallel in a scenario."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from perfmodel.files import Bytes, Count, FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.counts import MicroSteps
from perfmodel.scenario.sections.strategies.fsdp import FloatType
from perfmodel.scenario.sections.strategies.gradient_hooks import NO_HOOK, HookSection
from perfmodel.units import MOST_COUNT


class MixedPrecisionSection(FileModel):
    """``_MixedPrecision`` of torch 2.13, an experimental argument.

    Its `param_dtype` may be left out there; then reductions in another dtype fail.
    """

    param_dtype: FloatType = Field(description="of copies of parameters that layers run with")
    reduce_dtype: FloatType | None = Field(
        default=None, description="that buckets are reduced in; default: 'param_dtype'"
    )
    buffer_dtype: FloatType | None = Field(
        default=None, description="that buffers are kept in; default: their own"
    )


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
    batched_grad_copy: Switch = Field(
        default=False, description="gradients are copied once their bucket is complete"
    )
    process_group_gpus: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="consecutive GPUs of each process group, which train independently",
    )
    join: Switch = Field(default=False, description="training within join(): uneven inputs")
    throw_on_early_termination: Switch = False
    joined_gpus: Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)] = Field(
        default=0, description="GPUs that have run out of inputs and shadow the others"
    )
    accumulate: MicroSteps = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: HookSection = Field(default=NO_HOOK, description="communication hook")
    mixed_precision: MixedPrecisionSection | None = Field(
        default=None, description="layers run with cast copies of the parameters"
    )

    @model_validator(mode="after")
    def _check_caps(self) -> DdpStrategy:
        if self.bucket_caps is not None and (self.bucket_cap or self.first_bucket):
            raise ValueError("'bucket_caps', or 'bucket_cap' with 'first_bucket', not both")
        return self

    @model_validator(mode="after")
    def _check_mixed_precision(self) -> DdpStrategy:
        if self.mixed_precision is None:
            return self
        looks = self.find_unused_parameters and not self.static_graph
        if self.hook != NO_HOOK or self.accumulate > 1 or self.joined_gpus or looks:
            raise ValueError(
                "'mixed_precision' without 'hook', 'accumulate', 'joined_gpus' and "
                "'find_unused_parameters', with which torch 2.13 fails"
            )
        return self

    @model_validator(mode="after")
    def _check_join(self) -> DdpStrategy:
        if self.joined_gpus and not self.join:
            raise ValueError("'join: true' with 'joined_gpus'")
        if self.throw_on_early_termination and (self.joined_gpus or not self.join):
            raise ValueError(
                "'throw_on_early_termination' with 'join: true' and no 'joined_gpus': training "
                "ends when the first GPU runs out of inputs"
            )
        if self.process_group_gpus is not None and self.join:
            raise ValueError("'join' or 'process_group_gpus', not both")
        return self
