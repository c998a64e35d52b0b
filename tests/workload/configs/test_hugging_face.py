"""Configurations against the real modules that transformers builds of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perfmodel.errors import InputError
from perfmodel.workload.configs.hugging_face import FAMILIES, read_config
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.buildable import build
from tests.activations import activation_bytes
from tests.workload.configs.real_configs import (
    BATCH,
    CONFIGS,
    MIXED,
    RELATIVE,
    SAME_CLASS,
    SCANNING,
    SHARED_KEYS,
    TOKENS,
    batch,
    loss_of,
    real_module,
    sample_of,
    scan_apart,
    written,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

torch = pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
hf = pytest.importorskip("transformers", reason="not a dependency, even of the tests")


def names_of(module: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Parameters as the zoo names them: GPT-2's and BERT's without the head's prefix."""
    return [
        (name.removeprefix("transformer.").removeprefix("bert."), tuple(parameter.shape))
        for name, parameter in module.named_parameters()
    ]


SCALED = ("deberta", "deberta-v2")
"""Which read a scale of scores from a tensor, that needs a device with values. The first version
fails under autocast, which leaves queries in fp32 and scores narrow."""
PRE_TRAINING = "wav2vec2, pre-training"
"""Whose loss asks whether two codes are the same."""
DENSE_EXPERTS = ("llama4_text",)
"""Whose experts all read all tokens in transformers, weighed with zeros; here those asked for."""


@pytest.mark.slow
@pytest.mark.parametrize("label", CONFIGS)
def test_tensors_operations_and_kept_bytes_are_those_of_the_module(
    label: str, tmp_path: Path
) -> None:
    """Under autocast, attention not fused; of experts see `test_expert_models`.

    Scans keep what their kernels do, which are not those of this module.
    """
    from torch.utils.flop_counter import FlopCounterMode

    from tests.workload.saved.saved_tensors import saved_bytes

    model = written(tmp_path, label)
    ours = build(model, **sample_of(model))
    valued = label == PRE_TRAINING or CONFIGS[label]["model_type"] in SCALED
    with torch.device("cpu" if valued else "meta"):
        module, inputs = real_module(label, "eager"), batch(label)
        module.train()
        with FlopCounterMode(display=False) as counter:
            casts = label not in MIXED and CONFIGS[label]["model_type"] != SCALED[0]
            kept = saved_bytes(module, lambda m: loss_of(m, inputs), autocast=casts)
    assert [(tensor.name, tensor.shape) for tensor in ours.tensors] == names_of(module)
    assert ours.buffer_bytes == sum(b.numel() * b.element_size() for b in module.buffers())
    if label not in DENSE_EXPERTS:
        shapes = {tensor.name: tensor.shape for tensor in ours.tensors}
        operations = sum(
            (layer.matmul_flops + scan_apart(layer, shapes))
            * (1 if getattr(layer.matrix, "shared", False) else BATCH)
            for layer in ours.layers
        )
        assert operations == pytest.approx(counter.get_total_flops(), rel=1e-4)
    if label not in MIXED | SCANNING:
        precision = "bf16" if casts else "fp32"
        counted = activation_bytes(ours, BATCH, precision, fused_attention=False)
        weights = 2 * sum(layer.weight_elements for layer in ours.layers if layer.matmul_flops)
        assert counted == pytest.approx(kept, rel=0.02)
        assert weights < counted


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["autocast", "bf16"])
@pytest.mark.parametrize(
    "label",
    [
        "gpt_neox",
        "vit",
        "dinov2",
        "clip",
        "siglip",
        "swin",
        "whisper",
        "wav2vec2",
        "bart",
        "qwen3",
        "t5",
        "llama, wide heads",
        "phi3",
        "glm4",
        "cohere",
        "cohere2",
        "falcon, own keys",
        "falcon, newer",
        "olmo",
        "olmo2",
        "starcoder2",
        "stablelm",
        "roberta",
        "modernbert",
        "distilbert",
        "phi",
        "opt",
    ],
)
def test_kept_bytes_with_fused_attention(label: str, mode: str, tmp_path: Path) -> None:
    from tests.workload.saved.saved_tensors import saved_bytes

    model = written(tmp_path, label)
    dtype = "bf16" if mode == "bf16" else "fp32"
    ours = build(model, dtype=dtype, **sample_of(model))
    with torch.device("meta"):
        module, inputs = real_module(label, "sdpa").train(), batch(label)
        if mode == "bf16":
            module.to(torch.bfloat16)
            inputs = {
                name: value.bfloat16()
                if torch.is_tensor(value) and value.is_floating_point()
                else value
                for name, value in inputs.items()
            }
        kept = saved_bytes(module, lambda m: loss_of(m, inputs), autocast=mode == "autocast")
    assert activation_bytes(ours, BATCH, "bf16") == pytest.approx(kept, rel=0.025)


