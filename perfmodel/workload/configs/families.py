"""Families of Hugging Face's configurations: rows of ``families.json``, by `model_type`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from perfmodel.workload.configs import image_and_sound_models, text_models
from perfmodel.workload.configs.decoder_models import decoder_model, expert_model
from perfmodel.workload.configs.family import (
    Family,
    Flag,
    Function,
    Gate,
    Nothing,
    Rate,
    contract,
)
from perfmodel.workload.zoo.buildable import Buildable

_TABLE: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("families.json").read_text(encoding="utf-8")
)
_ROWS: Mapping[str, Mapping[str, Any]] = {**_TABLE["bases"], **_TABLE["families"]}
_MAKERS: Mapping[str, Callable[..., Buildable]] = {
    "decoder": decoder_model,
    "expert": expert_model,
    "gpt2": text_models.gpt2_model,
    "gpt_neox": text_models.gpt_neox_model,
    "phi": text_models.phi_model,
    "opt": text_models.opt_model,
    "bert": text_models.bert_model,
    "distilbert": text_models.distilbert_model,
    "t5": text_models.t5_model,
    "vit": image_and_sound_models.vit_model,
    "clip": image_and_sound_models.clip_model,
    "whisper": image_and_sound_models.whisper_model,
}
_TYPES: Mapping[str, Any] = {
    "function": Function,
    "gate or none": Gate | None,
    "flag or none": Flag | None,
    "nothing": Nothing,
    "rate": Rate,
    "none": None,
    "false": Literal[False],
    "true": Literal[True],
    "silu": Literal["silu"],
}
"""What rows call the types of fields that a family has its own of."""
_SECTION_TYPES = {"hidden_act": Function, "attention_dropout": Rate}


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
    rest = ("fixed", "shape", "block", "stated", "other_heads")
    return Family(
        row["name"],
        _MAKERS[row["make"]],
        {**{name: section() for name, section in sections.items()}, **_defaults(kind)},
        {**types, **sections},
        **{name: row[name] for name in rest if name in row},
    )


FAMILIES: Mapping[str, Family] = {kind: _family(kind) for kind in _TABLE["families"]}
