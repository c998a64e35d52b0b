"""Towers for images beside the text models of Qwen: how many parameters are left out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.sections.model import Layers
from perfmodel.workload.configs.family import Width, contract

TEXT_ALONE = "Its text model alone is trained: "
_TYPES = {
    "depth": Layers,
    "deepstack_visual_indexes": tuple[int, ...],
    "intermediate_size": Width | None,
    **dict.fromkeys(("num_position_embeddings", "mlp_ratio"), int),
    **dict.fromkeys(("in_channels", "temporal_patch_size", "spatial_merge_size"), Width),
    **dict.fromkeys(("embed_dim", "out_hidden_size"), Width | None),
    **dict.fromkeys(("is_gated", "is_shifted"), bool),
}


def left_out(content: Mapping[str, Any], towers: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which parts of a file for images or sound are left out, and how large they are if known.

    `towers`: fields of `vision_config` with their defaults, by `model_type` of the whole.
    """
    kind, section = str(content.get("model_type")), content.get("vision_config")
    others = {"text_config", "quantization_config"}
    named = [name for name in content if name.endswith("_config") and name not in others]
    if kind in towers and isinstance(section, dict):
        with suppress(InputError):  # nothing that is trained follows from it
            form = contract("vision_config", towers[kind], _TYPES)
            sizes = SimpleNamespace(**dict(validate_document(form, section)))
            return f"{TEXT_ALONE}the {_parameters(sizes):,} parameters for images are left out."
    parts = f" ({', '.join(named[:4])[:120]})" if named else ""
    return f"{TEXT_ALONE}the parts for images or sound{parts} are left out, and not counted."


def _parameters(tower: SimpleNamespace) -> int:
    """Parameters of patches, blocks, and what merges patches to tokens of the text model."""
    width = tower.embed_dim or tower.hidden_size
    inner = tower.intermediate_size or tower.mlp_ratio * width
    merged = tower.spatial_merge_size**2 * width
    out = tower.out_hidden_size or tower.hidden_size
    vectors = 1 if tower.is_gated else 2  # of a norm: a gated tower has no shifts
    mlp = (2 + tower.is_gated) * width * inner + (1 + tower.is_gated) * inner + width
    block = 2 * vectors * width + 4 * (width + 1) * width + mlp
    merger = (merged + 1) * merged + (merged + 1) * out
    patch = tower.in_channels * tower.temporal_patch_size * tower.patch_size**2
    return int(
        (patch + tower.is_shifted + tower.num_position_embeddings) * width
        + tower.depth * block
        + merger
        + vectors * width
        + len(tower.deepstack_visual_indexes) * (merger + vectors * merged)
    )
