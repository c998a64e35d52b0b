"""DistributedDataParallel with each of its options and hooks, for `run_cases`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import (
    quantization_perchannel_hook,
    quantization_pertensor_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from tests.training.recorded.recording_group import enter_phase
from tests.training.recorded.toy import Net, train
from tests.training.recorded.toy_workload import INPUTS

SMALL_CAP_MB = 0.003
"""Buckets of several tensors each."""


class WithStatistics(nn.Module):
    """The model behind a batch normalisation, whose statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(INPUTS, affine=False)
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.norm(x))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def ddp(net: Callable[[], nn.Module] = Net, **options: Any) -> Callable[[], None]:
    """Some steps with arguments of the constructor."""

    def run() -> None:
        model = DistributedDataParallel(net(), **options)
        train(model, sgd(model), 4)

    return run


def hooked(make: Callable[[], tuple[Any, Any]], **options: Any) -> Callable[[], None]:
    """Some steps with a state and a hook."""

    def run() -> None:
        model = DistributedDataParallel(Net(), **options)
        model.register_comm_hook(*make())
        train(model, sgd(model), 4)

    return run


def power_sgd(wrapper: Any = None, **state: Any) -> Callable[[], tuple[Any, Any]]:
    hook = powerSGD_hook if wrapper is None else wrapper(powerSGD_hook)
    return lambda: (PowerSGDState(None, start_powerSGD_iter=2, **state), hook)


class _Gathered:
    """A gather whose future holds one stacked tensor, as NCCL's does and Gloo's does not."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self.future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self.future.set_result([torch.stack(outputs)])

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self.future


def quantised(hook: Any) -> Callable[[], None]:
    """PyTorch's quantisation hooks, which index what NCCL returns."""

    def run() -> None:
        gather = dist.all_gather

        def all_gather(outputs: list[torch.Tensor], own: torch.Tensor, **_: Any) -> _Gathered:
            gather(outputs, own)
            return _Gathered(outputs)

        dist.all_gather = all_gather
        try:
            hooked(lambda: (None, hook), bucket_cap_mb=SMALL_CAP_MB)()
        finally:
            dist.all_gather = gather

    return run


