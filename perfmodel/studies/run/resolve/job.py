"""From the model, compute and strategy sections of a scenario to plans and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import InputError
from perfmodel.library.model import CommLibrary
from perfmodel.scenario import DdpStrategy, ModelSection, Scenario
from perfmodel.studies.run.resolve.host_overhead import host_work
from perfmodel.studies.run.resolve.machine import relocated
from perfmodel.studies.run.resolve.what_if import imagined_of, imagined_times
from perfmodel.studies.run.result import Memory
from perfmodel.topology.model import Gpu, Sockets
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training import memory as memory_of
from perfmodel.training.data_parallel import data_parallel_plan
from perfmodel.training.ddp.buckets import Bucket, Iteration, ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.plan import Hook, ddp_plan
from perfmodel.training.plan import StepPlan
from perfmodel.workload import load_workload, times_from_file
from perfmodel.workload.model import ITEM_BYTES, LayerTimes, Workload
from perfmodel.workload.roofline import layer_times

STRATEGY_NAMES: Mapping[str, str] = {
    "ddp": "DistributedDataParallel",
    "data_parallel": "nn.DataParallel",
}


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is trained and how, before its size is known.

    `chosen` are options of DistributedDataParallel instead of the scenario's.
    """

    scenario: Scenario
    workload: Workload
    gpu: Gpu
    library: CommLibrary
    chosen: DdpOptions | None = None

    @property
    def is_ddp(self) -> bool:
        """Whether the strategy is DistributedDataParallel."""
        return isinstance(self.scenario.strategy, DdpStrategy)

    @property
    def hook(self) -> Hook:
        """The communication hook."""
        strategy = self.scenario.strategy
        return strategy.hook if isinstance(strategy, DdpStrategy) else "none"

    @property
    def options(self) -> DdpOptions:
        """What DistributedDataParallel is called with."""
        strategy = self.scenario.strategy
        if self.chosen is not None:
            return self.chosen
        if not isinstance(strategy, DdpStrategy):
            return DdpOptions(broadcast_buffers=False)
        return DdpOptions(
            bucket_cap_bytes=strategy.bucket_cap,
            first_bucket_bytes=strategy.first_bucket,
            caps_list_bytes=strategy.bucket_caps,
            find_unused_parameters=strategy.find_unused_parameters,
            static_graph=strategy.static_graph,
            gradient_as_bucket_view=strategy.gradient_as_bucket_view,
            broadcast_buffers=strategy.broadcast_buffers,
            accumulate=strategy.accumulate,
        )


def resolve_workload(
    scenario: Scenario, model: ModelSection | None = None, field: str = "model"
) -> Workload:
    """The model of a scenario.

    Parameters
    ----------
    scenario : Scenario
    model : ModelSection, optional
        Of another job of the scenario.
    field : str
        Where the model stands.

    Raises
    ------
    InputError
        Names file, line and field.
    """
    section = model or scenario.model
    name = section.name or str(scenario.origin.resolve(f"{field}.file", section.file or ""))
    try:
        return load_workload(
            name,
            dtype=section.dtype,
            image_size=section.image_size,
            sequence_length=section.sequence_length,
        )
    except InputError as error:
        part = "name" if section.file is None else "file"
        raise relocated(scenario, error, field, {"model": f"{field}.{part}"}) from None


def on_gpu(job: TrainingJob, name: str) -> TrainingJob:
    """Return the same job on another GPU of the table.

    Raises
    ------
    InputError
        No such GPU, or times that were measured on one GPU only.
    """
    if job.scenario.compute.source == "file":
        allowed = "'roofline' with cluster.mixed: a file has the times of one GPU"
        raise job.scenario.fault("compute.source", "'file'", allowed)
    return replace(job, gpu=load_gpu(name))


def times(job: TrainingJob, batch: int) -> LayerTimes:
    """Time of each layer for one micro-batch."""
    return imagined_times(imagined_of(job.scenario), _as_is(job, batch))


