"""Memory that training takes on a GPU, and what CUDA, NCCL and the allocator take beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp, hypot, log
from pathlib import Path
from typing import Any, Protocol

from perfmodel.errors import Fault, allowed_names, raise_faults
from perfmodel.files import read_yaml
from perfmodel.memo import T
from perfmodel.scenario.sections.base import StrategyModel
from perfmodel.scenario.strategies.ddp import ZeroRedundancyStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload.kernels.float8_layers import (
    Float8,
    float8_layers,
    float8_modules,
    float8_weights,
    gathered_weights,
    operand_bytes,
)
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory.activations import (
    NO_NARROW_INPUTS,
    BackwardBytes,
    NarrowInputs,
    backward_bytes,
    block_bytes,
)
from perfmodel.workload.memory.blocks import Offload
from perfmodel.workload.memory.optimizer_states import (
    OptimizerKernels,
    fullest_share,
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


def with_micro_batches(options: StepOptions, count: int) -> StepOptions:
    """Return options of a strategy with so many micro-batches per step."""
    if isinstance(options, ZeroRedundancyStrategy):  # has those of the DDP in it
        return options.model_copy(update={"ddp": with_micro_batches(options.ddp, count)})
    if isinstance(options, StrategyModel):
        return options.model_copy(update={"accumulate": count})
    return replace(options, accumulate=count)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that the memory of training depends on, besides the strategy.

    `precision`: of the compute: "fp32", "tf32", "bf16", "fp16"; with fp8, of what is beside it.
    `options`: of the strategy (`StepOptions`).
    `optimizer`: "sgd", "sgd-momentum", "adam", "adamw".
    `ranks`, `batch_per_gpu`: `batch_per_gpu` samples per micro-batch.
    `activations_bytes`: measured, of a whole micro-batch; instead of counting them; bytes.
    `kept_share`: factor on what layers keep for backward (see `stored_bytes`).
    `recompute`: what backward runs forward of once more.
    `master_weights`: whether narrow parameters have fp32 copies and optimizer states.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    `optimizer_kernels`: how the optimizer runs.
    `offload`: whether blocks' activations wait in the memory of the host.
    `compiled`: whether a compiler decides what layers keep.
    `expert_copies`: ranks that hold the same experts, where ranks share experts.
    `float8`: how linear layers run in fp8; None where they do not.
    `float8_copies`: bytes, of an element of their weights, of the copies that the library keeps.
    `workspace_bytes`: of matrix products (see `workspace_bytes`).
    `generation`: of the GPUs.
    `ranks_per_host`: GPUs of each host that the job has.
    """

    workload: Workload
    precision: str
    optimizer: str
    ranks: int
    batch_per_gpu: int
    options: Any = field(default_factory=DdpOptions)
    fused_attention: bool = True
    activations_bytes: float | None = None
    kept_share: float = 1.0
    recompute: Recompute = NO_RECOMPUTE
    master_weights: bool = True
    held_dtype: str | None = None
    optimizer_kernels: OptimizerKernels = "foreach"
    offload: Offload = "none"
    compiled: bool = False
    expert_copies: int | None = None
    float8: Float8 | None = None
    float8_copies: float = 0
    workspace_bytes: float = 0.0
    generation: str = ""
    ranks_per_host: int = 1

    @property
    def narrow(self) -> NarrowInputs:
        """What layers that run in fp8 keep for backward."""
        return narrow_inputs(self.workload, self.float8)

    @property
    def gathered_narrow(self) -> frozenset[int]:
        """Parameters that are gathered in fp8."""
        return gathered_weights(self.workload, self.float8)

    @property
    def trained(self) -> tuple[ParameterTensor, ...]:
        """Tensors with a gradient."""
        return tuple(self.workload.tensors[index] for index in self.workload.ready_order)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on the fullest GPU at the fullest moment of backward; the parts add up.

    Gradients grow while activations shrink: what of activations lies where gradients will be counts
    once, as gradients.
    """

    parameters_bytes: float = 0.0
    gradients_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    buckets_bytes: float = 0.0
    activations_bytes: float = 0.0
    """Beside all gradients."""
    gathered_bytes: float = 0.0
    """Of sharded parameters and gradients while they are whole."""
    temporary_bytes: float = 0.0
    """Of operations while they run, at the fullest moment (see `add_temporaries`)."""
    idle_bytes: float = 0.0
    """Beside all parts: free at the fullest moment, but in the allocator's pool of another stream
    (c10/cuda/CUDACachingAllocator.cpp: blocks go back to the stream that they came from)."""
    host_bytes: float = 0.0
    """Of what a rank offloads, in the memory of its host."""
    drive_bytes: float = 0.0
    """Of what a rank offloads, on its host's drives."""
    waiting_bytes: float = 0.0
    """Of activations that wait in the memory of the host, of all micro-batches at once."""

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


