"""Time of fused attention, by head size and length, and of the products of unfused attention."""

from __future__ import annotations

from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.memory_bound import elementwise_s
from perfmodel.workload.kernels.products import product_s
from perfmodel.workload.kernels.shapes import Attention

CAST_BYTES, CASTS = 3, 2
"""Bytes that a cast between bf16 and fp8 moves per element, and such kernels of a pass: queries,
keys and values together, and the result; in backward the result's gradient, and theirs
(TransformerEngine 2, ``dot_product_attention/backends.py``, ``FusedAttnFunc``)."""


def fused_attention_s(
    attention: Attention, device: Device, *, backward: bool = False, narrow: bool = False
) -> float:
    """Device time of one fused kernel; seconds.

    `narrow`: with fp8 operands, without their casts.

    Its rate saturates with the number of keys that a query sees, as the start of each tile of
    queries is spread over more work. Keys in blocks are seen a block at a time; the starts of the
    kernels after the first are no part of it.
    """
    constants, rate = device.constants.attention, device.attention
    keys = attention.seen_keys
    work = attention.flops * keys / attention.all_keys
    work *= constants.backward_flops if backward else 1.0
    block_keys = keys / attention.blocks
    saturation = block_keys / (block_keys + (rate.half_rate_keys or constants.half_rate_keys))
    share = rate.at(attention.head_size) * saturation * (rate.backward if backward else 1.0)
    if narrow:
        share *= (rate.narrow_backward if backward else rate.narrow) or 1.0
    passes = constants.backward_passes if backward else 1.0
    memory_s = passes * device.item_bytes * attention.elements / device.memory_Bps
    return device.constants.product.ramp_s + max(work / (device.matrix_flops * share), memory_s)


def narrow_casts_s(attention: Attention, device: Device) -> float:
    """Device time of the casts of one pass of attention in fp8; seconds."""
    return elementwise_s(CAST_BYTES * attention.elements, CASTS, device)


def unfused_products_s(attention: Attention, device: Device, *, backward: bool = False) -> float:
    """Device time of the two products forward, of four backward; seconds."""
    pair_s = product_s(attention.scores, device) + product_s(attention.weighted_sum, device)
    return 2 * pair_s if backward else pair_s
