"""Fully sharded training as PyTorch has it, for `run_cases`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    _init_utils,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

from tests.training.recorded.recording_group import enter_phase
from tests.training.recorded.toy import Block, Net
from tests.training.recorded.toy_workload import INPUTS

CPU = torch.device("cpu")
SMALL_UNIT = 1000
"""Parameters of a unit by size: a linear layer of a block has more than 800."""

Run = Callable[[], None]


def train(
    model: Any,
    *,
    micro_batches: int = 1,
    before: Callable[[Any, bool], Any] = lambda _model, _last: contextlib.nullcontext(),
    clip: Callable[[Any], Any] | None = None,
) -> None:
    """Train two steps, calls noted under ``step 0`` and ``step 1``.

    `before`: makes the context of a micro-batch from whether it is the last one.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, 0.1)
    for number in range(2):
        enter_phase(f"step {number}")
        for micro_batch in range(micro_batches):
            with before(model, micro_batch == micro_batches - 1):
                model(torch.ones(2, INPUTS)).sum().backward()
        if clip is not None:
            clip(model)
        optimizer.step()
        optimizer.zero_grad()


def freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    """Train all parameters but those whose name begins so."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(names))


# ---------------------------------------------------------------- version 1


def on_cpu(run: Run) -> Run:
    """Run a case without functions that only accelerators have, and that communicate nothing."""
    functions = (
        (torch.Tensor, "pin_memory"),
        (torch.cpu.Stream, "synchronize"),
        (_init_utils, "_check_module_states_for_sync_module_states"),
    )

    def patched() -> None:
        with contextlib.ExitStack() as stack:
            for owner, function in functions:
                stack.enter_context(patch.object(owner, function, lambda self: self, create=True))
            run()

    return patched


def version_1(
    strategy: str = "FULL_SHARD",
    *,
    frozen: tuple[str, ...] = (),
    train_with: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """``FullyShardedDataParallel`` with a strategy."""

    def run() -> None:
        more: dict[str, Any] = {"auto_wrap_policy": ModuleWrapPolicy({Block}), **options}
        if "HYBRID" in strategy:
            more["device_mesh"] = init_device_mesh("cpu", (dist.get_world_size() // 2, 2))
        model = Net()
        if frozen:
            freeze(model, frozen)
        sharded = FullyShardedDataParallel(
            model, sharding_strategy=ShardingStrategy[strategy], device_id=CPU, **more
        )
        train(sharded, **(train_with or {}))

    return run


@contextlib.contextmanager
def no_sync(model: Any, last: bool) -> Iterator[None]:
    with contextlib.nullcontext() if last else model.no_sync():
        yield


BF16 = torch.bfloat16
LEAVES = ModuleWrapPolicy({nn.Linear, nn.LayerNorm})
NESTED = ModuleWrapPolicy({Block, nn.Linear})
BY_SIZE = partial(size_based_auto_wrap_policy, min_num_params=SMALL_UNIT)
ACCUMULATE: dict[str, Any] = {"micro_batches": 3}

VERSION_1: dict[str, Run] = {
    "fsdp1": version_1(),
    "fsdp1, no reshard": version_1("SHARD_GRAD_OP"),
    "fsdp1, prefetch post": version_1(backward_prefetch=BackwardPrefetch.BACKWARD_POST),
    "fsdp1, prefetch none": version_1(backward_prefetch=None),
    "fsdp1, forward prefetch": version_1(forward_prefetch=True),
    "fsdp1, no limit": version_1(limit_all_gathers=False),
    "fsdp1, orig params": version_1(use_orig_params=True),
    "fsdp1, orig params, bf16": version_1(
        use_orig_params=True, mixed_precision=MixedPrecision(param_dtype=BF16)
    ),
    "fsdp1, bf16": version_1(mixed_precision=MixedPrecision(BF16, torch.float32, BF16)),
    "fsdp1, bf16 alone": version_1(mixed_precision=MixedPrecision(BF16)),
    "fsdp1, reduce bf16": version_1(mixed_precision=MixedPrecision(reduce_dtype=BF16)),
    "fsdp1, accumulate": version_1(train_with=ACCUMULATE),
    "fsdp1, no_sync": version_1(train_with=ACCUMULATE | {"before": no_sync}),
    "fsdp1, no reshard, accumulate": version_1("SHARD_GRAD_OP", train_with=ACCUMULATE),
    "fsdp1, no reshard, no_sync": version_1(
        "SHARD_GRAD_OP", train_with=ACCUMULATE | {"before": no_sync}
    ),
    "fsdp1, clip": version_1(train_with={"clip": lambda model: model.clip_grad_norm_(1.0)}),
    "fsdp1, offload": on_cpu(version_1(cpu_offload=CPUOffload(offload_params=True))),
    "fsdp1, sync states": on_cpu(version_1(sync_module_states=True)),
    "fsdp1, leaves": version_1(auto_wrap_policy=LEAVES),
    "fsdp1, nested": version_1(auto_wrap_policy=NESTED),
    "fsdp1, size": version_1(auto_wrap_policy=BY_SIZE),
    "fsdp1, model": version_1(auto_wrap_policy=None),
    "fsdp1, frozen": version_1(use_orig_params=True, frozen=("embed", "blocks.0", "blocks.1.up")),
    "fsdp1, leaves, post": version_1(
        auto_wrap_policy=LEAVES, backward_prefetch=BackwardPrefetch.BACKWARD_POST
    ),
    "fsdp1, nested, forward prefetch": version_1(auto_wrap_policy=NESTED, forward_prefetch=True),
}

HYBRID_1: dict[str, Run] = {
    "fsdp1, hybrid": version_1("HYBRID_SHARD"),
    "fsdp1, hybrid, no reshard": version_1("_HYBRID_SHARD_ZERO2"),
    "fsdp1, hybrid, no_sync": version_1(
        "HYBRID_SHARD", train_with=ACCUMULATE | {"before": no_sync}
    ),
    "fsdp1, hybrid, sync states": on_cpu(version_1("HYBRID_SHARD", sync_module_states=True)),
    "fsdp1, hybrid, bf16": version_1("HYBRID_SHARD", mixed_precision=MixedPrecision(BF16)),
}

# ---------------------------------------------------------------- version 2


def blocks(model: Net) -> list[nn.Module]:
    """Wrap blocks."""
    return list(model.blocks)


def leaves(model: Net) -> list[nn.Module]:
    """Wrap what has no parts."""
    return [each for each in model.modules() if isinstance(each, nn.Linear | nn.LayerNorm)]


def nested(model: Net) -> list[nn.Module]:
    """Wrap linear layers, and the blocks that hold some of them."""
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    return [*linear, *model.blocks]


def version_2(
    shape: tuple[int, ...] | None = None,
    *,
    wrap: Callable[[Net], list[nn.Module]] = blocks,
    root: dict[str, Any] | None = None,
    frozen: tuple[str, ...] = (),
    prepare: Callable[[Any], None] | None = None,
    train_with: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """``fully_shard`` of some modules and of the model, on a mesh."""

    def run() -> None:
        model = Net()
        freeze(model, frozen) if frozen else None
        sizes = shape or (dist.get_world_size(),)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards")[-len(sizes) :])
        for module in wrap(model):
            fully_shard(module, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **(options | (root or {})))
        if prepare is not None:
            prepare(model)
        train(model, **(train_with or {}))

    return run


@contextlib.contextmanager
def sync_last(model: FSDPModule, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    yield


@contextlib.contextmanager
def sync_last_whole(model: FSDPModule, last: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(last)
    model.set_reshard_after_backward(last)
    yield


@contextlib.contextmanager
def average_last(model: FSDPModule, last: bool) -> Iterator[None]:
    model.set_requires_all_reduce(last)
    yield


def prefetch_forward(model: Any, units: int = 2) -> None:
    """Gather so many blocks ahead in forward."""
    order = [model, *model.blocks]
    for place, module in enumerate(order):
        module.set_modules_to_forward_prefetch(order[place + 1 : place + 1 + units])


def prefetch_backward(model: Any, units: int = 2) -> None:
    """Gather so many blocks ahead in backward."""
    order = [model, *model.blocks]
    for place, module in enumerate(order):
        module.set_modules_to_backward_prefetch(order[max(0, place - units) : place][::-1])


def keep_inputs(model: Any) -> None:
    model.set_reduce_scatter_max_input_buffers(2)


HALF = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
CLIP: dict[str, Any] = {"clip": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0)}

VERSION_2: dict[str, Run] = {
    "fsdp2": version_2(),
    "fsdp2, no reshard": version_2(reshard_after_forward=False),
    "fsdp2, reshard root": version_2(reshard_after_forward=True),
    "fsdp2, bf16": version_2(mp_policy=HALF),
    "fsdp2, bf16 alone": version_2(mp_policy=MixedPrecisionPolicy(param_dtype=BF16)),
    "fsdp2, reduce bf16": version_2(mp_policy=MixedPrecisionPolicy(reduce_dtype=BF16)),
    "fsdp2, fp16": version_2(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16)),
    "fsdp2, forward prefetch": version_2(prepare=prefetch_forward),
    "fsdp2, backward prefetch": version_2(prepare=prefetch_backward),
    "fsdp2, accumulate": version_2(train_with=ACCUMULATE),
    "fsdp2, sync last": version_2(train_with=ACCUMULATE | {"before": sync_last}),
    "fsdp2, sync last, whole": version_2(train_with=ACCUMULATE | {"before": sync_last_whole}),
    "fsdp2, no reshard, sync last": version_2(
        reshard_after_forward=False, train_with=ACCUMULATE | {"before": sync_last}
    ),
    "fsdp2, sync last, bf16": version_2(
        mp_policy=HALF, train_with=ACCUMULATE | {"before": sync_last}
    ),
    "fsdp2, clip": version_2(train_with=CLIP),
    "fsdp2, offload": version_2(offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "fsdp2, leaves": version_2(wrap=leaves),
    "fsdp2, nested": version_2(wrap=nested),
    "fsdp2, model": version_2(wrap=lambda _model: []),
    "fsdp2, nested, reshard root": version_2(wrap=nested, reshard_after_forward=True),
    "fsdp2, two inputs kept": version_2(prepare=keep_inputs),
    "fsdp2, frozen": version_2(frozen=("embed", "blocks.0", "blocks.1.up")),
    "fsdp2, frozen, leaves": version_2(wrap=leaves, frozen=("embed", "blocks.0", "blocks.1.up")),
}

HYBRID_2: dict[str, Run] = {
    "fsdp2, hybrid": version_2((2, 2)),
    "fsdp2, hybrid, average last": version_2(
        (2, 2), train_with=ACCUMULATE | {"before": average_last}
    ),
    "fsdp2, hybrid, sync last": version_2((2, 2), train_with=ACCUMULATE | {"before": sync_last}),
    "fsdp2, hybrid, clip": version_2((2, 2), train_with=CLIP),
    "fsdp2, regather": version_2(reshard_after_forward=2, root={"reshard_after_forward": None}),
    "fsdp2, regather, root": version_2(reshard_after_forward=2),
}

ALSO_ON_FOUR = (
    "fsdp1",
    "fsdp1, size",
    "fsdp1, orig params",
    "fsdp1, no_sync",
    "fsdp2",
    "fsdp2, sync last",
    "fsdp2, leaves",
)
"""Cases of two ranks that four run, too; what else differs is not a matter of how many they are."""

CASES: dict[str, Run] = VERSION_1 | VERSION_2
if dist.is_initialized() and dist.get_world_size() == 4:
    CASES = {name: CASES[name] for name in ALSO_ON_FOUR} | HYBRID_1 | HYBRID_2