def replicated(setup: Setup, *, grows: bool = True) -> MemoryUse:
    """Add up the memory of training without sharding and without buckets.

    `grows`: whether each gradient is allocated when backward comes to it (PyTorch's ``zero_grad``
        frees them after a step); else they lie in a buffer that stays. While micro-batches are
        accumulated, they stay too.
    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    faults, precision = count_faults(setup.ranks, setup.batch_per_gpu), setup.precision
    if precision not in ITEM_BYTES:
        faults.append(Fault("precision", repr(precision), allowed_names(ITEM_BYTES, precision)))
    raise_faults(faults)
    workload, activations = setup.workload, held_in_backward(setup)
    grows = grows and setup.options.accumulate == 1
    return MemoryUse(
        parameters_bytes=workload.nbytes + workload.buffer_bytes,
        gradients_bytes=sum(tensor.nbytes for tensor in setup.trained),
        optimizer_bytes=optimizer_state_bytes(
            _updated(setup),
            setup.optimizer,
            master_weights=setup.master_weights,
        ),
        activations_bytes=(most_beside(workload, activations) if grows else _most(activations)),
    )


def _updated(setup: Setup) -> Workload:
    """Return the workload with what the fullest rank updates: all, or a share of its tensors."""
    options, ranks = setup.options, setup.ranks
    layer_wise = getattr(options, "layer_wise_distributed_optimizer", False)
    if getattr(options, "distributed_optimizer", False):
        ranks = options.ranks_of_group(ranks)
    elif not layer_wise:
        return setup.workload
    return fullest_share(setup.workload, setup.optimizer, ranks, layer_wise=layer_wise)


def most_beside(workload: Workload, activations: BackwardBytes) -> float:
    """Most that activations take beside all gradients, while these grow; bytes.

    A layer's gradients are there with what its backward holds.
    """
    ready, most = 0.0, 0.0
    for layer, held in zip(reversed(workload.layers), reversed(activations.of_layers), strict=True):
        ready += sum(workload.tensors[index].nbytes for index in layer.tensors)
        most = max(most, held + ready)
    return max(activations.of_loss, most) - ready if ready else _most(activations)


def _most(activations: BackwardBytes) -> float:
    return max(activations.of_loss, *activations.of_layers)


def add_temporaries(setup: Setup, use: MemoryUse) -> MemoryUse:
    """Add workspaces, and what the optimizer needs where that is more than what backward held.

    An optimizer that runs operation by operation makes copies as large as one of its states, when
    activations are gone.
    """
    copies_bytes = 0.0
    if setup.optimizer_kernels == "foreach":
        copies_bytes = use.optimizer_bytes * temporary_share(setup.workload, setup.optimizer)
    more_bytes = max(0.0, copies_bytes - (use.activations_bytes + use.gathered_bytes))
    return replace(use, temporary_bytes=use.temporary_bytes + setup.workspace_bytes + more_bytes)


def narrow_inputs(workload: Workload, float8: Float8 | None) -> NarrowInputs:
    """Return what layers that run in fp8 keep for backward.

    Transformer Engine keeps the cast of an input, torchao what it was cast from.
    """
    if float8 is None:
        return NO_NARROW_INPUTS
    keeps_cast = float8.library == "transformer_engine"
    return NarrowInputs(
        float8_layers(workload, float8), keeps_cast, operand_bytes(float8) if keeps_cast else 1.0
    )


def add_waiting(setup: Setup, use: MemoryUse) -> MemoryUse:
    """Add what one micro-batch has in the memory of the host: all blocks but the last."""
    if setup.offload == "none":
        return use
    blocks = block_bytes(
        setup.workload,
        setup.batch_per_gpu,
        setup.precision,
        fused_attention=setup.fused_attention,
        recompute=setup.recompute,
        held_dtype=setup.held_dtype,
        compiled=setup.compiled,
        narrow=setup.narrow,
    )
    return replace(use, waiting_bytes=sum(blocks[:-1]))


AMAXES_PER_MODULE = (3, 2)
"""Greatest values that a module of Transformer Engine keeps: of forward (input, weight, output) and
of backward (``num_fp8_tensors`` in transformer_engine/pytorch/module/base.py)."""


def add_float8_copies(setup: Setup, use: MemoryUse) -> MemoryUse:
    """Add fp8 copies of weights, and histories of greatest values.

    With ``fp8_param_gather`` the copies are the parameters, in place of those in 16 bits.
    Otherwise they are kept whole from the first micro-batch of a step on, however parameters are
    sharded.
    """
    if setup.float8 is None:
        return use
    weights = [setup.workload.tensors[i] for i in float8_weights(setup.workload, setup.float8)]
    added = float(setup.float8_copies * sum(tensor.numel for tensor in weights))
    if setup.float8.fp8_param_gather and setup.ranks > 1:
        added -= sum(tensor.nbytes for tensor in weights)
    if setup.float8.recipe == "delayed":
        values = sum(AMAXES_PER_MODULE) * float8_modules(setup.workload, setup.float8)
        added += WIDE_BYTES * values * setup.float8.amax_history_len
    return replace(use, parameters_bytes=use.parameters_bytes + added)


def held_in_backward(setup: Setup) -> BackwardBytes:
    """Activations of one micro-batch while backward goes on, and what its loss needs beside.

    What was measured without recomputation and offloading shrinks by it as what is counted does;
    where nothing is counted, it is taken to be there until the end.
    """
    held, measured = counted(setup, backward_bytes), setup.activations_bytes
    if measured is None:
        return held
    if not setup.workload.states_activations:
        return BackwardBytes(measured, (measured,) * len(held.of_layers))
    plain = replace(setup, recompute=NO_RECOMPUTE, offload="none")
    by = measured / _most(counted(plain, backward_bytes))
    return BackwardBytes(by * held.of_loss, tuple(by * each for each in held.of_layers))


def counted(setup: Setup, count: Callable[..., T]) -> T:
    """Activations of one micro-batch by a function of `perfmodel.workload.memory.activations`."""
    return count(
        setup.workload,
        setup.batch_per_gpu,
        setup.precision,
        fused_attention=setup.fused_attention,
        kept_share=setup.kept_share,
        recompute=setup.recompute,
        held_dtype=setup.held_dtype,
        offload=setup.offload,
        compiled=setup.compiled,
        narrow=setup.narrow,
    )


def count_faults(ranks: int, batch_per_gpu: int) -> list[Fault]:
    """Faults of numbers of ranks and samples that are below 1."""
    return [
        Fault(name, repr(value), "a whole number, 1 or more")
        for name, value in (("ranks", ranks), ("batch_per_gpu", batch_per_gpu))
        if value < 1
    ]


def context_bytes(communicators: int) -> float:
    """Bytes of the CUDA context and of NCCL's buffers.

    `communicators`: of NCCL that a rank is in, each with connections of its own.
    """
    context, nccl = _constants()["cuda_context"], _constants()["nccl"]
    each = nccl["connections"] * nccl["channels"] * nccl["connection_bytes"]
    return float(2**30 * context["GiB"] + communicators * each)


def unused_bytes(allocated_bytes: float) -> float:
    """Bytes that the allocator reserves beside those that it has given out."""
    return float(_constants()["allocator"]["share"] * allocated_bytes)


def interval_bytes(
    predicted_bytes: float, states_bytes: float, low_bytes: float, high_bytes: float
) -> tuple[float, float]:
    """80 % interval of the memory of training.

    What frameworks keep and state nowhere adds to the distance of either end, as logarithms of
    factors that vary by themselves.

    `predicted_bytes`: of all parts.
    `states_bytes`: of parameters, gradients and optimizer states.
    `low_bytes`, `high_bytes`: of all parts, where activations are estimated: at either end.
    """
    spread = _constants("memory_spread.yaml")
    low = states_bytes + spread["low"] * (low_bytes - states_bytes)
    high = states_bytes + spread["high"] * (high_bytes - states_bytes)
    below, above = (
        hypot(log(end / predicted_bytes), spread["frameworks"]) if predicted_bytes else 0.0
        for end in (low, high)
    )
    return predicted_bytes * exp(-below), predicted_bytes * exp(above)


def workspace_bytes(generation: str) -> float:
    """Bytes of the workspaces of cuBLAS on a generation of GPUs, which the allocator counts."""
    cublas = _constants()["cublas"]
    each = cublas["bytes"]
    return float(cublas["handles"] * each.get(generation, each["other"]))


@cache
def _constants(name: str = "reserve.yaml") -> Any:
    return read_yaml(Path(__file__).with_name(name))
