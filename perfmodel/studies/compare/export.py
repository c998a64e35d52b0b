"""Export a comparison to JSON and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from perfmodel.scenario import scenario_digest
from perfmodel.studies.compare.model import Change, Comparison, Imagined, Side, Versus


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data; times in seconds, sizes in bytes."""
    return {
        "sides": [_plain_side(side) for side in comparison.sides],
        "fields": [
            {"field": field.name, "values": list(field.values)} for field in comparison.fields
        ],
        "changes": [_plain_difference(each) for each in comparison.versus],
        "attribution": [_plain_what_if(each, comparison.sides) for each in comparison.imagined],
        "assumptions": list(comparison.assumptions),
    }


def _plain_side(side: Side) -> dict[str, Any]:
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


def _plain_change(change: Change) -> dict[str, Any]:
    ends = change.interval
    return {
        "ratio": change.ratio,
        "interval": None if ends is None else list(ends),
        "within_interval": change.within,
    }


def _plain_difference(difference: Versus) -> dict[str, Any]:
    return {
        "label": difference.label,
        "step_time": _plain_change(difference.step),
        "samples_per_s": _plain_change(difference.throughput) if difference.same_samples else None,
        "exposed_comm_s": difference.exposed_s,
        "breakdown_s": dict(difference.parts_s),
        "bottleneck": {
            "from": difference.bottleneck[0],
            "to": difference.bottleneck[1],
            "moved": difference.moved,
        },
    }


def _plain_what_if(result: Imagined, sides: tuple[Side, ...]) -> dict[str, Any]:
    return {
        "what": result.what,
        "what_if": dict(result.what_if),
        "sides": [
            {
                "label": side.label,
                "step_time_s": step_s,
                "saved_s": None if step_s is None else side.point.step_time_s - step_s,
                "share_of_difference": share,
                "message": message,
            }
            for side, step_s, share, message in zip(
                sides, result.steps_s, result.shares, result.messages, strict=True
            )
        ],
    }


def to_csv(comparison: Comparison) -> str:
    """Write one row per side: differing fields, results, and the step under each what-if."""
    rows = []
    for at, side in enumerate(comparison.sides):
        row = _plain_side(side)
        parts, ends = row.pop("breakdown_s"), row.pop("interval_s") or (None, None)
        row |= {"low_s": ends[0], "high_s": ends[1]}
        row |= {f"{name.replace(' ', '_')}_s": time_s for name, time_s in parts.items()}
        row |= {field.name: field.values[at] for field in comparison.fields}
        row |= {f"step_time_s with {each.what}": each.steps_s[at] for each in comparison.imagined}
        rows.append(row)
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
