"""Bytes per GPU of a job at one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from perfmodel.scenario.model import relocated_errors
from perfmodel.studies.run.resolve.job_plan import NO_HOST_MEMORY, HostMemory, price_layers
from perfmodel.studies.run.resolve.training_job import TrainingJob
from perfmodel.studies.run.usage import Memory
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory_use import (
    MemoryUse,
    Setup,
    add_float8_copies,
    add_temporaries,
    add_waiting,
    context_bytes,
    interval_bytes,
    unused_bytes,
    workspace_bytes,
)
from perfmodel.training.parallel_layout import stage_memory
from perfmodel.workload.kernels.float8_layers import float8_casts
from perfmodel.workload.readers.layer_times import read_stated

_OF_HOST = {"host_bytes", "drive_bytes", "waiting_bytes"}
"""Parts of the memory of one GPU's training that lie in the host."""


def estimate_memory(
    job: TrainingJob,
    ranks: int,
    batch: int,
    others: Sequence[str] = (),
    host: HostMemory = NO_HOST_MEMORY,
    ranks_per_host: int = 1,
) -> Memory:
    """Bytes on the fullest GPU, and whether they fit on the smallest of all GPUs.

    `others`: GPUs beside the job's own, by name.
    Not stated where the strategy does not say what it keeps.
    `host`: whose memory and drives hold what `ranks_per_host` GPUs offload.
    """
    compute, options, grid = job.scenario.compute, job.options, job.parallel_layout.grid(ranks)
    memory_of = job.strategy.memory
    capacity_bytes = min([job.gpu.memory_bytes, *(load_gpu(name).memory_bytes for name in others)])
    if memory_of is None:
        return Memory(capacity_bytes=capacity_bytes, is_stated=False)
    float8_copies = 0.0  # bytes of fp8 that are kept per element of a weight
    if job.float8 is not None:
        with relocated_errors(job.scenario, "compute"):
            float8_copies = float8_casts(
                job.float8, job.gpu, compiled=bool(compute.compiled)
            ).copies
    times = job.scenario.origin.resolve("compute.times", compute.times or "")
    setup = Setup(
        workload=job.workload,
        precision=job.wide_precision,
        optimizer=compute.optimizer,
        master_weights=compute.master_weights,
        ranks=grid.replicas,
        expert_copies=grid.expert_copies if grid.expert > 1 else None,
        batch_per_gpu=batch,
        # Memory is that of one GPU: where a module is split over a process's GPUs, of its part.
        options=options.model_copy(update={"layer_devices": ()})
        if isinstance(options, DdpOptions)
        else options,
        fused_attention=bool(compute.fused_attention),
        recompute=job.recompute,
        offload=compute.offload_activations,
        compiled=bool(compute.compiled),
        held_dtype=job.strategy.held_dtype(job.options),
        optimizer_kernels=compute.optimizer_kernels,
        activations_bytes=read_stated(times).activations if compute.times else None,
        float8=job.float8,
        float8_copies=float8_copies,
        workspace_bytes=workspace_bytes(job.gpu.generation),
        generation=job.gpu.generation,
        ranks_per_host=grid.replicas_per_host(ranks_per_host),
    )

    def rule(setup: Setup) -> MemoryUse:
        return add_waiting(
            setup, add_temporaries(setup, add_float8_copies(setup, memory_of(setup)))
        )

    def most_bytes(kept_share: float) -> float:
        stages = stage_memory(replace(setup, kept_share=kept_share), rule, job.parallel_layout)
        return max(use.total_bytes for use in stages)

    with relocated_errors(job.scenario, "compute"):
        stages = stage_memory(setup, rule, job.parallel_layout)
    use = max(stages, key=lambda use: use.total_bytes)
    low, high = (
        use.total_bytes if share == setup.kept_share else most_bytes(share)
        for share in job.workload.kept_range
    )
    if setup.activations_bytes is None and not job.workload.states_activations:
        # Forward writes each byte that it keeps to memory once, in its time.
        high += float(price_layers(job, batch).forward_s.sum()) * job.gpu.memory_Bps
    is_estimated = low < high
    communicators = (job.library.name == "nccl") * sum(
        ranks > 1 for ranks in (grid.tensor, grid.context, grid.expert, grid.stages, grid.replicas)
    )
    fixed, unused = context_bytes(communicators), unused_bytes(high)
    if setup.activations_bytes is None:
        states_bytes = use.states_bytes + use.buckets_bytes
        low, high = interval_bytes(use.total_bytes, states_bytes, low, high)
    return Memory(
        **{name: nbytes for name, nbytes in asdict(use).items() if name not in _OF_HOST},
        host_bytes=ranks_per_host * max(each.host_bytes + each.waiting_bytes for each in stages),
        drive_bytes=ranks_per_host * max(stage.drive_bytes for stage in stages),
        host_capacity_bytes=host.capacity_bytes,
        drive_capacity_bytes=host.drives.capacity_bytes if host.drives else None,
        stages_bytes=tuple(use.total_bytes for use in stages) if len(stages) > 1 else (),
        capacity_bytes=capacity_bytes,
        advice=(STATE_ACTIVATIONS,) if is_estimated and high > capacity_bytes else (),
        low_bytes=low,
        high_bytes=high,
        is_estimated=is_estimated,
        reserve_bytes=use.idle_bytes + fixed + unused,
        context_bytes=fixed,
    )


STATE_ACTIVATIONS = (
    "state what the model keeps for backward, to know more: `activations` of each layer in its "
    "file, or of the whole micro-batch beside measured times"
)
