"""A model of the zoo from Hugging Face's ``config.json``; transformers is not needed.

Weights are not read, and nothing is fetched: the file alone says what the model is.

Families of Hugging Face's configurations: rows of ``families.json``, by `model_type`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from perfmodel.errors import Fault, InputError, allowed_names, failed, raise_faults, refuse_if
from perfmodel.files import is_file, is_folder
from perfmodel.memo import applying
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.model import ExpertCount
from perfmodel.workload.configs import family_models, image_models
from perfmodel.workload.configs.decoder_models import (
    decoder_model,
    expert_model,
    gemma4_model,
    hybrid_model,
    jamba_model,
)
from perfmodel.workload.configs.family import (
    Family,
    Function,
    Gate,
    HubConfig,
    Nothing,
    Rate,
    Ratio,
    Width,
    contract,
)
from perfmodel.workload.configs.file_text import CONFIG_NAME, JsonFile, read_json
from perfmodel.workload.configs.vision_towers import left_out
from perfmodel.workload.zoo.buildable import Buildable

_HARMLESS = """
_name_or_path architectures model_type torch_dtype dtype transformers_version auto_map return_dict
output_hidden_states output_attentions output_past output_scores use_cache problem_type label2id
id2label chunk_size_feed_forward is_encoder_decoder torchscript tokenizer_class
task_specific_params finetuning_task keys_to_ignore_at_inference _attn_implementation
attn_implementation _flash_attn_2_enabled use_flash_attn cache_implementation pad_token_id
bos_token_id eos_token_id sep_token_id cls_token_id unk_token_id mask_token_id
decoder_start_token_id forced_bos_token_id forced_eos_token_id forced_decoder_ids suppress_tokens
begin_suppress_tokens bad_words_ids image_token_id image_token_index max_length min_length
do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty num_return_sequences no_repeat_ngram_size
encoder_no_repeat_ngram_size return_dict_in_generate initializer_range initializer_factor init_std
logit_scale_init_value rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon
norm_type qk_layernorm_eps rope_theta rope_scaling rope_parameters rope_local_base_freq
rope_interleave rotary_emb_base original_max_position_embeddings initial_context_length
max_sequence_length max_window_layers rope_type n_ctx n_positions max_position_embeddings
relative_attention_max_distance model_max_length pretraining_tp ep_size quantization_config
sliding_window layer_types norm_topk_prob routed_scaling_factor router_aux_loss_coef
router_jitter_noise aux_loss_alpha seq_aux topk_method scoring_func moe_layer_freq
experts_per_token num_experts num_local_experts n_shared_experts swiglu_alpha swiglu_limit
qk_head_dim head_dim query_pre_attn_scalar _sliding_window_pattern hidden_act hidden_activation
time_step_limit time_step_min time_step_max time_step_floor time_step_rank rescale_prenorm_residual
use_mamba_kernels use_mambapy use_associative_scan mamba_ssm_cache_dtype num_logits_to_keep
embedding_multiplier logits_scaling residual_multiplier attention_multiplier use_qk_norm
attention_chunk_size attn_temperature_tuning floor_scale attn_scale for_llm_compressor
scale_attn_weights summary_type summary_use_proj summary_activation summary_proj_to_labels
summary_first_dropout reorder_and_upcast_attn classifier_dropout position_embedding_type
pooler_act pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
pooler_type directionality attention_probs_dropout_prob embd_pdrop dense_act_fn is_gated_act
scale_decoder_outputs feed_forward_proj encoder_stride scale_embedding use_weighted_layer_sum
classifier_proj_size apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks
mask_feature_prob mask_feature_length mask_feature_min_masks median_filter_width num_hidden_layers
_class_name _diffusers_version compress_rope_theta hc_eps flip_sin_to_cos freq_shift
downsample_padding mid_block_scale_factor addition_time_embed_dim final_dropout feat_proj_dropout
ctc_loss_reduction ctc_zero_infinity contrastive_logits_temperature diversity_loss_weight tdnn_dim
tdnn_kernel tdnn_dilation xvector_output_dim adapter_kernel_size adapter_stride num_adapter_layers
output_hidden_size num_feat_extract_layers feat_extract_dropout pooler_dropout
pooler_hidden_act pooler_hidden_size
text_config_dict vision_config_dict initializer_cutoff_factor
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Fields that change no tensor and no work, or that the library does not read, as in
transformers 5.23 ``configuration_utils.py`` and the families' configuration classes."""

