"""DeepSpeed's ZeRO and 1-bit optimizers."""

from typing import Literal

from pydantic import Field

from perfmodel.errors import refuse_if
from perfmodel.files import Count
from perfmodel.scenario.sections.base import (
    Elements,
    ElementsOrNone,
    Index,
    MicroSteps,
    Rules,
    Section,
    StrategyModel,
    Switch,
)

STAGE_3 = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "sub_group_size",
    "stage3_allgather_sequential",
    "zero_hpz_partition_size",
    "offload_param",
)
STAGES_1_AND_2 = ("round_robin_gradients", "use_multi_rank_bucket_allreduce")


_PINNED = (
    "copies of pageable memory go through buffers of the driver, at rates that nobody publishes: "
    "true only"
)


class Offload(Section):
    """Where parts of a training lie outside of the GPUs."""

    device: Literal["cpu", "nvme"] = "cpu"
    pin_memory: Literal[True] = Field(default=True, description=_PINNED)

    @property
    def nvme(self) -> bool:
        """Whether they lie on drives."""
        return self.device == "nvme"

    def _rules(self) -> Rules:
        extra = sorted(self.model_fields_set - {"device", "pin_memory"})
        names = ", ".join(map(repr, extra))
        return ((extra and not self.nvme, f"no {names} with device: cpu: of nvme alone"),)


class OffloadOptimizer(Offload):
    """``offload_optimizer`` of DeepSpeed."""

    buffer_count: Count = Field(
        default=4, description="buffers in host memory, each for one state of a sub-group (nvme)"
    )
    pipeline_read: Switch = Field(
        default=False, description="the next sub-group is read while one is updated (nvme)"
    )
    pipeline_write: Switch = Field(
        default=False, description="the last sub-group is written while one is updated (nvme)"
    )


class OffloadParam(Offload):
    """``offload_param`` of DeepSpeed, of stage 3."""

    buffer_count: Count = Field(
        default=5, description="buffers in host memory that parts are read into (nvme)"
    )
    buffer_size: Elements = Field(
        default=100_000_000, description="elements of each, as many as the largest part (nvme)"
    )
    max_in_cpu: ElementsOrNone = Field(
        default=1_000_000_000, description="elements of a GPU's part that stay in memory (nvme)"
    )


