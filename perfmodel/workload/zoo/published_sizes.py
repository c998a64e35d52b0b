"""Sizes of published models, which ``published_sizes.json`` lists with their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Sizes = Mapping[str, dict[str, Any]]
"""Fields of each model of a family, by its name."""


@cache
def sizes_document() -> Mapping[str, Any]:
    """Return the file as it is; JSON, which is read in a hundredth of the time of YAML."""
    document: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return document


@cache
def published_sizes(group: str) -> dict[str, Sizes]:
    """Return the models of each family of a group: "decoders", "experts", "text", "images" ...

    A model has what all of its family have, and what it states itself.
    """
    return {
        family: {name: {**part.get("all", {}), **own} for name, own in part["models"].items()}
        for family, part in sizes_document()[group].items()
    }
