"""Llama, and decoders alike it (Mistral, Qwen, Gemma), with Hugging Face's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from perfmodel.workload.model import Buffers, FusedKept, Workload
from perfmodel.workload.zoo.decoder_sizes import FAMILIES, SHAPES, DecoderShape
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ADD_PASSES,
    FUSED_LOSS_PASSES,
    FUSED_NORM_PASSES,
    INDEX_BYTES,
    JOIN_PASSES,
    LOSS_PASSES,
    NORM_PASSES,
    WIDE_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
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
NORM_KERNELS = {False: (RMS_NORM_PASSES, RMS_NORM_KERNELS), True: (NORM_PASSES, 1)}
"""Passes and kernels of a norm: as single operations, or fused."""
PRODUCT_PASSES = ACTIVATION_PASSES + ADD_PASSES
"""SiLU of the gate, then its product with the other branch."""


CAP_PASSES = 3 * ACTIVATION_PASSES
"""Logits over the cap, tanh, times the cap: three operations."""


def llama(
    name: str, *, dtype: str, sequence_length: int, shape: DecoderShape | None = None
) -> Workload:  # fmt: skip
    """Decoder-only transformer with rotary positions, RMS normalisation and gated feed-forward.

    `shape`: of a model that is not in the zoo.
    """
    shape, s = shape or SHAPES[name], sequence_length
    first, last = _embedding(shape, s), _head(shape, s)
    blocks = [_block(i, s, shape) for i in range(shape.layers)]
    registered = [
        *first.parameters,
        *chain.from_iterable(_registered(block) for block in blocks),
        *last.parameters,
    ]
    return assemble(
        name,
        [first, *chain.from_iterable(blocks), last],
        dtype=dtype,
        sample=f"sequence of {s} tokens",
        source=f"Hugging Face {_hugging_face_class(name)}",
        input_elements=s,
        output_elements=s * shape.vocabulary,
        registered=registered,
        buffers=_buffers(shape),
        notes=(_CAP_NOTE,) * shape.capped,
    )


_CAP_NOTE = "The cap of attention's scores (a tanh) takes no time of its own, fused or not."


def _hugging_face_class(name: str) -> str:
    return next(
        (family for family, models in FAMILIES.items() if name in models), "LlamaForCausalLM"
    )


def _buffers(shape: DecoderShape) -> tuple[Buffers, ...]:
    """Rotary frequencies, twice, for sliding and full attention where these differ; a scale."""
    kinds = 2 if shape.head_norms and shape.window else 1
    rotary = Buffers("fp32", 2 * kinds, 2 * kinds * 4 * (shape.head_size // 2))
    return (rotary, *(Buffers("fp32", 1, 4),) * shape.scaled_embedding)


def _embedding(shape: DecoderShape, s: int) -> Module:
    table = (("model.embed_tokens.weight", (shape.vocabulary, shape.width)),)
    passes = ACTIVATION_PASSES * (1 + shape.scaled_embedding)
    return embedding(
        "model.embed_tokens", table, names(table),
        vector_elements=float(passes * s * shape.width),
        fused_elements=float(ACTIVATION_PASSES * s * shape.width),
        saved_bytes=float(INDEX_BYTES * s),
        kernels=1 + shape.scaled_embedding,
    )  # fmt: skip


def _head(shape: DecoderShape, s: int) -> Module:
    """Last norm, logits and loss; a tied weight gets its gradient in the embedding's backward."""
    h, norm = shape.width, _norm("model.norm", shape.width)
    head = () if shape.tied else weight_and_bias("lm_head", shape.vocabulary, h, bias=False)
    logits = s * shape.vocabulary
    passes, _ = NORM_KERNELS[shape.fused_norms]
    return linear(
        "lm_head", s, h, shape.vocabulary, parameters=norm + head, ready=names(head) + names(norm),
        norm_elements=float(passes * s * h),
        vector_elements=float((LOSS_PASSES + shape.capped * CAP_PASSES) * logits),
        wide_norm=not shape.fused_norms, wide_elements=float(LOSS_PASSES * logits),
        fused_elements=float(FUSED_NORM_PASSES * s * h + FUSED_LOSS_PASSES * logits),
        saved_elements=float(s * h + shape.capped * logits), **_kept_by_norm(s * h, shape, logits),
        fused_kept=FusedKept(float(s * h + logits), float(s * h)),
        kernels=4 + 3 * shape.capped,
    )  # fmt: skip


def _kept_by_norm(elements: float, shape: DecoderShape, logits: float = 0.0) -> dict[str, float]:
    """What a normalisation in single operations keeps beside its result.

    Its input in fp32; before the gain, its result: in fp32 (Gemma) or as narrow as its input was.
    """
    if shape.fused_norms:  # its input alone
        return {"saved_bytes": WIDE_BYTES * logits, "stream_elements": float(elements)}
    if shape.scaled_embedding:
        return {"saved_bytes": WIDE_BYTES * (2.0 * elements + logits)}
    return {"saved_bytes": WIDE_BYTES * (elements + logits), "stream_elements": float(elements)}


