"""From a job and its layers' times to the tasks of one step, or to loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.errors import TopologyError
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary
from perfmodel.scenario.model import relocated_errors
from perfmodel.scenario.sections.training import MeasuredStep
from perfmodel.studies.run.resolve.training_job import TrainingJob, gpu_spread
from perfmodel.studies.run.resolve.what_if import scale_layer_times, what_if_of
from perfmodel.topology.model import Drives, Gpu, Sockets
from perfmodel.training.ddp.buckets import Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory_use import narrow_inputs, with_micro_batches
from perfmodel.training.parallel_layout import mix_step
from perfmodel.training.pipeline.stage_workload import part_layers
from perfmodel.training.plan.amax_reductions import add_amax_reductions
from perfmodel.training.plan.step_plan import LoopPlan, StepPlan
from perfmodel.training.strategy import NO_CORE_WORK, CollectiveTime, CoreWork, StepRequest
from perfmodel.workload import read_layer_times
from perfmodel.workload.compute_spread import measured_factors, slowest_factor, split_factors
from perfmodel.workload.memory.activations import block_bytes
from perfmodel.workload.memory.blocks import add_offload
from perfmodel.workload.memory.optimizer_states import optimizer_bytes
from perfmodel.workload.memory.recompute import add_recompute
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, scale_times, slow_device
from perfmodel.workload.roofline import by_first_flash, layer_times, step_s


@dataclass(frozen=True, slots=True)
class HostWork:
    """CPU time of a step of DistributedDataParallel beyond layers and collectives.

    `step_s`: after the last gradients are reduced: Python, and copies and memory of all gradients.
    `cast_Bps`: rate at which a compressing hook converts gradients.
    `copies_Bps`: instead of the GPU's rate of copies to and from buckets: infinite where `step_s`
        holds the time of these copies.
    `core`: core time that backward needs.
    """

    step_s: float = 0.0
    cast_Bps: float | None = None
    copies_Bps: float | None = None
    core: CoreWork = NO_CORE_WORK


def host_work(
    library: CommLibrary,
    gpu: Gpu,
    sockets: Sockets,
    gradients_bytes: Sequence[float],
    ranks: int,
    *,
    views: bool,
    copies_measured: bool = False,
) -> HostWork:
    """Compute the CPU time of a step in each of several processes.

    `library`: holds the measured numbers.
    `gpu`: for real ones the time is zero.
    `sockets`: the cores that all processes share; more processes than cores take turns.
    `gradients_bytes`: of each tensor of one rank.
    `views`: gradients are views of their buckets: what is copied to a bucket is not copied back.
    `copies_measured`: the model's own times state the rate of copies, which is kept.
    """
    if gpu.generation != "cpu":
        return HostWork()
    in_turn = 1.0 if sockets.cores is None else max(1.0, ranks / sockets.cores)
    python_s = (library.host_step + len(gradients_bytes) * library.host_tensor) / sockets.core_speed
    core = CoreWork(library.core_layer, library.core_gradient, library.host_copies or math.inf)
    casts_Bps = None if library.host_casts is None else library.host_casts / in_turn
    if library.host_copies is None or copies_measured:
        return HostWork(python_s * in_turn, casts_Bps, core=core)
    copied_s = sum(gradients_bytes) / library.host_copies * (0.5 if views else 1.0)
    return HostWork((python_s + copied_s) * in_turn, casts_Bps, math.inf, core)


# ---------------------------------------------------------------- memory of the host

HOST_MEMORY_BPS = 2 * 204.8e9
"""Memory bandwidth of a host where the topology has no memory: two CPUs, each with eight channels
of DDR4-3200 (AMD EPYC 7002 data sheet). Assumption: element-wise work on all cores reaches it."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Shares of one GPU while all GPUs of its host do the same; bytes per second.

    `link_Bps`: of the way between a GPU and its host's memory, one direction; None where the
        topology has no such way.
    `memory_Bps`: of the memory bandwidth of the host's CPUs.
    `drives`: of the drives' rates; their capacity is the host's. None where it states none.
    `capacity_bytes`: of all memory of the host, not of a share; None where it is not stated.
    """

    link_Bps: float | None
    memory_Bps: float
    drives: Drives | None = None
    capacity_bytes: float | None = None


NO_HOST_MEMORY = HostMemory(None, HOST_MEMORY_BPS)


def host_memory(machine: Machine) -> HostMemory:
    """Find the rates of the first host, whose GPUs share what their ways have in common."""
    topology, router = machine.topology, machine.router
    gpus, rates = topology.ranks[: topology.gpus_per_host], topology.arcs.bandwidth_Bps
    try:
        ends = {gpu: router.nearest_cpu(gpu) for gpu in gpus}
        memories = {cpu: router.memory_of(cpu) for cpu in ends.values()}
        routes = [router.route(gpu, memories[cpu] or cpu) for gpu, cpu in ends.items()]
        inside = [router.route(cpu, memory) for cpu, memory in memories.items() if memory]
    except TopologyError:
        return NO_HOST_MEMORY
    users = Counter(arc for route in routes for arc in route)
    link_Bps = min((float(rates[arc]) / number for arc, number in users.items()), default=None)
    total_Bps = sum(float(rates[list(route)].min()) for route in inside) or HOST_MEMORY_BPS
    drives = topology.drives
    if drives is not None:
        read_Bps, write_Bps = drives.read_Bps / len(gpus), drives.write_Bps / len(gpus)
        drives = replace(drives, read_Bps=read_Bps, write_Bps=write_Bps)
    return HostMemory(link_Bps, total_Bps / len(gpus), drives, topology.host_memory_bytes)


# ---------------------------------------------------------------- plans

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
    """Return the plan of one step at one size.

    All ranks compute as long as the slowest of them is expected to, which a synchronous step waits
    for.

    `merge`: whether layers are merged into fewer tasks; else each is a task of its own.
    `sockets`: what processes on CPUs share on this machine.
    `ranks_per_host`: GPUs of each host that the job has.
    `collective_s`: time of collectives of all its ranks alone.
    `memory`: rates of the memory of the hosts.
    """
    options, faster, compute = job.options, what_if_of(job.scenario).compute, job.scenario.compute
    slowest = slow_device(layer_times_, slowest_factor(ranks, gpu_spread(job)))
    gradients = [job.workload.tensors[tensor].nbytes for tensor in job.workload.ready_order]
    # the optimizer on CPUs goes from tensor to tensor, PyTorch's default there
    updated_bytes = optimizer_bytes(job.workload, compute.optimizer, "for-loop")
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
    grid = job.parallel_layout.grid(ranks)
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
        host_optimizer_s=updated_bytes / memory.memory_Bps / faster,
        host_memory_Bps=memory.memory_Bps * faster,
        drives=memory.drives,
        optimizer=compute.optimizer,
        gpu=replace(
            job.gpu, peak_flops={name: rate * faster for name, rate in job.gpu.peak_flops.items()}
        ),
        float8=job.float8,
    )
    if collective_s is not None:
        request = replace(request, collective_s=collective_s)
    make = job.strategy.plan
    assert make is not None  # else it has loops

    def plan_plain(request: StepRequest, micro_batches: int) -> StepPlan:
        is_own = micro_batches == options.accumulate
        plan = make(request, options if is_own else with_micro_batches(options, micro_batches))
        return plan if job.float8 is None else add_amax_reductions(plan, request, job.float8)

    with relocated_errors(job.scenario, "strategy"):
        return mix_step(
            job.parallel_layout,
            request,
            plan_plain,
            options.accumulate,
            job.wide_precision,
            job.recompute,
            job.strategy.held_dtype(options),
            job.ddp_options if job.scenario.parallel.pipeline.one_process else None,
            # of strategies whose options say when, and in which dtype
            overlap_reduction=getattr(options, "overlap_grad_reduce", True),
            tied_dtype="fp32" if getattr(options, "grad_reduce_in_fp32", False) else None,
        )


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
    offloaded = job.scenario.compute.offload_activations
    job.scenario.refuse_if(
        offloaded != "none",
        "compute.offload_activations",
        repr(offloaded),
        f"'none' with strategy.kind: {job.scenario.strategy.kind}",
    )
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


# ---------------------------------------------------------------- time of each layer of a job


def price_layers(job: TrainingJob, batch: int) -> LayerTimes:
    """Time of each layer for one micro-batch."""
    compute = job.scenario.compute
    with relocated_errors(job.scenario, "compute"):
        times = _unscaled_times(job, batch)
        if compute.measured_step is not None:
            times = _scale_to_measured(job, times, batch, compute.measured_step)
    if compute.cuda_graphs:
        times = replace(times, launch_s=0.0)
    return scale_layer_times(what_if_of(job.scenario), times)


def _unscaled_times(job: TrainingJob, batch: int) -> LayerTimes:
    """Time of each layer as a file has it, or as predicted; with what backward recomputes.

    So many blocks of each part of a pipeline are recomputed.
    """
    compute, parallel_layout, parts = job.scenario.compute, job.parallel_layout, None
    if job.recompute.blocks is not None and parallel_layout.stages > 1:
        schedule = parallel_layout.pipeline_schedule(job.options.accumulate)
        parts = part_layers(job.workload, schedule, parallel_layout.partition)
    settings: dict[str, Any] = compute.model_dump(
        include={"optimizer", "optimizer_kernels", "master_weights"}
    )
    if compute.source == "file":
        times = read_layer_times(
            job.scenario.origin.resolve("compute.times", compute.times or ""),
            job.workload,
            gpu=job.gpu,
            **settings,
        )
        return add_recompute(job.workload, times, job.recompute, parts)
    fused = compute.fused_attention
    times = layer_times(
        job.workload,
        job.gpu,
        batch=batch,
        precision=compute.precision,
        channels_last=compute.channels_last,
        fused_attention="flash_2" if fused == "flash_1" else fused,
        compiled=bool(compute.compiled),
        held_dtype=job.strategy.held_dtype(job.options),
        float8=job.float8,
        accumulate=job.options.accumulate,
        **settings,
    )
    times = by_first_flash(job.workload, times) if fused == "flash_1" else times
    if not parallel_layout.is_plain:
        times = replace(
            times, spread=split_factors(times.spread, experts=job.workload.routed_share < 1)
        )
    return add_recompute(job.workload, times, job.recompute, parts)


def _scale_to_measured(
    job: TrainingJob, times: LayerTimes, batch: int, measured: MeasuredStep
) -> LayerTimes:
    """Scale predicted times by what a measured step took over its prediction."""
    by = measured.time / step_s(
        times if batch == measured.batch else _unscaled_times(job, measured.batch)
    )
    low, high = measured_factors(batch, measured.batch)
    return replace(
        scale_times(times, by, f"{times.source}, scaled by {by:.3g} to the measured step"),
        spread=(max(low, times.spread[0]), min(high, times.spread[1])),
    )
