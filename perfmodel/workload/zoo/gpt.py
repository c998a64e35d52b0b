"""GPT-2 and GPT-3 with Hugging Face's tensors: the head shares the token embedding."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.workload.model import FusedKept, Workload
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    DROPOUT_PASSES,
    FUSED_LOSS_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    JOIN_PASSES,
    LOSS_PASSES,
    MASK_BYTES,
    NORM_PASSES,
    WIDE_BYTES,
    Parameter,
    assemble,
    linear,
    names,
    norm_parameters,
)
from perfmodel.workload.zoo.transformer import (
    BlockParameters,
    BlockShape,
    embedding,
    pre_norm_block,
)

VOCABULARY = 50257


@dataclass(frozen=True, slots=True)
class GptShape:
    """Layers, width, heads, longest sequence and vocabulary."""

    layers: int
    width: int
    heads: int
    positions: int
    vocabulary: int = VOCABULARY


GPT2 = "Hugging Face GPT2LMHeadModel; Radford et al. 2019, table 2"
GPT3 = "GPT-2's tensors at the sizes of Brown et al. 2020 (arXiv 2005.14165), table 2.1"

SHAPES = {
    "gpt2": GptShape(12, 768, 12, 1024),
    "gpt2-medium": GptShape(24, 1024, 16, 1024),
    "gpt2-large": GptShape(36, 1280, 20, 1024),
    "gpt2-xl": GptShape(48, 1600, 25, 1024),
    "gpt3-125m": GptShape(12, 768, 12, 2048),
    "gpt3-350m": GptShape(24, 1024, 16, 2048),
    "gpt3-760m": GptShape(24, 1536, 16, 2048),
    "gpt3-1.3b": GptShape(24, 2048, 16, 2048),
    "gpt3-2.7b": GptShape(32, 2560, 32, 2048),
    "gpt3-6.7b": GptShape(32, 4096, 32, 2048),
    # the paper prints a width of 5140, which 40 heads of 128 cannot have
    "gpt3-13b": GptShape(40, 5120, 40, 2048),
    "gpt3-175b": GptShape(96, 12288, 96, 2048),
}


def gpt(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: GptShape | None = None,
    dropout: bool = True,
) -> Workload:
    """Decoder-only transformer trained to predict the next token.

    `shape`: of a model that is not in the zoo.
    """
    shape = shape or SHAPES[name]
    s, h, vocabulary = sequence_length, shape.width, shape.vocabulary
    tables: tuple[Parameter, ...] = (
        ("wte.weight", (vocabulary, h)),
        ("wpe.weight", (shape.positions, h)),
    )
    # rows read and written twice, added, dropped out
    gathered = (2 * ACTIVATION_PASSES + ADD_PASSES + dropout * DROPOUT_PASSES) * s * h
    parts = [
        embedding(
            "embeddings", tables, ("wpe.weight", "wte.weight"), vector_elements=gathered,
            fused_elements=float(JOIN_PASSES * s * h),
            saved_bytes=float(2 * INDEX_BYTES * s + dropout * MASK_BYTES * s * h),
            kernels=3 + dropout,
        )
    ]  # fmt: skip
    block = BlockShape(s, h, shape.heads, 4 * h, causal=True, dropout=dropout)
    for number in range(shape.layers):
        parts += pre_norm_block(f"h.{number}", block, _block_parameters(f"h.{number}", h))
    last_norm = norm_parameters("ln_f", h)
    parts.append(
        linear(
            "lm_head", s, h, vocabulary, parameters=last_norm, ready=names(last_norm),
            norm_elements=NORM_PASSES * s * h, vector_elements=LOSS_PASSES * s * vocabulary,
            wide_elements=float(LOSS_PASSES * s * vocabulary),
            fused_elements=FUSED_NORM_PASSES * s * h + FUSED_LOSS_PASSES * s * vocabulary,
            saved_elements=float(s * h), stream_elements=float(s * h),
            saved_bytes=float(WIDE_BYTES * s * vocabulary), kernels=5,
            fused_kept=FusedKept(float(s * h + s * vocabulary), float(s * h)),
        )
    )  # fmt: skip
    return assemble(
        name,
        parts,
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source=GPT3 if name.startswith("gpt3") else GPT2,
        input_elements=s,
        output_elements=s * vocabulary,
    )


def _block_parameters(prefix: str, h: int) -> BlockParameters:
    """Hugging Face's Conv1D keeps its weight as (input, output)."""

    def mapped(name: str, inputs: int, outputs: int) -> tuple[Parameter, ...]:
        return (
            (f"{prefix}.{name}.weight", (inputs, outputs)),
            (f"{prefix}.{name}.bias", (outputs,)),
        )

    return BlockParameters(
        first_norm=norm_parameters(f"{prefix}.ln_1", h),
        qkv=mapped("attn.c_attn", h, 3 * h),
        projection=mapped("attn.c_proj", h, h),
        second_norm=norm_parameters(f"{prefix}.ln_2", h),
        widen=mapped("mlp.c_fc", h, 4 * h),
        narrow=mapped("mlp.c_proj", 4 * h, h),
    )
