"""A comparison as plain data: JSON and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from perfmodel.scenario import scenario_digest
from perfmodel.studies.compare.model import Change, Comparison, Imagined, Side, Versus


def to_json(found: Comparison) -> dict[str, Any]:
    """Write a comparison as plain data; times in seconds, sizes in bytes."""
    return {
        "sides": [_side(side) for side in found.sides],
        "fields": [{"field": field.name, "values": list(field.values)} for field in found.fields],
        "changes": [_versus(one) for one in found.versus],
        "attribution": [_imagined(one, found.sides) for one in found.imagined],
        "assumptions": list(found.assumptions),
    }


def _side(side: Side) -> dict[str, Any]:
    point = side.point
    return {
        "label": side.label,
        "scenario": side.result.scenario,
        "scenario_sha256": scenario_digest(side.scenario),
        "workload": side.result.workload,
        "machine": side.result.machine,
        "gpus": point.gpus,
        "global_batch": point.global_batch,
        "samples": side.result.samples,
        "step_time_s": point.step_time_s,
        "interval_s": None if point.interval_s is None else list(point.interval_s),
        "samples_per_s": point.samples_per_s,
        "compute_s": point.compute_s,
        "comm_s": point.comm_s,
        "exposed_comm_s": point.exposed_comm_s,
        "breakdown_s": dict(point.breakdown_s),
        "bottleneck": point.bottleneck,
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
    }


def _change(change: Change) -> dict[str, Any]:
    ends = change.interval
    return {
        "ratio": change.ratio,
        "interval": None if ends is None else list(ends),
        "within_interval": change.within,
    }


def _versus(one: Versus) -> dict[str, Any]:
    return {
        "label": one.label,
        "step_time": _change(one.step),
        "samples_per_s": _change(one.throughput) if one.same_samples else None,
        "exposed_comm_s": one.exposed_s,
        "breakdown_s": dict(one.parts_s),
        "bottleneck": {
            "from": one.bottleneck[0], "to": one.bottleneck[1], "moved": one.moved
        },
    }  # fmt: skip


def _imagined(one: Imagined, sides: tuple[Side, ...]) -> dict[str, Any]:
    return {
        "what": one.what,
        "what_if": dict(one.what_if),
        "sides": [
            {
                "label": side.label,
                "step_time_s": step_s,
                "saved_s": None if step_s is None else side.point.step_time_s - step_s,
                "share_of_difference": share,
                "message": message,
            }
            for side, step_s, share, message in zip(
                sides, one.steps_s, one.shares, one.messages, strict=True
            )
        ],
    }


def to_csv(found: Comparison) -> str:
    """One row per side: what differs, the figures, and the step under each what-if."""
    rows = []
    for at, side in enumerate(found.sides):
        row = _side(side)
        parts, ends = row.pop("breakdown_s"), row.pop("interval_s") or (None, None)
        row |= {"low_s": ends[0], "high_s": ends[1]}
        row |= {f"{name.replace(' ', '_')}_s": time_s for name, time_s in parts.items()}
        row |= {field.name: field.values[at] for field in found.fields}
        row |= {f"step_time_s with {one.what}": one.steps_s[at] for one in found.imagined}
        rows.append(row)
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
