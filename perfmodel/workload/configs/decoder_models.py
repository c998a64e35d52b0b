"""The decoder, dense or of experts, that a configuration of any family as Llama's describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.scenario.sections.model import TransformerSection, transformer_findings
from perfmodel.workload.configs.family import (
    LONGEST_DEFAULT,
    Family,
    divides,
    heads_divide,
    is_on,
    rotary_share,
)
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.decoder_sizes import (
    CompressedShape,
    DecoderShape,
    ExpertShape,
    LatentShape,
    MixerShape,
    RoutedShape,
)
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from perfmodel.workload.zoo.llama import llama

UNSTATED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "gated": True,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": True,
    "layer_types": None,
    "sliding_window_pattern": None,
    "max_window_layers": None,
    "turns_where_it_slides": False,
    "slides_where_unturned": False,
    "no_rope_layers": None,
    "no_rope_layer_interval": None,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "rope_parameters": None,
    "partial_rotary_factor": None,
    "rotary_dim": None,
    "usual_rotary_share": 1.0,
    "resid_pdrop": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "intermediate_size_mlp": None,
    "moe_intermediate_size": None,
    "shared_expert_intermediate_size": 0,
    "num_experts": None,
    "num_local_experts": None,
    "n_routed_experts": None,
    "num_experts_per_tok": None,
    "top_k_experts": None,
    "n_shared_experts": None,
    "n_group": None,
    "topk_group": None,
    "topk_method": None,
    "first_k_dense_replace": 0,
    "mlp_only_layers": None,
    "moe_layers": None,
    "mlp_layer_types": None,
    "decoder_sparse_step": 1,
    "interleave_moe_layer_step": None,
    "kv_lora_rank": None,
    "index_n_heads": 0,
    "index_head_dim": 0,
}
"""Values of fields that a family does not have: those with which the decoder is Llama's.

Without fields of their own: whether the feed-forward part is `gated`; whether positions turn only
where attention slides, or attention slides where they do not; the `usual_rotary_share` of a head.
"""


Experts = tuple[RoutedShape, LatentShape | CompressedShape | None]
"""Experts of a decoder, and its attention where that is latent."""


def decoder_workload(
    name: str,
    shape: DecoderShape,
    experts: Experts | None,
    *,
    family: str | None = None,
    sequence_length: int,
    settings: ExpertSettings | None = None,
    **sizes: Any,
) -> Workload:
    """Build a decoder, dense or of experts."""
    sizes |= {"sequence_length": sequence_length, "family": family}
    if experts is None:
        return llama(name, shape=shape, **sizes)
    return expert_decoder(name, shape=ExpertShape(shape, *experts), settings=settings, **sizes)


def decoder_model(name: str, stated: SimpleNamespace, family: Family) -> Buildable:
    """Return the dense decoder of a configuration."""
    shape = decoder_shape(_with_unstated(stated), family)
    return Buildable(
        name,
        partial(decoder_workload, name, shape, None, family=family.name),
        min(shape.positions, LONGEST_DEFAULT),
    )


FULL, SLIDES = "full_attention", "sliding_attention"


def gemma4_model(name: str, stated: SimpleNamespace, family: Family) -> Buildable:
    """Return the decoder of a configuration of Gemma 4, whose layers are of several kinds."""
    layers, shared, kinds = (
        stated.num_hidden_layers,
        stated.num_kv_shared_layers,
        stated.layer_types,
    )
    kinds = [*(kinds or (SLIDES if (layer + 1) % 6 else FULL for layer in range(layers)))]
    kinds[-1:], found = [FULL], f"{len(kinds)} values"
    alone = shared and (shared >= layers or {*kinds} - {*kinds[: layers - shared]})
    raise_faults(
        failed(
            (len(kinds) != layers, "layer_types", found, f"one for each of the {layers} layers"),
            (
                alone,
                "num_kv_shared_layers",
                str(shared),
                "fewer: some layer of each kind has keys",
            ),
        )
    )
    experts = _gemma4_experts(stated, family) if stated.enable_moe_block else None
    stated.layer_types, by_layer = tuple(kinds), _gemma4_layers(stated, kinds)
    heads, counts = stated.num_attention_heads, {each["kv_heads"] for each in by_layer.values()}
    raise_faults(
        fault
        for count in counts
        for fault in divides(heads, count, "num_key_value_heads", "the heads of queries")
    )
    shape = replace(
        decoder_shape(_with_unstated(stated), family),
        by_layer=by_layer,
        side_width=stated.hidden_size_per_layer_input,
        side_words=stated.vocab_size_per_layer_input,
        names="gemma4-experts" if experts else "gemma4",
    )
    make = partial(decoder_workload, name, shape, experts, family=family.name)
    return Buildable(name, make, min(shape.positions, LONGEST_DEFAULT), has_experts=bool(experts))


def _gemma4_experts(stated: SimpleNamespace, family: Family) -> Experts:
    """Experts beside the dense part of each layer.

    Raises `InputError`: sizes that are not stated, or that no published model has with experts.
    """
    side = stated.hidden_size_per_layer_input
    raise_faults(
        failed(
            *(
                (getattr(stated, size) is None, size, "nothing", "its value")
                for size in ("num_experts", "top_k_experts", "moe_intermediate_size")
            ),
            (
                side,
                "hidden_size_per_layer_input",
                str(side),
                "0 with experts; `perfmodel capture` takes others",
            ),
        )
    )
    routed = _routed_shape(_with_unstated(stated), family)
    raise_faults(choice_faults(routed, "top_k_experts", "n_group", "topk_group"))
    return routed, None


def _gemma4_layers(stated: SimpleNamespace, kinds: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Sizes of each layer.

    Those that see all have heads of their own; the last ones read keys and values of others, and
    may be twice as wide. What newer files state of single layers goes before.
    """
    first, grouped = len(kinds) - stated.num_kv_shared_layers, stated.num_global_key_value_heads
    usual = {"head_dim": stated.head_dim, "num_key_value_heads": stated.num_key_value_heads}
    full = usual | {"head_dim": stated.global_head_dim}
    full |= {"num_key_value_heads": grouped} if grouped and stated.attention_k_eq_v else {}
    listed = stated.per_layer_config
    sizes = [
        (full if kind == FULL else usual) if listed is None else usual | listed.get(layer, {})
        for layer, kind in enumerate(kinds)
    ]
    return {
        layer: {
            "head_width": sizes[layer]["head_dim"],
            "kv_heads": sizes[layer]["num_key_value_heads"],
            "one_map": stated.attention_k_eq_v and kind == FULL,
            "reads_pairs": layer >= first,
            "mlp_width": stated.intermediate_size
            << (stated.use_double_wide_mlp and layer >= first),
        }
        for layer, kind in enumerate(kinds)
    }


