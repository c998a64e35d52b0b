"""A family of Hugging Face's configurations: the fields it may state, their types and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from perfmodel.errors import Fault, failed, refuse_if
from perfmodel.files import FileModel, validate_document
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.model import (
    MOST_WIDTH,
    MOST_WORDS,
    ExpertCount,
    Layers,
)
from perfmodel.workload.zoo.buildable import Buildable

MOST_TOKENS = 2**31 - 1

Width = Annotated[int, Field(strict=True, gt=0, le=MOST_WIDTH)]
Words = Annotated[int, Field(strict=True, gt=0, le=MOST_WORDS)]
Tokens = Annotated[int, Field(strict=True, gt=0, le=MOST_TOKENS)]
Window = Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)]
"""Tokens that a query sees at most; zero, as transformers writes it, is as none."""
Pixels = Annotated[int, Field(strict=True, gt=0, le=100_000)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Ratio = Annotated[float, Field(gt=0, le=64)]
Share = Annotated[float, Field(gt=0, le=1)]
Nothing = Annotated[float, Field(ge=0, le=0)]
"""Rates of what the zoo's models do not leave out."""
Gate = Literal["silu", "swish", "gelu", "gelu_pytorch_tanh"]
Function = Literal[
    "gelu", "gelu_pytorch_tanh", "silu", "swish", "relu", "relu2", "quick_gelu", "gelu_new"
]
"""Activation functions whose work is known."""

CompressedKind = Literal[
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
]

LONGEST_DEFAULT = 4096
"""Tokens of a sample, where nobody says how many and positions are rotary: most are pre-trained
with as many or twice, whatever the most that their positions allow."""


class HubConfig(FileModel):
    """What a ``config.json`` may state; other fields do not change a training step."""

    model_config = ConfigDict(extra="ignore")

    model_type: str = ""
    architectures: tuple[str, ...] | None = None


class RopeParameters(HubConfig):
    """What newer files state of rotary positions."""

    partial_rotary_factor: Share | None = None


