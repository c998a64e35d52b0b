"""Megatron-Core's data parallelism, for `run_cases`; needs ``megatron-core``, runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """What asks for a GPU gets the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return str(func(*args)).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


class CpuStream:
    """A CUDA stream that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, other: Any) -> None: ...


torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
torch.cuda.Stream = CpuStream  # type: ignore[assignment, misc]
torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment, misc]
torch.cuda.default_stream = lambda *_: CpuStream()  # type: ignore[assignment, return-value]

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed.finalize_model_grads import finalize_model_grads  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

from tests.training.recorded.recording_group import CALLS, enter_phase  # noqa: E402
from tests.training.recorded.toy import Net  # noqa: E402
from tests.training.recorded.toy_workload import INPUTS  # noqa: E402

LAYER_WISE = "layer_wise_distributed_optimizer"
STEPS = 3
"""Overlap of the reduction begins in the second step."""


def settings(*, accumulate: int = 1, dtype: str = "fp32", **fields: Any) -> dict[str, Any]:
    """Fields of ``DistributedDataParallelConfig``, and what stands beside it."""
    return {"accumulate": accumulate, "dtype": dtype, "fields": fields}


def train(case: dict[str, Any]) -> None:
    """Train some steps."""
    with OnCpu():
        _train(case["accumulate"], case["dtype"], case["fields"])


def _train(accumulate: int, dtype: str, fields: dict[str, Any]) -> None:
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        num_distributed_optimizer_instances=fields.get("num_distributed_optimizer_instances", 1)
    )
    bf16 = dtype == "bf16"
    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=1, bf16=bf16)
    config.finalize_model_grads_func = finalize_model_grads
    net = Net().bfloat16() if bf16 else Net()
    for parameter in net.parameters():
        parameter.tensor_model_parallel = False
    own = {name: value for name, value in fields.items() if name != LAYER_WISE}
    model = DistributedDataParallel(config, DistributedDataParallelConfig(**own), net)
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=1e-3,
        bf16=bf16 and LAYER_WISE not in fields,  # masters are of a share
        use_distributed_optimizer=fields.get("use_distributed_optimizer", False),
        overlap_param_gather=fields.get("overlap_param_gather", False),
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
    )
    optimizer = get_megatron_optimizer(optimizer_config, [model])
    if LAYER_WISE in fields:
        optimizer_config.bf16 = bf16
        groups = ProcessGroupCollection.use_mpu_process_groups()
        optimizer = LayerWiseDistributedOptimizer(
            optimizer.chained_optimizers, optimizer_config, groups
        )
    inputs = torch.ones(2, INPUTS, dtype=torch.bfloat16 if bf16 else torch.float32)
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for micro in range(accumulate):
            last = micro == accumulate - 1
            enter_phase(f"step {step} forward {micro}")
            if last:
                loss = model(inputs).sum()
                enter_phase(f"step {step} backward {micro}")
                loss.backward()
            else:
                with model.no_sync():
                    loss = model(inputs).sum()
                    enter_phase(f"step {step} backward {micro}")
                    loss.backward()
        model.finish_grad_sync()
        enter_phase(f"step {step} optimizer")
        optimizer.step()
    note_bytes(model, optimizer, dtype)


def note_bytes(model: Any, optimizer: Any, dtype: str) -> None:
    """Note what rank 0 keeps between steps."""
    inner = optimizer.chained_optimizers[0].optimizer
    states = [each for state in inner.state.values() for each in state.values()]
    masters = [each for group in inner.param_groups for each in group["params"]]
    buffers = [buffer.param_data for buffer in model.buffers]
    kept = {
        "parameters": list(model.module.parameters()) if buffers[0] is None else buffers,
        "gradients": [buffer.grad_data for buffer in model.buffers],
        "optimizer": [each for each in states if torch.is_tensor(each) and each.numel() > 1],
        "master": masters if dtype == "bf16" else [],
    }
    for name, tensors in kept.items():
        nbytes = sum(each.numel() * each.element_size() for each in tensors)
        CALLS.append(
            {"op": name, "bytes": nbytes, "dtype": "", "group": [], "phase": "memory", "tensors": 1}
        )


SETTINGS: dict[str, dict[str, Any]] = {
    "all-reduce": settings(),
    "all-reduce, overlap": settings(overlap_grad_reduce=True, bucket_size=1200),
    "distributed": settings(use_distributed_optimizer=True),
    "distributed, overlap": settings(
        use_distributed_optimizer=True, overlap_grad_reduce=True, bucket_size=1200
    ),
    "distributed, gather": settings(
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        bucket_size=1200,
    ),
    "distributed, default": settings(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
    ),
    "distributed, accumulate": settings(
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        bucket_size=1200,
        accumulate=3,
    ),
    "distributed, average": settings(
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=900,
        average_in_collective=True,
    ),
    "distributed, padded": settings(
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=1200,
        pad_buckets_for_high_nccl_busbw=True,
    ),
    "distributed, bf16": settings(
        dtype="bf16",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=1200,
        overlap_param_gather=True,
    ),
    "distributed, bf16, fp32 gradients": settings(
        dtype="bf16",
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        bucket_size=1200,
        overlap_param_gather=True,
        grad_reduce_in_fp32=True,
    ),
    "layer-wise": settings(layer_wise_distributed_optimizer=True),
    "layer-wise, bf16": settings(
        layer_wise_distributed_optimizer=True,
        dtype="bf16",
        overlap_grad_reduce=True,
        bucket_size=1200,
        grad_reduce_in_fp32=True,
    ),
    "distributed, instances": settings(
        use_distributed_optimizer=True, num_distributed_optimizer_instances=2
    ),
    "distributed, instances, overlap": settings(
        use_distributed_optimizer=True,
        num_distributed_optimizer_instances=2,
        bucket_size=1200,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    ),
}

CASES: dict[str, Callable[[], None]] = {
    name: partial(train, case) for name, case in SETTINGS.items()
}
