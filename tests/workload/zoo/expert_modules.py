"""Hugging Face's modules of experts with the zoo's sizes, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.workload.zoo.decoder_sizes import ExpertShape


def expert_config(hf: Any, family: str, shape: ExpertShape, **settings: Any) -> Any:
    """Only what `expert_sizes` states; what else an architecture has is its class's."""
    d, r = shape.decoder, shape.routed
    sizes = {
        "hidden_size": d.width,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "vocab_size": d.vocabulary,
        "head_dim": d.head_size,
        "max_position_embeddings": d.positions,
        "tie_word_embeddings": d.tied,
        "intermediate_size": d.mlp_width,
        "num_experts_per_tok": r.top_k,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **settings,
    }
    name = family.replace("ForCausalLM", "TextConfig" if "Llama4" in family else "Config")
    make = getattr(hf, name)
    if family == "MixtralForCausalLM":
        return make(**sizes, num_local_experts=r.experts)
    if "Qwen" in family:
        return make(
            **sizes,
            num_experts=r.experts,
            moe_intermediate_size=r.width,
            **({"shared_expert_intermediate_size": r.shared_width} if r.shared_width else {}),
        )
    if family == "Llama4ForCausalLM":
        sizes |= {"intermediate_size": r.width, "intermediate_size_mlp": d.mlp_width}
        return make(**sizes, num_local_experts=r.experts, interleave_moe_layer_step=r.every)
    latent = shape.latent
    assert latent is not None
    method = "group_limited_greedy" if r.groups > 1 else "greedy"
    return make(
        **sizes,
        n_routed_experts=r.experts,
        moe_intermediate_size=r.width,
        n_shared_experts=r.shared_width // r.width,
        first_k_dense_replace=r.dense_first,
        n_group=r.groups,
        topk_group=r.top_groups,
        q_lora_rank=latent.query_rank,
        kv_lora_rank=latent.key_value_rank,
        qk_nope_head_dim=latent.plain,
        qk_rope_head_dim=latent.rotary,
        v_head_dim=latent.value,
        **({"topk_method": method} if "V2" in family else {}),
    )


def few_layers(shape: ExpertShape, layers: int, dense_first: int | None = None) -> ExpertShape:
    """The model with fewer layers, of which so many are dense where they are not its own."""
    first = shape.routed.dense_first if dense_first is None else dense_first
    return replace(
        shape,
        decoder=replace(shape.decoder, layers=layers),
        routed=replace(shape.routed, dense_first=first),
    )


def tiny(shape: ExpertShape) -> ExpertShape:
    """Two layers with all that its family has."""
    d, r = shape.decoder, shape.routed
    latent = shape.latent and replace(
        shape.latent,
        query_rank=shape.latent.query_rank and 8,
        key_value_rank=8,
        plain=4,
        rotary=4,
        value=4,
    )
    decoder = replace(
        d,
        layers=2,
        width=16,
        heads=4,
        kv_heads=4 if latent else 2,
        mlp_width=24,
        vocabulary=40,
        positions=16,
        head_width=4,
    )
    routed = replace(
        r,
        experts=8,
        top_k=min(2, r.top_k),
        width=8,
        shared_width=r.shared_width and 8,
        dense_first=min(1, r.dense_first),
        groups=min(2, r.groups),
        top_groups=1,
    )
    return ExpertShape(decoder, routed, latent)