ONLY: Mapping[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "position_embedding_type": ("absolute",),
    "scoring_func": ("softmax", "sigmoid", "sqrtsoftplus"),
    "num_key_value_groups": (1,),
    "qk_norm_type": ("per_layer",),
    "use_routing_bias": (True,),
    "shared_intermediate_size": (0,),
}
"""Fields whose other values make a model that is none of the zoo."""

SWITCHES = {
    "gradient_checkpointing": "The file asks for gradient_checkpointing, which is not read: "
    "memory.recompute states it.",
    "output_router_logits": "The loss of balance is left out: model.experts.auxiliary_loss adds "
    "it.",
    "num_nextn_predict_layers": "Its heads for further tokens (num_nextn_predict_layers) are left "
    "out.",
    "auto_map": "The file names code of its own (auto_map), which is not read: the family's is "
    "taken.",
}
"""Fields that switch something on which is left out, and the note that says so."""
MOST_NAMED = 6


def value_faults(content: Mapping[str, Any]) -> list[Fault]:
    """Return faults of such fields whose values the zoo has no model for."""
    stated = {field: content[field] for field in ONLY if content.get(field) is not None}
    return failed(
        *(
            (value not in ONLY[field], field, repr(value), " or ".join(map(repr, ONLY[field])))
            for field, value in stated.items()
        )
    )


def extra_notes(content: Mapping[str, Any], contract: type[HubConfig]) -> tuple[str, ...]:
    """Return what of a file is left out, in sentences."""
    notes = [note for field, note in SWITCHES.items() if content.get(field)]
    method = quantization_of(content)
    read_fields = HARMLESS | SWITCHES.keys() | contract.model_fields.keys()
    others = sorted(field for field, value in content.items() if value and field not in read_fields)
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    found = applying(
        (method, f"Its weights are stored as {method}; trained in bf16, as they are dequantised."),
        (others, f"Fields that are not read: {', '.join(others[:MOST_NAMED])}{more}."),
    )
    return (*notes, *found)


def quantization_of(content: Mapping[str, Any]) -> str:
    """Return how stored weights are quantised, or nothing."""
    section = content.get("quantization_config")
    stated = section.get("quant_method", "quantised numbers") if isinstance(section, dict) else ""
    return str(stated)[:40]


OTHERS = "what `perfmodel capture {file}` writes (with transformers installed), a model file"
SIZES = frozenset(
    {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "n_embd",
        "n_layer",
        "n_head",
        "d_model",
        "num_layers",
        "num_heads",
        "dim",
        "n_layers",
        "n_heads",
        "encoder_layers",
        "decoder_layers",
    }
)
"""Fields without which a file of somebody else's family says nothing of its model."""

DTYPES: Mapping[str, str] = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "auto": "fp32",
}


def read_config(path: Path, name: str | None = None) -> Buildable:
    """Read the model that a ``config.json`` describes, or the one in a folder.

    `name`: as reports call it; default: `_name_or_path` of the file, or its folder.
    Raises `InputError`: with every fault, its file and line.
    """
    return config_model(read_json(config_path(path), infinite=True), name)


def config_path(path: Path) -> Path:
    """Return the file itself, or that of a folder.

    Raises `InputError`: there is none.
    """
    inside = path / CONFIG_NAME
    refuse_if(
        is_folder(path) and not is_file(inside),
        "config",
        f"a folder without {CONFIG_NAME}",
        "one",
        str(path),
    )
    return inside if is_folder(path) else path


