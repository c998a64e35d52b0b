"""Llama 2 and 3 with Hugging Face's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from perfmodel.workload.model import Buffers, Workload
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    FUSED_LOSS_PASSES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    LOSS_PASSES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import attention, embedding

ROTARY_PASSES = 17
"""Rotary embedding of queries and keys as single operations, forward: 20 to 22 passes forward and
24 to 27 backward of half precision measured on an A100 (linkedin/Liger-Kernel, benchmark data,
"huggingface"); backward is taken as 5/3 of forward."""
RMS_NORM_PASSES = 12
"""RMS normalisation as single operations, cast to fp32 and back, at the rate of normalisations: the
same table measures 30 passes of half precision forward and 79 backward, of which autocast, whose
input is fp32 already, spares half; in between."""
RMS_NORM_KERNELS = 6
"""Cast, square, mean, scale, cast, gain."""
PRODUCT_PASSES = ACTIVATION_PASSES + ADD_PASSES
"""SiLU of the gate, then its product with the other branch."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a model; `kv_heads` < `heads` is grouped-query attention."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    positions: int


SHAPES = {
    "llama2-7b": LlamaShape(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama2-13b": LlamaShape(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": LlamaShape(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": LlamaShape(32, 4096, 32, 8, 14336, 128256, 8192),
}
"""The models' published config.json (meta-llama on huggingface.co)."""


def llama(
    name: str, *, dtype: str, sequence_length: int, shape: LlamaShape | None = None
) -> Workload:  # fmt: skip
    """Decoder-only transformer with rotary positions, RMS normalisation and gated feed-forward.

    `shape`: of a model that is not in the zoo.
    """
    shape, s = shape or SHAPES[name], sequence_length
    h = shape.width
    table = (("model.embed_tokens.weight", (shape.vocabulary, h)),)
    first = embedding(
        "model.embed_tokens", table, names(table),
        vector_elements=float(ACTIVATION_PASSES * s * h),
        fused_elements=float(ACTIVATION_PASSES * s * h), saved_elements=0.0, kernels=1,
    )  # fmt: skip
    blocks = [_block(f"model.layers.{i}", s, shape) for i in range(shape.layers)]
    head, norm = weight_and_bias("lm_head", shape.vocabulary, h, bias=False), _norm("model.norm", h)
    logits = s * shape.vocabulary
    last = linear(
        "lm_head", s, h, shape.vocabulary, parameters=norm + head, ready=names(head) + names(norm),
        norm_elements=float(RMS_NORM_PASSES * s * h), vector_elements=float(LOSS_PASSES * logits),
        wide_norm=True, wide_elements=float(LOSS_PASSES * logits),
        fused_elements=float(FUSED_NORM_PASSES * s * h + FUSED_LOSS_PASSES * logits),
        saved_elements=float(2 * s * h + logits), kernels=4,
    )  # fmt: skip
    registered = [
        *table,
        *chain.from_iterable(_registered(block) for block in blocks),
        *norm,
        *head,
    ]
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), last],
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source="Hugging Face LlamaForCausalLM; Touvron et al. 2023, Grattafiori et al. 2024",
        input_elements=s,
        output_elements=logits,
        registered=registered,
        buffers=(Buffers("fp32", 2, 2 * 4 * (h // shape.heads // 2)),),  # rotary frequencies, twice
    )


def _norm(prefix: str, width: int) -> tuple[Parameter, ...]:
    return weight_and_bias(prefix, width, bias=False)


def _registered(block: list[Module]) -> list[Parameter]:
    """Hugging Face registers both norms of a block after its linear maps."""
    parameters = [parameter for part in block for parameter in part.parameters]
    return sorted(parameters, key=lambda parameter: len(parameter[1]) == 1)


def _block(prefix: str, s: int, shape: LlamaShape) -> list[Module]:
    h, wide = shape.width, shape.mlp_width
    kv = h // shape.heads * shape.kv_heads

    def mapped(name: str, inputs: int, outputs: int, *, norm: str = "", vector: float = 0.0,
               fused: float = 0.0, saved: float = 0.0, kernels: int = 1) -> Module:  # fmt: skip
        own = weight_and_bias(f"{prefix}.{name}", outputs, inputs, bias=False)
        before = _norm(f"{prefix}.{norm}", h) if norm else ()
        return linear(
            f"{prefix}.{name}", s, inputs, outputs, parameters=before + own,
            ready=names(own) + names(before),
            vector_elements=vector, norm_elements=bool(norm) * float(RMS_NORM_PASSES * s * h),
            wide_norm=bool(norm),
            fused_elements=fused + bool(norm) * float(FUSED_NORM_PASSES * s * h),
            saved_elements=saved + bool(norm) * 2.0 * s * h,
            kernels=kernels + RMS_NORM_KERNELS * bool(norm),
        )  # fmt: skip

    return [
        mapped(
            "self_attn.q_proj", h, h, norm="input_layernorm",
            vector=float(ROTARY_PASSES * s * h), fused=float(ACTIVATION_PASSES * s * h), kernels=6,
        ),
        mapped(
            "self_attn.k_proj", h, kv, vector=float(ROTARY_PASSES * s * kv),
            fused=float(ACTIVATION_PASSES * s * kv), kernels=6,
        ),
        mapped("self_attn.v_proj", h, kv),
        attention(f"{prefix}.self_attn", s, h, heads=shape.heads, kv_width=kv, causal=True),
        mapped("self_attn.o_proj", h, h, vector=float(ADD_PASSES * s * h),
               fused=float(JOIN_PASSES * s * h), kernels=2),
        mapped("mlp.gate_proj", h, wide, norm="post_attention_layernorm"),
        mapped("mlp.up_proj", h, wide),
        mapped(
            "mlp.down_proj", wide, h, vector=float(PRODUCT_PASSES * s * wide + ADD_PASSES * s * h),
            fused=float(JOIN_PASSES * s * (wide + h)),
            saved=4.0 * s * wide, kernels=4,
        ),
    ]  # fmt: skip
