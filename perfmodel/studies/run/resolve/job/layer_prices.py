"""Time of each layer of a job: from a roofline, a file, or scaled to a measured step."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.sections.training import MeasuredStep
from perfmodel.studies.run.resolve.job.training_job import TrainingJob
from perfmodel.studies.run.resolve.machine import relocated_errors
from perfmodel.studies.run.resolve.what_if import scale_layer_times, what_if_of
from perfmodel.training.pipeline.stage_workload import part_layers
from perfmodel.workload import read_layer_times
from perfmodel.workload.compute_spread import measured_factors
from perfmodel.workload.memory.recompute import add_recompute
from perfmodel.workload.model import LayerTimes, scale_times
from perfmodel.workload.roofline import by_first_flash, layer_times, step_s


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
    fused = compute.fused_attention
    times = layer_times(
        job.workload,
        job.gpu,
        batch=batch,
        precision=compute.precision,
        optimizer=compute.optimizer,
        optimizer_kernels=compute.optimizer_kernels,
        master_weights=compute.master_weights,
        channels_last=compute.channels_last,
        fused_attention=fused if fused == "cudnn" else bool(fused),
        compiled=bool(compute.compiled),
        held_dtype=job.strategy.held_dtype(job.options),
        float8=job.float8,
        accumulate=job.options.accumulate,
    )
    if fused == "flash_1":
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
