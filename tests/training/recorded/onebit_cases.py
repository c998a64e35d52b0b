"""DeepSpeed's 1-bit optimizers, for `run_cases`; ONEBIT_SOURCE: unpacked sources of 0.14.5.

The modules of the optimizers and of their compressed all-reduce are run as they are; beside them
stand what they import: torch's collectives for DeepSpeed's, the CPU for an accelerator, NumPy for
CuPy.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.training.recorded.recording_group import CALLS, enter_phase
from tests.training.recorded.toy import Net
from tests.training.recorded.toy_workload import INPUTS

STEPS = 6
FREEZE = 2


def settings(optimizer: str, dtype: str = "fp32", **fields: Any) -> dict[str, Any]:
    """Fields of the optimizer; fp16 has one flat parameter, as ``FP16_Optimizer`` gives it."""
    return {"optimizer": optimizer, "dtype": dtype, "fields": fields}


SETTINGS = {
    "adam": settings("adam"),
    "adam, flat": settings("adam", "fp16"),
    "zero one": settings("zero_one_adam", "fp16"),
    "zero one, two steps": settings("zero_one_adam", "fp16", local_steps=2),
    "lamb": settings("lamb"),
}


def _stand_in(name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _load(name: str) -> Any:
    """Load a module of DeepSpeed from its sources."""
    path = Path(os.environ["ONEBIT_SOURCE"], *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _all_gather(outputs: list[torch.Tensor], own: torch.Tensor, group: Any) -> None:
    """A scalar counts as one element, which gloo insists on and NCCL does not."""
    dist.all_gather(outputs, own.view(-1), group=group)


def _prepare() -> None:
    packages = (
        "deepspeed",
        "deepspeed.utils",
        "deepspeed.runtime",
        "deepspeed.runtime.comm",
        "deepspeed.runtime.compression",
    )
    for name in packages:
        _stand_in(name, __path__=[])
    names = ("new_group", "get_rank", "get_world_size", "is_initialized", "all_to_all_single")
    _stand_in(
        "deepspeed.comm", all_gather=_all_gather, **{name: getattr(dist, name) for name in names}
    )
    sys.modules["deepspeed"].comm = sys.modules["deepspeed.comm"]  # type: ignore[attr-defined]
    device = SimpleNamespace(empty_cache=lambda: None, device_name=lambda _: "cpu")
    _stand_in("deepspeed.accelerator", get_accelerator=lambda: device)
    _stand_in("deepspeed.utils.torch", required_torch_version=lambda **_: True)
    stream = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(
        Device=lambda _: SimpleNamespace(use=lambda: None), get_current_stream=lambda: stream
    )
    names = ("packbits", "unpackbits", "split", "zeros")
    _stand_in("cupy", cuda=cuda, **{name: getattr(np, name) for name in names})
    compression = _load("deepspeed.runtime.compression.cupy")
    compression.CupyBackend.torch2cupy = lambda _, tensor: tensor.detach().numpy()
    compression.CupyBackend.cupy2torch = lambda _, array: torch.from_numpy(
        np.ascontiguousarray(array)
    )
    _load("deepspeed.runtime.comm.nccl")


def _optimizer(case: dict[str, Any], parameters: list[Any], engine: Any) -> Any:
    kind = case["optimizer"]
    if kind == "zero_one_adam":
        steps = case["fields"].get("local_steps", 1)
        more = {"var_freeze_step": FREEZE, "local_step_scaler": 1, "local_step_clipper": steps}
        module = _load("deepspeed.runtime.fp16.onebit.zoadam")
        return module.ZeroOneAdam(parameters, engine, **more)
    name = {"adam": "OnebitAdam", "lamb": "OnebitLamb"}[kind]
    module = _load(f"deepspeed.runtime.fp16.onebit.{kind}")
    return getattr(module, name)(parameters, engine, freeze_step=FREEZE)


def train(case: dict[str, Any]) -> None:
    """Train some steps, of which the first ones are the warm-up."""
    _prepare()
    model = Net()
    own = list(model.parameters())
    flat = torch.cat([each.detach().flatten() for each in own]).requires_grad_()
    parameters = [flat] if case["dtype"] == "fp16" else own
    engine = SimpleNamespace(mpu=None, local_rank=0, enable_backward_allreduce=True)
    optimizer = _optimizer(case, parameters, engine)
    for step in range(STEPS):
        is_last = step >= STEPS - case["fields"].get("local_steps", 1)
        enter_phase("last round" if is_last else f"step {step}")
        model(torch.ones(2, INPUTS)).sum().backward()
        if case["dtype"] == "fp16":
            flat.grad = torch.cat([each.grad.flatten() for each in own])  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
    states = list(optimizer.state.values())
    errors = getattr(optimizer, "worker_errors", []) + getattr(optimizer, "server_errors", [])
    errors += [
        state[name]
        for state in states
        for name in ("worker_error", "server_error")
        if name in state
    ]
    kept = [
        each
        for state in states
        for name, each in state.items()
        if isinstance(each, torch.Tensor) and not name.endswith("_error")
    ]
    for op, tensors in (("errors", errors), ("states", kept)):
        nbytes = sum(each.numel() * each.element_size() for each in tensors)
        CALLS.append(
            {"op": op, "bytes": nbytes, "dtype": "", "group": [], "phase": "memory", "tensors": 0}
        )


CASES: dict[str, Callable[[], None]] = {
    name: partial(train, case) for name, case in SETTINGS.items()
}
