"""The result as JSON: the document that ``perfmodel run --json`` prints.

Keys are a contract that other programs rely on: they are added to, never renamed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfmodel.files import finite
from perfmodel.studies.run.result import BucketTime, DisturbanceCost, Memory, Result, SizeResult


def to_json(result: Result) -> dict[str, Any]:
    """Write a result as plain data; times in seconds, sizes in bytes, every number finite.

    The top level speaks of the size that the scenario asks about; ``curve`` holds the same
    values for every size.

    Raises
    ------
    InputError
        A number is infinite or not a number; names the field.
    """
    main = result.main
    document = {
        "scenario": result.scenario,
        "question": result.question,
        "workload": result.workload,
        "strategy": result.strategy,
        "machine": result.machine,
        "scaling": result.scaling,
        "efficiency_base": result.efficiency_base,
        **point_to_json(main),
        "buckets": [_bucket(bucket) for bucket in main.buckets],
        **_disturbance(main.disturbance),
        "curve": [point_to_json(point) for point in result.points],
        "assumptions": list(result.assumptions),
        "sources": dict(result.sources),
        "provenance": dict(result.provenance),
    }
    _check_finite(document, "result")
    return document


def point_to_json(point: SizeResult) -> dict[str, Any]:
    """Write the numbers of one cluster size."""
    return {
        "gpus": point.gpus,
        "nodes": point.nodes,
        "global_batch": point.global_batch,
        "batch_per_gpu": point.batch_per_gpu,
        "step_time_s": point.step_time_s,
        "interval_s": None if point.interval_s is None else list(point.interval_s),
        "first_step_time_s": point.first_step_time_s,
        "compute_s": point.compute_s,
        "comm_s": point.comm_s,
        "exposed_comm_s": point.exposed_comm_s,
        "breakdown_s": dict(point.breakdown_s),
        "samples_per_s": point.samples_per_s,
        "scaling_efficiency": point.scaling_efficiency,
        "bottleneck": point.bottleneck,
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
        "memory": _memory(point.memory),
        "mode": point.mode,
    }


def _disturbance(what: DisturbanceCost | None) -> dict[str, Any]:
    """Write what events and other jobs did; empty lists and nulls where there are none."""
    if what is None:
        return {
            "undisturbed_s": None, "steps_s": [], "mean_interval_s": None, "events": [],
            "waits": [], "jobs": [],
        }  # fmt: skip
    interval = what.mean_interval_s
    return {
        "undisturbed_s": what.undisturbed_s,
        "steps_s": list(what.steps_s),
        "mean_interval_s": None if interval is None else list(interval),
        "events": [asdict(event) for event in what.events],
        "waits": [asdict(wait) for wait in what.waits],
        "jobs": [asdict(job) for job in what.jobs],
    }


def _bucket(bucket: BucketTime) -> dict[str, Any]:
    return {
        "index": bucket.index,
        "nbytes": bucket.nbytes,
        "ready_s": bucket.ready_s,
        "start_s": bucket.start_s,
        "end_s": bucket.end_s,
        "parameters": list(bucket.parameters),
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "parameters_bytes": memory.parameters_bytes,
        "gradients_bytes": memory.gradients_bytes,
        "optimizer_bytes": memory.optimizer_bytes,
        "buckets_bytes": memory.buckets_bytes,
        "activations_bytes": memory.activations_bytes,
        "total_bytes": memory.total_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "advice": list(memory.advice),
    }


def _check_finite(value: object, field: str) -> None:
    if isinstance(value, float):
        finite(value, field)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_finite(inner, f"{field}.{key}")
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_finite(inner, f"{field}[{position}]")
