"""Print the bytes that rank 0 of real fully sharded modules keeps; other ranks are a fake group.

``python -m tests.training.recorded.shard_worker MODEL,VERSION,RANKS ...`` prints a list for each:
MODEL is "toy" or one of the zoo, which becomes a module with parameters of the same names and
shapes. Models of more than `MOST_BYTES` are sharded on the meta device.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from perfmodel.training.fsdp.units import block_of
from perfmodel.workload.zoo import build_model
from tests.training.recorded.toy import Block, Net
from tests.training.recorded.toy_workload import INPUTS

MOST_BYTES = 10**8
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.1),
}


class Part(nn.Module):
    """A module whose output depends on all of its parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for parameter in self.parameters(recurse=False):
            x = x + parameter.sum()
        for child in self.children():
            x = child(x)
        return x


class PartBlock(Part):
    """A repeated block."""


def zoo_module(name: str) -> nn.Module:
    """A module with the parameters of a model of the zoo."""
    model = build_model(name)
    device = "meta" if model.nbytes > MOST_BYTES else "cpu"
    root: nn.Module = Part()
    for tensor in model.tensors:
        *path, last = tensor.name.split(".")
        module = root
        for depth, part in enumerate(path):
            if not hasattr(module, part):
                is_block = block_of(tensor.name) == ".".join(path[: depth + 1])
                module.add_module(part, PartBlock() if is_block else Part())
            module = getattr(module, part)
        module.register_parameter(last, nn.Parameter(torch.zeros(tensor.shape, device=device)))
    return root


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of some tensors on this rank, each storage once."""
    local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in local}
    return sum(storages.values())


def kept_bytes(model: nn.Module, optimizer: str, inputs: torch.Tensor | None) -> list[int]:
    """Train a step (without inputs: with gradients of zero); bytes of what is kept after it."""
    parameters = list(model.parameters())
    updater = OPTIMIZERS[optimizer](parameters)
    if inputs is None:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    else:
        model(inputs).sum().backward()
    gradients = [each.grad for each in parameters if each.grad is not None]
    updater.step()
    values = [value for state in updater.state.values() for value in state.values()]
    states = [value for value in values if isinstance(value, torch.Tensor)]
    return [storage_bytes(each) for each in (parameters, gradients, states)]


def shard(model: nn.Module, version: int, ranks: int, options: dict[str, Any]) -> nn.Module:
    """Wrap blocks and the whole."""
    classes = {Block, PartBlock}
    if version == 1:
        more: dict[str, Any] = {"use_orig_params": options.get("use_orig_params", False)}
        if "param_dtype" in options:
            more["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
        policy = ModuleWrapPolicy(classes)
        return FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), auto_wrap_policy=policy, **more
        )
    mesh = init_device_mesh("cpu", (ranks,))
    for module in model.modules():
        if type(module) in classes:
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def measure(name: str, version: int, ranks: int) -> list[dict[str, Any]]:
    """A case for each optimizer and option."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    options: list[dict[str, Any]] = [{}]
    if version == 1:
        options += [{"use_orig_params": True}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}]
    cases = []
    for chosen, optimizer in itertools.product(options, OPTIMIZERS):
        model = Net() if name == "toy" else zoo_module(name)
        is_meta = next(model.parameters()).is_meta
        inputs = None if is_meta else torch.ones(2, INPUTS) if name == "toy" else torch.ones(1)
        sharded = shard(model, version, ranks, chosen)
        kept = kept_bytes(sharded, optimizer, inputs)
        cases.append({"options": chosen, "optimizer": optimizer, "bytes": kept})
    dist.destroy_process_group()
    return cases


if __name__ == "__main__":
    asked = [word.split(",") for word in sys.argv[1:]]
    print(json.dumps([measure(name, int(version), int(ranks)) for name, version, ranks in asked]))
