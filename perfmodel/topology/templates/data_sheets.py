"""GPUs of which a data sheet is all that is known: the rest from GPUs that were measured.

How far the rest may be off stands in ``workload/compute_spread.yaml``: there every shipped GPU was
taken for a new one (`reports.kernels.data_sheets`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.spec import GpuSpec

ESTIMATED = (
    "matmul_efficiency",
    "memory_efficiency",
    "kernel_overhead",
    "launch",
    "streaming_multiprocessors",
    "overlap_slowdown",
)
"""Numbers that no data sheet has, or that few state."""

_MEDIANS = {
    "memory_efficiency": "memory_efficiency",
    "kernel_overhead": "kernel_overhead_s",
    "launch": "launch_s",
    "overlap_slowdown": "overlap_slowdown",
}
"""Numbers that are the median of those of other GPUs, and the fields of `Gpu` that have them."""

NEAREST = 3
"""Measured GPUs that an efficiency is the mean of. With the three whose peak per byte of memory
bandwidth is nearest, bf16 of a GPU that is left out is off by 11 % (standard deviation over 14
kinds of GPUs), with those of its generation by 25 %, with all by 18 %."""


def is_data_sheet(spec: GpuSpec) -> bool:
    """Whether numbers of a GPU are left to be estimated."""
    return any(getattr(spec, field) is None for field in ESTIMATED)


def complete(
    name: str, spec: GpuSpec, measured: Sequence[Gpu]
) -> tuple[GpuSpec, Mapping[str, str]]:
    """Fill in what a data sheet leaves out; returns the numbers and the source of each filled one.

    `measured`: GPUs whose efficiencies were measured.
    Raises `InputError`: a generation of which none is known, or a precision that none has.
    """
    amd = spec.generation.startswith("cdna")
    measured = [gpu for gpu in measured if gpu.amd == amd]
    peers = [gpu for gpu in measured if gpu.generation == spec.generation]
    if not peers:
        generations = sorted({gpu.generation for gpu in measured})
        field = f"gpus.{name}.generation"
        raise InputError(
            Fault(
                field,
                repr(spec.generation),
                f"{allowed_names(generations, spec.generation)}; or all of {', '.join(ESTIMATED)}",
            )
        )
    efficiency, names = efficiencies(name, spec, measured)
    usual = f"assumption: as usual for GPUs of the generation {spec.generation}"
    per_unit = f"operations of fp32 per multiprocessor as of another {spec.generation} GPU"
    values: dict[str, tuple[Any, str]] = {
        **{
            field: (statistics.median(getattr(gpu, own) for gpu in peers), usual)
            for field, own in _MEDIANS.items()
        },
        "streaming_multiprocessors": (multiprocessors(spec, peers), f"assumption: {per_unit}"),
        "matmul_efficiency": (
            efficiency,
            f"assumption: the mean of {names}, the nearest in peak per byte",
        ),
    }
    left_out = {field: each for field, each in values.items() if getattr(spec, field) is None}
    numbers = {field: value for field, (value, _) in left_out.items()}
    return spec.model_copy(update=numbers), {field: why for field, (_, why) in left_out.items()}


def multiprocessors(spec: GpuSpec, peers: Sequence[Gpu]) -> int:
    """Multiprocessors that have the fp32 peak of a GPU, as those of a peer have.

    That is the one whose tensor cores are as much quicker than fp32: a generation may have chips of
    two kinds (A100, and GeForce or A40).
    """
    fp32 = spec.peak.get("fp32") or max(spec.peak.values()) / 16
    ratio = math.log(_matrix_peak(spec.peak) / fp32)

    def distance(gpu: Gpu) -> float:
        return abs(math.log(_matrix_peak(gpu.peak_flops) / gpu.peak_flops["fp32"]) - ratio)

    peer = min(peers, key=distance)
    return max(1, round(fp32 / peer.peak_flops["fp32"] * peer.streaming_multiprocessors))


def efficiencies(
    name: str, spec: GpuSpec, measured: Sequence[Gpu]
) -> tuple[Mapping[str, float], str]:
    """Share of each peak that large products reach, and the GPUs that it is the mean of.

    For fp32, which no tensor cores compute, all GPUs count.
    """
    intensity = math.log(_matrix_peak(spec.peak) / spec.memory_bandwidth)

    def distance(gpu: Gpu) -> float:
        return abs(math.log(_matrix_peak(gpu.peak_flops) / gpu.memory_Bps) - intensity)

    nearest = sorted(measured, key=distance)
    shares, faults = dict[str, float](), list[Fault]()
    for precision in spec.peak:
        able = [gpu for gpu in nearest if precision in gpu.matmul_efficiency]
        if not able:
            precisions = sorted({key for gpu in measured for key in gpu.matmul_efficiency})
            faults.append(
                Fault(f"gpus.{name}.peak.{precision}", repr(precision), allowed_names(precisions))
            )
            continue
        chosen = able if precision == "fp32" else able[:NEAREST]
        shares[precision] = round(
            statistics.fmean(g.matmul_efficiency[precision] for g in chosen), 3
        )
    if faults:
        raise InputError(faults)
    return shares, ", ".join(gpu.name for gpu in nearest[:NEAREST])


def _matrix_peak(peaks: Mapping[str, float]) -> float:
    """Peak of 16-bit products; of what there is where a GPU has none."""
    half = [peaks[precision] for precision in ("bf16", "fp16") if precision in peaks]
    return max(half or peaks.values())