def _as_is(job: TrainingJob, batch: int) -> LayerTimes:
    compute = job.scenario.compute
    try:
        if compute.source == "file":
            path = job.scenario.origin.resolve("compute.times", compute.times or "")
            return times_from_file(
                path,
                job.workload,
                gpu=job.gpu,
                batch=batch,
                precision=compute.precision,
                optimizer=compute.optimizer,
            )
        return layer_times(
            job.workload,
            job.gpu,
            batch=batch,
            precision=compute.precision,
            optimizer=compute.optimizer,
            channels_last=compute.channels_last,
            fused_attention=compute.fused_attention,
        )
    except InputError as error:
        raise relocated(job.scenario, error, "compute") from None


MERGED, UNMERGED = 128, 1_000_000
"""Segments per pass at most: enough for overlap, or so many that each layer stays its own task."""


def plan(
    job: TrainingJob,
    layer_times_: LayerTimes,
    ranks: int,
    batch: int,
    iteration: Iteration,
    *,
    merge: bool = True,
    sockets: Sockets | None = None,
) -> StepPlan:
    """One step of the strategy at one size; layers merged into fewer tasks, or each its own.

    `sockets`: what processes on CPUs share on this machine.
    """
    segments = MERGED if merge else UNMERGED
    faster = imagined_of(job.scenario).compute
    kernel_s = job.gpu.kernel_overhead_s / faster
    if not job.is_ddp:
        return data_parallel_plan(
            job.workload,
            layer_times_,
            ranks=ranks,
            batch_per_gpu=batch,
            item_bytes=ITEM_BYTES[job.scenario.compute.precision],
            kernel_s=kernel_s,
            segments=segments,
        )
    host = host_work(
        job.library, job.gpu, sockets or Sockets(), _gradients(job.workload), ranks,
        views=job.options.gradient_as_bucket_view,
    )  # fmt: skip
    if host.copies_Bps is not None:
        layer_times_ = replace(layer_times_, copy_Bps=host.copies_Bps)
    return ddp_plan(
        job.workload,
        layer_times_,
        ranks=ranks,
        batch_per_gpu=batch,
        options=job.options,
        iteration=iteration,
        hook=job.hook,
        comm_workers=job.library.workers,
        blocking_wait=job.library.host_staged,
        kernel_s=kernel_s,
        segments=segments,
        host_s=host.step_s / faster if ranks > 1 else 0.0,
        cast_Bps=None if host.cast_Bps is None else host.cast_Bps * faster,
        core=host.core,
    )


def _gradients(workload: Workload) -> list[int]:
    """Bytes of each gradient."""
    return [workload.tensors[tensor].nbytes for tensor in workload.ready_order]


def buckets(job: TrainingJob) -> tuple[Bucket, ...]:
    """Gradient buckets of the steady state; none without DDP."""
    return ddp_buckets(job.workload, job.options, iteration="steady") if job.is_ddp else ()


def memory(job: TrainingJob, ranks: int, batch: int, others: Sequence[str] = ()) -> Memory:
    """Bytes on the fullest GPU and what would make them fit, on the smallest of all GPUs.

    Parameters
    ----------
    others : sequence of str
        GPUs beside the job's own, by name.
    """
    compute = job.scenario.compute
    setup = memory_of.Setup(
        workload=job.workload,
        precision=compute.precision,
        optimizer=compute.optimizer,
        ranks=ranks,
        batch_per_gpu=batch,
        strategy="ddp" if job.is_ddp else "data_parallel",
        options=job.options,
        hook=job.hook,
        fused_attention=compute.fused_attention,
    )
    use = memory_of.memory(setup)
    capacity_bytes = min([job.gpu.memory_bytes, *(load_gpu(name).memory_bytes for name in others)])
    return Memory(
        parameters_bytes=use.parameters_bytes,
        gradients_bytes=use.gradients_bytes,
        optimizer_bytes=use.optimizer_bytes,
        buckets_bytes=use.buckets_bytes,
        activations_bytes=use.activations_bytes,
        capacity_bytes=capacity_bytes,
        advice=memory_of.advice(setup, capacity_bytes),
    )
