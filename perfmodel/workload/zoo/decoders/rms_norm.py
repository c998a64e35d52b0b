"""RMS normalisation as Hugging Face runs it, in single operations, or as one kernel."""

from __future__ import annotations

from typing import Any

from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.layers import (
    NORM_PASSES,
    WIDE_BYTES,
    Parameter,
    names,
    names_reversed,
    weight_and_bias,
)

RMS_NORM_PASSES = 12
"""RMS normalisation as single operations, cast to fp32 and back, at the rate of normalisations: the
table of ``ROTARY_PASSES`` measures 30 passes of half precision forward and 79 backward, of which
autocast, whose input is fp32 already, spares half; in between."""
RMS_NORM_KERNELS = 6
"""Cast, square, mean, scale, cast, gain."""
NORM_KERNELS = {False: (RMS_NORM_PASSES, RMS_NORM_KERNELS), True: (NORM_PASSES, 1)}
"""Passes and kernels of a norm: as single operations, or fused."""


MEAN_PASSES, MEAN_KERNELS = 5, 3
"""More of these for layer normalisation: the mean reads, and is subtracted twice."""


def norm_work(shape: DecoderShape) -> tuple[int, int]:
    """Passes and kernels of a norm of a model."""
    passes, kernels = NORM_KERNELS[shape.fused_norms]
    return passes + MEAN_PASSES * shape.mean_norms, kernels + MEAN_KERNELS * shape.mean_norms


def norm_weight(prefix: str, width: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """Parameters of a normalisation: its gain, and its bias where it is layer normalisation."""
    return weight_and_bias(prefix, width, bias=bias)


def norm_ready(norm: tuple[Parameter, ...], shape: DecoderShape) -> tuple[str, ...]:
    """Parameters of a normalisation in the order in which their gradients are complete."""
    return names_reversed(norm) if shape.gains_from_one else names(norm)


def kept_by_norm(
    elements: float, rows: float, shape: DecoderShape, logits: float = 0.0, results: float = 0.0
) -> dict[str, Any]:
    """What a normalisation keeps beside its result, and softmax of `logits`.

    In single operations its input in fp32, and, before the gain, its result: in fp32 (Gemma,
    OLMo 2) or as narrow as its input was; as one kernel its input alone. Of each row its scale in
    fp32, and its mean where it is layer normalisation.

    `results`: of the elements, those that a product put out, so that they are narrow in any case.
    """
    fixed_bytes = WIDE_BYTES * (logits + rows * (1 + shape.layer_norms))
    if shape.mean_norms:  # what is squared, what is scaled, and what the gain multiplies
        return {"saved_bytes": WIDE_BYTES * 3.0 * elements + fixed_bytes, "saved_elements": 0.0}
    if shape.plain_norms:
        return {"saved_bytes": WIDE_BYTES * elements + fixed_bytes, "saved_elements": 0.0}
    if shape.fused_norms:
        return {
            "saved_bytes": fixed_bytes,
            "stream_elements": float(elements),
            "saved_elements": 0.0,
        }
    if shape.scaled_embedding or shape.wide_gains:
        return {"saved_bytes": WIDE_BYTES * 2.0 * elements + fixed_bytes, "saved_elements": 0.0}
    return {
        "saved_bytes": WIDE_BYTES * elements + fixed_bytes,
        "stream_elements": float(elements - results),
        "saved_elements": float(results),
    }
