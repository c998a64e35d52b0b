"""From the model, compute and strategy sections of a scenario to plans and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from perfmodel.library.model import CommLibrary
from perfmodel.scenario import ClusterSize, ModelSection, Scenario
from perfmodel.scenario.sections.float8 import Float8Section
from perfmodel.scenario.sections.model import ExpertsSection
from perfmodel.scenario.sections.training import MeasuredStep, RecomputedBlocks
from perfmodel.studies.run.resolve.host_overhead import NO_HOST_MEMORY, HostMemory, host_work
from perfmodel.studies.run.resolve.machine import relocated_errors
from perfmodel.studies.run.resolve.what_if import scale_layer_times, what_if_of
from perfmodel.studies.run.result import Memory
from perfmodel.topology.model import Gpu, Sockets
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.buckets import Bucket, Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory.reserve import reserve_bytes
from perfmodel.training.memory.use import (
    MemoryUse,
    Setup,
    StepOptions,
    add_float8_copies,
    add_temporaries,
    narrow_inputs,
)
from perfmodel.training.parallel.mixture import Mixture, Reduction, mix_step
from perfmodel.training.parallel.stage_memory import stage_memory
from perfmodel.training.pipeline.block_partition import PartitionOptions, part_layers
from perfmodel.training.plan.amax_reductions import add_amax_reductions
from perfmodel.training.plan.loop_plan import LoopPlan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import CollectiveTime, StepRequest, Strategy
from perfmodel.workload import load_workload, read_layer_times
from perfmodel.workload.adapters import Adapters, add_adapters
from perfmodel.workload.compute_spread import measured_factors, slowest_factor, spread_of
from perfmodel.workload.configs.section_model import section_model
from perfmodel.workload.kernels.float8.recipe import Float8, float8_casts, wide_precision
from perfmodel.workload.memory.activations import block_bytes
from perfmodel.workload.memory.blocks import only_blocks_fuse
from perfmodel.workload.memory.hand_kernels import fuse_by_hand
from perfmodel.workload.memory.offload import add_offload
from perfmodel.workload.memory.optimizer_states import optimizer_bytes
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, add_recompute
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, Workload, scale_times, slow_device
from perfmodel.workload.packed_documents import pack_documents
from perfmodel.workload.readers.layer_times import read_measured_activations
from perfmodel.workload.roofline import by_first_flash, layer_times, step_s
from perfmodel.workload.shards.shard import Shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoders.experts import ExpertSettings


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is trained and how, before its size is known.

    `workload`: of one rank of a tensor, context and expert group, all stages of a pipeline.
    `chosen` are options of DistributedDataParallel instead of the scenario's.
    `whole`: the model, where `workload` is a share of it.
    """

    scenario: Scenario
    workload: Workload
    gpu: Gpu
    library: CommLibrary
    chosen: StepOptions | None = None
    whole: Workload | None = None

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
        return STRATEGIES[self.scenario.strategy.kind]

    @property
    def options(self) -> StepOptions:
        """What the strategy is called with."""
        if self.chosen is not None:
            return self.chosen
        with relocated_errors(self.scenario, "strategy"):
            return self.strategy.options(self.scenario.strategy)

    @property
    def recompute(self) -> Recompute:
        """What backward runs forward of once more."""
        recompute = self.scenario.compute.recompute
        if isinstance(recompute, RecomputedBlocks):
            return Recompute("full", recompute.blocks)
        return NO_RECOMPUTE if recompute == "none" else Recompute(recompute)

    @property
    def float8(self) -> Float8 | None:
        """How linear layers run in fp8; None where they do not."""
        compute = self.scenario.compute
        return float8_of(compute.fp8) if compute.precision == "fp8" else None

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
        enable_fsdp_float8_all_gather=section.enable_fsdp_float8_all_gather,
        precompute_float8_dynamic_scale_for_fsdp=section.precompute_float8_dynamic_scale_for_fsdp,
    )