_FIELDS_OF_TYPE: tuple[tuple[Any, str], ...] = (
    (
        Words,
        (
            "vocab_size num_embeds_ada_norm relative_attention_num_buckets type_vocab_size "
            "vocab_size_per_layer_input"
        ),
    ),
    (Words | None, "num_labels"),
    (
        Layers,
        (
            "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
            "sliding_window_pattern no_rope_layer_interval decoder_sparse_step "
            "interleave_moe_layer_step global_attn_every_n_layers layers_per_block "
            "full_attention_interval attn_layer_period expert_layer_period"
        ),
    ),
    (Layers | None, "num_decoder_layers"),
    (Layers | tuple[Layers, ...], "transformer_layers_per_block"),
    (
        Width,
        (
            "hidden_size intermediate_size num_attention_heads moe_intermediate_size "
            "shared_expert_intermediate_size intermediate_size_mlp kv_lora_rank qk_rope_head_dim "
            "qk_nope_head_dim v_head_dim n_embd n_head ffn_dim n_heads dim hidden_dim d_model d_kv "
            "d_ff num_heads patch_size num_channels projection_dim num_mel_bins mlp_ratio "
            "embedding_size index_head_dim index_n_heads attention_head_dim in_channels "
            "sample_size encoder_attention_heads decoder_attention_heads encoder_ffn_dim "
            "decoder_ffn_dim embed_dim window_size "
            "num_conv_pos_embeddings num_conv_pos_embedding_groups global_head_dim hc_mult "
            "o_groups o_lora_rank hc_sinkhorn_iters num_codevectors_per_group "
            "num_codevector_groups codevector_dim proj_codevector_dim num_negatives "
            "linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim "
            "linear_conv_kernel_dim n_groups state_size ssm_state_size chunk_size expand "
            "mamba_num_heads mamba_head_dim mamba_n_heads mamba_n_groups mamba_d_state "
            "mamba_d_conv mamba_expand mamba_chunk_size"
        ),
    ),
    (
        Width | None,
        (
            "num_key_value_heads head_dim q_lora_rank n_inner word_embed_proj_dim "
            "pooler_output_size rotary_dim out_channels projection_size "
            "projection_class_embeddings_input_dim num_global_key_value_heads"
        ),
    ),
    (
        Tokens,
        (
            "max_position_embeddings n_positions max_source_positions max_target_positions "
            "local_attention index_topk"
        ),
    ),
    (Window | None, "sliding_window pad_token_id"),
    (
        Window,
        (
            "num_kv_shared_layers hidden_size_per_layer_input num_hash_layers attn_layer_offset "
            "expert_layer_offset"
        ),
    ),
    (tuple[CompressedKind, ...] | None, "kinds"),
    (dict[CompressedKind, Width] | None, "compress_rates"),
    (tuple[Literal[0, 4, 128], ...] | None, "compress_ratios"),
    (tuple[Literal["hash_moe", "moe"], ...] | None, "hash_types"),
    (ExpertCount, "num_experts_per_tok num_local_experts num_experts n_routed_experts"),
    (ExpertCount | None, "n_shared_experts n_group topk_group"),
    (dict[int, dict[str, Width]] | None, "per_layer_config"),
    (Literal["vision"] | None, "use_bidirectional_attention"),
    (
        int,
        "max_window_layers first_k_dense_replace max_relative_positions position_buckets",
    ),
    (tuple[int, ...] | None, "no_rope_layers mlp_only_layers moe_layers attn_layer_indices"),
    (tuple[Literal["full_attention", "sliding_attention"], ...] | None, "layer_types"),
    (
        tuple[
            Literal["full_attention", "linear_attention", "attention", "mamba", "mlp", "moe"], ...
        ]
        | None,
        "mixed_types",
    ),
    (Annotated[str, Field(pattern="^[-ME*]+$")] | None, "hybrid_override_pattern"),
    (Literal["auto"] | Width, "mamba_d_head mamba_dt_rank"),
    (Pixels, "image_size"),
    (
        Rate,
        (
            "resid_pdrop residual_dropout embedding_dropout embd_pdrop attn_pdrop hidden_dropout "
            "dropout dropout_rate hidden_dropout_prob attention_probs_dropout_prob "
            "activation_dropout mask_time_prob mask_feature_prob feat_quantizer_dropout"
        ),
    ),
    (Rate | None, "attention_dropout"),
    (Nothing, "mlp_dropout drop_path_rate layerdrop encoder_layerdrop decoder_layerdrop"),
    (Share, "layer_scale_init_value"),
    (Share | None, "partial_rotary_factor rotary_pct"),
    (float | None, "final_logit_softcapping attn_logit_softcapping"),
    (RopeParameters | None, "rope_parameters"),
    (
        Switch,
        (
            "tie_word_embeddings attention_bias mlp_bias attention_out_bias use_bias qkv_bias "
            "new_decoder_architecture multi_query use_mask_token norm_bias decoder_bias "
            "use_qkv_bias use_qk_norm use_sliding_window use_parallel_residual "
            "use_linear_projection do_stable_layer_norm conv_bias position_biased_input "
            "attention_k_eq_v use_double_wide_mlp enable_moe_block use_conv_bias residual_in_fp32 "
            "mamba_conv_bias"
        ),
    ),
    (
        Literal[False],
        (
            "add_cross_attention is_decoder qk_layernorm sinusoidal_pos_embds slow_but_exact "
            "apply_residual_connection_post_layernorm prefix_lm qk_ln attn_uses_sequence_id bias "
            "use_swiglu_ffn classifier_bias sparse_prediction downsample_in_first_stage "
            "downsample_in_bottleneck upcast_attention norm_elementwise_affine "
            "use_absolute_embeddings add_adapter talking_head mamba_proj_bias"
        ),
    ),
    (
        Literal[True],
        (
            "relative_attention share_att_key legacy do_layer_norm_before enable_bias "
            "layer_norm_elementwise_affine no_bias alibi parallel_attn vision_use_head"
        ),
    ),
    (Literal[1, 2] | None, "num_ln_in_parallel_attn"),
    (tuple[Width, ...], "hidden_sizes block_out_channels conv_dim conv_kernel conv_stride"),
    (tuple[Literal["CrossAttnDownBlock2D", "DownBlock2D"], ...], "down_block_types"),
    (tuple[Literal["CrossAttnUpBlock2D", "UpBlock2D"], ...], "up_block_types"),
    (Literal["UNetMidBlock2DCrossAttn"], "mid_block_type"),
    (Literal["group", "layer"], "feat_extract_norm"),
    (Literal["gelu"], "feat_extract_activation"),
    (Literal["text_time"] | None, "addition_embed_type"),
    (Literal[32], "norm_num_groups"),
    (Literal["silu"], "act_fn"),
    (tuple[Layers, ...], "depths"),
    (Literal["basic", "bottleneck"], "layer_type"),
    (Literal[4], "expansion_ratio"),
    (Literal["multihead_attention"], "attn_type"),
    (
        None,
        (
            "clip_qkv index_topk_pattern cross_attention_dim class_embed_type time_embedding_dim "
            "encoder_hid_dim adapter_attn_dim moe_latent_size"
        ),
    ),
    (Literal["ada_norm_zero"], "norm_type"),
    (Literal["gelu-approximate"], "activation_fn"),
    (Literal[1], "index_topk_freq"),
    (tuple[Literal["full"], ...] | None, "indexer_types"),
    (tuple[Literal["dense", "sparse"], ...] | None, "mlp_layer_types"),
    (Gate, "hidden_act classifier_activation"),
    (Gate | None, "hidden_activation"),
    (Function, "activation_function activation"),
    (
        Literal["c2p|p2c", "p2c|c2p"] | tuple[Literal["c2p", "p2c"], Literal["c2p", "p2c"]],
        "pos_att_type",
    ),
    (Literal["layer_norm"], "norm_rel_ebd"),
    (Literal[0, 3, 5, 7], "conv_kernel_size"),
    (Literal["gelu", "tanh"], "conv_act"),
    (Literal[1], "conv_groups"),
    (Literal["greedy", "group_limited_greedy"], "topk_method"),
    (Literal["relu", "gated-gelu"], "feed_forward_proj"),
    (dict[str, Any] | None, "id2label"),
)
FIELD_TYPES: Mapping[str, Any] = {
    name: kind for kind, names in _FIELDS_OF_TYPE for name in names.split()
}
"""Type of each field that configurations state, where its family has no other."""


