"""Fields of a configuration that no family's contract has: harmless, refused, or named in a note.

A field that says nothing (false, zero, empty) changes nothing, whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.workload.configs.family import Finding, HubConfig

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
embedding_multiplier logits_scaling residual_multiplier attention_multiplier use_qk_norm
attention_chunk_size attn_temperature_tuning floor_scale attn_scale for_llm_compressor
scale_attn_weights summary_type summary_use_proj summary_activation summary_proj_to_labels
summary_first_dropout reorder_and_upcast_attn classifier_dropout position_embedding_type
pooler_act pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
pooler_type directionality attention_probs_dropout_prob embd_pdrop dense_act_fn is_gated_act
scale_decoder_outputs feed_forward_proj encoder_stride scale_embedding use_weighted_layer_sum
classifier_proj_size apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks
mask_feature_prob mask_feature_length mask_feature_min_masks median_filter_width num_hidden_layers
text_config_dict vision_config_dict initializer_cutoff_factor
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Fields that change no tensor and no work, or that the library does not read, as in
transformers 5.23 ``configuration_utils.py`` and the families' configuration classes."""

ONLY: Mapping[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "position_embedding_type": ("absolute",),
    "scoring_func": ("softmax", "sigmoid"),
    "num_key_value_groups": (1,),
}
"""Fields whose other values make a model that is none of the zoo."""

CHECKPOINTED = (
    "The file asks for gradient_checkpointing, which is not read: memory.recompute states it."
)
BALANCED = "The loss of balance is left out: model.experts.auxiliary_loss adds it."
FURTHER = "Its heads for further tokens (num_nextn_predict_layers) are left out."
CODE = "The file names code of its own (auto_map), which is not read: the family's is taken."
MOST_NAMED = 6


def value_findings(content: Mapping[str, Any]) -> Iterator[Finding]:
    """Find values of such fields that the zoo has no model for."""
    for field, allowed in ONLY.items():
        value = content.get(field)
        if value is not None and value not in allowed:
            yield field, repr(value), " or ".join(map(repr, allowed))


def extra_notes(content: Mapping[str, Any], contract: type[HubConfig]) -> tuple[str, ...]:
    """Return what of a file is left out, in sentences."""
    switches = {
        "gradient_checkpointing": CHECKPOINTED,
        "output_router_logits": BALANCED,
        "num_nextn_predict_layers": FURTHER,
        "auto_map": CODE,
    }
    notes = [note for field, note in switches.items() if content.get(field)]
    method = quantization_of(content)
    if method:
        text = f"Its weights are stored as {method}; trained in bf16, as they are dequantised."
        notes.append(text)
    read_fields = HARMLESS | switches.keys() | contract.model_fields.keys()
    others = sorted(field for field, value in content.items() if value and field not in read_fields)
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        notes.append(f"Fields that are not read: {', '.join(others[:MOST_NAMED])}{more}.")
    return tuple(notes)


def quantization_of(content: Mapping[str, Any]) -> str:
    """Return how stored weights are quantised, or nothing."""
    section = content.get("quantization_config")
    if not isinstance(section, dict):
        return ""
    return str(section.get("quant_method", "quantised numbers"))[:40]