def mixture_of(scenario: Scenario) -> Mixture:
    """How a scenario splits its model."""
    section, pipeline = scenario.parallel, scenario.parallel.pipeline
    return Mixture(
        shard=Shard(
            tensor=section.tensor,
            sequence_parallel=section.sequence_parallel,
            context=section.context.degree,
            context_kind=section.context.kind,
            context_balanced=section.context.balanced,
            expert=section.expert,
            library=section.library,
            overlap=section.overlap,
            parallel_loss=section.parallel_loss,
            vocabulary_multiple=section.vocabulary_multiple,
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
        order=tuple(section.order.split("-")),
        expert_tensor=scenario.model.experts.tensor if scenario.model.experts else 1,
    )


_SHARD_FIELDS = {
    name: f"parallel.{name}"
    for name in (
        "tensor", "sequence_parallel", "expert", "library", "overlap", "parallel_loss",
        "vocabulary_multiple",
    )
} | {
    "context": "parallel.context.degree",
    "context_kind": "parallel.context.kind",
    "context_balanced": "parallel.context.balanced",
    **{f"experts.{name}": f"model.experts.{name}" for name in ExpertsSection.model_fields},
}  # fmt: skip
"""Fields of a shard in a scenario."""


def _expert_settings(
    section: ExpertsSection | None,
    ranks_per_node: int | None = None,
    idle: frozenset[str] = frozenset(),
) -> ExpertSettings | None:
    """How experts run, where the scenario says so, but for fields that are `idle`.

    `ranks_per_node`: of those that share experts, where these span nodes.
    """
    if section is None and ranks_per_node is None:
        return None
    fields = {} if section is None else section.model_dump(exclude=set(idle))
    return ExpertSettings(**fields, ranks_per_node=ranks_per_node)


_BETWEEN_RANKS = frozenset({"imbalance", "dispatcher", "dispatch_dtype", "tensor"})
"""Fields of experts that act among ranks which share a model, and not in the whole of it."""


def expert_ranks_per_node(scenario: Scenario, size: ClusterSize) -> int | None:
    """Ranks of an expert group that share a node, where the group spans several."""
    parallel = scenario.parallel
    replicas = size.gpus // parallel.gpus_per_replica * parallel.context.degree
    if parallel.expert == 1 or not replicas or replicas % parallel.expert:
        return None
    shared = mixture_of(scenario).grid(size.gpus).expert_ranks_per_host(size.gpus_per_node)
    return shared if shared < parallel.expert and parallel.expert % shared == 0 else None


def resolve_share(scenario: Scenario, whole: Workload, size: ClusterSize) -> Workload:
    """What one rank of a tensor, context and expert group holds of the model of a scenario.

    `size`: of the cluster, the largest.
    Raises `InputError`: degrees that do not divide it; names file, line and field.
    """
    shard, section = mixture_of(scenario).shard, scenario.model
    if shard.is_whole:
        return whole
    fields = _SHARD_FIELDS | {"sequence_length": _length_field("model", section)}
    with relocated_errors(scenario, "parallel", fields):
        share = load_workload(
            _stated_model(scenario, section, "model"),
            dtype=section.dtype if section.file is None else None,
            image_size=section.image_size,
            sequence_length=section.length,
            shard=shard,
            experts=_expert_settings(section.experts, expert_ranks_per_node(scenario, size)),
        )
    return _with_fused_parts(scenario, _as_trained(scenario, section, "model", share))


def resolve_workload(
    scenario: Scenario, model: ModelSection | None = None, field: str = "model"
) -> Workload:
    """The model of a scenario.

    `model`: of another job of the scenario.
    `field`: where the model stands.
    Raises `InputError`: names file, line and field.
    """
    section = model or scenario.model
    parallel = scenario.parallel
    shares = model is None and (parallel.expert > 1 or parallel.tensor > 1)
    idle = _BETWEEN_RANKS if shares else frozenset[str]()
    fields = {
        "model": f"{field}.{section.source}", "sequence_length": _length_field(field, section),
    }  # fmt: skip
    with relocated_errors(scenario, field, fields):
        workload = load_workload(
            _stated_model(scenario, section, field),
            dtype=section.dtype,
            image_size=section.image_size,
            sequence_length=section.length,
            experts=_expert_settings(section.experts, idle=idle),
        )
    return _with_fused_parts(scenario, _as_trained(scenario, section, field, workload))


def _as_trained(
    scenario: Scenario, section: ModelSection, field: str, workload: Workload
) -> Workload:
    """Pack documents into sequences, and freeze the model beside its adapters."""
    with relocated_errors(scenario, field):
        if section.document_length is not None:
            workload = pack_documents(workload, section.document_length)
        if section.adapters is not None:
            workload = add_adapters(workload, Adapters(**section.adapters.model_dump()))
    return workload


def _stated_model(scenario: Scenario, section: ModelSection, field: str) -> str | Buildable:
    return section_model(
        section, lambda part, value: scenario.origin.resolve(f"{field}.{part}", value)
    )


def _length_field(field: str, section: ModelSection) -> str:
    return f"{field}.{'sequence_length' if section.tokens is None else 'tokens'}"


def _with_fused_parts(scenario: Scenario, workload: Workload) -> Workload:
    """Leave nothing to fuse outside of what is compiled."""
    if scenario.compute.compiled == "by_hand":
        return fuse_by_hand(workload)
    if scenario.compute.compiled != "blocks":
        return workload
    with relocated_errors(scenario, "compute"):
        return only_blocks_fuse(workload)


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


def price_layers(job: TrainingJob, batch: int) -> LayerTimes:
    """Time of each layer for one micro-batch."""
    times = _as_is(job, batch)
    if job.scenario.compute.cuda_graphs:
        times = replace(times, launch_s=0.0)
    return scale_layer_times(what_if_of(job.scenario), times)


def _as_is(job: TrainingJob, batch: int) -> LayerTimes:
    compute = job.scenario.compute
    with relocated_errors(job.scenario, "compute"):
        if compute.source == "file":
            path = job.scenario.origin.resolve("compute.times", compute.times or "")
            read = read_layer_times(
                path,
                job.workload,
                gpu=job.gpu,
                batch=batch,
                precision=compute.precision,
                optimizer=compute.optimizer,
                optimizer_kernels=compute.optimizer_kernels,
                master_weights=compute.master_weights,
            )
            return _with_recompute(job, read)
        times = _predict_layers(job, batch)
        if compute.measured_step is None:
            return times
        return _scale_to_measured(job, times, batch, compute.measured_step)


def _with_recompute(job: TrainingJob, times: LayerTimes) -> LayerTimes:
    """Add forward of what is recomputed to backward: so many blocks of each part of a pipeline."""
    parts, mixture = None, job.mixture
    if job.recompute.blocks is not None and mixture.stages > 1:
        schedule = mixture.pipeline_schedule(job.options.accumulate)
        parts = part_layers(job.workload, schedule, mixture.partition)
    return add_recompute(job.workload, times, job.recompute, parts)


def _predict_layers(job: TrainingJob, batch: int) -> LayerTimes:
    compute = job.scenario.compute
    times = layer_times(
        job.workload,
        job.gpu,
        batch=batch,
        precision=compute.precision,
        optimizer=compute.optimizer,
        optimizer_kernels=compute.optimizer_kernels,
        master_weights=compute.master_weights,
        channels_last=compute.channels_last,
        fused_attention=bool(compute.fused_attention),
        compiled=bool(compute.compiled),
        held_dtype=job.strategy.held_dtype(job.options),
        float8=job.float8,
        accumulate=job.options.accumulate,
    )
    if compute.fused_attention == "flash_1":
        times = by_first_flash(job.workload, times)
    return _with_recompute(job, times)


def _scale_to_measured(
    job: TrainingJob, times: LayerTimes, batch: int, measured: MeasuredStep
) -> LayerTimes:
    """Scale predicted times by what a measured step took over its prediction."""
    reference = times if batch == measured.batch else _predict_layers(job, measured.batch)
    by = measured.time / step_s(reference)
    source = f"{times.source}, scaled by {by:.3g} to the measured step"
    spread = measured_factors(batch, measured.batch)
    low, high = max(spread[0], times.spread[0]), min(spread[1], times.spread[1])
    return replace(scale_times(times, by, source), spread=(low, high))


def gpu_spread(job: TrainingJob) -> float:
    """Standard deviation of the speeds of the job's GPUs, over their mean."""
    return spread_of(job.gpu, job.scenario.compute.gpu_spread)


MERGED, UNMERGED = 128, 1_000_000
"""Segments per pass at most: enough for overlap, or so many that each layer stays its own task."""


def plan_step(
    job: TrainingJob,
    layer_times_: LayerTimes,
    ranks: int,
    batch: int,
    iteration: Iteration,
    *,
    merge: bool = True,
    sockets: Sockets | None = None,
    ranks_per_host: int = 1,
    collective_s: CollectiveTime | None = None,
    memory: HostMemory = NO_HOST_MEMORY,
) -> StepPlan:
    """One step of the strategy at one size; layers merged into fewer tasks, or each its own.

    All ranks compute as long as the slowest of them is expected to, which a synchronous step waits
    for.

    `sockets`: what processes on CPUs share on this machine.
    `ranks_per_host`: GPUs of each host that the job has.
    `collective_s`: time of collectives of all its ranks alone.
    `memory`: rates of the memory of the hosts.
    """
    options, faster = job.options, what_if_of(job.scenario).compute
    slowest = slow_device(layer_times_, slowest_factor(ranks, gpu_spread(job)))
    gradients = [job.workload.tensors[tensor].nbytes for tensor in job.workload.ready_order]
    host = host_work(
        job.library, job.gpu, sockets or Sockets(), gradients, ranks,
        views=isinstance(options, DdpOptions) and options.gradient_as_bucket_view,
    )  # fmt: skip
    slowest = _offloaded(job, slowest, batch, memory)
    grid = job.mixture.grid(ranks)
    request = StepRequest(
        workload=job.workload,
        times=slowest,
        ranks=grid.replicas,
        expert_copies=grid.expert_copies if grid.expert > 1 else None,
        batch_per_gpu=batch,
        iteration=iteration,
        item_bytes=ITEM_BYTES[job.wide_precision],
        comm_workers=job.library.workers,
        blocking_wait=job.library.host_staged,
        kernel_s=job.gpu.kernel_overhead_s / faster,
        segments=MERGED if merge else UNMERGED,
        host_s=host.step_s / faster if ranks > 1 else 0.0,
        bucket_copy_Bps=host.copies_Bps,
        cast_Bps=None if host.cast_Bps is None else host.cast_Bps * faster,
        core=host.core,
        ranks_per_host=grid.replicas_per_host(ranks_per_host),
        host_link_Bps=memory.link_Bps,
        host_optimizer_s=_host_optimizer_s(job, memory) / faster,
        gpu=_faster(job.gpu, faster),
        float8=job.float8,
    )
    if collective_s is not None:
        request = replace(request, collective_s=collective_s)
    make = job.strategy.plan
    assert make is not None  # else it has loops

    def plan_plain(request: StepRequest, micro_batches: int) -> StepPlan:
        own = options
        if micro_batches != options.accumulate:
            own = replace(options, accumulate=micro_batches)  # type: ignore[type-var]
        plan = make(request, own)
        return plan if job.float8 is None else add_amax_reductions(plan, request, job.float8)

    with relocated_errors(job.scenario, "strategy"):
        return mix_step(
            job.mixture, request, plan_plain, options.accumulate, _reduction(options),
            job.wide_precision, job.recompute,
            job.strategy.held_dtype(options),
        )  # fmt: skip


def _reduction(options: StepOptions) -> Reduction:
    """When, and in which dtype, a strategy reduces gradients, where its options say so."""
    in_fp32 = getattr(options, "grad_reduce_in_fp32", False)
    overlaps = getattr(options, "overlap_grad_reduce", True)
    return Reduction(overlaps, "fp32" if in_fp32 else None)


def _offloaded(job: TrainingJob, times: LayerTimes, batch: int, memory: HostMemory) -> LayerTimes:
    """Add the copies of activations to the host, and back."""
    compute = job.scenario.compute
    with relocated_errors(job.scenario, "compute"):
        return add_offload(
            job.workload, times,
            block_bytes(
                job.workload, batch, job.wide_precision,
                fused_attention=bool(compute.fused_attention), recompute=job.recompute,
                held_dtype=job.strategy.held_dtype(job.options),
                compiled=bool(compute.compiled), narrow=narrow_inputs(job.workload, job.float8),
            ),
            compute.offload_activations, memory.link_Bps,
        )  # fmt: skip


def plan_loops(
    job: TrainingJob, layer_times_: LayerTimes, ranks: int, nodes: int, batch: int, *, merge: bool
) -> LoopPlan:
    """Loops of the strategy at one size, whose workers do not wait for the slowest GPU.

    `nodes`: that the ranks are on.
    `merge`: as in `plan_step`.
    """
    make = job.strategy.loops
    assert make is not None
    if job.scenario.compute.offload_activations != "none":
        text = repr(job.scenario.compute.offload_activations)
        allowed = f"'none' with strategy.kind: {job.scenario.strategy.kind}"
        raise job.scenario.fault("compute.offload_activations", text, allowed)
    request = StepRequest(
        workload=job.workload,
        times=layer_times_,
        ranks=ranks,
        batch_per_gpu=batch,
        kernel_s=job.gpu.kernel_overhead_s / what_if_of(job.scenario).compute,
        segments=MERGED if merge else UNMERGED,
        nodes=nodes,
        optimizer=job.scenario.compute.optimizer,
    )
    return make(request, job.options)


def _host_optimizer_s(job: TrainingJob, memory: HostMemory) -> float:
    """Time of the optimizer on CPUs, which goes from tensor to tensor (PyTorch's default there)."""
    moved = optimizer_bytes(job.workload, job.scenario.compute.optimizer, "for-loop")
    return moved / memory.memory_Bps


def _faster(gpu: Gpu, by: float) -> Gpu:
    """Return the GPU with matrix products that take `by` times less time."""
    return replace(gpu, peak_flops={name: rate * by for name, rate in gpu.peak_flops.items()})


def assign_buckets(job: TrainingJob) -> tuple[Bucket, ...]:
    """Gradient buckets of the steady state; none for a strategy without."""
    buckets_of = job.strategy.buckets
    return () if buckets_of is None else buckets_of(job.workload, job.options)


def estimate_memory(job: TrainingJob, ranks: int, batch: int, others: Sequence[str] = ()) -> Memory:
    """Bytes on the fullest GPU, and whether they fit on the smallest of all GPUs.

    `others`: GPUs beside the job's own, by name.
    """
    compute, grid = job.scenario.compute, job.mixture.grid(ranks)
    setup = Setup(
        workload=job.workload,
        precision=job.wide_precision,
        optimizer=compute.optimizer,
        master_weights=compute.master_weights,
        ranks=grid.replicas,
        expert_copies=grid.expert_copies if grid.expert > 1 else None,
        batch_per_gpu=batch,
        options=job.options,
        fused_attention=bool(compute.fused_attention),
        recompute=job.recompute,
        offload=compute.offload_activations,
        compiled=bool(compute.compiled),
        held_dtype=job.strategy.held_dtype(job.options),
        optimizer_kernels=compute.optimizer_kernels,
        activations_bytes=_measured_activations(job),
        float8=job.float8,
        float8_copies=_float8_copies(job),
    )

    def rule(setup: Setup) -> MemoryUse:
        return add_temporaries(setup, add_float8_copies(setup, job.strategy.memory(setup)))

    def most_bytes(kept_share: float) -> float:
        stages = stage_memory(replace(setup, kept_share=kept_share), rule, job.mixture)
        return max(use.total_bytes for use in stages)

    with relocated_errors(job.scenario, "compute"):
        stages = stage_memory(setup, rule, job.mixture)
    use = max(stages, key=lambda use: use.total_bytes)
    low, high = (
        use.total_bytes if share == setup.kept_share else most_bytes(share)
        for share in job.workload.kept_range
    )
    if setup.activations_bytes is None and not job.workload.states_activations:
        high += _most_activations_bytes(job, batch)
    capacity_bytes = min([job.gpu.memory_bytes, *(load_gpu(name).memory_bytes for name in others)])
    is_estimated = low < high
    return Memory(
        **asdict(use),
        stages_bytes=tuple(use.total_bytes for use in stages) if len(stages) > 1 else (),
        capacity_bytes=capacity_bytes,
        advice=(STATE_ACTIVATIONS,) if is_estimated and high > capacity_bytes else (),
        low_bytes=low if is_estimated else None,
        high_bytes=high if is_estimated else None,
        reserve_bytes=use.idle_bytes
        + reserve_bytes(high, nccl=ranks > 1 and job.library.name == "nccl"),
    )


def _float8_copies(job: TrainingJob) -> float:
    """Bytes of fp8 that are kept per element of a weight."""
    if job.float8 is None:
        return 0
    with relocated_errors(job.scenario, "compute"):
        return float8_casts(
            job.float8, job.gpu, compiled=bool(job.scenario.compute.compiled)
        ).copies


STATE_ACTIVATIONS = (
    "state what the model keeps for backward, to know more: `activations` of each layer in its "
    "file, or of the whole micro-batch beside measured times"
)


def _measured_activations(job: TrainingJob) -> float | None:
    """Activations that the file of times states, of a whole micro-batch; bytes."""
    compute = job.scenario.compute
    if compute.source != "file":
        return None
    path = job.scenario.origin.resolve("compute.times", compute.times or "")
    return read_measured_activations(path)


def _most_activations_bytes(job: TrainingJob, batch: int) -> float:
    """Most that forward can keep in its time: each byte is written to memory once; bytes."""
    return float(price_layers(job, batch).forward_s.sum()) * job.gpu.memory_Bps