class ZeroStrategy(StrategyModel):
    """``zero_optimization`` of DeepSpeed, with its own names and defaults.

    The model trains in the dtype of its tensors (``bf16.enabled`` is ``model.dtype: bf16``).
    """

    kind: Literal["zero"]
    stage: Literal[1, 2, 3] = Field(
        default=2, description="what is split: optimizer states, gradients too, parameters too"
    )
    reduce_bucket_size: Elements = Field(
        default=500_000_000, description="elements of gradients that are reduced at once"
    )
    reduce_scatter: Switch = Field(
        default=True, description="false: each bucket is all-reduced as it is"
    )
    use_multi_rank_bucket_allreduce: Switch = Field(
        default=True, description="false: one reduction for each owner of a bucket's gradients"
    )
    overlap_comm: Switch | None = Field(
        default=None, description="gradients are reduced beside backward; by default in stage 3"
    )
    contiguous_gradients: Switch = Field(
        default=True, description="gradients are copied into one buffer, two with overlap"
    )
    round_robin_gradients: Switch = False
    stage3_prefetch_bucket_size: ElementsOrNone = 50_000_000
    stage3_param_persistence_threshold: ElementsOrNone = Field(
        default=100_000, description="parameters of so many elements stay whole"
    )
    stage3_max_live_parameters: ElementsOrNone = 1_000_000_000
    stage3_max_reuse_distance: ElementsOrNone = 1_000_000_000
    stage3_allgather_sequential: Switch = False
    sub_group_size: Elements = 1_000_000_000
    zero_hpz_partition_size: Count = Field(
        default=1, description="GPUs that hold a second copy of the parameters between them"
    )
    offload_optimizer: OffloadOptimizer | None = Field(
        default=None,
        description="states of the optimizer lie in host memory (ZeRO-Offload) or on drives "
        "(ZeRO-Infinity, stage 3); the CPUs update",
    )
    offload_param: OffloadParam | None = Field(
        default=None,
        description="parts of parameters lie in host memory or on drives (ZeRO-Infinity)",
    )
    communication_data_type: Literal["fp32", "bf16", "fp16"] | None = None
    ns_method: Literal["gram", "standard"] = Field(
        default="gram",
        description="how Muon makes a matrix orthogonal (compute.optimizer 'muon'): rounds of "
        "Newton and Schulz on its Gram matrix in fp16, or on itself in bf16",
    )
    accumulate: MicroSteps = Field(default=1, description="gradient_accumulation_steps")

    def _rules(self) -> Rules:
        others, stages = (
            (STAGES_1_AND_2, "stages 1 and 2") if self.stage == 3 else (STAGE_3, "stage 3")
        )
        extra = sorted(self.model_fields_set.intersection(others))
        names = ", ".join(map(repr, extra))
        return (
            (extra, f"no {names} with stage {self.stage}: of {stages} alone"),
            (
                self.stage < 3 and self.offload_optimizer and self.offload_optimizer.nvme,
                "'offload_optimizer.device: cpu' with stages 1 and 2; nvme is stage 3's",
            ),
            (
                self.offload_param and self.zero_hpz_partition_size > 1,
                (
                    "'zero_hpz_partition_size: 1' with offload_param: second copies would "
                    "lie in host memory, too, which is not modelled"
                ),
            ),
        )

    def within(self, ranks: int) -> "ZeroStrategy":
        """Return the strategy where a second copy lies on no more than all ranks.

        Raises `InputError`: ranks that cannot be split into such groups.
        """
        holders = min(self.zero_hpz_partition_size, ranks)
        refuse_if(
            ranks % holders,
            "strategy.zero_hpz_partition_size",
            repr(self.zero_hpz_partition_size),
            f"a divisor of the {ranks} GPUs",
        )
        return self.model_copy(update={"zero_hpz_partition_size": holders})

    @property
    def offloads(self) -> bool:
        """Whether anything lies outside the GPUs."""
        return self.offload_optimizer is not None or self.offload_param is not None

    @property
    def uses_drives(self) -> bool:
        """Whether anything lies on drives."""
        return any(each and each.nvme for each in (self.offload_optimizer, self.offload_param))

    @property
    def overlaps_backward(self) -> bool:
        """Whether gradients are reduced beside backward; by default in stage 3."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm


class OneBitStrategy(StrategyModel):
    """``OneBitAdam``, ``ZeroOneAdam`` or ``OneBitLamb`` of DeepSpeed, over NCCL.

    They are optimizers as much as strategies: `compute.optimizer` is Adam's for the states that
    they share. The first step is one of the warm-up, which reduces whole gradients.
    """

    kind: Literal["onebit"]
    optimizer: Literal["adam", "zero_one_adam", "lamb"] = "adam"
    freeze_step: Index = Field(
        default=100_000,
        description="steps of the warm-up, before momenta are compressed (var_freeze_step)",
    )
    local_steps: MicroSteps = Field(
        default=1,
        description="steps from one exchange to the next (zero_one_adam: local_step_interval, "
        "which grows from 1 to local_step_clipper, 16)",
    )
    accumulate: MicroSteps = Field(
        default=1,
        description="gradient_accumulation_steps, times 'local_steps' where there are several",
    )

    def _rules(self) -> Rules:
        return (
            (
                self.local_steps > 1 and self.optimizer != "zero_one_adam",
                "'local_steps' with 'optimizer: zero_one_adam' only",
            ),
            (
                self.accumulate % self.local_steps,
                "an 'accumulate' that 'local_steps' divides: it counts the micro-steps of them all",
            ),
        )
