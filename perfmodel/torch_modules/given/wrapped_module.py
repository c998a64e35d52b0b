"""The module that is trained, without what wraps it; what cannot be captured is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfmodel.errors import Fault, InputError

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
"""Attributes in which torch.compile and checkpoint_wrapper hold the module inside."""


def plain_name(name: str) -> str:
    """Return the name that a parameter or module has without wrappers."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def inner_module(model: Any, *, real: bool) -> Any:
    """Return the module inside of torch.compile, DataParallel and DistributedDataParallel.

    `real`: whether it runs on its own parameters, where hooks of DDP would reduce gradients.

    Raises
    ------
    InputError
        It is no module, or one that cannot be captured as it is.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        text = f"{type(model).__name__}"
        raise InputError(Fault("model", text, "a torch.nn.Module, built: MyModel(), not MyModel"))
    parallel: Any = torch.nn.parallel
    replicas = parallel.DistributedDataParallel | parallel.DataParallel
    while isinstance(model, replicas) or hasattr(model, "_orig_mod"):
        if real and isinstance(model, replicas):
            text = f"a module wrapped in {type(model).__name__}"
            raise InputError(Fault("model", text, "the module before it is wrapped"))
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    if faults := list(_faults(model)):
        raise InputError(faults)
    return model


def _faults(model: Any) -> Iterator[Fault]:
    import torch

    for name, part in model.named_modules():
        place = f" ({name})" if name else ""
        if isinstance(part, torch.jit.ScriptModule):
            allowed = "the module before torch.jit.script or torch.jit.trace"
            yield Fault("model", f"a module compiled by torch.jit{place}", allowed)
            return
        if type(part).__name__ == "FullyShardedDataParallel":
            yield _sharded(f"a module in FullyShardedDataParallel{place}")
            return
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            text = f"a parameter without a shape yet ({name}, of a lazy module)"
            yield Fault("model", text, "the module after one forward, which gives it its shape")
            return
        if hasattr(parameter, "device_mesh"):
            yield _sharded(f"a parameter that is sharded already ({name}, a DTensor)")
            return


def _sharded(text: str) -> Fault:
    allowed = (
        "the module before fully_shard, FSDP or parallelize_module: `strategy` and `parallel` of "
        "the scenario shard it"
    )
    return Fault("model", text, allowed)
