"""Time of kernels that memory limits: element-wise, normalising, optimizers.

A kernel that does little per element runs at the memory's rate. One that waits for sums or strides
through memory takes time of its multiprocessors for each element on top, which shows the more, the
faster the memory and the narrower the element.
"""

from __future__ import annotations

from perfmodel.workload.kernels.device import Device


def elementwise_s(nbytes: float, kernels: int, device: Device) -> float:
    """Device time of element-wise kernels that move `nbytes` together; seconds."""
    return nbytes / device.memory_Bps + kernels * device.ramp_s


def feature_map_s(nbytes: float, item_bytes: int, device: Device) -> float:
    """Device time of kernels over feature maps (batch normalisation, ReLU), no ramps; seconds."""
    return nbytes * (1 / device.memory_Bps + device.map_s / item_bytes)


def norm_s(nbytes: float, item_bytes: int, device: Device, *, backward: bool = False) -> float:
    """Device time of normalisations over rows whose forward moves `nbytes`, no ramps; seconds.

    `backward`: of their backward, which also sums the gradients of gain and bias over all rows.
    """
    per_byte_s = 1 / device.memory_Bps + device.norm_s / item_bytes
    return nbytes * per_byte_s * (device.constants.norm.backward if backward else 1.0)
