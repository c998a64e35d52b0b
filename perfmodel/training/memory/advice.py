"""What would make training fit on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory.use import MemoryRule, MemoryUse, Setup
from perfmodel.units import format_bytes
from perfmodel.workload.model import ITEM_BYTES

GATHERED_UNITS = 2
"""Units that FSDP holds whole at once (`limit_all_gathers`, torch/distributed/fsdp/api.py)."""


def largest_batch(setup: Setup, capacity_bytes: float, memory: MemoryRule) -> int:
    """Return the most samples per micro-batch that fit into `capacity_bytes`; 0 if none do."""
    first, second = (memory(_with_batch(setup, batch)).total_bytes for batch in (1, 2))
    if first > capacity_bytes:
        return 0
    if second <= first:
        return setup.batch_per_gpu  # nothing known grows with the batch
    return 1 + int((capacity_bytes - first) / (second - first))


def advice(setup: Setup, capacity_bytes: float, memory: MemoryRule) -> tuple[str, ...]:
    """Propose what could make training fit, each with its memory; nothing where it fits.

    `capacity_bytes`: memory of the GPU; bytes.
    `memory`: memory of a setup with the strategy in question.
    """
    if memory(setup).total_bytes <= capacity_bytes:
        return ()
    return tuple(_proposals(setup, capacity_bytes, memory))


def _proposals(setup: Setup, capacity_bytes: float, memory: MemoryRule) -> Iterator[str]:
    batch = largest_batch(setup, capacity_bytes, memory)
    if batch:
        samples = setup.batch_per_gpu * setup.options.accumulate
        yield (
            f"a batch of at most {batch} per GPU instead of {setup.batch_per_gpu}: with "
            f"{-(-samples // batch)} accumulated micro-batches the global batch stays"
        )
    else:
        least = memory(_with_batch(setup, 1)).total_bytes
        yield f"no smaller batch: even one sample per GPU takes {format_bytes(least)}"
    if isinstance(setup.options, DdpOptions):
        views = replace(setup, options=replace(setup.options, gradient_as_bucket_view=True))
        views_bytes = memory(views).total_bytes
        if views_bytes < memory(setup).total_bytes:
            yield _verdict("gradient_as_bucket_view=True", views_bytes, capacity_bytes)
    if ITEM_BYTES[setup.precision] > ITEM_BYTES["bf16"] and setup.activations_bytes is None:
        autocast = memory(replace(setup, precision="bf16")).total_bytes
        yield _verdict("bf16 activations (autocast)", autocast, capacity_bytes)
    if setup.ranks > 1 and isinstance(setup.options, DdpOptions):
        sharding = (
            f"FSDP (ZeRO-3), which shards parameters, gradients and optimizer over {setup.ranks}"
        )
        yield _verdict(sharding, _sharded_bytes(setup, memory(setup)), capacity_bytes)


def _verdict(proposal: str, nbytes: float, capacity_bytes: float) -> str:
    enough = "fits" if nbytes <= capacity_bytes else "not enough alone"
    return f"{proposal}: {format_bytes(nbytes)} of {format_bytes(capacity_bytes)}, {enough}"


def _sharded_bytes(setup: Setup, use: MemoryUse) -> float:
    """FSDP with full sharding, the units being our layers."""
    tensors = setup.workload.tensors
    units = [sum(tensors[i].nbytes for i in layer.tensors) for layer in setup.workload.layers]
    gathered = GATHERED_UNITS * max(units)
    return use.states_bytes / setup.ranks + gathered + use.activations_bytes


def _with_batch(setup: Setup, batch: int) -> Setup:
    """Return the setup with another batch; measured activations grow with it."""
    measured = setup.activations_bytes
    if measured is not None:
        measured *= batch / setup.batch_per_gpu
    return replace(setup, batch_per_gpu=batch, activations_bytes=measured)
