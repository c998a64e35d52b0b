"""DistributedDataParallel and what runs on it: hooks, ZeroRedundancyOptimizer, local SGD."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_serializer

from perfmodel.files import Bytes, Count, FileModel
from perfmodel.scenario.sections.base import (
    MOST_MICRO_STEPS,
    OR_NAME,
    FloatType,
    Index,
    MicroSteps,
    Rules,
    Section,
    StrategyModel,
    Switch,
    is_growing,
    kind_alone,
)


class CastHook(FileModel):
    """Each bucket in one all-reduce, as it is or in 16 bits.

    `none`: no hook: gradients are divided while they are copied into their bucket. `allreduce`:
    PyTorch's ``allreduce_hook``, which divides the bucket on its own.
    """

    kind: Literal["none", "allreduce", "fp16", "bf16"] = "none"

    @model_serializer
    def _write_name(self) -> str:
        return self.kind


class PowerSgdHook(Section):
    """``powerSGD_hook``, with the names of ``PowerSGDState``."""

    kind: Literal["powersgd"]
    rank: Count = Field(default=1, description="matrix_approximation_rank")
    start_iteration: Index = Field(
        default=1000, description="start_powerSGD_iter: steps before it reduce whole buckets"
    )
    min_compression_rate: Annotated[float, Field(strict=True, gt=0, le=1e9)] = 2.0
    use_error_feedback: Switch = True
    warm_start: Switch = True
    orthogonalization_epsilon: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0
    batch_tensors_with_same_shape: Switch = False
    wrapper: Literal["fp16", "bf16"] | None = Field(
        default=None, description="fp16_compress_wrapper or bf16_compress_wrapper around it"
    )

    def _rules(self) -> Rules:
        early = (self.use_error_feedback or self.warm_start) and self.start_iteration <= 1
        allowed = (
            "a 'start_iteration' of 2 or more with 'use_error_feedback' or 'warm_start', as "
            "PyTorch asks for: buckets are rebuilt after the first step"
        )
        return ((early, allowed),)


class QuantizationHook(Section):
    """``quantization_pertensor_hook`` and ``quantization_perchannel_hook``: 8 bits, gathered."""

    kind: Literal["quantization_pertensor", "quantization_perchannel"]
    bucket_size: Count | None = Field(
        default=None, description="elements that share a scale, per channel; default: 512"
    )

    def _rules(self) -> Rules:
        return (
            (
                self.kind == "quantization_pertensor" and self.bucket_size is not None,
                "no 'bucket_size' with 'quantization_pertensor', which has one scale",
            ),
        )


NO_HOOK = CastHook()

Hook = CastHook | PowerSgdHook | QuantizationHook


_REFUSED_HOOKS = {
    "batchedpowersgd": "'powersgd': batched_powerSGD_hook of torch 2.13 fails with an "
    "AssertionError in _orthogonalize, which takes batches of matrices only",
    "postlocalsgd": "'none': post-local SGD is 'strategy.kind: local_sgd' with 'warmup_steps', its "
    "hook and its averaging together",
}
"""What is allowed in place of hooks of PyTorch that have no section, by name."""


HookSection = Annotated[
    Annotated[Hook, Field(discriminator="kind")], kind_alone("none", _REFUSED_HOOKS), OR_NAME
]
"""A hook by its `kind`, alone or with fields."""


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

    @property
    def reduced_dtype(self) -> str:
        """What buckets are reduced in."""
        return self.reduce_dtype or self.param_dtype

    @property
    def casts_buckets(self) -> bool:
        """Whether buckets are converted before they are reduced."""
        return self.reduced_dtype != self.param_dtype


class DdpStrategy(StrategyModel):
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
    batched_grad_copy: Switch = Field(
        default=False, description="gradients are copied once their bucket is complete"
    )
    process_group_gpus: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="consecutive GPUs of each process group, which train independently",
    )
    join: Switch = Field(default=False, description="training within join(): uneven inputs")
    throw_on_early_termination: Switch = False
    joined_gpus: Index = Field(
        default=0, description="GPUs that have run out of inputs and shadow the others"
    )
    accumulate: MicroSteps = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: HookSection = Field(default=NO_HOOK, description="communication hook")
    mixed_precision: MixedPrecisionSection | None = Field(
        default=None, description="layers run with cast copies of the parameters"
    )
    distributed_optimizer: Switch = Field(
        default=False,
        description="each GPU updates its share of the matrices and gathers the others, as Muon's "
        "authors have it: with compute.optimizer 'muon', 'soap' or 'shampoo'",
    )

    def _rules(self) -> Rules:
        looks = self.find_unused_parameters and not self.static_graph
        fails_mixed = self.hook != NO_HOOK or self.accumulate > 1 or self.joined_gpus or looks
        return (
            (
                self.bucket_caps is not None and (self.bucket_cap or self.first_bucket),
                "'bucket_caps', or 'bucket_cap' with 'first_bucket', not both",
            ),
            (
                self.mixed_precision is not None and fails_mixed,
                (
                    "'mixed_precision' without 'hook', 'accumulate', 'joined_gpus' and "
                    "'find_unused_parameters', with which torch 2.13 fails"
                ),
            ),
            (self.joined_gpus and not self.join, "'join: true' with 'joined_gpus'"),
            (
                self.join and self.distributed_optimizer,
                "'join' or 'distributed_optimizer', not both: who has no inputs gathers nothing",
            ),
            (
                self.throw_on_early_termination and (self.joined_gpus or not self.join),
                (
                    "'throw_on_early_termination' with 'join: true' and no 'joined_gpus': training "
                    "ends when the first GPU runs out of inputs"
                ),
            ),
            (
                self.process_group_gpus is not None and self.join,
                "'join' or 'process_group_gpus', not both",
            ),
        )


class ZeroRedundancyStrategy(StrategyModel):
    """DDP whose optimizer states are split: each GPU updates some parameters and broadcasts them.

    `overlap_with_ddp` has no field: it hides the update behind the next backward, a step late.
    """

    kind: Literal["zero_redundancy"]
    parameters_as_bucket_view: Switch = Field(
        default=False, description="one broadcast for each GPU, not for each parameter"
    )
    ddp: DdpStrategy = Field(default=DdpStrategy(), description="fields of strategy.kind: ddp")

    @property
    def accumulate(self) -> int:
        """Micro-steps per step."""
        return self.ddp.accumulate


class AveragingLevel(FileModel):
    """Groups of consecutive GPUs that average their parameters more often than all do."""

    period: MicroSteps
    gpus: Annotated[Count, Field(ge=2)]


class LocalSgdStrategy(StrategyModel):
    """Local SGD: each GPU, or each group of GPUs, takes steps of its own between averages.

    PyTorch's ``PeriodicModelAverager`` with `period`, ``HierarchicalModelAverager`` with `levels`
    below it; with `gradient_gpus` post-local SGD (``post_localSGD_hook`` in
    DistributedDataParallel). What `run` calls a step is a round of optimizer steps after which the
    pattern repeats.
    """

    kind: Literal["local_sgd"]
    period: MicroSteps = Field(default=4, description="optimizer steps per average of all GPUs")
    levels: tuple[AveragingLevel, ...] = Field(
        default=(), description="smaller groups that average more often, growing"
    )
    warmup_steps: Index = Field(
        default=0, description="steps before it average all gradients (start_localSGD_iter)"
    )
    gradient_gpus: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="consecutive GPUs that average gradients in each step; default: none do",
    )
    bucket_cap: Bytes | None = Field(default=None, description="as in kind: ddp")
    gradient_as_bucket_view: Switch = False
    broadcast_buffers: Switch = True

    @property
    def accumulate(self) -> int:
        """Micro-batches per round: one for each optimizer step."""
        return math.lcm(self.period, *(level.period for level in self.levels))

    def averaged_ranks(self, step: int, ranks: int) -> int | None:
        """Ranks of each group that averages parameters after a step of the round; None: none do.

        The longest period that ends decides (``_find_process_group`` in
        hierarchical_model_averager.py).
        """
        groups = [(level.period, level.gpus) for level in self.levels]
        groups.append((self.period, ranks))
        ending = (gpus for period, gpus in reversed(groups) if step % period == 0)
        return next((min(gpus, ranks) for gpus in ending), None)

    def _rules(self) -> Rules:
        periods = [*(level.period for level in self.levels), self.period]
        of_buckets = {"bucket_cap", "gradient_as_bucket_view", "broadcast_buffers"}
        return (
            (not is_growing(periods), "'levels' of growing periods, all below 'period'"),
            (not is_growing([level.gpus for level in self.levels]), "'levels' of growing groups"),
            (
                self.accumulate > MOST_MICRO_STEPS,
                f"periods that repeat together after {MOST_MICRO_STEPS} steps at most",
            ),
            *(
                (
                    self.gradient_gpus is None,
                    f"no {name!r} without 'gradient_gpus': nothing has buckets",
                )
                for name in sorted(of_buckets & self.model_fields_set)
            ),
        )
