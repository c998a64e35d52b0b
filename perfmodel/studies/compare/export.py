"""A comparison as plain data: JSON and CSV."""

from __future__ import annotations

from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.scenario import scenario_digest
from perfmodel.studies.compare.model import Change, Comparison, Side, SideDifference, WhatIfResult


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Write a comparison as plain data; times in seconds, sizes in bytes."""
    sides = comparison.sides
    document = {
        "sides": [_side(side) for side in sides],
        "fields": [
            {"field": field.name, "values": field.values, "acts_only_in": field.reader}
            for field in comparison.fields
        ],
        "changes": [_versus(versus) for versus in comparison.differences],
        "attribution": [_imagined(imagined, sides) for imagined in comparison.what_ifs],
        "assumptions": comparison.assumptions,
    }
    return dict(as_json(document, "comparison"))


def _side(side: Side) -> dict[str, Any]:
    point, result = side.point, side.result
    return {
        "label": side.label,
        "scenario": result.scenario,
        "scenario_sha256": scenario_digest(side.scenario),
        **attributes(result, "workload machine"),
        **attributes(point, "gpus global_batch"),
        "samples": str(result.samples),
        **attributes(
            point,
            "step_time_s interval_s samples_per_s compute_s comm_s exposed_comm_s breakdown_s "
            "bottleneck communication sent_bytes mfu",
        ),
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
    }


def _change(change: Change) -> dict[str, Any]:
    return {**attributes(change, "ratio interval"), "within_interval": change.within}


def _versus(versus: SideDifference) -> dict[str, Any]:
    before, after = versus.bottleneck
    return {
        "label": versus.label,
        "step_time": _change(versus.step),
        "samples_per_s": _change(versus.throughput) if versus.same_samples else None,
        "exposed_comm_s": versus.exposed_s,
        "breakdown_s": versus.parts_s,
        "bottleneck": {"from": before, "to": after, "moved": versus.moved},
    }


def _imagined(imagined: WhatIfResult, sides: tuple[Side, ...]) -> dict[str, Any]:
    return {
        **attributes(imagined, "what what_if"),
        "sides": [
            {
                "label": side.label,
                "step_time_s": step_s,
                "saved_s": None if step_s is None else side.point.step_time_s - step_s,
                "share_of_difference": share,
                "message": message,
            }
            for side, step_s, share, message in zip(
                sides, imagined.steps_s, imagined.shares, imagined.messages, strict=True
            )
        ],
    }


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per side: what differs, the figures, and the step under each what-if."""
    rows = []
    for at, side in enumerate(comparison.sides):
        row = _side(side)
        parts, ends = row.pop("breakdown_s"), row.pop("interval_s") or (None, None)
        row |= {f"exposed_{use.op}_s": use.exposed_s for use in row.pop("communication")}
        row |= {"low_s": ends[0], "high_s": ends[1]}
        row |= {f"{name.replace(' ', '_')}_s": time_s for name, time_s in parts.items()}
        row |= {field.name: field.values[at] for field in comparison.fields}
        row |= {
            f"step_time_s with {imagined.what}": imagined.steps_s[at]
            for imagined in comparison.what_ifs
        }
        rows.append(row)
    return rows


def to_csv(comparison: Comparison) -> str:
    """Write those rows as CSV; empty where a side has no such figure."""
    rows = csv_rows(comparison)
    columns = dict.fromkeys(name for row in rows for name in row)
    return csv_text(columns, ([row.get(name, "") for name in columns] for row in rows))
