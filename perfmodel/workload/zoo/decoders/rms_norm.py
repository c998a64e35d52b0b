"""RMS normalisation as Hugging Face runs it, in single operations, or as one kernel."""

from __future__ import annotations

from typing import Any

from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.layers import NORM_PASSES, WIDE_BYTES, Parameter, weight_and_bias

RMS_NORM_PASSES = 12
"""RMS normalisation as single operations, cast to fp32 and back, at the rate of normalisations: the
table of ``ROTARY_PASSES`` measures 30 passes of half precision forward and 79 backward, of which
autocast, whose input is fp32 already, spares half; in between."""
RMS_NORM_KERNELS = 6
"""Cast, square, mean, scale, cast, gain."""
NORM_KERNELS = {False: (RMS_NORM_PASSES, RMS_NORM_KERNELS), True: (NORM_PASSES, 1)}
"""Passes and kernels of a norm: as single operations, or fused."""


def norm_weight(prefix: str, width: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """Parameters of a normalisation: its gain, and its bias where it is layer normalisation."""
    return weight_and_bias(prefix, width, bias=bias)


def kept_by_norm(elements: float, shape: DecoderShape, logits: float = 0.0) -> dict[str, Any]:
    """What a normalisation in single operations keeps beside its result.

    Its input in fp32; before the gain, its result: in fp32 (Gemma) or as narrow as its input was.
    """
    if shape.fused_norms:  # its input alone
        return {"saved_bytes": WIDE_BYTES * logits, "stream_elements": float(elements)}
    if shape.scaled_embedding:
        return {"saved_bytes": WIDE_BYTES * (2.0 * elements + logits)}
    return {"saved_bytes": WIDE_BYTES * (elements + logits), "stream_elements": float(elements)}
