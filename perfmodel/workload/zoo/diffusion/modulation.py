"""Parts of transformers whose norms a condition sets (DiT, Flux)."""

from __future__ import annotations

from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    FUSED_NORM_PASSES,
    NORM_BYTES,
    NORM_PASSES,
    Module,
    Parameter,
    linear,
    names_reversed,
    weight_and_bias,
)

TIME_FEATURES = 256
"""Sinusoids of a time."""
MODULATION_PASSES = 4
"""Scale and shift of a normalised token: two kernels that read and write it."""
GATE_PASSES = 2


def condition_map(
    name: str,
    inputs: int,
    outputs: int,
    *,
    own: tuple[Parameter, ...] | None = None,
    kernels: int = 2,
) -> Module:
    """One map of the condition of a sample, with SiLU.

    `own`: its parameters, where these are not its own alone.
    """
    return linear(
        name,
        1,
        inputs,
        outputs,
        kernels=kernels,
        parameters=weight_and_bias(name, outputs, inputs) if own is None else own,
        vector_elements=float(ACTIVATION_PASSES * outputs),
        saved_elements=float(inputs + outputs),
    )


def modulated_map(
    name: str, tokens: int, width: int, outputs: int, parameters: tuple[Parameter, ...]
) -> Module:
    """Normalise without parameters, scale and shift as the condition says, and map."""
    elements = tokens * width
    return linear(
        name,
        tokens,
        width,
        outputs,
        parameters=parameters,
        ready=names_reversed(parameters),
        norm_elements=NORM_PASSES * elements,
        vector_elements=MODULATION_PASSES * elements,
        fused_elements=FUSED_NORM_PASSES * elements,
        saved_elements=float(elements),
        stream_elements=2.0 * elements,
        saved_bytes=float(NORM_BYTES * tokens),
        kernels=5,
    )
