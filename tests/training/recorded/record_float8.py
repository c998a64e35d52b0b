"""Record which operations a float8 linear layer of torchao runs, for tests without it.

``python -m tests.training.recorded.record_float8`` where torchao is installed (README.md). A CPU
has no fp8 products, so that torchao emulates them: their operations are those in 16 bits.
"""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

ROWS, DEPTH, COLUMNS = 48, 32, 80
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
VIEWS = ("aten.t.", "aten.view.", "aten.detach.")


class Recorder(TorchDispatchMode):
    """Notes each operation with the shapes and dtypes of what it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[list[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not str(func).startswith(VIEWS):
            self.operations.append([str(func), _tensors((args, kwargs)), _tensors(result)])
        return result


def _tensors(tree: Any) -> list[list[Any]]:
    tensors = [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]
    return [[list(each.shape), str(each.dtype).removeprefix("torch.")] for each in tensors]


def trace(recipe: str) -> dict[str, Any]:
    """Operations of forward and of backward."""
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    layer = torch.nn.Sequential(torch.nn.Linear(DEPTH, COLUMNS, bias=False)).bfloat16()
    convert_to_float8_training(layer, config=config)
    inputs = torch.randn(ROWS, DEPTH, dtype=torch.bfloat16, requires_grad=True)
    with Recorder() as forward:
        result = layer(inputs)
    gradient = torch.ones_like(result)
    with Recorder() as backward:
        result.backward(gradient)
    return {"forward": forward.operations, "backward": backward.operations}


def main() -> None:
    """Write float8.json beside this file."""
    lines = [f"{json.dumps(recipe)}: {json.dumps(trace(recipe))}" for recipe in RECIPES]
    head = {
        "library": f"torchao {version('torchao')}",
        "torch": version("torch"),
        "rows": ROWS,
        "depth": DEPTH,
        "columns": COLUMNS,
    }
    joined = ",\n".join(lines)
    text = f'{json.dumps(head)[:-1]}, "recipes": {{\n{joined}\n}}}}\n'
    Path(__file__).with_name("float8.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