NO_SDPA = (
    *SCALED,
    "mamba2",
    "deepseek_v4",
    "gpt_oss",
    "gemma2",
    "bloom",
    "mpt",
    "resnet",
    "convnext",
)


@pytest.mark.slow
@pytest.mark.parametrize("label", CONFIGS)
def test_gradients_get_ready_as_in_the_module(label: str, tmp_path: Path) -> None:
    model = written(tmp_path, label)
    size = sample_of(model) if model.kind == "image" else {"sequence_length": 8}
    ours = build(model, **size)
    eager = CONFIGS[label]["model_type"] in NO_SDPA
    module = real_module(label, "eager" if eager else "sdpa")
    fired: list[str] = []
    names = dict(zip(module.parameters(), (name for name, _ in names_of(module)), strict=True))
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: fired.append(names[p]))
    loss_of(module, batch(label, 8)).backward()
    assert [ours.tensors[index].name for index in ours.ready_order] == fired


@pytest.mark.parametrize("label", ["glm4_moe", "olmoe", "gpt_oss", "gemma4_text, experts"])
def test_kept_bytes_of_experts(label: str, tmp_path: Path) -> None:
    """In bf16, the precision that torch's grouped products have; gpt-oss has no sdpa."""
    from tests.workload.saved.saved_tensors import saved_bytes

    fused = label != "gpt_oss"
    with torch.device("meta"):
        module, inputs = real_module(label, "sdpa" if fused else "eager").train(), batch(label)
        module.set_experts_implementation("grouped_mm")
        module.to(torch.bfloat16)
        real = saved_bytes(module, lambda m: loss_of(m, inputs), autocast=False)
    model = written(tmp_path, label)
    ours = build(model, dtype="bf16", **sample_of(model))
    kept = activation_bytes(ours, BATCH, "bf16", fused_attention=fused)
    assert kept == pytest.approx(real, rel=0.02)


