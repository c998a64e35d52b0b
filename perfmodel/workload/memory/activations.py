"""Device memory of what forward keeps for backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import allowed_names, refuse_if
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Attention
from perfmodel.workload.memory.blocks import Offload, check_offload, held_bytes, repeated_blocks
from perfmodel.workload.memory.losses import forward_loss_bytes, loss_bytes
from perfmodel.workload.memory.recompute import (
    NO_RECOMPUTE,
    Recompute,
    check_recompute,
    input_elements,
    kept_results,
    partly_recomputed_blocks,
    recomputed_blocks,
    recomputed_layers,
    remade_inputs,
    result_elements,
)
from perfmodel.workload.model import ITEM_BYTES, Kept, Layer, Workload

MASK_BYTES = 1
"""Of an element that may have been dropped out."""


@dataclass(frozen=True, slots=True)
class NarrowInputs:
    """What layers that run in fp8 keep.

    `layers`: their places; none of them works on bf16 copies of its weight.
    `keeps_cast`: whether they keep the cast of their input, and not what it was cast from.
    `cast_bytes`: of an element of it.
    """

    layers: frozenset[int] = frozenset()
    keeps_cast: bool = False
    cast_bytes: float = 1.0


NO_NARROW_INPUTS = NarrowInputs()


@dataclass(frozen=True, slots=True)
class _Keeping:
    """How layers keep what backward needs.

    `batch`: samples of one micro-batch.
    `item_bytes`: of an element at the precision of the compute.
    `casts`: whether autocast works on copies of the weights.
    `share`: factor on what layers keep.
    `compiled`: whether a compiler makes one graph of both passes of the layers.
    `narrow`: what layers that run in fp8 keep.
    """

    batch: int
    item_bytes: int
    casts: bool
    fused_attention: bool
    share: float
    narrow: NarrowInputs
    compiled: bool = False

    def layer_bytes(self, layer: Layer, *, with_scores: bool = True) -> float:
        """Bytes that one layer keeps; without those of scores, where these are recomputed."""
        own_bytes = self._sample_bytes(layer) + self._score_bytes(layer) * with_scores
        return self.batch * own_bytes + (
            self.item_bytes * (layer.bias_elements if self.fused_attention else 0.0)
            + layer.once_bytes
        )

    def _sample_bytes(self, layer: Layer) -> float:
        stated = self.kept_of(layer)
        copied = stated.copied_elements if self.casts else 0.0
        if self.item_bytes < WIDE_BYTES and not (self.casts or self.is_fused(layer)):
            copied = layer.narrow_elements
        return (
            self.item_bytes * (self.share * stated.saved_elements + copied)
            + self.stream_bytes(layer) * stated.stream_elements
            + stated.saved_bytes
        )

    def kept_of(self, layer: Layer) -> Layer | Kept:
        """What a layer states that it keeps, compiled or not."""
        return layer.fused_kept if self.compiled and layer.fused_kept is not None else layer

    def is_fused(self, layer: Layer) -> bool:
        """Whether a compiler decides what of a layer is kept."""
        return self.kept_of(layer) is not layer

    def _score_bytes(self, layer: Layer) -> float:
        """Of one sample's attention: the sum of each row, or all scores where it is not fused.

        Not fused, keys and values are repeated for all heads of queries that share them.
        """
        if not layer.score_elements:
            return 0.0
        if self.fused_attention:
            keys = layer.matrix.all_keys if isinstance(layer.matrix, Attention) else 0
            return self.item_bytes * layer.held_elements + (
                WIDE_BYTES * layer.score_elements / keys if keys else 0.0
            )
        softmax = WIDE_BYTES if self.casts or layer.wide_scores else self.item_bytes
        operand = self.item_bytes if layer.score_dropout or softmax > self.item_bytes else 0
        operand += layer.capped_scores * self.item_bytes
        return layer.score_elements * (
            softmax + operand + layer.score_dropout * MASK_BYTES
        ) + self.item_bytes * repeated_elements(layer)

    def cast_input_bytes(self, layer: Layer) -> float:
        """Bytes that a layer keeps more where it keeps the fp8 cast of its input.

        Less, where nobody else needs that input; nothing for a layer that shares it with another.
        """
        elements = input_elements(layer)
        stated = self.kept_of(layer)
        if layer.copied_elements:
            return -self.batch * self.casts * self.item_bytes * stated.copied_elements
        spared = self.item_bytes if stated.saved_elements >= elements else 0
        return self.batch * elements * (self.narrow.cast_bytes - self.share * spared)

    def stream_bytes(self, layer: Layer) -> int:
        """Bytes of an element that flows between blocks."""
        return WIDE_BYTES if self.casts and layer.kind != "conv" else self.item_bytes

    def gradient_bytes(self, layer: Layer) -> float:
        """Bytes of what a layer's backward reads and writes: gradients of its result and input.

        That of logits is counted with the loss.
        """
        result = 0.0 if layer.wide_bytes or layer.chunked_loss else result_elements(layer)
        return self.batch * self.item_bytes * (result + input_elements(layer))

    def input_bytes(self, layer: Layer) -> float:
        """Bytes of a layer's input, as it flows between blocks."""
        return self.batch * self.stream_bytes(layer) * input_elements(layer)