def expert_model(name: str, stated: SimpleNamespace, family: Family) -> Buildable:
    """Return the decoder of experts of a configuration."""
    config = _with_unstated(stated)
    routed = _routed_shape(config, family)
    dense, layers = routed.dense_first, config.num_hidden_layers
    raise_faults(
        [
            *failed(
                (
                    not 0 <= dense < layers,
                    "first_k_dense_replace",
                    str(dense),
                    f"0 to {layers - 1}: the last layer has experts",
                )
            ),
            *choice_faults(routed, "num_experts_per_tok", "n_group", "topk_group"),
        ]
    )
    latent = _compressed_shape(config) if hasattr(config, "hc_mult") else _latent_shape(config)
    shape, experts = decoder_shape(config, family), (routed, latent)
    make = partial(decoder_workload, name, shape, experts, family=family.name)
    return Buildable(name, make, min(shape.positions, LONGEST_DEFAULT), has_experts=True)


EXPERT_FAMILY = "MixtralForCausalLM"
"""Whose names tensors of experts have; others have Llama's."""
SOURCE = "sizes that the scenario states; tensors are named as in Hugging Face's Llama"


def transformer_model(section: TransformerSection, name: str | None = None) -> Buildable:
    """Return the decoder whose sizes section ``model.transformer`` of a scenario states.

    Raises `InputError`: sizes that do not fit each other; fields as in the section.
    """
    raise_faults(Fault(*finding) for finding in transformer_findings(section))
    title, heads, experts = name or "transformer", section.head_count, section.experts
    shape = DecoderShape(
        section.layers,
        section.hidden,
        heads,
        section.kv_heads or heads,
        section.wide,
        section.vocab,
        LONGEST_DEFAULT,
        head_width=section.head_dim,
        tied=section.tied,
        biased_attention=section.bias,
        biased_output=section.bias,
        biased_mlp=section.bias,
        head_norms=section.qk_norm,
        window=section.window,
        full_every=section.full_every or 0,
        dropout=section.dropout > 0,
        score_dropout=section.dropout > 0,
        fused_norms=True,
        layer_norms=section.norm == "layer",
        ungated=None if section.gated else section.mlp,
        rotary_share=float(section.positions == "rotary"),
        learned_positions=section.positions == "learned",
    )
    width = (experts and experts.hidden) or section.wide
    routed = experts and RoutedShape(
        experts.count,
        experts.top_k,
        width,
        experts.shared * width,
        dense_first=experts.dense_first,
        every=experts.every,
    )
    make = partial(_section_workload, title, shape, (routed, None) if routed else None)
    return Buildable(title, make, LONGEST_DEFAULT, has_experts=experts is not None)


