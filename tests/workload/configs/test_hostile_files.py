"""Files that are no models, or mean harm: refused at once, with file, line, field and what fits."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import Fault, InputError
from perfmodel.workload import load_workload
from perfmodel.workload.configs.hugging_face import read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 96,
}


def refused(path: Path) -> tuple[Fault, ...]:
    with pytest.raises(InputError) as raised:
        read_config(path)
    faults = tuple(raised.value.faults)
    assert all(fault.file == str(path) for fault in faults)
    return faults


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "nothing"),
        (b"   \n", "nothing"),
        (b"[1, 2]", "a list only"),
        (b"7", "one value only"),
        (b"{'model_type': 'llama', 'hidden_size': 64}", "what Python prints"),
        (b'{"model_type": "llama"', "no JSON"),
        (b'{"model_type": [], "architectures": ["LlamaForCausalLM"]}', "model_type: found []"),
        (b'{"model_type": {}, "architectures": ["LlamaForCausalLM"]}', "model_type: found {}"),
        (b"\x00\xff\xfe\x80" * 50, "not text"),
        (b'{"hidden_size": NaN}', "NaN"),
        (b'{"hidden_size": 1' + b"0" * 5000 + b"}", "4300 digits"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "more than 60 levels"),
        (b'{"model_type": "' + b"x" * 30_000 + b'"}', "30,000 characters"),
        (b'{"a": ' + b"1," * 2_200_000, "more than 4 MiB"),
    ],
    ids=lambda value: value[:12].decode("latin-1") if isinstance(value, bytes) else None,
)
def test_what_is_no_configuration_is_refused(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    (fault,) = refused(path)
    assert text in str(fault)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(2**30)
    (fault,) = refused(path)
    assert "more than 4 MiB" in str(fault)


def test_an_unknown_family_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n "x": 1,\n "model_type": "lama"\n}')
    (fault,) = refused(path)
    assert fault.line == 3
    assert "did you mean 'llama'" in fault.allowed
    assert "whisper" in fault.allowed
    path.write_text("{}")
    assert refused(path)[0].found == "nothing"


def test_all_faults_come_at_once_with_their_lines(tmp_path: Path) -> None:
    wrong = LLAMA | {
        "hidden_size": "64",
        "num_hidden_layers": 10**9,
        "vocab_size": -1,
        "hidden_act": "sine",
        "attention_bias": 1,
        "attention_dropout": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(wrong, indent=1))
    faults = refused(path)
    lines = path.read_text().splitlines()
    assert {fault.field for fault in faults} == {
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "hidden_act",
        "attention_bias",
        "attention_dropout",
    }
    assert all(fault.line and f'"{fault.field}"' in lines[fault.line - 1] for fault in faults)
    layers = next(fault for fault in faults if fault.field == "num_hidden_layers")
    assert (layers.found, layers.allowed) == ("1000000000", "at most 2,000")


@pytest.mark.parametrize(
    ("changes", "field", "allowed"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads", "divisor of 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "divisor of 4"),
        ({"architectures": ["LlamaModel"]}, "architectures", "'LlamaForCausalLM'"),
        ({"torch_dtype": "int8"}, "torch_dtype", "bfloat16"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types", "2 layers"),
        ({"model_type": "gemma2", "layer_types": []}, "layer_types", "2 layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers", "2 layers"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok", "at most 8"),
        ({"model_type": "deepseek_v3", "n_group": 7}, "n_group", "divisor of the 256"),
        (
            {"model_type": "deepseek_v3", "n_group": 4, "topk_group": 1, "num_experts_per_tok": 65},
            "num_experts_per_tok",
            "at most 64",
        ),
        ({"model_type": "deepseek_v3", "first_k_dense_replace": 2}, "first_k_dense_replace", "0"),
        ({"model_type": "minimax_m2", "rotary_dim": 129}, "rotary_dim", "at most 128"),
        ({"model_type": "minimax_m2", "head_dim": None}, "head_dim", "whole number"),
        ({"model_type": "minimax_m2", "use_qk_norm": False}, "use_qk_norm", "true"),
        ({"model_type": "falcon", "alibi": True}, "alibi", "false"),
        ({"model_type": "falcon", "num_kv_heads": 3}, "num_kv_heads", "divisor of 4"),
        ({"model_type": "falcon", "num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn", "1"),
        ({"model_type": "bloom", "n_head": 5}, "n_head", "divisor of 64"),
        ({"model_type": "mpt", "attn_config": {"clip_qkv": 6}}, "attn_config.clip_qkv", "none"),
        ({"model_type": "bart", "tie_word_embeddings": False}, "tie_word_embeddings", "true"),
        ({"model_type": "dinov2", "use_swiglu_ffn": True}, "use_swiglu_ffn", "false"),
        ({"model_type": "modernbert", "layer_types": []}, "layer_types", "2 layers"),
        ({"model_type": "modernbert", "embedding_dropout": 0.1}, "embedding_dropout", "equal to 0"),
        ({"model_type": "resnet", "depths": [3, 4]}, "depths", "4 hidden_sizes"),
        ({"model_type": "resnet", "hidden_sizes": [64, 0]}, "hidden_sizes.1", "greater than 0"),
        ({"model_type": "convnext", "drop_path_rate": 0.1}, "drop_path_rate", "equal to 0"),
        ({"model_type": "glm_moe_dsa", "index_topk_freq": 4}, "index_topk_freq", "1"),
        ({"model_type": "deepseek_v32", "q_lora_rank": None}, "q_lora_rank", "whole number"),
        ({"model_type": "deepseek_v32", "mlp_layer_types": ["sparse"]}, "mlp_layer_types", "2 lay"),
        ({"model_type": "Transformer2DModel", "norm_type": "layer_norm"}, "norm_type", "ada_norm"),
        (
            {"model_type": "siglip", "text_config": {"projection_size": 512}},
            "text_config.projection_size",
            "768",
        ),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder", "false"),
        ({"model_type": "gpt_neox", "rotary_pct": 0}, "rotary_pct", "greater than 0"),
        (
            {"model_type": "nemotron", "rope_parameters": {"partial_rotary_factor": 7}},
            "rope_parameters.partial_rotary_factor",
            "equal to 1",
        ),
        ({"model_type": "vit", "image_size": 10**6}, "image_size", "at most 100,000"),
        (
            {"model_type": "clip", "text_config": {"num_attention_heads": 5}},
            "text_config.num_attention_heads",
            "divisor of 512",
        ),
        (
            {"model_type": "clip", "vision_config": {"num_attention_heads": 5}},
            "vision_config.num_attention_heads",
            "divisor of 768",
        ),
        (
            {"model_type": "clip", "text_config": [1], "text_config_dict": {"vocab_size": 7}},
            "text_config",
            "a section",
        ),
        ({"model_type": "vit", "patch_size": 15}, "patch_size", "divisor of 224"),
        (
            {"model_type": "clip", "vision_config": {"patch_size": 15}},
            "vision_config.patch_size",
            "divisor of 224",
        ),
        ({"model_type": "whisper", "decoder_layerdrop": 0.1}, "decoder_layerdrop", "equal to 0"),
        (
            {"model_type": "whisper", "d_model": 100, "encoder_attention_heads": 6},
            "encoder_attention_heads",
            "divisor of 100",
        ),
        ({"model_type": "t5", "feed_forward_proj": "gated-tanh"}, "feed_forward_proj", "relu"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "head_dim": 0}},
            "text_config.head_dim",
            "0",
        ),
    ],
)
def test_what_a_family_cannot_have(
    changes: dict[str, Any], field: str, allowed: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes, indent=1))
    fault = next(fault for fault in refused(path) if fault.field == field)
    assert allowed in fault.allowed
    assert fault.line is not None


def test_the_text_model_of_several_is_read_and_said(tmp_path: Path) -> None:
    text = {**LLAMA, "model_type": "gemma3_text", "head_dim": 16}
    fields = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 9},
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = load_workload(str(tmp_path))
    assert (model.name, model.tensors[0].shape) == (tmp_path.name, (100, 64))
    assert {tensor.dtype for tensor in model.tensors} == {"bf16"}
    assert any("text model alone" in note for note in model.notes)


def test_a_class_that_is_known_says_the_family_of_somebody_elses_type(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({**LLAMA, "model_type": "mine", "architectures": ["LlamaForCausalLM"]})
    )
    assert read_config(path).make(dtype="fp32", sequence_length=8).tensors[0].shape == (100, 64)


def test_old_files_of_clip_state_their_stacks_once_more(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "clip",
                "text_config": {"vocab_size": 5},
                "text_config_dict": {"vocab_size": 7},
            }
        )
    )
    shapes = {t.name: t.shape for t in load_workload(str(path)).tensors}
    assert shapes["text_model.embeddings.token_embedding.weight"] == (7, 512)


def test_names_and_dtypes_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**LLAMA, "_name_or_path": "me/tiny-llama", "torch_dtype": "half"}))
    model = load_workload(str(path), sequence_length=8)
    assert (model.name, model.tensors[0].dtype) == ("tiny-llama", "fp16")
    assert load_workload(str(path), sequence_length=8, dtype="bf16").tensors[0].dtype == "bf16"
    assert read_config(path, "ours").name == "ours"
    assert read_config(path).default == 2048  # of the positions; 4,096 where they allow more


def safetensors(header: dict[str, Any] | bytes, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * data


def tensor(shape: list[int], dtype: str = "F32", start: int = 0) -> dict[str, Any]:
    numbers = 1
    for extent in shape:
        numbers *= extent
    size = {"F32": 4, "BF16": 2, "I64": 8}[dtype]
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + numbers * size]}


def test_headers_state_tensors_and_a_doubtful_order(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "h.10.w": tensor([3, 4], "BF16"),
        "h.2.w": tensor([5], start=24),
        "ids": tensor([2], "I64", start=44),
        "scale": tensor([], start=60),
    }
    path.write_bytes(safetensors(header, 100))
    model = load_workload(str(path))
    assert [(t.name, t.shape, t.dtype) for t in model.tensors] == [
        ("h.2.w", (5,), "fp32"),
        ("h.10.w", (3, 4), "bf16"),
        ("ids", (2,), "int64"),
        ("scale", (), "fp32"),
    ]
    assert [layer.name for layer in model.layers] == ["h.2.w", "h.10.w", "scale"]
    assert "another order" in model.notes[0]


@pytest.mark.parametrize(
    ("dtype", "bits", "name"),
    [
        ("F64", 64, "fp64"),
        ("F32", 32, "fp32"),
        ("BF16", 16, "bf16"),
        ("F16", 16, "fp16"),
        ("F8_E4M3", 8, "fp8"),
        ("F8_E5M2", 8, "fp8"),
        ("I64", 64, "int64"),
        ("U32", 32, "int32"),
        ("U8", 8, "uint8"),
        ("BOOL", 8, "uint8"),
    ],
)
def test_elements_are_as_long_as_the_format_says(
    dtype: str, bits: int, name: str, tmp_path: Path
) -> None:
    """Bits as in the format's own list (safetensors, ``Dtype::bitsize``)."""
    path = tmp_path / "weights.safetensors"
    for nbytes in (15 * bits // 8, 15 * bits // 8 + 1):
        entry = {"dtype": dtype, "shape": [3, 5], "data_offsets": [7, 7 + nbytes]}
        path.write_bytes(safetensors({"w": entry}, 200))
        if 8 * nbytes == 15 * bits:
            (found,) = load_workload(str(path)).tensors
            assert (found.numel, found.dtype) == (15, name)
        else:
            with pytest.raises(InputError, match=f"{15 * bits // 8} bytes apart"):
                load_workload(str(path))


def test_an_index_names_files_of_its_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    placed = {"a": "one.safetensors", "b": "two.safetensors", "c": "../three.safetensors"}
    index.write_text(json.dumps({"weight_map": placed}))
    (tmp_path / "one.safetensors").write_bytes(safetensors({"a": tensor([4])}, 16))
    with pytest.raises(InputError) as raised:
        load_workload(str(index))
    elsewhere, missing = map(str, raised.value.faults)
    assert "'../three.safetensors'" in elsewhere
    assert "'two.safetensors'" in missing
    assert "three" not in missing
    assert "two" not in elsewhere
    assert "one" not in elsewhere + missing
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(InputError, match="'b'"):
        load_workload(str(index))
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert load_workload(str(index)).parameters == 4


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "a header of 0 bytes"),
        (b"\xff" * 100, "a header of 18,446"),
        (struct.pack("<Q", 2**40) + b"{}", "a header of 1,099"),
        (safetensors(b"\xff\xfe\xfd"), "not text"),
        (safetensors(b"[1]"), "a list only"),
        (safetensors({}), "no tensors"),
        (safetensors({"w": 3}), "dtype, shape and data_offsets"),
        (safetensors({"w": tensor([2]) | {"dtype": "Q4"}}), "dtype 'Q4'"),
        (safetensors({"w": tensor([2]) | {"shape": [-1]}}), "above zero"),
        (safetensors({"w": tensor([2]) | {"shape": [2**50]}}), "elements"),
        (safetensors({"w": tensor([2]) | {"data_offsets": [0, 9]}}), "8 bytes apart"),
        (safetensors({"a": tensor([2]), "b": tensor([2])}), "within those of 'a'"),
    ],
)
def test_broken_headers_are_refused(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        load_workload(str(path))
    assert text in str(raised.value)
    assert raised.value.faults[0].file == str(path)
