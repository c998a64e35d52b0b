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
from perfmodel.workload.kernels.float8.float8_layers import (
    float8_layers,
    float8_modules,
    float8_weights,
)
from perfmodel.workload.kernels.float8.recipe import Float8
from perfmodel.workload.memory.activations import (
    NO_NARROW_INPUTS,
    NarrowInputs,
    activation_bytes,
)
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

    `precision`: of the compute: "fp32", "tf32", "bf16", "fp16"; with fp8, of what is beside it.
    `optimizer`: "sgd", "sgd-momentum", "adam", "adamw".
    `ranks`, `batch_per_gpu`: `batch_per_gpu` samples per micro-batch.
    `activations_bytes`: measured, of a whole micro-batch; instead of counting them; bytes.
    `kept_share`: factor on what layers keep for backward (see `activation_bytes`).
    `recompute`: what backward runs forward of once more.
    `master_weights`: whether narrow parameters have fp32 copies and optimizer states.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    `optimizer_kernels`: how the optimizer runs.
    `offload`: whether blocks' activations wait in the memory of the host.
    `float8`: how linear layers run in fp8; None where they do not.
    `float8_copies`: fp8 copies of each of their weights that the library keeps on this GPU.
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
    float8: Float8 | None = None
    float8_copies: int = 0

    @property
    def narrow(self) -> NarrowInputs:
        """What layers that run in fp8 keep for backward."""
        return narrow_inputs(self.workload, self.float8)

    @property
    def gathered_narrow(self) -> frozenset[int]:
        """Parameters that are gathered in fp8."""
        gathers = self.float8 is not None and self.float8.gathers_narrow
        return float8_weights(self.workload, self.float8) if gathers else frozenset()

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


def narrow_inputs(workload: Workload, float8: Float8 | None) -> NarrowInputs:
    """Return what layers that run in fp8 keep for backward.

    Transformer Engine keeps the cast of an input, torchao what it was cast from.
    """
    if float8 is None:
        return NO_NARROW_INPUTS
    keeps_cast = float8.library == "transformer_engine"
    return NarrowInputs(float8_layers(workload, float8), keeps_cast)


AMAXES_PER_MODULE = (3, 2)
"""Greatest values that a module of Transformer Engine keeps: of forward (input, weight, output) and
of backward (``num_fp8_tensors`` in transformer_engine/pytorch/module/base.py)."""
AMAX_BYTES = 4


def add_float8_copies(setup: Setup, use: MemoryUse) -> MemoryUse:
    """Add fp8 copies of weights, and histories of greatest values.

    With ``fp8_param_gather`` the copies are the parameters, in place of those in 16 bits.
    Otherwise they are kept whole from the first micro-batch of a step on, however parameters are
    sharded.
    """
    if setup.float8 is None:
        return use
    tensors = setup.workload.tensors
    weights = [tensors[i] for i in float8_weights(setup.workload, setup.float8)]
    added = float(setup.float8_copies * sum(tensor.numel for tensor in weights))
    if setup.float8.fp8_param_gather and setup.ranks > 1:
        added -= sum(tensor.nbytes for tensor in weights)
    if setup.float8.recipe == "delayed":
        values = sum(AMAXES_PER_MODULE) * float8_modules(setup.workload, setup.float8)
        added += AMAX_BYTES * values * setup.float8.amax_history_len
    return replace(use, parameters_bytes=use.parameters_bytes + added)


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
        held_dtype=setup.held_dtype, with_loss=True, offload=offload, narrow=setup.narrow,
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
