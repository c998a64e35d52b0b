"""Device memory that a loss over a vocabulary holds, beside what its forward keeps for backward."""

from __future__ import annotations

from perfmodel.workload.kernels.shapes import WIDE_BYTES, MatrixProduct
from perfmodel.workload.memory.recompute import result_elements
from perfmodel.workload.model import ITEM_BYTES, Layer, Workload


def loss_bytes(workload: Workload, batch: int, precision: str, *, compiled: bool = False) -> float:
    """Bytes that the backward of cross entropy holds beside what its forward kept.

    Beside the softmax, the gradient of its logarithm and that of the logits, both in fp32 (the
    latter's cast to what the head computes in comes when the softmax is gone). Compiled, the
    gradient alone, as narrow as the logits. Over chunks of tokens, see `_chunked_loss_bytes`.
    """
    narrow = ITEM_BYTES[precision]
    return max(
        (
            _chunked_loss_bytes(layer, batch, narrow)
            if layer.chunked_loss
            else batch
            * (narrow if compiled and layer.fused_kept is not None else 2 * WIDE_BYTES)
            * result_elements(layer)
            for layer in workload.layers
            if layer.wide_bytes or layer.chunked_loss
        ),
        default=0.0,
    )


def _chunked_loss_bytes(layer: Layer, batch: int, item_bytes: int) -> float:
    """Bytes that head and loss hold over chunks of tokens, beside the head's input.

    Liger-Kernel 0.4 (ops/fused_linear_cross_entropy.py): the gradients of the input and of the
    weight, the product that is added to the latter, and the logits of a chunk with a copy in fp32.
    There are as many chunks as the vocabulary is times as wide as the input, of a power of two.
    """
    assert isinstance(layer.matrix, MatrixProduct)
    words, width, tokens = layer.matrix.columns, layer.matrix.depth, batch * layer.matrix.rows
    chunk = 1 << (-(-tokens // -(-words // width)) - 1).bit_length()
    wide = item_bytes + WIDE_BYTES * (item_bytes < WIDE_BYTES)
    return float(
        item_bytes * (2 * words * width + tokens * width) + wide * min(chunk, tokens) * words
    )


def forward_loss_bytes(
    workload: Workload, batch: int, precision: str, *, compiled: bool = False
) -> float:
    """Bytes that the forward of cross entropy holds beside what it keeps.

    The logits, and their copy in fp32 where they are narrower; nothing where a compiler fuses it.
    """
    item_bytes = WIDE_BYTES + ITEM_BYTES[precision] % WIDE_BYTES
    logits = (
        result_elements(layer)
        for layer in workload.layers
        if layer.wide_bytes and not (compiled and layer.fused_kept is not None)
    )
    return batch * item_bytes * max(logits, default=0.0)