def with_table(shape: DecoderShape, tokens: int) -> DecoderShape:
    """Return the shape with a table of positions as long as a sample."""
    return replace(shape, positions=tokens) if shape.learned_positions else shape


def _section_workload(
    name: str, shape: DecoderShape, experts: Experts | None, **sizes: Any
) -> Workload:
    shape = with_table(shape, sizes["sequence_length"])
    return replace(
        decoder_workload(name, shape, experts, family=EXPERT_FAMILY, **sizes), source=SOURCE
    )


def _with_unstated(stated: SimpleNamespace) -> SimpleNamespace:
    """Return what a file states, with the values of fields that its family does not have."""
    config = SimpleNamespace(**{**UNSTATED, **vars(stated)})
    if config.kv_lora_rank:  # latent heads have sizes of their own, whatever plain ones have
        config.head_dim, config.num_key_value_heads = config.qk_rope_head_dim, None
    return config


def decoder_shape(config: SimpleNamespace, family: Family) -> DecoderShape:
    """Sizes of the decoder that a configuration describes.

    Raises `InputError`: heads that do not divide.
    """
    raise_faults(_head_faults(config))
    follows = {
        "biased_attention": config.attention_bias,
        "biased_output": config.attention_bias,
        "biased_mlp": config.mlp_bias,
        "windows": _windows(config),
        "by_layer": {layer: {"rotary_share": 0.0} for layer in _unturned(config)}
        | _mixed_layers(config, family),
        "capped": config.attn_logit_softcapping is not None,
        "capped_logits": config.final_logit_softcapping is not None,
        "dropout": is_on(config.resid_pdrop) or is_on(config.residual_dropout),
        "embedding_dropout": is_on(config.embedding_dropout),
        "score_dropout": is_on(config.attention_dropout),
        "ungated": None if config.gated else config.hidden_act,
        "rotary_share": rotary_share(config, usual=config.usual_rotary_share),
    }
    stated = {place: bool(getattr(config, source)) for place, source in family.stated.items()}
    return DecoderShape(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads or config.num_attention_heads,
        config.intermediate_size_mlp or config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
        head_width=config.head_dim,
        tied=config.tie_word_embeddings,
        **{**follows, **stated, **family.shape},
    )


LINEAR = "linear_attention"
PARTS = {LINEAR: "tokens", FULL: "tokens", "mlp": "features", "moe": "features"}
SIGNS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
OLDER = {"mamba": LINEAR, "attention": FULL}
"""What stands in a layer: the one part of it, its sign in a pattern, and names of older files."""


def hybrid_model(name: str, stated: SimpleNamespace, family: Family) -> Buildable:
    """Return the decoder of a configuration, of whose layers some scan the sequence.

    Raises `InputError`: heads of the scan that its groups do not divide, or that are not as wide
    as the file says.
    """
    config, sizes = vars(stated), family.mixer["sizes"]
    every, attending = config.get("full_attention_interval"), config.get("attn_layer_indices") or ()
    pattern = config.get("hybrid_override_pattern")
    kinds = config.get("mixed_types") or (pattern and [SIGNS[sign] for sign in pattern])
    kinds = kinds or [
        FULL if (every and (at + 1) % every == 0) or at in attending else LINEAR
        for at in range(config.get("num_hidden_layers", 0))
    ]
    stated.layer_types = [OLDER.get(kind, kind) for kind in kinds]
    heads, size = config[sizes["heads"]], config[sizes["value_size"]]
    expand = config.get("expand", config.get("mamba_expand"))
    wide = heads * size if expand is None else expand * stated.hidden_size
    if size == "auto":
        size = wide // heads
        setattr(stated, sizes["value_size"], size)
    raise_faults(
        divides(heads, config[sizes["groups"]], sizes["groups"], "the heads of the scan")
        + failed(
            (
                size * heads != wide,
                sizes["value_size"],
                str(size),
                f"{wide / heads:g}, of {heads} heads of {wide} values",
            )
        )
    )
    if family.mixer.get("alone"):
        stated.num_hidden_layers = len(kinds)
        stated.mlp_layer_types = ["sparse" if kind == "moe" else "dense" for kind in kinds]
    sparse = "sparse" in getattr(stated, "mlp_layer_types", ["sparse"])
    routed = sparse and "num_experts_per_tok" in config
    return (expert_model if routed else decoder_model)(name, stated, family)