def _norm(prefix: str, width: int) -> tuple[Parameter, ...]:
    return weight_and_bias(prefix, width, bias=False)


_REGISTERED = (
    *(f"self_attn.{part}_proj" for part in "qkvo"), "self_attn.q_norm", "self_attn.k_norm",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
    "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
"""Modules of a block in the order in which Hugging Face registers them."""


def _registered(block: Iterable[Module]) -> list[Parameter]:
    parameters = [parameter for part in block for parameter in part.parameters]
    return sorted(parameters, key=lambda parameter: _REGISTERED.index(_module_of(parameter[0])))


def _module_of(parameter: str) -> str:
    """``self_attn.q_proj`` of ``model.layers.0.self_attn.q_proj.weight``."""
    return parameter.split(".", 3)[3].rpartition(".")[0]


def _block(number: int, s: int, shape: DecoderShape) -> list[Module]:
    """Normalise, attend, add; normalise, gate and widen, narrow, add."""
    prefix = f"model.layers.{number}"
    h, wide, head_size = shape.width, shape.mlp_width, shape.head_size
    queries, keys = shape.heads * head_size, shape.kv_heads * head_size
    before_mlp = "pre_feedforward_layernorm" if shape.branch_norms else "post_attention_layernorm"
    head_norms = [_norm(f"{prefix}.self_attn.{part}_norm", head_size) for part in "qk"]
    q_norm, k_norm = head_norms if shape.head_norms else ((), ())
    norm_passes, norm_kernels = NORM_KERNELS[shape.fused_norms]
    # Gemma 3 normalises both after its three maps, Qwen 3 each after its own
    late = k_norm + q_norm if shape.branch_norms else ()

    def mapped(
        name: str, inputs: int, outputs: int, *, norm: str = "", after: str = "",
        head_norm: tuple[Parameter, ...] = (), rotary: bool = False, added: bool = False,
        gated: bool = False, shared: bool = False,
    ) -> Module:  # fmt: skip
        bias = shape.biased_attention and name.endswith(("q_proj", "k_proj", "v_proj"))
        own = weight_and_bias(f"{prefix}.{name}", outputs, inputs, bias=bias)
        normed = _norm(f"{prefix}.{norm}", h) if norm else ()
        ended = _norm(f"{prefix}.{after}", h) if after and shape.branch_norms else ()
        norms = bool(norm) * inputs + (bool(ended) + bool(head_norm)) * outputs
        count = bool(norm) + bool(ended) + bool(head_norm)
        passes = rotary * ROTARY_PASSES + added * ADD_PASSES
        fused = rotary * ACTIVATION_PASSES + added * JOIN_PASSES
        early = () if late and head_norm else head_norm
        first = late if name.endswith("v_proj") else ()
        return linear(
            f"{prefix}.{name}", s, inputs, outputs, parameters=normed + own + ended + head_norm,
            ready=names((*first, *ended, *early)) + names_reversed(own) + names(normed),
            vector_elements=float(passes * s * outputs + gated * PRODUCT_PASSES * s * inputs),
            norm_elements=float(norm_passes * s * norms),
            wide_norm=bool(norms) and not shape.fused_norms,
            fused_elements=float(s * (fused * outputs + gated * JOIN_PASSES * inputs
                                      + FUSED_NORM_PASSES * norms)),
            saved_elements=float(s * inputs * (bool(norm) + 4 * gated)),
            copied_elements=float(shared * s * inputs), **_kept_by_norm(s * norms, shape),
            # a norm's input, what products read, and what they put out where a norm follows
            fused_kept=FusedKept(
                float(s * (inputs * (bool(norm) + 3 * gated)
                           + outputs * (bool(head_norm) + bool(ended)))),
                float(s * inputs * bool(norm)),
            ),
            kernels=1 + 5 * rotary + added + 2 * gated + norm_kernels * count,
        )  # fmt: skip

    return [
        mapped("self_attn.q_proj", h, queries, norm="input_layernorm", head_norm=q_norm,
               rotary=True),
        mapped("self_attn.k_proj", h, keys, head_norm=k_norm, rotary=True, shared=True),
        mapped("self_attn.v_proj", h, keys, shared=True),
        attention(f"{prefix}.self_attn", s, queries, heads=shape.heads, kv_width=keys, causal=True,
                  window=shape.window_of(number), dropout=False, wide_scores=True,
                  capped_scores=shape.capped),
        mapped("self_attn.o_proj", queries, h, after="post_attention_layernorm", added=True),
        mapped("mlp.gate_proj", h, wide, norm=before_mlp),
        mapped("mlp.up_proj", h, wide, shared=True),
        mapped("mlp.down_proj", wide, h, after="post_feedforward_layernorm", added=True,
               gated=True),
    ]  # fmt: skip
