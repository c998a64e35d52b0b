"""Towers beside a text model: how large they are, and that they are said to be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import build_app
from perfmodel.workload.configs.hugging_face import read_config

TEXT = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"intermediate_size": 128, "num_key_value_heads": 2}
TOWERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 3, "embed_dim": 48, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 3},
    "qwen2_5_vl": {"depth": 2, "hidden_size": 48, "intermediate_size": 100, "out_hidden_size": 64},
    "qwen3_vl": {
        "depth": 4,
        "hidden_size": 48,
        "intermediate_size": 100,
        "out_hidden_size": 64,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [1, 2],
        "patch_size": 8,
    },
}
TOWERS["qwen3_vl_moe"] = TOWERS["qwen3_vl"]
PUBLISHED = {"qwen2_vl": 675_759_104, "qwen2_5_vl": 676_550_144, "qwen3_vl": 576_388_336}
"""Parameters of `model.visual` in transformers 5.24, of Qwen's 7B, 7B and 8B."""
OF_8B = {"out_hidden_size": 4096}
STATED = {"qwen2_vl": {}, "qwen2_5_vl": {"hidden_size": 1280}, "qwen3_vl": OF_8B}
"""What their files state beside the defaults of their class."""


def note(folder: Path, kind: str, **content: Any) -> str:
    path = folder / "config.json"
    text = {"model_type": "llama", **TEXT} if kind == "llava" else {"model_type": f"{kind}_text"}
    path.write_text(json.dumps({"model_type": kind, "text_config": text, **content}))
    (said,) = (each for each in read_config(path).notes if "text model alone" in each)
    return said


@pytest.mark.parametrize(("kind", "parameters"), PUBLISHED.items())
def test_published_towers_are_counted(tmp_path: Path, kind: str, parameters: int) -> None:
    said = note(tmp_path, kind, vision_config=STATED[kind])
    assert said.endswith(f"the {parameters:,} parameters for images are left out.")


@pytest.mark.parametrize("kind", TOWERS)
def test_towers_have_the_parameters_of_the_real_module(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    vision = {"num_heads": 4, **TOWERS[kind]}
    config = transformers.CONFIG_MAPPING[kind](vision_config=vision, text_config=TEXT)
    with torch.device("meta"):
        tower = transformers.AutoModel.from_config(config).visual
    parameters = sum(each.numel() for each in tower.parameters())
    assert f"the {parameters:,} parameters" in note(tmp_path, kind, vision_config=TOWERS[kind])


def test_other_towers_are_named(tmp_path: Path) -> None:
    said = note(tmp_path, "llava", vision_config={}, audio_config={}, quantization_config={})
    assert "(vision_config, audio_config) are left out, and not counted" in said
    assert "and not counted" in note(tmp_path, "qwen3_vl", vision_config={"depth": "deep"})


def test_a_file_that_is_shown_says_it_too(tmp_path: Path) -> None:
    note(tmp_path, "qwen3_vl", vision_config=OF_8B, dtype="bfloat16")
    ran = CliRunner().invoke(build_app(["models"]), ["models", str(tmp_path)])
    assert ran.exit_code == 0
    assert "576,388,336 parameters for images are left out" in ran.output
    assert "bf16" in ran.output
    assert "fp32" not in ran.output
