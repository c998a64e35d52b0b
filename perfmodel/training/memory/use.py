"""Memory that training takes on a GPU.

`MemoryUse` has the parts of ``result.Memory`` under the same names. The CUDA context, NCCL's
buffers and the allocator take more (`perfmodel.training.memory.reserve`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload.memory.activations import activation_bytes
from perfmodel.workload.memory.offload import Offload
from perfmodel.workload.memory.optimizer_states import (
    OptimizerKernels,
    optimizer_state_bytes,
    temporary_share,
)
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload


class StepOptions(Protocol):
    """Options of any strategy."""

    @property
    def accumulate(self) -> int:
        """Micro-batches per step."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the memory of training depends on, besides the strategy.

    `precision`: of the compute: "fp32", "tf32", "bf16", "fp16".
    `optimizer`: "sgd", "sgd-momentum", "adam", "adamw".
    `ranks`, `batch_per_gpu`: `batch_per_gpu` samples per micro-batch.
    `activations_bytes`: measured, of a whole micro-batch; instead of counting them; bytes.
    `kept_share`: factor on what layers keep for backward (see `activation_bytes`).
    `recompute`: what backward runs forward of once more.
    `master_weights`: whether narrow parameters have fp32 copies and optimizer states.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    `optimizer_kernels`: how the optimizer runs.
    `offload`: whether blocks' activations wait in the memory of the host.
    """

    workload: Workload
    precision: str
    optimizer: str
    ranks: int
    batch_per_gpu: int
    options: StepOptions = field(default_factory=DdpOptions)
    fused_attention: bool = True
    activations_bytes: float | None = None
    kept_share: float = 1.0
    recompute: Recompute = NO_RECOMPUTE
    master_weights: bool = True
    held_dtype: str | None = None
    optimizer_kernels: OptimizerKernels = "foreach"
    offload: Offload = "none"

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
    temporary_bytes: float = 0.0
    """Of operations while they run, at the fullest moment (see `add_temporaries`)."""

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        whole = self.activations_bytes + self.gathered_bytes + self.temporary_bytes
        return self.states_bytes + self.buckets_bytes + whole

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
    return MemoryUse(
        parameters_bytes=workload.nbytes + workload.buffer_bytes,
        gradients_bytes=sum(tensor.nbytes for tensor in setup.trained),
        optimizer_bytes=optimizer_state_bytes(
            workload, setup.optimizer, master_weights=setup.master_weights
        ),
        buckets_bytes=0.0,
        activations_bytes=kept_bytes(setup),
    )


def add_temporaries(setup: Setup, use: MemoryUse) -> MemoryUse:
    """Add what the optimizer needs while it runs, where that is more than what backward held.

    An optimizer that runs operation by operation makes copies as large as one of its states, when
    activations are gone.
    """
    copies_bytes = 0.0
    if setup.optimizer_kernels == "foreach":
        copies_bytes = use.optimizer_bytes * temporary_share(setup.workload, setup.optimizer)
    spare_bytes = use.activations_bytes + use.gathered_bytes
    return replace(use, temporary_bytes=max(0.0, copies_bytes - spare_bytes))


def kept_bytes(setup: Setup) -> float:
    """Bytes that forward of one micro-batch keeps for backward, and what its loss needs beside.

    What was measured without recomputation and offloading shrinks by it as what is counted does.
    """
    counted = _counted_bytes(setup, setup.recompute, setup.offload)
    if setup.activations_bytes is None:
        return counted
    if setup.recompute == NO_RECOMPUTE and setup.offload == "none":
        return setup.activations_bytes
    return setup.activations_bytes * counted / _counted_bytes(setup, NO_RECOMPUTE, "none")


def _counted_bytes(setup: Setup, recompute: Recompute, offload: Offload) -> float:
    return activation_bytes(
        setup.workload, setup.batch_per_gpu, setup.precision,
        fused_attention=setup.fused_attention, kept_share=setup.kept_share, recompute=recompute,
        held_dtype=setup.held_dtype, with_loss=True, offload=offload,
    )  # fmt: skip


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
