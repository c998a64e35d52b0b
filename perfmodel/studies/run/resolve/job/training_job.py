"""What a scenario trains and how, before its size is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.library.model import CommLibrary
from perfmodel.scenario import Scenario
from perfmodel.scenario.sections.float8 import Float8Section
from perfmodel.scenario.sections.training import KeptResults, RecomputedBlocks
from perfmodel.studies.run.resolve.job.model_share import mixture_of
from perfmodel.studies.run.resolve.machine import relocated_errors
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory.use import StepOptions
from perfmodel.training.parallel.device_replica import layer_devices
from perfmodel.training.parallel.mixture import Mixture
from perfmodel.training.pipeline.stage_workload import part_layers
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import Strategy
from perfmodel.workload.compute_spread import spread_of
from perfmodel.workload.kernels.float8_layers import name_wide_blocks
from perfmodel.workload.kernels.float8_recipe import Float8, wide_precision
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is trained and how, before its size is known.

    `workload`: of one rank of a tensor, context and expert group, all stages of a pipeline.
    `chosen` are options of DistributedDataParallel instead of the scenario's.
    `whole`: the model, where `workload` is a share of it.
    `own`: a strategy of the user's, in place of the scenario's.
    """

    scenario: Scenario
    workload: Workload
    gpu: Gpu
    library: CommLibrary
    chosen: StepOptions | None = None
    whole: Workload | None = None
    own: Strategy | None = None

    @property
    def model(self) -> Workload:
        """The whole model; `workload` is what one rank of a mixture holds of it."""
        return self.whole or self.workload

    @property
    def mixture(self) -> Mixture:
        """How the model is split."""
        return mixture_of(self.scenario)

    @property
    def strategy(self) -> Strategy:
        """The row of its strategy."""
        return self.own or STRATEGIES[self.scenario.strategy.kind]

    @property
    def options(self) -> StepOptions:
        """What the strategy is called with."""
        if self.chosen is not None:
            return self.chosen
        with relocated_errors(self.scenario, "strategy"):
            options = self.strategy.options(self.scenario.strategy)
            if not self.scenario.parallel.pipeline.one_process:
                return options
            assert isinstance(options, DdpOptions)  # by a rule of scenarios
            schedule = self.mixture.pipeline_schedule(options.accumulate)
            parts = part_layers(self.workload, schedule, self.mixture.partition)
            return replace(options, layer_devices=layer_devices(parts))

    @property
    def recompute(self) -> Recompute:
        """What backward runs forward of once more."""
        recompute = self.scenario.compute.recompute
        if isinstance(recompute, RecomputedBlocks):
            return Recompute("full", recompute.blocks)
        if isinstance(recompute, KeptResults):
            return Recompute("operations", keep=recompute.keep)
        return NO_RECOMPUTE if recompute == "none" else Recompute(recompute)

    @property
    def float8(self) -> Float8 | None:
        """How linear layers run in fp8; None where they do not."""
        compute = self.scenario.compute
        if compute.precision != "fp8":
            return None
        return name_wide_blocks(self.workload, float8_of(compute.fp8))

    @property
    def wide_precision(self) -> str:
        """Precision of what does not run in fp8."""
        return wide_precision(self.scenario.compute.precision)

    @property
    def ddp_options(self) -> DdpOptions:
        """What DistributedDataParallel is called with, where it is the strategy."""
        options = self.options
        assert isinstance(options, DdpOptions)
        return options


def float8_of(section: Float8Section | None) -> Float8:
    """Options of a section, or by default."""
    if section is None:
        return Float8()
    ends = section.first_last_layers_bf16
    return Float8(
        library=section.library,
        recipe=section.recipe,
        filter_fqns=section.filter_fqns,
        start_in_bf16=section.num_layers_at_start_in_bf16 * ends,
        end_in_bf16=section.num_layers_at_end_in_bf16 * ends,
        reduce_amax=section.reduce_amax and not section.tp_only_amax_red,
        amax_history_len=section.amax_history_len,
        fp8_param_gather=section.fp8_param_gather,
        attention=section.fp8_dot_product_attention,
        enable_fsdp_float8_all_gather=section.enable_fsdp_float8_all_gather,
        precompute_float8_dynamic_scale_for_fsdp=section.precompute_float8_dynamic_scale_for_fsdp,
    )


def move_to_gpu(job: TrainingJob, name: str) -> TrainingJob:
    """Return the same job on another GPU of the table.

    Raises `InputError`: no such GPU, or times that were measured on one GPU only.
    """
    compute = job.scenario.compute
    if compute.source == "file":
        allowed = "'roofline' with cluster.mixed: a file has the times of one GPU"
        raise job.scenario.fault("compute.source", "'file'", allowed)
    if compute.measured_step is not None:
        allowed = "nothing with cluster.mixed: it is a step of one of its GPUs"
        raise job.scenario.fault("compute.measured_step", "a step", allowed)
    return replace(job, gpu=load_gpu(name))


def gpu_spread(job: TrainingJob) -> float:
    """Standard deviation of the speeds of the job's GPUs, over their mean."""
    return spread_of(job.gpu, job.scenario.compute.gpu_spread)


def assign_buckets(job: TrainingJob) -> tuple[Bucket, ...]:
    """Gradient buckets of the steady state; none for a strategy without."""
    buckets_of = job.strategy.buckets
    return () if buckets_of is None else buckets_of(job.workload, job.options)
