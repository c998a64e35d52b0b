"""Models whose loss runs apart from what is fused by hand, as in published runs of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory.recompute import result_elements
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Workload
from perfmodel.workload.model_changes import fuse_by_hand

MEGATRON_LOSS_PASSES = 26 * 3 / 8
"""Passes of forward over logits in half precision, where backward is taken to make 5/3 as many, of
the 26 of both: Megatron-LM's loss casts them to fp32 (1.5 passes in fp32), takes the greatest (1),
subtracts it (2), exponentiates (2), adds up (1) and divides (2); backward scales (2) and casts back
(1.5) (megatron/core/tensor_parallel/cross_entropy.py)."""
LOSS_KERNELS = 5
"""Beside one for all: each of the passes above but the cast is a kernel of its own."""


def keep_loss_apart(workload: Workload) -> Workload:
    """Return the workload fused by hand but for the loss, as Megatron-LM runs it by default.

    It keeps the softmax in fp32 and makes it the gradient, which is cast back.
    """
    apart = fuse_by_hand(workload)
    return replace(apart, layers=tuple(map(_with_loss_apart, apart.layers)))


def _with_loss_apart(layer: Layer) -> Layer:
    fused = layer.fused_kept
    if not layer.wide_bytes or fused is None or layer.fused_bytes is None:
        return layer
    logits = result_elements(layer)
    more = (MEGATRON_LOSS_PASSES - passes_of("fused_loss")) * ELEMENT_BYTES * logits
    return replace(
        layer,
        fused_bytes=layer.fused_bytes + more,
        fused_kept=replace(
            fused,
            saved_elements=max(0.0, fused.saved_elements - logits),
            saved_bytes=fused.saved_bytes + WIDE_BYTES * logits,
        ),
        fused_kernels=layer.fused_kernels + LOSS_KERNELS,
    )
