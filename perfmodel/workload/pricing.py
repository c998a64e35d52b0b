"""What all layers of one prediction are priced with: device, precision and settings."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import refuse_if
from perfmodel.topology.model import Gpu
from perfmodel.workload.kernels.device import Device, make_device
from perfmodel.workload.kernels.float8_casts import Float8Pricing, make_float8_pricing
from perfmodel.workload.kernels.float8_layers import Float8, wide_precision
from perfmodel.workload.model import ELEMENT_BYTES, ITEM_BYTES

TENSOR_CORE_PRECISIONS = frozenset({"tf32", "fp16", "bf16"})
"""Precisions whose convolutions want channels last and copy their operands otherwise."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Device and settings of one prediction, the same for all layers.

    `plain`: the same GPU at fp32, whose convolutions compete with TF32 and its copies.
    `vector_item_bytes`: of element-wise kernels outside convolutional networks.
    `waits_for_statistics`: whether batch normalisation is PyTorch's own, whose passes wait for sums
        as normalisations over rows do: in bf16 (``_select_batch_norm_backend`` in
        ATen/native/Normalization.cpp), not compiled.
    `float8`: of layers that run in fp8.
    `narrow_attention`: whether attention multiplies in fp8, too.
    """

    device: Device
    plain: Device | None
    batch: int
    vector_item_bytes: int
    transposes: bool
    fused_attention: bool
    compiled: bool
    casts: bool
    waits_for_statistics: bool = False
    float8: Float8Pricing | None = None
    narrow_attention: bool = False


KERNELS_NEED = {"flash_3": ("hopper",), "flash_4": ("hopper", "blackwell")}
"""Generations that kernels of attention are written for (Dao-AILab/flash-attention, README)."""


def make_pricing(
    gpu: Gpu,
    batch: int,
    precision: str,
    *,
    casts: bool,
    channels_last: bool,
    fused_attention: bool | str,
    compiled: bool,
    float8: Float8 | None = None,
    accumulate: int = 1,
) -> Pricing:
    """Look up what all layers of one prediction share.

    `float8`: how linear layers run with precision "fp8".
    `accumulate`: micro-batches of a step.
    `fused_attention`: whether, or whose kernels ("flash_2", "flash_3", "flash_4", "cudnn").
    Raises `InputError`: a GPU without the recipe of fp8, attention in fp8, or those kernels.
    """
    narrow, precision = precision == "fp8", wide_precision(precision)
    has_plain = precision == "tf32" and "fp32" in gpu.matmul_efficiency
    narrow_attention = narrow and float8 is not None and float8.attention
    library = fused_attention if isinstance(fused_attention, str) else ""
    library = "cudnn" if narrow_attention else library  # no other kernels run in fp8
    needed = KERNELS_NEED.get(library, (gpu.generation,))
    refuse_if(
        gpu.generation not in needed,
        "compute.fused_attention",
        f"{library} on {gpu.name}",
        f"true, or a GPU of {' or '.join(map(str.capitalize, needed))}",
    )
    device = make_device(gpu, precision, ITEM_BYTES[precision], library)
    refuse_if(
        narrow_attention and (not fused_attention or device.attention.narrow is None),
        "fp8.fp8_dot_product_attention",
        f"true on {gpu.name}",
        "false, or fused attention on a GPU of Hopper or Blackwell",
    )
    return Pricing(
        device=device,
        plain=make_device(gpu, "fp32", ITEM_BYTES["fp32"]) if has_plain else None,
        batch=batch,
        vector_item_bytes=ELEMENT_BYTES if casts else ITEM_BYTES[precision],
        transposes=precision in TENSOR_CORE_PRECISIONS and not channels_last,
        fused_attention=bool(fused_attention),
        compiled=compiled,
        casts=casts,
        waits_for_statistics=precision == "bf16" and not compiled,
        float8=make_float8_pricing(
            gpu,
            float8 or Float8(),
            device,
            compiled=compiled,
            accumulate=accumulate,
            weight_bytes=ELEMENT_BYTES if casts else device.item_bytes,
        )
        if narrow
        else None,
        narrow_attention=narrow_attention,
    )
