"""The result as JSON, the document that ``perfmodel run --json`` prints, and as CSV.

Keys are a contract that other programs rely on: they are added to, never renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.report.run.sizes import SizeGain, size_gains
from perfmodel.studies.run.result.model import DisturbanceCost, Result, SizeResult


def to_json(result: Result) -> dict[str, Any]:
    """Write a result as plain data; times in seconds, sizes in bytes, every number finite.

    The top level speaks of the size that the scenario asks about; ``curve`` holds the same
    values for every size.

    Raises `InputError`: a number is infinite or not a number; names the field.
    """
    names = "scenario question workload strategy machine scaling efficiency_base slowest_gpu"
    document = {
        **attributes(result, names),
        **size_to_json(result.main),
        "buckets": result.main.buckets,
        **_disturbance(result.main.disturbance),
        "server_use": result.main.server_use,
        "hot_spot": result.main.hot_spot,
        "search": result.search,
        "curve": [size_to_json(point) for point in result.points],
        **attributes(result, "assumptions sources provenance"),
    }
    return dict(as_json(document, "result"))


def size_to_json(point: SizeResult) -> dict[str, Any]:
    """Return the numbers of one cluster size."""
    memory = point.memory
    needs = (
        "parameters_bytes gradients_bytes optimizer_bytes buckets_bytes activations_bytes "
        "gathered_bytes temporary_bytes"
    )
    return {
        **attributes(
            point,
            "gpus nodes global_batch batch_per_gpu step_time_s interval_s first_step_time_s "
            "compute_s comm_s exposed_comm_s breakdown_s samples_per_s scaling_efficiency "
            "scaling_efficiency_interval bottleneck bottleneck_path uncertainties communication "
            "sent_bytes mfu mixture",
        ),
        "memory_bytes": memory.total_bytes if memory.is_stated else None,
        "fits": memory.fits if memory.is_stated else None,
        "tight": memory.tight if memory.is_stated else None,
        "memory": attributes(
            memory,
            f"{needs} total_bytes capacity_bytes advice low_bytes high_bytes reserve_bytes "
            "host_bytes host_capacity_bytes drive_bytes drive_capacity_bytes",
        )
        if memory.is_stated
        else None,
        "mode": point.mode,
        "reliefs": [attributes(each, "what parts what_if saves_s") for each in point.reliefs],
    }


def _disturbance(cost: DisturbanceCost | None) -> dict[str, Any]:
    """Return what events and other jobs did; empty lists and nulls where there are none."""
    if cost is None:
        return {
            "undisturbed_s": None,
            "steps_s": [],
            "mean_interval_s": None,
            "events": [],
            "waits": [],
            "jobs": [],
        }
    return attributes(cost, "undisturbed_s steps_s mean_interval_s events waits jobs")


def sizes_csv(result: Result) -> str:
    """Every number of every size; SI units, empty where there is no interval."""
    parts = sorted({part for point in result.points for part in point.breakdown_s})
    rows = [_numbers(size, parts) for size in size_gains(result)]
    return csv_text(rows[0], (row.values() for row in rows))


def _numbers(size: SizeGain, parts: Sequence[str]) -> dict[str, object]:
    point, memory, none = size.point, size.point.memory, (None, None)
    return {
        **attributes(point, "gpus nodes global_batch batch_per_gpu step_time_s"),
        **dict(zip(("step_low_s", "step_high_s"), point.interval_s or none, strict=True)),
        **attributes(point, "first_step_time_s samples_per_s"),
        **dict(zip(("samples_low_per_s", "samples_high_per_s"), size.samples or none, strict=True)),
        **attributes(point, "scaling_efficiency"),
        **dict(zip(("efficiency_low", "efficiency_high"), size.efficiency or none, strict=True)),
        "marginal_efficiency": size.marginal,
        **attributes(point, "compute_s comm_s exposed_comm_s bottleneck"),
        "memory_bytes": memory.total_bytes if memory.is_stated else None,
        "memory_capacity_bytes": memory.capacity_bytes,
        "fits": memory.fits if memory.is_stated else None,
        **{f"{part.replace(' ', '_')}_s": point.breakdown_s.get(part, 0.0) for part in parts},
    }


def buckets_csv(result: Result) -> str:
    """Gradient buckets of the size that is asked about; seconds from the start of the step."""
    names = "index nbytes ready_s start_s end_s"
    rows = (
        [*attributes(bucket, names).values(), " ".join(bucket.parameters)]
        for bucket in result.main.buckets
    )
    return csv_text([*names.split(), "parameters"], rows)