def seeing(kind: str, flat: bool) -> dict[str, Any]:
    """A small configuration of a family that sees images, as older files or newer ones have it."""
    text = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "intermediate_size": 160,
        "vocab_size": 400,
        "num_key_value_heads": 2,
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
    }
    if "moe" in kind:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    whole = {"model_type": kind, "vision_config": {"depth": 1}, "tie_word_embeddings": True}
    if flat:
        return {**text, **whole, "architectures": ["Qwen2VLForConditionalGeneration"]}
    return {**whole, "text_config": {**text, "model_type": f"{kind}_text"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "flat"),
    [
        ("qwen2_vl", True),
        ("qwen2_5_vl", True),
        ("qwen2_5_vl", False),
        ("qwen3_vl", False),
        ("qwen3_vl_moe", False),
    ],
)
def test_text_models_of_families_that_see(kind: str, flat: bool, tmp_path: Path) -> None:
    """Tensors and operations of the real text model, whose weight is also that of the head."""
    from torch.utils.flop_counter import FlopCounterMode

    fields = seeing(kind, flat)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    model = read_config(path)
    ours = build(model, sequence_length=TOKENS)
    assert any("Its text model alone" in note for note in model.notes)
    text = fields if flat else fields["text_config"]
    config = hf.AutoConfig.for_model(**{**text, "model_type": f"{kind}_text"})
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    module = hf.AutoModel.from_config(config)
    with FlopCounterMode(display=False) as counter:
        module(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    real = [(f"model.{name}", tuple(p.shape)) for name, p in module.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in ours.tensors] == real  # no head of its own
    head = 2 * TOKENS * 64 * 400
    assert sum(layer.matmul_flops for layer in ours.layers) == pytest.approx(
        counter.get_total_flops() + head, rel=1e-4
    )


@pytest.mark.parametrize("kind", ["dbrx", "gptj", "codegen", "falcon_h1", "mamba", "zamba2"])
def test_families_that_the_zoo_has_not_name_the_command_that_takes_them(
    kind: str, tmp_path: Path
) -> None:
    """As transformers writes them: Zamba 2 has a limit that is infinite."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(hf.AutoConfig.for_model(kind).to_dict()))
    with pytest.raises(InputError) as caught:
        read_config(path)
    (fault,) = caught.value.faults
    assert fault.found == repr(kind)
    assert f"`perfmodel capture {path}` writes (with transformers installed)" in fault.allowed


def test_a_table_that_is_not_trained_has_no_gradient(tmp_path: Path) -> None:
    ours = build(written(tmp_path, "whisper"))
    trained = {ours.tensors[index].name for index in ours.ready_order}
    assert {tensor.name for tensor in ours.tensors} - trained == {
        "model.encoder.embed_positions.weight"
    }


@pytest.mark.parametrize("label", ["deberta-v2", "wav2vec2", "gemma4_text", "deepseek_v4", "swin"])
def test_models_that_nobody_splits_say_so(label: str, tmp_path: Path) -> None:
    model = written(tmp_path, label)
    with pytest.raises(InputError) as caught:
        build(model, shard=Shard(tensor=2, sequence_parallel=True), **sample_of(model))
    assert {fault.field for fault in caught.value.faults} == {"tensor"}
    assert "split" in str(caught.value)


DIFFUSERS = ("DiTTransformer2DModel", "Transformer2DModel", "UNet2DConditionModel")
DIT = {
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 2,
    "sample_size": 8,
    "patch_size": 2,
    "num_embeds_ada_norm": 10,
    "norm_type": "ada_norm_zero",
}
SD = {"sample_size": 64, "cross_attention_dim": 768}
SDXL = {
    "sample_size": 128,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
UNET = {
    "sample_size": 16,
    "in_channels": 9,
    "block_out_channels": [32, 64, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": [2, 4, 4],
    "cross_attention_dim": 48,
    "layers_per_block": 1,
}
MAPPED = {"use_linear_projection": True}


def digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("kind", "fields", "recorded"),
    [
        (DIFFUSERS[0], DIT, (203488, 44, "22d446f00f4e9c1d", 7225344, 4096)),
        (DIFFUSERS[1], DIT, (203488, 44, "22d446f00f4e9c1d", 7225344, 4096)),
        (DIFFUSERS[2], SD, (859520964, 686, "4d903cf0917bcaa7", 1606546882560, 0)),
        (DIFFUSERS[2], SDXL, (2567463684, 1680, "d0757c6376dca7e8", 13522472796160, 0)),
        (DIFFUSERS[2], UNET, (1479204, 324, "a59c5a591e40ba7f", 467496960, 0)),
        (DIFFUSERS[2], UNET | MAPPED, (1479204, 324, "98f3e7e7bd562024", 467496960, 0)),
    ],
)
def test_models_of_diffusers(
    kind: str, fields: dict[str, Any], recorded: tuple[Any, ...], tmp_path: Path
) -> None:
    """Recorded with diffusers 0.42.1 on the meta device, as `names_of` and FlopCounterMode say it.

    Parameters, tensors, a hash of their names and shapes, operations of a batch of two, buffers.
    """
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": kind, **fields}))
    ours = build(read_config(path))
    tensors = [(tensor.name, tensor.shape) for tensor in ours.tensors]
    operations = 2 * sum(layer.matmul_flops for layer in ours.layers)
    counted = (ours.parameters, len(tensors), digest(tensors), operations, ours.buffer_bytes)
    assert counted == recorded


@pytest.mark.parametrize(
    ("fields", "recorded"), [(UNET, "7b5e7fe549313f0a"), (UNET | MAPPED, "438adc41388bf7f9")]
)
def test_gradients_of_a_u_net_get_ready_as_in_the_module(
    fields: dict[str, Any], recorded: str, tmp_path: Path
) -> None:
    """Recorded with hooks on diffusers 0.42.1, on a CPU."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": DIFFUSERS[2], **fields}))
    ours = build(read_config(path))
    assert digest([ours.tensors[index].name for index in ours.ready_order]) == recorded


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"up_block_types": ["UpBlock2D"] * 3}, "up_block_types"),
        ({"attention_head_dim": [2, 4]}, "attention_head_dim"),
        ({"attention_head_dim": 7}, "attention_head_dim"),
        ({"transformer_layers_per_block": [1] * 4}, "transformer_layers_per_block"),
        ({"addition_embed_type": "text_time"}, "projection_class_embeddings_input_dim"),
        ({"class_embed_type": "timestep"}, "class_embed_type"),
    ],
)
def test_u_nets_whose_parts_do_not_fit_are_refused(
    changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": DIFFUSERS[2], **UNET, **changes}))
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert {fault.field for fault in caught.value.faults} == {field}


DERIVED = {
    "num_key_value_heads",
    "head_dim",
    "layer_types",
    "max_window_layers",
    "classes",
    "no_rope_layers",
    "moe_layers",
    "mlp_layer_types",
    "indexer_types",
    "projection_size",
    "word_embed_proj_dim",
    "compress_rates",
}
"""What transformers works out of other fields when a configuration is made."""


NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 8},
    "deberta": RELATIVE | {"pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": RELATIVE | SHARED_KEYS | {"pos_att_type": ["c2p", "p2c"]},
}
"""Fields that a file must state."""


