"""Megatron-FSDP, for `run_cases`; needs ``megatron-core``, runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.training.recorded.megatron_cases import CpuStream, OnCpu
from tests.training.recorded.recording_group import enter_phase
from tests.training.recorded.toy import Block, Net
from tests.training.recorded.toy_workload import INPUTS


class OnOneCpu(OnCpu):
    """What asks for a GPU by its number gets the CPU, too."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return super().__torch_function__(func, types, args, kwargs)


class CpuEvent:
    """A CUDA event that has happened."""

    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...


CpuStream.record_event = lambda *_: CpuEvent()  # type: ignore[attr-defined]
CpuStream.wait_event = lambda *_: None  # type: ignore[attr-defined]
CpuStream.synchronize = lambda *_: None  # type: ignore[attr-defined]
torch.cuda.current_stream = lambda *_: CpuStream()  # type: ignore[assignment, return-value]
torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
torch.cuda.empty_cache = lambda: None
torch.Tensor.record_stream = lambda *_: None  # type: ignore[assignment, method-assign]

from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp  # noqa: E402
from megatron.core.distributed.fsdp.src.megatron_fsdp.distributed_data_parallel_config import (  # noqa: E402
    DistributedDataParallelConfig,
)
from megatron.core.distributed.fsdp.src.megatron_fsdp.utils import FSDPDistributedIndex  # noqa: E402

STEPS = 3


def settings(*, accumulate: int = 1, dtype: str = "fp32", **fields: Any) -> dict[str, Any]:
    """Fields of ``DistributedDataParallelConfig``, and what stands beside it."""
    return {"accumulate": accumulate, "dtype": dtype, "fields": fields}


def train(case: dict[str, Any]) -> None:
    """Train some steps."""
    with OnOneCpu():
        _train(case["accumulate"], case["dtype"], case["fields"])


def _train(accumulate: int, dtype: str, fields: dict[str, Any]) -> None:
    torch.cuda.current_device = lambda: 0  # type: ignore[assignment]
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("fsdp", "tp"))
    index = FSDPDistributedIndex(device_mesh=mesh, dp_shard_dim="fsdp", tp_dim="tp")
    # gloo has no sum of scaled numbers
    usual = {"data_parallel_sharding_strategy": "optim_grads_params"}
    fields = usual | {"gradient_reduce_div_fusion": False} | fields
    model = megatron_fsdp.MegatronFSDP(
        Net().to(kind),
        index,
        DistributedDataParallelConfig(**fields),
        fsdp_unit_modules=[Block],
        disable_bucketing=True,
        device=torch.device("cpu"),
    )
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    model._replace_param_with_distributed_if_needed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    inputs = torch.ones(2, INPUTS, dtype=kind)
    for step in range(STEPS):
        model.zero_grad_buffer()
        for micro in range(accumulate):
            model.is_last_microbatch = micro == accumulate - 1
            enter_phase(f"step {step} forward {micro}")
            loss = model(inputs).sum()
            enter_phase(f"step {step} backward {micro}")
            loss.backward()
        enter_phase(f"step {step} finish")
        model.finish_grad_sync()
        enter_phase(f"step {step} optimizer")
        optimizer.step()
        model.install_optimized_model_weights()


SETTINGS: dict[str, dict[str, Any]] = {
    "default": settings(),
    "one ahead": settings(suggested_communication_unit_size=2),
    "two ahead": settings(suggested_communication_unit_size=4000),
    "double buffer": settings(fsdp_double_buffer=True),
    "accumulate": settings(accumulate=3, suggested_communication_unit_size=2),
    "bf16": settings(dtype="bf16", suggested_communication_unit_size=2),
    "bf16, fp32 gradients": settings(dtype="bf16", grad_reduce_in_fp32=True),
}

CASES: dict[str, Callable[[], None]] = {
    name: partial(train, case) for name, case in SETTINGS.items()
}