def accumulated() -> None:
    """Three micro-steps, the first two without synchronisation."""
    model = DistributedDataParallel(WithStatistics())
    optimizer = sgd(model)
    for number in range(4):
        enter_phase(f"step {number}")
        for _ in range(2):
            with model.no_sync():
                model(torch.ones(2, INPUTS)).sum().backward()
        model(torch.ones(2, INPUTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def joined(net: Callable[[], nn.Module] = Net, **context: Any) -> Callable[[], None]:
    """Uneven inputs; nobody has run out of them in the steps that are compared."""

    def run() -> None:
        model = DistributedDataParallel(net())
        with Join([model], **context):
            train(model, sgd(model), 4)

    return run


def run_out() -> None:
    """Rank 0 has inputs for two steps, the others for four."""
    model = DistributedDataParallel(WithStatistics(), find_unused_parameters=True)
    optimizer = sgd(model)
    with Join([model]):
        train(model, optimizer, 2 if dist.get_rank() == 0 else 4)
        enter_phase("joined")


def subgroup() -> None:
    """Two ranks of all."""
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        model = DistributedDataParallel(Net(), process_group=group)
        train(model, sgd(model), 4)


def averaged(averager: Callable[[], Any], *, gradients: bool = True) -> Callable[[], None]:
    """Post-local SGD: gradients among two ranks from step 2 on, parameters among all."""

    def run() -> None:
        from torch.distributed.optim import PostLocalSGDOptimizer  # warns of torch.jit

        model = DistributedDataParallel(Net())
        group, _ = dist.new_subgroups(2)
        state = PostLocalSGDState(None, group, 2, post_local_gradient_allreduce=gradients)
        model.register_comm_hook(state, post_localSGD_hook)
        train(model, PostLocalSGDOptimizer(sgd(model), averager()), 8)

    return run


def periodic() -> None:
    """No synchronisation of gradients at all."""
    model = Net()
    averager = PeriodicModelAverager(period=2)
    optimizer = sgd(model)

    def step() -> None:
        optimizer.step()
        averager.average_parameters(model.parameters())

    train(model, optimizer, 4, step)


def hierarchy() -> HierarchicalModelAverager:
    return HierarchicalModelAverager({2: 2, 4: dist.get_world_size()}, warmup_steps=2)


class _Event:
    """An event of a stream that does nothing."""

    def record(self) -> None:
        """All is done."""

    def wait(self, stream: Any) -> None:
        """Nothing to wait for."""


class _Stream(nullcontext[None]):
    """A stream of a CPU."""

    def wait_stream(self, other: Any) -> None:
        """Nothing to wait for."""


def mixed(
    net: Callable[[], nn.Module] = Net,
    *,
    param: Any = torch.bfloat16,
    reduce: Any = None,
    buffers: Any = None,
    **options: Any,
) -> Callable[[], None]:
    """Mixed precision, with streams that do nothing."""

    def run() -> None:
        patched = ((torch, "Stream"), (torch, "Event"), (torch.accelerator, "current_stream"))
        kept = [getattr(*each) for each in patched]
        for (owner, name), stand_in in zip(patched, (_Stream, _Event, _Stream), strict=True):
            setattr(owner, name, stand_in)
        try:
            precision = _MixedPrecision(param, reduce, buffers)
            ddp(net, mixed_precision=precision, **options)()
        finally:
            for (owner, name), own in zip(patched, kept, strict=True):
                setattr(owner, name, own)

    return run


CASES: dict[str, Callable[[], None]] = {
    "ddp": ddp(),
    "small buckets": ddp(bucket_cap_mb=SMALL_CAP_MB),
    "cap list": ddp(bucket_cap_mb_list=[0.001, SMALL_CAP_MB, 0.01]),
    "unused": ddp(find_unused_parameters=True),
    "unused, skipped": ddp(find_unused_parameters=True, skip_all_reduce_unused_params=True),
    "static": ddp(static_graph=True),
    "views": ddp(gradient_as_bucket_view=True),
    "batched copy": ddp(batched_grad_copy=True),
    "buffers": ddp(WithStatistics),
    "buffers not broadcast": ddp(WithStatistics, broadcast_buffers=False),
    "buffers not synced": ddp(WithStatistics, forward_sync_buffers=False),
    "init not synced": ddp(init_sync=False),
    "accumulated": accumulated,
    "joined": joined(),
    "joined, buffers": joined(WithStatistics),
    "joined, throws": joined(throw_on_early_termination=True),
    "run out": run_out,
    "allreduce": hooked(lambda: (None, default_hooks.allreduce_hook)),
    "fp16": hooked(lambda: (None, default_hooks.fp16_compress_hook)),
    "powersgd": hooked(power_sgd(matrix_approximation_rank=2)),
    "powersgd, cold": hooked(power_sgd(warm_start=False, use_error_feedback=False)),
    "powersgd, all whole": hooked(power_sgd(min_compression_rate=1000)),
    "powersgd, batched": hooked(
        power_sgd(matrix_approximation_rank=4, batch_tensors_with_same_shape=True)
    ),
    "powersgd, fp16": hooked(power_sgd(default_hooks.fp16_compress_wrapper)),
    "quantization_pertensor": quantised(quantization_pertensor_hook),
    "quantization_perchannel": quantised(quantization_perchannel_hook),
    "mixed": mixed(),
    "mixed, small buckets": mixed(reduce=torch.bfloat16, bucket_cap_mb=SMALL_CAP_MB),
    "mixed, reduced wide": mixed(reduce=torch.float32),
    "mixed, views": mixed(reduce=torch.float16, gradient_as_bucket_view=True),
    "mixed, static": mixed(static_graph=True, find_unused_parameters=True),
    "mixed, buffers": mixed(WithStatistics, buffers=torch.bfloat16),
    "mixed, own buffers": mixed(WithStatistics, buffers=torch.float32),
    "post-local SGD": averaged(lambda: PeriodicModelAverager(2, warmup_steps=2)),
    "local gradients": averaged(lambda: PeriodicModelAverager(2, warmup_steps=2), gradients=False),
    "periodic": periodic,
    "hierarchical": averaged(hierarchy),
}
if dist.is_initialized() and dist.get_world_size() == 2:
    del CASES["hierarchical"]  # a group of two is all
else:
    CASES["two of all"] = subgroup

os.environ.setdefault("TORCH_DISTRIBUTED_DEBUG", "OFF")
