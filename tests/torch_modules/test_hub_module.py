"""Modules that transformers builds of a configuration: captured as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
pytest.importorskip("transformers", reason="not a dependency, even of the tests")

import torch
import yaml
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.torch_modules.capture import capture
from perfmodel.torch_modules.given_module import hub_module
from tests.activations import activation_bytes
from tests.workload.saved.saved_tensors import CudaKernels, saved_bytes

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

TOKENS = 64
WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 400}
PLAIN = {**WIDE, "intermediate_size": 160}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
STATES = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 32}
IMAGE = {**PLAIN, "image_size": 32, "patch_size": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "falcon": {**WIDE, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, one key head": {**WIDE, "model_type": "falcon", "num_hidden_layers": 1},
    "gptj": {"n_embd": 64, "n_layer": 1, "n_head": 4, "rotary_dim": 8, "vocab_size": 400},
    "mpt": {"d_model": 64, "n_layers": 1, "n_heads": 4, "vocab_size": 400},
    "audio-spectrogram-transformer": {
        **PLAIN,
        "num_hidden_layers": 1,
        "patch_size": 8,
        "max_length": 64,
        "num_mel_bins": 32,
    },
    "opt": {**WIDE, "ffn_dim": 160, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 400},
    "roberta": PLAIN,
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 160, "vocab_size": 400},
    "deberta-v2": {
        **PLAIN,
        "pad_token_id": None,
        "architectures": ["DebertaV2ForSequenceClassification"],
    },
    "electra": {**PLAIN, "architectures": ["ElectraForPreTraining"], "embedding_size": 32},
    "dinov2": IMAGE,
    "swin": {
        "embed_dim": 24,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "image_size": 64,
        "window_size": 4,
    },
    "segformer": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 32, 32, 64],
        "image_size": 64,
        "decoder_hidden_size": 32,
    },
    "siglip_vision_model": IMAGE,
    "wav2vec2": PLAIN,
    "bart": {
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "vocab_size": 400,
        "encoder_ffn_dim": 160,
        "decoder_ffn_dim": 96,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    },
    "mamba2": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 400,
        **STATES,
        "time_step_limit": [0.0, float("inf")],
    },
    "qwen3_next": {
        **PLAIN,
        **LINEAR,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
    },
    "minimax_m2": {
        **PLAIN,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
EXPERTS = ("qwen3_next", "minimax_m2")


def written(folder: Path, kind: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_tensors_operations_and_kept_bytes_are_those_of_the_module(
    kind: str, tmp_path: Path
) -> None:
    """Operations by PyTorch's counter, what is kept by its hooks: the module as it is."""
    from torch.utils.flop_counter import FlopCounterMode

    tokens, half = 4000 if kind == "wav2vec2" else TOKENS, kind in EXPERTS
    name, module, batch = hub_module(written(tmp_path, kind), tokens=tokens)
    if half:  # the precision that torch's grouped products have
        module.to(torch.bfloat16)
    captured = capture(module, batch, name=name)
    named = [(each, tuple(tensor.shape)) for each, tensor in module.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in captured.workload.tensors] == named
    kept = saved_bytes(module, lambda m: loss_of(m, batch), autocast=False)
    ours = activation_bytes(captured.workload, 1, "bf16" if half else "fp32")
    assert ours == pytest.approx(kept, rel=0.05)
    if not half:
        module.set_attn_implementation("eager")  # whose products the counter sees
        with FlopCounterMode(display=False) as counter, CudaKernels(autocast=False, fused=False):
            loss_of(module, batch)
        assert captured.forward_flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def loss_of(module: Any, batch: Any) -> Any:
    answer = module(**batch)
    loss = getattr(answer, "loss", None)
    return answer[0].sum() if loss is None else loss


@pytest.mark.slow
def test_the_command_takes_a_configuration(tmp_path: Path) -> None:
    path, output = written(tmp_path, "opt"), tmp_path / "model.yaml"
    run = CliRunner().invoke(
        app, ["capture", str(path), "--tokens", "32", "-o", str(output), "--name", "my-opt"]
    )
    assert run.exit_code == 0, run.output
    written_file = yaml.safe_load(output.read_text())
    named = {"name": "my-opt", "sample": "sequence of 32 tokens", "tokens_per_sample": 32}
    assert written_file | named == written_file


DBRX = {
    "model_type": "dbrx",
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 1,
    "vocab_size": 100,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}


def test_control_flow_on_data_runs_with_random_weights(tmp_path: Path) -> None:
    """DBRX asks which tokens go to an expert."""
    from torch.utils.flop_counter import FlopCounterMode

    path = tmp_path / "config.json"
    path.write_text(json.dumps(DBRX))
    _, fake, batch = hub_module(path, tokens=16)
    with pytest.raises(InputError, match=r"modeling_dbrx.*--real"):
        capture(fake, batch)
    _, module, batch = hub_module(path, tokens=16, real=True)
    captured = capture(module, batch, real=True)
    module.set_attn_implementation("eager")  # whose products the counter sees
    with FlopCounterMode(display=False) as counter:
        loss_of(module, batch).backward()
    assert captured.forward_flops + captured.backward_flops == counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ({"model_type": "llama"}, ["--real"], "copy of the file with fewer layers"),
        (
            {"model_type": "siglip2"},
            [],
            "spatial_shapes of Siglip2ForImageClassification, which is not drawn",
        ),
        ({"model_type": "timesfm", "num_hidden_layers": 1}, [], "past_values of TimesFm"),
        ({"model_type": "opt"}, ["--measure"], "CONFIG has no weights"),
        ({"model_type": "optt"}, [], "did you mean 'opt'"),
        ({}, [], "model_type: found nothing"),
        ({"model_type": "x", "auto_map": {"AutoModel": "m.M"}}, [], "code of its own"),
        ({"model_type": "opt", "hidden_size": "wide"}, [], "what transformers"),
        ({"model_type": "bart", "d_model": 65, "encoder_layers": 1}, [], "what transformers"),
    ],
)
def test_what_transformers_cannot_build_is_refused(
    content: dict[str, Any], flags: list[str], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    run = CliRunner().invoke(app, ["capture", str(path), "-o", str(tmp_path / "m.yaml"), *flags])
    assert run.exit_code == 2
    assert words in " ".join(run.output.split())
    assert "Traceback" not in run.output


def test_tokens_are_for_configurations(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["capture", "x.py:f", "--tokens", "8"])
    assert run.exit_code == 2
    assert "a function makes its batch itself" in " ".join(run.output.split())


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"without config\.json"):
        hub_module(tmp_path)