def config_model(document: JsonFile, name: str | None = None) -> Buildable:
    """Return the model of a configuration that was read."""
    family, section = _family_of(document)
    content = document.content
    shared = {key: content[key] for key in SHARED if key in content}
    fields = (
        {**shared, **content[section], "architectures": None} if section else _with_updates(content)
    )
    is_part = bool(section) or content.get("model_type") in FLAT
    if is_part and not section:
        fields = {**fields, "architectures": None, "vision_config": None}
    written = {family.also.get(key, key): key for key in fields}
    fields = {family.also.get(key, key): value for key, value in fields.items()}
    title = name or name_of(document)
    try:
        raise_faults([*value_faults(fields), *([] if is_part else _missing_sizes(family, fields))])
        model = family.make(title, family.read(fields), family)
        model = replace(
            model,
            dtype=_dtype_of(content, fields),
            notes=(*model.notes, *extra_notes(fields, family.config)),
        )
    except InputError as error:
        faults = [
            _with_other_way(
                replace(fault, field=written.get(fault.field, fault.field)), document.path
            )
            for fault in error.faults
        ]
        raise InputError([document.located(fault, section) for fault in faults]) from None
    return replace(model, notes=(*model.notes, left_out(content, _TOWERS))) if is_part else model


def _with_other_way(fault: Fault, path: Path) -> Fault:
    """A value that is legal, but of a model that the zoo has none like, with what takes it."""
    if fault.allowed in {"true", "false"} or fault.allowed.startswith("one of "):
        return replace(fault, allowed=f"{fault.allowed}; `perfmodel capture {path}` takes others")
    return fault


def _missing_sizes(family: Family, fields: Mapping[str, Any]) -> list[Fault]:
    """Return sizes that a file does not state whose `model_type` is not of its class's family.

    Code of its own calls them by other names (phi-msft), and has other defaults.
    """
    kind = fields.get("model_type", fields.get("_class_name"))
    if isinstance(kind, str) and kind in FAMILIES:
        return []
    allowed = f"its value: a {kind!r} may call it by another name than {family.name} does"
    sizes = (name for name in family.config.model_fields if name in SIZES)
    return [Fault(name, "nothing", allowed) for name in sizes if fields.get(name) is None]


TEXT = "text_config"
LEAST_NAME_LIKENESS = 0.75
"""Least likeness of a family that is suggested: dbrx is no bert."""
FLAT = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
"""Families whose older files state the text model beside the rest, and the family of that."""
SHARED = ("tie_word_embeddings", "dtype", "torch_dtype")
"""Fields of the whole that hold for its text model where that does not state them."""


def _family_of(document: JsonFile) -> tuple[Family, str]:
    """Return the family, and the section of the file that describes it.

    By `model_type`, of diffusers by `_class_name`; where that is missing or of somebody else, by
    the class; where neither is known, the family of the text model inside.
    """
    content, text = document.content, document.content.get(TEXT)
    kind = content.get("model_type", content.get("_class_name"))
    if kind is not None and not isinstance(kind, str):
        raise InputError(document.located(Fault("model_type", repr(kind), "text, or nothing")))
    if kind and kind in FAMILIES:
        return FAMILIES[kind], ""
    if kind and kind in FLAT and not isinstance(text, dict):
        return FAMILIES[FLAT[kind]], ""
    classes = document.content.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    for family in FAMILIES.values():
        if family.name == first:
            return family, ""
    inside = text.get("model_type") if isinstance(text, dict) else None
    if isinstance(inside, str) and inside in FAMILIES:
        return FAMILIES[inside], TEXT
    names = allowed_names(
        FAMILIES,
        str(kind) if get_close_matches(str(kind), FAMILIES, cutoff=LEAST_NAME_LIKENESS) else None,
        limit=80,
    )
    allowed = f"{OTHERS.format(file=document.path)}; or a family that the zoo knows: {names}"
    raise InputError(
        document.located(Fault("model_type", "nothing" if kind is None else repr(kind), allowed))
    )


