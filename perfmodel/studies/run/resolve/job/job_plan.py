"""From a job and its layers' times to the tasks of one step, or to loops."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.studies.run.resolve.host_overhead import NO_HOST_MEMORY, HostMemory, host_work
from perfmodel.studies.run.resolve.job.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.machine import relocated_errors
from perfmodel.studies.run.resolve.what_if import what_if_of
from perfmodel.topology.model import Gpu, Sockets
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory.use import StepOptions, narrow_inputs
from perfmodel.training.parallel.mixture import Reduction, mix_step
from perfmodel.training.plan.amax_reductions import add_amax_reductions
from perfmodel.training.plan.loop_plan import LoopPlan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import CollectiveTime, StepRequest
from perfmodel.workload.compute_spread import slowest_factor
from perfmodel.workload.memory.activations import block_bytes
from perfmodel.workload.memory.offload import add_offload
from perfmodel.workload.memory.optimizer_states import optimizer_bytes
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, slow_device

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
        job.library,
        job.gpu,
        sockets or Sockets(),
        gradients,
        ranks,
        views=isinstance(options, DdpOptions) and options.gradient_as_bucket_view,
        copies_measured=layer_times_.copies_measured,
    )
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
        host_memory_Bps=memory.memory_Bps * faster,
        drives=memory.drives,
        optimizer=job.scenario.compute.optimizer,
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
            job.mixture,
            request,
            plan_plain,
            options.accumulate,
            _reduction(options),
            job.wide_precision,
            job.recompute,
            job.strategy.held_dtype(options),
            job.ddp_options if job.scenario.parallel.pipeline.one_process else None,
        )


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
            job.workload,
            times,
            block_bytes(
                job.workload,
                batch,
                job.wide_precision,
                fused_attention=bool(compute.fused_attention),
                recompute=job.recompute,
                held_dtype=job.strategy.held_dtype(job.options),
                compiled=bool(compute.compiled),
                narrow=narrow_inputs(job.workload, job.float8),
            ),
            compute.offload_activations,
            memory.link_Bps,
        )


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
