"""Time of kernels that memory limits: element-wise, normalising, copies, optimizers."""

from __future__ import annotations

from perfmodel.workload.kernels.device import Device


def elementwise_s(nbytes: float, kernels: int, device: Device) -> float:
    """Device time of element-wise kernels that move `nbytes` together; seconds."""
    return nbytes / device.memory_Bps + kernels * device.ramp_s


def norm_s(nbytes: float, device: Device, *, backward: bool = False) -> float:
    """Device time of normalisations over rows whose forward moves `nbytes`, no ramps; seconds.

    `backward`: of their backward, which also sums the gradients of gain and bias over all rows.
    """
    norm = device.constants.norm
    return nbytes * (norm.backward if backward else 1.0) / device.norm_Bps
