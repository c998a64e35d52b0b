"""Configurations drawn at random, against the real modules of them, on the meta device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.workload.configs.hugging_face import FAMILIES, read_config
from perfmodel.workload.zoo.buildable import build

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

torch = pytest.importorskip("torch", reason="the real modules need the extra 'torch'")
hf = pytest.importorskip("transformers", reason="not a dependency, even of the tests")

TOKENS = 32
ROUTED = {
    "mixtral": "num_local_experts",
    "gpt_oss": "num_local_experts",
    "qwen2_moe": "num_experts",
    "qwen3_moe": "num_experts",
    "olmoe": "num_experts",
    "deepseek_v2": "n_routed_experts",
    "deepseek_v3": "n_routed_experts",
    "glm4_moe": "n_routed_experts",
}
"""Families of experts, and the field of how many a layer has."""
DENSE = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "nemotron",
    "phi3",
    "glm",
    "glm4",
    "granite",
    "smollm3",
    "seed_oss",
    "ernie4_5",
    "olmo2",
    "olmo3",
    "starcoder2",
)
OWN_HEADS = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "qwen3",
    "glm",
    "glm4",
    "seed_oss",
    "ernie4_5",
    "gpt_oss",
    "qwen3_moe",
)
"""Whose default is a size of heads that does not follow from the width."""


@st.composite
def configs(draw: Callable[..., Any]) -> dict[str, Any]:
    """Legal configurations of decoders: what a family does not have, it does not read."""
    family = draw(st.sampled_from((*DENSE, *ROUTED)))
    heads, layers = draw(st.sampled_from((2, 4, 6))), draw(st.integers(1, 4))
    flags = (
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "use_sliding_window",
        "use_bias",
        "attention_out_bias",
        "qkv_bias",
        "use_qk_norm",
    )
    config: dict[str, Any] = {
        "model_type": family,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "hidden_size": heads * draw(st.sampled_from((8, 16, 20))),
        "intermediate_size": draw(st.sampled_from((40, 96))),
        "num_key_value_heads": draw(st.sampled_from([d for d in (1, 2, 3) if heads % d == 0])),
        "vocab_size": draw(st.integers(50, 400)),
        "pad_token_id": 0,
        "sliding_window": draw(st.sampled_from((8, 600))),
        "max_window_layers": 1,
        "no_rope_layer_interval": 2,
        **{flag: draw(st.booleans()) for flag in flags},
    }
    if family in OWN_HEADS or (draw(st.booleans()) and family != "olmoe"):
        config["head_dim"] = draw(st.sampled_from((8, 12, 24)))
    if family in ROUTED:
        config |= {
            ROUTED[family]: draw(st.sampled_from((4, 8))),
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 0,
            "n_group": 2,
            "topk_group": 1,
            "shared_expert_intermediate_size": 56,
        }
    if family.startswith("deepseek"):
        config |= {
            "q_lora_rank": draw(st.sampled_from((None, 16))),
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 12,
            "num_key_value_heads": heads,
            "attention_bias": False,
            "mlp_bias": False,
        }
        config.pop("head_dim", None)
    return config


def compared(config: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    """Return the model that is read, and the real module, of no weights."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    ours = build(read_config(path), sequence_length=TOKENS)
    real = hf.AutoConfig.for_model(**config)
    real._attn_implementation, real._experts_implementation = "eager", "batched_mm"
    with torch.device("meta"):
        module = getattr(hf, FAMILIES[config["model_type"]].name)(real)
    tensors = [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()]
    assert [(tensor.name, tensor.shape) for tensor in ours.tensors] == tensors
    assert ours.buffer_bytes == sum(b.numel() * b.element_size() for b in module.buffers())
    return ours, module


@pytest.mark.slow
@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs())
def test_tensors_are_those_of_the_module(config: dict[str, Any], tmp_path: Path) -> None:
    compared(config, tmp_path)


@pytest.mark.benchmarks
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs())
def test_operations_are_those_of_the_module(config: dict[str, Any], tmp_path: Path) -> None:
    """The long one, which also runs the modules."""
    from torch.utils.flop_counter import FlopCounterMode

    from tests.workload.saved.saved_tensors import CudaKernels

    ours, module = compared(config, tmp_path)
    words = torch.zeros(2, TOKENS, dtype=torch.long, device="meta")
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), counter, CudaKernels(autocast=False):
        module(words, use_cache=False)
    operations = 2 * sum(layer.matmul_flops for layer in ours.layers)
    assert operations == pytest.approx(counter.get_total_flops(), rel=1e-4)
