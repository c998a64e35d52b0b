"""A traced job as JSON."""

from __future__ import annotations

from typing import Any

from perfmodel.traces.model import Call
from perfmodel.traces.rebuild.layer_profile import BucketTimes
from perfmodel.traces.run import TraceAnalysis


def to_json(analysis: TraceAnalysis) -> dict[str, Any]:
    """Return what ``perfmodel trace --json`` prints; times in seconds."""
    profile, first = analysis.profile, analysis.first
    document: dict[str, Any] = {
        "perfmodel": 1,
        "kind": "trace",
        "traces": [
            {
                "file": str(rank.path),
                "rank": rank.rank,
                "events": rank.events,
                "steps": len(rank.steps),
                "median_step_s": rank.median_step_s,
            }
            for rank in analysis.ranks
        ],
        "world_size": first.world_size,
        "backend": first.backend,
        "device": first.device,
        "batch_per_gpu": first.batch,
        "step": {
            "median_s": profile.step_s,
            "least_s": min(profile.steps_s),
            "greatest_s": max(profile.steps_s),
            "count": len(profile.steps_s),
            "forward_s": float(profile.forward_s.sum()),
            "backward_s": float(profile.backward_s.sum()),
            "exposed_comm_s": profile.exposed_s,
            "rest_s": profile.tail_s,
            "device_busy_s": profile.busy_s,
            "launch_wait_s": profile.launch_wait_s,
        },
        "overlap_slowdown": profile.slowdown,
        "buckets": [_bucket(bucket) for bucket in profile.buckets],
        "other_collectives": [_call(call) for call in first.steps[-1].others],
        "layers": _layers(analysis),
        "refusal": analysis.refusal or None,
        "notes": list(analysis.rebuilt.notes if analysis.rebuilt else first.notes),
    }
    if analysis.comparison is not None:
        document["replay"] = {
            "simulated_s": analysis.comparison.simulated_s,
            "error": analysis.comparison.error,
            "buckets": [
                {
                    "index": each.index,
                    "nbytes": each.nbytes,
                    "ready_s": each.ready_s,
                    "start_s": each.start_s,
                    "end_s": each.end_s,
                }
                for each in analysis.comparison.point.buckets
            ],
        }
    fit = analysis.rebuilt.fit if analysis.rebuilt else None
    if fit is not None:
        document["machine"] = {
            "bandwidth_Bps": fit.bandwidth_Bps,
            "latency_s": fit.latency_s,
            "worst": fit.worst,
        }
    if analysis.changed is not None:
        document["changed"] = {"simulated_s": analysis.changed.simulated_s}
    return document


def _bucket(bucket: BucketTimes) -> dict[str, Any]:
    return {
        "index": bucket.index,
        "elements": bucket.elements,
        "dtype": bucket.dtype,
        "ready_s": bucket.ready_s,
        "start_s": bucket.start_s,
        "end_s": bucket.end_s,
        "transfer_s": bucket.transfer_s,
        "least_s": bucket.least_s,
        "waiting_s": bucket.waiting_s,
    }


def _call(call: Call) -> dict[str, Any]:
    return {
        "op": call.op,
        "elements": call.elements,
        "dtype": call.dtype,
        "group": call.group,
        "group_size": call.group_size,
        "time_s": call.length_s,
    }


def _layers(analysis: TraceAnalysis) -> list[dict[str, Any]]:
    """Layers in the order in which backward completes them."""
    first, profile = analysis.first, analysis.profile
    gradients = analysis.rebuilt.gradients if analysis.rebuilt else first.gradients
    return [
        {
            "name": layer.name,
            "forward_s": float(profile.forward_s[at]),
            "backward_s": float(profile.backward_s[at]),
            "gradients": [
                {
                    "name": g.name,
                    "elements": g.elements,
                    "dtype": g.dtype,
                    "bucket": g.bucket,
                    "shape": None if g.shape is None else list(g.shape),
                }
                for g in (gradients[number] for number in layer.gradients)
            ],
        }
        for at, layer in enumerate(first.layers)
    ]
