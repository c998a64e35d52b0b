"""The machine that a trace was recorded on, as far as its collectives show it.

A star: each rank has one link to a switch, with the bandwidth and latency at which a ring takes as
long as the recorded all-reduces did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LEAST_RATE_SHARE = 1e-3
"""Where times do not grow with size, all of the largest transfer but this is latency."""


class LinkFit(NamedTuple):
    """Link of each rank: bandwidth, latency, and how far off recorded times are at most."""

    bandwidth_Bps: float
    latency_s: float
    worst: float


def fit_links(
    ranks: int | Sequence[int],
    sizes_bytes: Sequence[float],
    times_s: Sequence[float],
    passes: Sequence[int] | None = None,
) -> LinkFit:
    """Fit T = p (n-1) latency + p (n-1)/n bytes/bandwidth, relative errors alike.

    `ranks`: n of all collectives, or of each.
    `sizes_bytes`, `times_s`: of recorded collectives, each above zero.
    `passes`: p of each: 2 for all-reduces (default), 1 for all-gathers and reduce-scatters.
    """
    from scipy.optimize import nnls

    members = np.broadcast_to(np.asarray(ranks, dtype=float), (len(sizes_bytes),))
    steps = (2 if passes is None else np.asarray(passes)) * (members - 1)
    times, sizes = np.asarray(times_s) / steps, np.asarray(sizes_bytes) / members  # of one step
    if len(set(sizes.tolist())) > 1:
        (fixed, per_byte), _ = nnls(
            np.stack([1 / times, sizes / times], axis=1), np.ones(len(times))
        )
    else:
        fixed, per_byte = 0.0, float(np.median(times / sizes))
    per_byte = max(float(per_byte), LEAST_RATE_SHARE * float((times / sizes).min()))
    predicted = fixed + per_byte * sizes
    return LinkFit(
        bandwidth_Bps=1 / per_byte,
        latency_s=float(fixed),
        worst=float(np.abs(predicted / times - 1).max()),
    )


def node_document(ranks: int, gpu: str, fit: LinkFit | None, source: str) -> dict[str, Any]:
    """Write the machine as a node file.

    `fit`: None for one rank.
    `source`: where the numbers come from.
    """
    bandwidth = f"{fit.bandwidth_Bps / 1e9:.9g} GB/s" if fit else "1 TB/s"
    latency = f"{fit.latency_s / 2 * 1e6:.9g} us" if fit else "0 s"
    last = f"rank[0-{ranks - 1}]" if ranks > 1 else "rank0"
    return {
        "perfmodel": 1,
        "kind": "node",
        "description": f"{ranks} ranks as they were recorded, on one switch",
        "gpu": gpu,
        "sources": {"trace": source},
        "links": {
            "recorded": {
                "kind": "nvlink",
                "bandwidth": bandwidth,
                "source": "trace",
                "efficiency": 1.0,
                "efficiency_source": "trace",
                "latency": latency,
                "latency_source": "trace",
            }
        },
        "nodes": [
            {"id": last, "kind": "gpu"},
            {"id": "switch0", "kind": "nvswitch"},
            {"id": "cpu0", "kind": "cpu"},
        ],
        "edges": [
            {"from": last, "to": "switch0", "link": "recorded"},
            {"from": "switch0", "to": "cpu0", "link": "recorded"},
        ],
    }
