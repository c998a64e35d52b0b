"""Memory that training takes on a GPU, and advice where it does not fit.

`MemoryUse` has the parts of ``result.Memory`` under the same names. The CUDA context, NCCL's
buffers and the allocator take more (`reserve_bytes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import read_yaml
from perfmodel.scenario.sections.strategy import Hook
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.sharded.options import FsdpOptions
from perfmodel.units import format_bytes
from perfmodel.workload.memory import activation_bytes, optimizer_state_bytes
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

StepOptions = DdpOptions | FsdpOptions
"""Options of a strategy."""

GIB = 2**30
GATHERED_UNITS = 2
"""Units that FSDP holds whole at once (`limit_all_gathers`, torch/distributed/fsdp/api.py)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the memory of training depends on, besides the strategy.

    `precision`: of the compute: "fp32", "tf32", "bf16", "fp16".
    `optimizer`: "sgd", "sgd-momentum", "adam", "adamw".
    `ranks`, `batch_per_gpu`: `batch_per_gpu` samples per micro-batch.
    `activations_bytes`: measured, of a whole micro-batch; instead of counting them; bytes.
    `kept_share`: factor on what layers keep for backward (see `activation_bytes`).
    """

    workload: Workload
    precision: str
    optimizer: str
    ranks: int
    batch_per_gpu: int
    options: StepOptions = field(default_factory=DdpOptions)
    hook: Hook = "none"
    fused_attention: bool = True
    activations_bytes: float | None = None
    kept_share: float = 1.0

    @property
    def trained(self) -> tuple[ParameterTensor, ...]:
        """Tensors with a gradient."""
        return tuple(self.workload.tensors[index] for index in self.workload.ready_order)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on the fullest GPU during backward; the parts add up."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    buckets_bytes: float
    activations_bytes: float
    gathered_bytes: float = 0.0
    """Of sharded parameters and gradients while they are whole."""

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return self.states_bytes + self.buckets_bytes + self.activations_bytes + self.gathered_bytes

    @property
    def states_bytes(self) -> float:
        """Parameters, gradients and optimizer states, which sharding can split."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


MemoryRule = Callable[[Setup], MemoryUse]
"""Memory of a setup under one strategy, on the fullest GPU."""


def replicated(setup: Setup) -> MemoryUse:
    """Add up the memory of training without sharding and without buckets.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    _check(setup)
    workload = setup.workload
    activations = setup.activations_bytes
    if activations is None:
        activations = activation_bytes(
            workload, setup.batch_per_gpu, setup.precision, fused_attention=setup.fused_attention,
            kept_share=setup.kept_share,
        )  # fmt: skip
    return MemoryUse(
        parameters_bytes=workload.nbytes + workload.buffer_bytes,
        gradients_bytes=sum(tensor.nbytes for tensor in setup.trained),
        optimizer_bytes=optimizer_state_bytes(workload, setup.optimizer),
        buckets_bytes=0.0,
        activations_bytes=activations,
    )


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


def count_faults(ranks: int, batch_per_gpu: int) -> list[Fault]:
    """Faults of numbers of ranks and samples that are below 1."""
    return [
        Fault(name, repr(value), "a whole number, 1 or more")
        for name, value in (("ranks", ranks), ("batch_per_gpu", batch_per_gpu))
        if value < 1
    ]


def _check(setup: Setup) -> None:
    faults = count_faults(setup.ranks, setup.batch_per_gpu)
    if setup.precision not in ITEM_BYTES:
        faults.append(
            Fault("precision", repr(setup.precision), allowed_names(ITEM_BYTES, setup.precision))
        )
    if faults:
        raise InputError(faults)


# ---------------------------------------------------------------- beside the training


def reserve_bytes(allocated_bytes: float, *, nccl: bool) -> float:
    """Bytes that have to be left: of the CUDA context, NCCL's buffers and unused remainders.

    `allocated_bytes`: what training takes.
    `nccl`: whether it communicates by NCCL, among several GPUs.
    """
    data = _constants()
    buffers = data["nccl"]
    connections = buffers["connections"] * buffers["channels"] if nccl else 0
    return float(
        GIB * data["cuda_context"]["GiB"]
        + connections * buffers["connection_bytes"]
        + data["allocator"]["share"] * allocated_bytes
    )


@cache
def _constants() -> Any:
    return read_yaml(Path(__file__).with_suffix(".yaml"))