def jamba_model(name: str, stated: SimpleNamespace, family: Family) -> Buildable:
    """Return the decoder of a configuration of Jamba, whose scans are those of Mamba 1."""
    periods = [
        (getattr(stated, f"{kind}_layer_period"), getattr(stated, f"{kind}_layer_offset"))
        for kind in ("attn", "expert")
    ]
    attends, routes = (
        [at % every == first for at in range(stated.num_hidden_layers)] for every, first in periods
    )
    stated.mixed_types = [FULL if each else LINEAR for each in attends]
    several = stated.num_experts > 1
    stated.mlp_layer_types = ["sparse" if each and several else "dense" for each in routes]
    stated.inner = stated.mamba_expand * stated.hidden_size
    if stated.mamba_dt_rank == "auto":
        stated.mamba_dt_rank = -(-stated.hidden_size // 16)
    return hybrid_model(name, stated, family)


def _mixed_layers(config: SimpleNamespace, family: Family) -> dict[int, dict[str, Any]]:
    """What layers have that scan the sequence, or have one part alone."""
    if not family.mixer:
        return {}
    sizes = {place: getattr(config, source) for place, source in family.mixer["sizes"].items()}
    mixer = MixerShape(family.mixer["names"], **sizes)
    alone = bool(family.mixer.get("alone"))
    return {
        layer: {"mixer": mixer if kind == LINEAR else None}
        | ({"part": PARTS[kind]} if alone else {})
        for layer, kind in enumerate(config.layer_types)
    }


def _windows(config: SimpleNamespace) -> tuple[int | None, ...] | None:
    """Tokens that a query of each layer sees at most; None: all before it, in all layers."""
    if not config.sliding_window or not config.use_sliding_window:
        return None
    slide = [_slides(config, layer) for layer in range(config.num_hidden_layers)]
    return tuple(config.sliding_window if each else None for each in slide) if any(slide) else None


def _slides(config: SimpleNamespace, layer: int) -> bool:
    """Whether attention of a layer, counted from 0, slides: by the file, or as its family does.

    Qwen's slides from a layer on, or, with a pattern, up to it.
    """
    if config.layer_types is not None:
        return bool(config.layer_types[layer] == "sliding_attention")
    if config.slides_where_unturned:
        return layer in _unturned(config)
    pattern, border = config.sliding_window_pattern, config.max_window_layers
    if pattern is None:
        return border is None or layer >= border
    return (layer + 1) % pattern > 0 and (border is None or layer < border)


def _unturned(config: SimpleNamespace) -> frozenset[int]:
    """Layers without positions."""
    layers, every = range(config.num_hidden_layers), config.no_rope_layer_interval
    if config.turns_where_it_slides:
        slides = config.sliding_window is not None
        return frozenset(layer for layer in layers if not (slides and _slides(config, layer)))
    if config.no_rope_layers:
        return frozenset(layer for layer in layers if not config.no_rope_layers[layer])
    return frozenset(layers[every - 1 :: every]) if every else frozenset()


def _routed_shape(config: SimpleNamespace, family: Family) -> RoutedShape:
    """Experts of a layer, and the layers that have some."""
    width = config.moe_intermediate_size or config.intermediate_size
    every = config.interleave_moe_layer_step or config.decoder_sparse_step
    dense_layers, is_grouped = config.mlp_only_layers or (), config.topk_method != "greedy"
    dense_first, kinds = config.first_k_dense_replace, config.mlp_layer_types
    if kinds is not None:
        dense_first, every = 0, 1
        dense_layers = tuple(at for at, kind in enumerate(kinds) if kind == "dense")
    if config.moe_layers is not None:
        every, layers = 1, range(config.num_hidden_layers)
        named = config.moe_layers or layers
        dense_layers = tuple(layer for layer in layers if layer not in named)
    return RoutedShape(
        config.num_experts or config.num_local_experts or config.n_routed_experts,
        config.num_experts_per_tok or config.top_k_experts,
        width,
        config.shared_expert_intermediate_size or (config.n_shared_experts or 0) * width,
        dense_first=dense_first,
        every=every,
        dense_layers=dense_layers,
        groups=(config.n_group or 1) if is_grouped else 1,
        top_groups=(config.topk_group or 1) if is_grouped else 1,
        **family.block,
    )


NEAR, CHOOSING, FAR = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
RATES = {NEAR: 0, CHOOSING: 4, FAR: 128}
"""Tokens of a key of each kind of layer, as DeepSeek-V4 has them."""


def _compressed_shape(config: SimpleNamespace) -> CompressedShape:
    """Kinds of layers, and sizes, of DeepSeek-V4.

    Raises `InputError`: too few kinds, groups that do not divide.
    """
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    rates = {**RATES, **(config.compress_rates or {})}
    of_rate = {rate: kind for kind, rate in RATES.items()}
    kinds = config.kinds or [of_rate[rate] for rate in config.compress_ratios or ()]
    kinds = kinds or [CHOOSING if at > 1 and at % 2 else FAR for at in range(layers)]
    hashes = config.hash_types or ()
    raise_faults(
        divides(heads, config.o_groups, "o_groups", "the heads of queries")
        + failed((len(kinds) < layers, "layer_types", f"{len(kinds)} values", f"{layers} or more"))
    )
    return CompressedShape(
        config.q_lora_rank,
        config.o_groups,
        config.o_lora_rank,
        tuple((rates[kind], kind == CHOOSING) for kind in kinds[:layers]),
        config.index_n_heads,
        config.index_head_dim,
        config.hc_mult,
        config.hc_sinkhorn_iters,
        hashes.count("hash_moe") if hashes else min(layers, config.num_hash_layers),
    )


def _latent_shape(config: SimpleNamespace) -> LatentShape | None:
    """Ranks of the maps of latent attention, and sizes of a head, where it is latent."""
    if not config.kv_lora_rank:
        return None
    return LatentShape(
        config.q_lora_rank,
        config.kv_lora_rank,
        config.qk_nope_head_dim,
        config.qk_rope_head_dim,
        config.v_head_dim,
        config.index_n_heads,
        config.index_head_dim,
    )


def _head_faults(config: SimpleNamespace) -> list[Fault]:
    """Return faults of heads that do not divide, and of lists of layers of another length."""
    heads, pairs = config.num_attention_heads, config.num_key_value_heads
    layers, unturned = config.num_hidden_layers, config.no_rope_layers or None  # [] as if unstated
    lists = {
        "layer_types": config.layer_types,
        "no_rope_layers": unturned,
        "mlp_layer_types": config.mlp_layer_types,
    }
    turned, size = config.rotary_dim or 0, config.head_dim or 0
    return [
        *(heads_divide(config.hidden_size, heads) if config.head_dim is None else []),
        *divides(heads, pairs or 1, "num_key_value_heads", "the heads of queries"),
        *failed(
            (turned > size, "rotary_dim", str(turned), f"at most {size}, as head_dim"),
            *(
                (
                    stated is not None and len(stated) != layers,
                    field,
                    f"{len(stated or ())} values",
                    f"one value for each of the {layers} layers",
                )
                for field, stated in lists.items()
            ),
        ),
    ]


def choice_faults(routed: RoutedShape, top_k: str, groups: str, top_groups: str) -> list[Fault]:
    """Return faults of tokens that take more experts than they may, and of uneven groups.

    `top_k`, `groups`, `top_groups`: the fields that state them.
    """
    uneven, chosen = routed.experts % routed.groups, routed.top_groups
    most, allowed = routed.experts, "the experts of a layer"
    if not uneven and routed.groups > 1 and chosen <= routed.groups:
        most = routed.experts // routed.groups * chosen
        allowed = f"the experts of {chosen} of {routed.groups} groups"
    return failed(
        (uneven, groups, str(routed.groups), f"a divisor of the {routed.experts} experts"),
        (
            not uneven and chosen > routed.groups,
            top_groups,
            str(chosen),
            f"at most the {routed.groups} groups",
        ),
        (routed.top_k > most, top_k, str(routed.top_k), f"at most {most}, {allowed}"),
    )