def block_bytes(
    workload: Workload,
    batch: int,
    precision: str,
    *,
    fused_attention: bool = True,
    recompute: Recompute = NO_RECOMPUTE,
    held_dtype: str | None = None,
    compiled: bool = False,
    narrow: NarrowInputs = NO_NARROW_INPUTS,
) -> list[float]:
    """Bytes that each repeated block keeps, as in `stored_bytes`."""
    keeping = _keeping(
        workload, batch, precision, fused_attention, 1.0, held_dtype, compiled, narrow
    )
    return _by_block(workload, _kept_bytes(workload, keeping, recompute)[0])


def stored_bytes(
    workload: Workload,
    batch: int,
    precision: str,
    *,
    fused_attention: bool = True,
    kept_share: float = 1.0,
    recompute: Recompute = NO_RECOMPUTE,
    held_dtype: str | None = None,
    offload: Offload = "none",
    compiled: bool = False,
    narrow: NarrowInputs = NO_NARROW_INPUTS,
) -> float:
    """Bytes that a micro-batch keeps for backward on the device while others run.

    Without what a block holds while it is recomputed, casts of weights and blocks in the memory of
    the host.

    `batch`: samples of the micro-batch.
    `precision`: of the compute; "fp16" and "bf16" keep 2 bytes per element.
    `fused_attention`: otherwise softmax and dropout of all attention scores are kept too.
    `kept_share`: factor on what layers keep, for an end of `Workload.kept_range`.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    `offload`: blocks wait for backward in the memory of the host.
    `compiled`: a compiler decides what is kept.
    `narrow`: what layers that run in fp8 keep.
    """
    each = _kept_bytes(
        workload,
        _keeping(
            workload, batch, precision, fused_attention, kept_share, held_dtype, compiled, narrow
        ),
        recompute,
    )[0]
    return sum(each) - (0.0 if offload == "none" else sum(_by_block(workload, each)))


def _by_block(workload: Workload, each: Sequence[float]) -> list[float]:
    return [sum(each[block.start : block.stop]) for block in repeated_blocks(workload)]


def _keeping(
    workload: Workload,
    batch: int,
    precision: str,
    fused_attention: bool,
    share: float,
    held_dtype: str | None,
    compiled: bool,
    narrow: NarrowInputs,
) -> _Keeping:
    refuse_if(
        precision not in ITEM_BYTES,
        "precision",
        repr(precision),
        allowed_names(ITEM_BYTES, str(precision)),
    )
    casts = cast_weights(workload, precision, held_dtype)
    return _Keeping(batch, ITEM_BYTES[precision], casts, fused_attention, share, narrow, compiled)


@dataclass(frozen=True, slots=True)
class BackwardBytes:
    """Bytes of activations while backward goes on.

    `of_loss`: where backward begins, with what the loss needs beside.
    `of_layers`: by layer, in the order of forward, while its backward runs.
    """

    of_loss: float
    of_layers: tuple[float, ...]


def backward_bytes(
    workload: Workload,
    batch: int,
    precision: str,
    *,
    fused_attention: bool = True,
    kept_share: float = 1.0,
    recompute: Recompute = NO_RECOMPUTE,
    held_dtype: str | None = None,
    offload: Offload = "none",
    compiled: bool = False,
    narrow: NarrowInputs = NO_NARROW_INPUTS,
) -> BackwardBytes:
    """Activations at each layer's backward, counted as in `stored_bytes`, with the loss.

    A layer's backward holds what it and those before it kept; in a recomputed block, all of it; in
    that of the logits, their gradient instead of what the loss kept; and gradients: of its result
    and input, and in a block of several layers of what flows past it. Where blocks wait in the
    memory of the host, they are taken to hold as much as at most until the last one is done.
    Forward ends with all casts of weights, which autocast keeps until then.
    """
    keeping = _keeping(
        workload, batch, precision, fused_attention, kept_share, held_dtype, compiled, narrow
    )
    check_recompute(workload, recompute)
    check_offload(workload, offload)
    each, hands, casts = _kept_bytes(workload, keeping, recompute)
    standing = 0.0
    if offload != "none":
        blocks = _by_block(workload, each)
        for block in repeated_blocks(workload):
            each[block.start : block.stop] = [0.0] * len(block)
        standing = held_bytes(blocks, offload)
    passing = _passing_bytes(workload, keeping)
    of_layers, total, all_casts = [], standing, 0.0
    for index, layer in enumerate(workload.layers):
        total += each[index] + casts[index]
        all_casts += _cast_bytes(workload, index, keeping)
        swapped = 0.0
        if layer.wide_bytes:
            before = keeping.item_bytes if keeping.is_fused(layer) else WIDE_BYTES
            swapped = batch * (keeping.item_bytes - before) * result_elements(layer)
        gradients = passing[index] + keeping.gradient_bytes(layer)
        of_layers.append(total + hands[index] + swapped + gradients)
    of_loss = max(
        loss_bytes(workload, batch, precision, compiled=compiled),
        forward_loss_bytes(workload, batch, precision, compiled=compiled)
        + (all_casts - sum(casts)),
    )
    return BackwardBytes(total + of_loss, tuple(of_layers))