@pytest.mark.parametrize("model_type", [kind for kind in FAMILIES if kind not in DIFFUSERS])
def test_defaults_are_those_of_the_configuration_classes(model_type: str) -> None:
    needed = NEEDED.get(model_type, {})
    real = hf.AutoConfig.for_model(SAME_CLASS.get(model_type, model_type), **needed)
    real.allow_global_per_layer_attribute_access = True
    ours = FAMILIES[model_type].config.model_validate(needed)
    compare(ours, real, "")


def compare(ours: BaseModel, real: Any, place: str) -> None:
    for name in type(ours).model_fields:
        value = getattr(ours, name)
        if isinstance(value, BaseModel):
            compare(value, getattr(real, name), f"{place}{name}.")
        elif name in DERIVED and value is None:
            continue
        elif name not in NOT_THEIRS and hasattr(real, name):
            theirs = getattr(real, name)
            if name == "mlp_only_layers" and not theirs:
                continue
            if name == "sliding_window" and not getattr(real, "use_sliding_window", True):
                continue
            if isinstance(theirs, list | tuple):
                value, theirs = list(value), list(theirs)
            assert value == theirs, f"{place}{name}"


NOT_THEIRS = {
    "architectures",
    "model_type",
    "id2label",
    "num_labels",
    "rope_parameters",
    "partial_rotary_factor",
    "pooler_output_size",
    "tie_word_embeddings",
    "per_layer_config",
    "num_decoder_layers",
    "layer_types",
    "n_positions",
    "mamba_d_head",
    "mamba_dt_rank",
}
"""Classes have these of the base class, or worked out of others; tied weights are tested above."""


@pytest.mark.parametrize(
    ("label", "changes"),
    [
        ("mistral", {"sliding_window": 64}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 64}),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 64}),
        ("gemma2", {"sliding_window": 64}),
        ("cohere2", {"sliding_window": 64, "num_hidden_layers": 5, "layer_types": None}),
        ("gemma3_text", {"sliding_window": 64, "num_hidden_layers": 7, "layer_types": None}),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}),
    ],
)
def test_windows_are_those_of_the_module(
    label: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, label, CONFIGS[label] | changes)
    with torch.device("meta"):
        module = real_module(label, "eager")
    real = [
        getattr(m, "sliding_window", None) or None
        for name, m in module.named_modules()
        if name.endswith(".self_attn")
    ]
    if label == "mistral":
        real = [module.config.sliding_window] * 2
    ours = build(written(tmp_path, label), sequence_length=96)
    windows = [layer.matrix.window for layer in ours.layers if layer.kind == "attention"]
    assert windows == real