def contract(
    title: str, defaults: Mapping[str, Any], types: Mapping[str, Any] | None = None
) -> type[HubConfig]:
    """Return the contract of fields with these defaults (`...`: the file must state it).

    `types`: of fields that have another than in `FIELD_TYPES`.
    """
    known = {**FIELD_TYPES, **(types or {})}
    fields: dict[str, Any] = {name: (known[name], value) for name, value in defaults.items()}
    return create_model(title, __base__=HubConfig, __module__=__name__, **fields)


@dataclass(frozen=True)
class Family:
    """What files of one `model_type` state, and how the zoo's model follows from it.

    `name`: Hugging Face's class; `other_heads`: classes that differ from it in their head.
    `make`: builder of the model from its name, what a file states, and this row.
    `defaults`: of the fields that a file may state: those of the configuration classes of
        transformers 5.23 (``models/FAMILY/configuration_FAMILY.py``).
    `types`: of those fields that have another than in `FIELD_TYPES`.
    `fixed`: values that the family has without a field for them.
    `shape`, `block`: where the zoo's shape differs from the usual, and its block or its experts.
    `also`: other names of fields, as older files or newer classes have them.
    `stated`: fields of the zoo's shape that follow from a field of the file alone.
    `mixer`: of hybrid models, `names` of their mixer, and by `sizes` the fields that state its own;
        `alone`: whether each layer has one part.
    """

    name: str
    make: Callable[[str, Any, Family], Buildable]
    defaults: Mapping[str, Any]
    types: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    block: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    other_heads: Sequence[str] = ()
    mixer: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def config(self) -> type[HubConfig]:
        """Contract of the files."""
        return contract(self.name, self.defaults, self.types)

    def read(self, content: Mapping[str, Any]) -> SimpleNamespace:
        """Return what a file states, its head, and the values that the family has fixed.

        Raises `InputError`: values that the contract does not allow, a head that is not known.
        """
        stated = dict(validate_document(self.config, content))
        heads = (self.name, *self.other_heads)
        head = (stated["architectures"] or heads)[0]
        refuse_if(
            head not in heads,
            "architectures",
            repr(head),
            f"{' or '.join(map(repr, heads))}; `perfmodel capture` takes others",
        )
        return SimpleNamespace(**{**self.fixed, **stated, "head": head})


def divides(number: int, by: int, field: str, meaning: str) -> list[Fault]:
    """Return a fault where a number is not divided by another."""
    return failed((number % by, field, str(by), f"a divisor of {number}, {meaning}"))


def heads_divide(width: int, heads: int, section: str = "") -> list[Fault]:
    """Return a fault where heads do not divide the width.

    `section`: of the file, with a point after it.
    """
    return divides(width, heads, f"{section}num_attention_heads", "the hidden size")


def rotary_share(config: Any, *, usual: float) -> float:
    """Share of a head that positions turn: newer files state it in a section, older ones beside."""
    turned = getattr(config, "rotary_dim", None)  # of a head's elements, in older files
    shares = (
        config.rope_parameters.partial_rotary_factor if config.rope_parameters else None,
        config.partial_rotary_factor,
        getattr(config, "rotary_pct", None),
        turned and turned / config.head_dim,
    )
    return next((share for share in shares if share is not None), usual)


def is_on(rate: float | None) -> bool:
    """Return whether a dropout rate, which may be absent, drops anything."""
    return (rate or 0.0) > 0