def _passing_bytes(workload: Workload, keeping: _Keeping) -> list[float]:
    """Bytes of the gradient that waits at the input of its block, by layer."""
    passing = [0.0] * len(workload.layers)
    for block in repeated_blocks(workload):
        if len(block) > 1:
            waits = keeping.input_bytes(workload.layers[block.start])
            passing[block.start : block.stop] = [waits] * len(block)
    return passing


def _kept_bytes(
    workload: Workload, keeping: _Keeping, recompute: Recompute
) -> tuple[list[float], list[float], list[float]]:
    """Bytes that each layer keeps, those that its block adds while it is recomputed, and its cast.

    A block that is recomputed casts its weights once more, and keeps no casts until then.
    """
    each = [keeping.layer_bytes(layer) for layer in workload.layers]
    casts = [_cast_bytes(workload, place, keeping) for place in range(len(each))]
    hands = [0.0] * len(each)
    for index in recomputed_layers(workload, recompute):
        each[index] = keeping.layer_bytes(workload.layers[index], with_scores=False)
    for index in keeping.narrow.layers if keeping.narrow.keeps_cast else ():
        each[index] += keeping.cast_input_bytes(workload.layers[index])
    for index, (elements, _) in remade_inputs(workload, recompute).items():
        hands[index] = min(each[index], keeping.batch * keeping.item_bytes * elements)
        each[index] -= hands[index]
    whole_blocks = recomputed_blocks(workload, recompute)
    for layers in (*whole_blocks, *partly_recomputed_blocks(workload, recompute)):
        whole = slice(layers.start, layers.stop)
        whole_bytes = sum(each[whole])
        results = (
            ()
            if layers in whole_blocks
            else kept_results(workload, layers, recompute, compiled=keeping.compiled)
        )
        elements = sum(result_elements(workload.layers[index]) for index in results)
        if recompute.kind == "selective":  # what the norm before the part put out
            elements += input_elements(workload.layers[layers[0]])
        least_bytes = keeping.input_bytes(workload.layers[layers[0]]) + (
            keeping.batch * keeping.item_bytes * elements
        )
        least_bytes = min(least_bytes, whole_bytes)
        hands[whole] = [whole_bytes - least_bytes + sum(casts[whole])] * len(layers)
        each[whole] = [least_bytes] + [0.0] * (len(layers) - 1)
        casts[whole] = [0.0] * len(layers)
    return each, hands, casts


def _cast_bytes(workload: Workload, place: int, keeping: _Keeping) -> float:
    """Bytes of the copy of one layer's weight that autocast works on."""
    layer = workload.layers[place]
    casts = keeping.casts and layer.matmul_flops > 0 and place not in keeping.narrow.layers
    # backward of a trained weight reads it for the gradient of its input alone
    casts = casts and not (layer.tensors and layer.gradients == 1)
    return keeping.item_bytes * layer.weight_elements if casts else 0.0


def repeated_elements(layer: Layer) -> float:
    """Elements that keys and values have more where each head of queries has its own."""
    if not isinstance(layer.matrix, Attention):
        return 0.0
    shape = layer.matrix
    more = (shape.heads - shape.kv_heads) * (shape.head_size + shape.value_size)
    return float(shape.sequences * shape.all_keys * more)


def cast_weights(workload: Workload, precision: str, held_dtype: str | None = None) -> bool:
    """Whether compute in this precision works on cast copies of the weights (autocast).

    `held_dtype`: of the parameters that layers run with, where it is not their own.
    """
    if held_dtype is not None:
        return ITEM_BYTES[held_dtype] > ITEM_BYTES[precision]
    widest = max((ITEM_BYTES[tensor.dtype] for tensor in workload.tensors), default=0)
    return widest > ITEM_BYTES[precision]
