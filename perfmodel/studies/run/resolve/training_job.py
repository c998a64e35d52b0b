"""What a scenario trains and how, before its size is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from perfmodel.errors import raise_faults
from perfmodel.files import FileModel
from perfmodel.library.model import CommLibrary
from perfmodel.scenario import ClusterSize, ModelSection, Scenario
from perfmodel.scenario.model import relocated_errors
from perfmodel.scenario.sections.model import ExpertsSection
from perfmodel.scenario.sections.training import (
    Float8Section,
    KeptResults,
    RecomputedBlocks,
    RecomputedModules,
)
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.device_replica import layer_devices
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.parallel_layout import ParallelLayout
from perfmodel.training.pipeline.schedules import SCHEDULES
from perfmodel.training.pipeline.stage_workload import PartitionOptions, part_layers
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import Strategy
from perfmodel.workload import load_workload
from perfmodel.workload.compute_spread import spread_of
from perfmodel.workload.kernels.float8_layers import Float8, name_wide_blocks, wide_precision
from perfmodel.workload.memory.blocks import only_blocks_fuse
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.model import Workload
from perfmodel.workload.model_changes import (
    add_adapters,
    chunk_loss,
    fuse_by_hand,
    pack_documents,
)
from perfmodel.workload.readers.load import section_model
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.expert_settings import ExpertSettings

ONE_PROCESS_ORDER = ("pp", "tp", "cp", "ep", "dp")
"""GPUs of one process are neighbours."""


def layout_of(scenario: Scenario) -> ParallelLayout:
    """How a scenario splits its model."""
    section, pipeline = scenario.parallel, scenario.parallel.pipeline
    return ParallelLayout(
        shard=Shard(
            tensor=section.tensor,
            sequence_parallel=section.sequence_parallel,
            context=section.context.degree,
            context_kind=section.context.kind,
            context_balanced=section.context.balanced,
            expert=section.expert,
            tables=section.tables,
            servers=section.servers,
            colocated=section.server_placement == "colocated",
            library=section.library,
            overlap=section.overlap,
            parallel_loss=section.parallel_loss,
            vocabulary_multiple=section.vocabulary_multiple,
            vocabulary=pipeline.stages
            if SCHEDULES[pipeline.schedule].layout == "vocabulary"
            else 1,
        ),
        stages=pipeline.stages,
        schedule=pipeline.schedule,
        chunks=pipeline.chunks,
        partition=PartitionOptions(
            blocks_per_part=pipeline.blocks_per_part,
            first_stage_blocks=pipeline.first_stage_blocks,
            last_stage_blocks=pipeline.last_stage_blocks,
            embedding_as_block=pipeline.embedding_as_block,
            loss_as_block=pipeline.loss_as_block,
        ),
        overlap_p2p=pipeline.overlap_p2p,
        micro_batch_group=pipeline.micro_batch_group,
        order=ONE_PROCESS_ORDER if pipeline.one_process else tuple(section.order.split("-")),
        expert_tensor=scenario.model.experts.tensor if scenario.model.experts else 1,
    )


_SHARD_FIELDS = {
    name: f"parallel.{name}"
    for name in (
        "tensor",
        "sequence_parallel",
        "expert",
        "tables",
        "library",
        "overlap",
        "parallel_loss",
        "vocabulary_multiple",
    )
} | {
    "context": "parallel.context.degree",
    "context_kind": "parallel.context.kind",
    "context_balanced": "parallel.context.balanced",
    "vocabulary": "parallel.pipeline.stages",
    **{f"experts.{name}": f"model.experts.{name}" for name in ExpertsSection.model_fields},
}
"""Fields of a shard in a scenario."""


def _expert_settings(
    section: ExpertsSection | None,
    ranks_per_node: int | None = None,
    idle: frozenset[str] = frozenset(),
) -> ExpertSettings | None:
    """How experts run, where the scenario says so, but for fields that are `idle`.

    `ranks_per_node`: of those that share experts, where these span nodes.
    """
    fields = section.model_dump(exclude=set(idle)) if section else {}
    is_stated = section is not None or ranks_per_node is not None
    return ExpertSettings(**fields, ranks_per_node=ranks_per_node) if is_stated else None


_BETWEEN_RANKS = frozenset(
    {"imbalance", "dispatcher", "dispatch_dtype", "buffer_factor", "overlap", "tensor"}
)
"""Fields of experts that act among ranks which share a model, and not in the whole of it."""


def expert_ranks_per_node(scenario: Scenario, size: ClusterSize) -> int | None:
    """Ranks of an expert group that share a node, where the group spans several."""
    parallel, parallel_layout = scenario.parallel, layout_of(scenario)
    # each share of an expert has its group
    ranks = size.gpus // parallel.pipeline.stages // parallel_layout.expert_tensor
    is_refused = parallel_layout.expert_tensor not in {
        1,
        parallel.tensor,
    }  # where the model is read
    is_refused |= parallel.tables is not None  # tables, and no experts
    if is_refused or parallel.expert == 1 or not ranks or ranks % parallel.expert:
        return None
    shared = parallel_layout.grid(size.gpus).expert_ranks_per_host(size.gpus_per_node)
    return shared if shared < parallel.expert and parallel.expert % shared == 0 else None


def resolve_share(scenario: Scenario, whole: Workload, size: ClusterSize) -> Workload:
    """What one rank of a tensor, context and expert group holds of the model of a scenario.

    `size`: of the cluster, the largest.
    Raises `InputError`: degrees that do not divide it; names file, line and field.
    """
    shard, section = layout_of(scenario).shard, scenario.model
    if shard.is_whole:
        return whole
    return _load(
        scenario,
        section,
        "model",
        ("parallel", _SHARD_FIELDS),
        dtype=section.dtype if section.file is None else None,
        shard=shard,
        experts=_expert_settings(section.experts, expert_ranks_per_node(scenario, size)),
    )


def resolve_workload(
    scenario: Scenario, model: ModelSection | None = None, field: str = "model"
) -> Workload:
    """The model of a scenario.

    `model`: of another job of the scenario.
    `field`: where the model stands.
    Raises `InputError`: names file, line and field.
    """
    section, parallel = model or scenario.model, scenario.parallel
    return _load(
        scenario,
        section,
        field,
        (field, {"model": f"{field}.{section.source}"}),
        dtype=section.dtype,
        experts=_expert_settings(
            section.experts,
            idle=_BETWEEN_RANKS
            if model is None and (parallel.expert > 1 or parallel.tensor > 1)
            else frozenset[str](),
        ),
    )


def _load(
    scenario: Scenario,
    section: ModelSection,
    field: str,
    place: tuple[str, Mapping[str, str]],
    **options: Any,
) -> Workload:
    """Load a model as it is trained: packed, beside its adapters, with what is compiled fused.

    `field`: where the model stands.
    `place`: section of the scenario that faults of its loading are in, and fields of parameters.
    """
    length = f"{field}.{'sequence_length' if section.tokens is None else 'tokens'}"
    with relocated_errors(scenario, place[0], {**place[1], "sequence_length": length}):
        workload = load_workload(
            section_model(
                section, lambda part, value: scenario.origin.resolve(f"{field}.{part}", value)
            ),
            image_size=section.image_size,
            sequence_length=section.length,
            **options,
        )
    with relocated_errors(scenario, field):
        if section.document_length is not None:
            workload = pack_documents(workload, section.document_length)
        if section.adapters is not None:
            workload = add_adapters(workload, section.adapters)
    fuse = {"by_hand": fuse_by_hand, "blocks": only_blocks_fuse}.get(str(scenario.compute.compiled))
    with relocated_errors(scenario, "compute"):  # nothing is left to fuse outside of it
        workload = workload if fuse is None else fuse(workload)
        return chunk_loss(workload) if scenario.compute.fused_loss else workload


# ---------------------------------------------------------------- the job


_RECOMPUTE_KINDS: Mapping[type[FileModel], Literal["full", "operations", "selective"]] = {
    RecomputedBlocks: "full",
    KeptResults: "operations",
    RecomputedModules: "selective",
}
"""What each section of ``compute.recompute`` is a part of."""


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
        """The whole model; `workload` is what one rank of a parallel layout holds of it."""
        return self.whole or self.workload

    @property
    def parallel_layout(self) -> ParallelLayout:
        """How the model is split."""
        return layout_of(self.scenario)

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
            schedule = self.parallel_layout.pipeline_schedule(options.accumulate)
            parts = part_layers(self.workload, schedule, self.parallel_layout.partition)
            return options.model_copy(update={"layer_devices": layer_devices(parts)})

    @property
    def recompute(self) -> Recompute:
        """What backward runs forward of once more."""
        stated = self.scenario.compute.recompute
        if isinstance(stated, str):
            return Recompute(stated)
        return Recompute(_RECOMPUTE_KINDS[type(stated)], **dict(stated))

    @property
    def float8(self) -> Float8 | None:
        """How linear layers run in fp8; None where they do not."""
        compute = self.scenario.compute
        if compute.precision != "fp8":
            return None
        section = compute.fp8 or Float8Section()
        ends = section.first_last_layers_bf16
        recipe = Float8(
            library=section.library,
            recipe=section.recipe,
            filter_fqns=section.filter_fqns,
            start_in_bf16=section.num_layers_at_start_in_bf16 if ends else 0,
            end_in_bf16=section.num_layers_at_end_in_bf16 if ends else 0,
            reduce_amax=section.reduce_amax and not section.tp_only_amax_red,
            amax_history_len=section.amax_history_len,
            fp8_param_gather=section.fp8_param_gather,
            attention=section.fp8_dot_product_attention,
            enable_fsdp_float8_all_gather=section.enable_fsdp_float8_all_gather,
            precompute_float8_dynamic_scale_for_fsdp=(
                section.precompute_float8_dynamic_scale_for_fsdp
            ),
        )
        return name_wide_blocks(self.workload, recipe)

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


def move_to_gpu(job: TrainingJob, name: str) -> TrainingJob:
    """Return the same job on another GPU of the table.

    Raises `InputError`: no such GPU, or times that were measured on one GPU only.
    """
    compute = job.scenario.compute
    one_gpu = (
        (
            "source",
            compute.source == "file",
            "'file'",
            "'roofline' with cluster.mixed: a file has the times of one GPU",
        ),
        (
            "measured_step",
            compute.measured_step is not None,
            "a step",
            "nothing with cluster.mixed: it is a step of one of its GPUs",
        ),
    )
    raise_faults(
        job.scenario.origin.fault(f"compute.{field}", found, allowed)
        for field, is_stated, found, allowed in one_gpu
        if is_stated
    )
    return replace(job, gpu=load_gpu(name))


def gpu_spread(job: TrainingJob) -> float:
    """Standard deviation of the speeds of the job's GPUs, over their mean."""
    return spread_of(job.gpu, job.scenario.compute.gpu_spread)


def assign_buckets(job: TrainingJob) -> tuple[Bucket, ...]:
    """Gradient buckets of the steady state; none for a strategy without."""
    buckets_of = job.strategy.buckets
    return () if buckets_of is None else buckets_of(job.workload, job.options)