def _with_updates(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields with what old files of CLIP state once more, which goes before."""
    updates = {
        key: {**stated, **again}
        for key in (TEXT, "vision_config")
        if isinstance(again := content.get(f"{key}_dict"), dict)
        and isinstance(stated := content.get(key) or {}, dict)
    }
    return {**content, **updates}


def _dtype_of(content: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return the dtype of the parameters, as the file has it.

    Where it does not say: bf16 if stored weights are quantised, else fp32.
    """
    places = [
        (key, part.get(key)) for key in ("dtype", "torch_dtype") for part in (content, fields)
    ]
    key, value = next((place for place in places if place[1] is not None), ("", None))
    if value is None:
        return "bf16" if quantization_of(fields) else "fp32"
    word = str(value).removeprefix("torch.")
    refuse_if(word not in DTYPES, key, repr(value), allowed_names(DTYPES))
    return DTYPES[word]


LONGEST_NAME = 100


def name_of(document: JsonFile) -> str:
    """Return the last part of `_name_or_path`, or of the folder, or the name of the file."""
    stated = document.content.get("_name_or_path")
    last = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    if last.strip(". ") and len(last) <= LONGEST_NAME:
        return last
    if document.path.name == CONFIG_NAME:
        return document.path.resolve().parent.name or CONFIG_NAME
    return document.path.stem


_TABLE: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("families.json").read_text(encoding="utf-8")
)
_TOWERS = {**_TABLE["towers"], "qwen3_vl_moe": _TABLE["towers"]["qwen3_vl"]}
_ROWS: Mapping[str, Mapping[str, Any]] = {**_TABLE["bases"], **_TABLE["families"]}
_MAKERS: Mapping[str, Callable[..., Buildable]] = {
    "decoder": decoder_model,
    "expert": expert_model,
    "gemma4": gemma4_model,
    "hybrid": hybrid_model,
    "jamba": jamba_model,
    "stack": family_models.stack_model,
    "falcon": family_models.falcon_model,
    "bert": family_models.bert_model,
    "modernbert": family_models.modernbert_model,
    "t5": family_models.t5_model,
    "bart": family_models.bart_model,
    "vit": image_models.vit_model,
    "resnet": image_models.resnet_model,
    "convnext": image_models.convnext_model,
    "swin": image_models.swin_model,
    "dit": image_models.dit_model,
    "unet": image_models.unet_model,
    "clip": image_models.clip_model,
    "whisper": family_models.whisper_model,
    "wav2vec2": family_models.wav2vec2_model,
}
_TYPES: Mapping[str, Any] = {
    "function": Function,
    "gate or none": Gate | None,
    "flag or none": Switch | None,
    "nothing": Nothing,
    "rate": Rate,
    "none": None,
    "width": Width,
    "width or none": Width | None,
    "count or none": ExpertCount | None,
    "false": Literal[False],
    "true": Literal[True],
    "silu": Literal["silu"],
    "relu": Literal["relu"],
    "three": Literal[3],
    "ratio": Ratio,
    "zero": Literal[0],
    "widths": tuple[Width, ...],
    "width or widths": Width | tuple[Width, ...],
}
"""What rows call the types of fields that a family has its own of."""
_SECTION_TYPES = {"hidden_act": Function, "attention_dropout": Rate, "attn_pdrop": Nothing}


def _defaults(kind: str) -> dict[str, Any]:
    """Return the defaults of a row: those of the one that it is like, and its own."""
    row = _ROWS[kind]
    inherited = _defaults(row["like"]) if "like" in row else {}
    return {**inherited, **row.get("defaults", {}), **dict.fromkeys(row.get("required", ()), ...)}


def _family(kind: str) -> Family:
    """Return the family of a row."""
    row = _ROWS[kind]
    sections = {
        name: contract(name, fields, _SECTION_TYPES)
        for name, fields in row.get("sections", {}).items()
    }
    types = {name: _TYPES[each] for name, each in row.get("types", {}).items()}
    rest = ("fixed", "shape", "block", "stated", "also", "other_heads", "mixer")
    return Family(
        row["name"],
        _MAKERS[row["make"]],
        {**{name: section() for name, section in sections.items()}, **_defaults(kind)},
        {**types, **sections},
        **{name: row[name] for name in rest if name in row},
    )


FAMILIES: Mapping[str, Family] = {kind: _family(kind) for kind in _TABLE["families"]}
