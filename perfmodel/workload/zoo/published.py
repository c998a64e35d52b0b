"""What is published of models: their sizes with sources, and the names of their modules.

Both are JSON, ``published_sizes.json`` and ``module_names.json``, which is read in a hundredth of
the time of YAML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Fields = Mapping[str, dict[str, Any]]
"""Fields of each model of a family, or of each family's names."""


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """Return one of the files as it is."""
    document: Mapping[str, Any] = json.loads(
        Path(__file__).with_name(f"{name}.json").read_text("utf-8")
    )
    return document


@cache
def published_sizes(group: str) -> dict[str, Fields]:
    """Return the models of each family of a group: "decoders", "experts", "text", "images" ...

    A model has what all of its family have, and what it states itself.
    """
    return {
        family: {name: {**part.get("all", {}), **own} for name, own in part["models"].items()}
        for family, part in read_table("published_sizes")[group].items()
    }


def module_names(group: str) -> Mapping[str, Any]:
    """Return names of modules: of "decoders", "blocks", "experts" ...; or what is "replaced"."""
    names: Mapping[str, Any] = read_table("module_names")[group]
    return names
