"""What a strategy keeps in the memory of a GPU, and what would make it fit.

`MemoryUse` has the parts of ``result.Memory`` under the same names. Not counted: the CUDA
context, the workspaces of kernels and the allocator's fragmentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.plan import Hook
from perfmodel.units import format_bytes
from perfmodel.workload.memory import activation_bytes, optimizer_state_bytes
from perfmodel.workload.model import ITEM_BYTES, Workload

Strategy = Literal["ddp", "data_parallel"]

GATHERED_UNITS = 2
"""Units that FSDP holds whole at once (`limit_all_gathers`, torch/distributed/fsdp/api.py)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What decides how much memory training takes.

    Parameters
    ----------
    workload : Workload
    precision : str
        Of the compute: "fp32", "tf32", "bf16", "fp16".
    optimizer : str
        "sgd", "sgd-momentum", "adam", "adamw".
    ranks, batch_per_gpu : int
        `batch_per_gpu` samples per micro-batch.
    strategy : {"ddp", "data_parallel"}
    options : DdpOptions
    hook : {"none", "fp16", "bf16"}
    fused_attention : bool
    activations_bytes : float, optional
        Measured, of a whole micro-batch; instead of counting them; bytes.
    """

    workload: Workload
    precision: str
    optimizer: str
    ranks: int
    batch_per_gpu: int
    strategy: Strategy = "ddp"
    options: DdpOptions = field(default_factory=DdpOptions)
    hook: Hook = "none"
    fused_attention: bool = True
    activations_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on the fullest GPU when backward is under way; the parts add up."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    buckets_bytes: float
    activations_bytes: float

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return self.states_bytes + self.buckets_bytes + self.activations_bytes

    @property
    def states_bytes(self) -> float:
        """What sharding can split: parameters, gradients and optimizer states."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def memory(setup: Setup) -> MemoryUse:
    """Add up what training keeps on the fullest GPU.

    Buckets are a second copy of all gradients, unless gradients are views of them; a compressing
    hook adds its 16-bit copy of every bucket (all may be in flight). nn.DataParallel's GPU 0
    holds its own gradients and the reduced ones, and the outputs of all GPUs with their gradient.

    Raises
    ------
    InputError
        Ranks or batch below 1, an unknown strategy, precision or optimizer.
    """
    _check(setup)
    workload = setup.workload
    trained = [workload.tensors[index] for index in workload.ready_order]
    gradients = sum(tensor.nbytes for tensor in trained)
    return MemoryUse(
        parameters_bytes=workload.nbytes + workload.buffer_bytes,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer_state_bytes(workload, setup.optimizer),
        buckets_bytes=_buckets_bytes(setup, gradients, sum(tensor.numel for tensor in trained)),
        activations_bytes=_activations_bytes(setup),
    )


def largest_batch(setup: Setup, capacity_bytes: float) -> int:
    """Return the most samples per micro-batch that fit into `capacity_bytes`; 0 if none do."""
    one, two = (memory(_with_batch(setup, batch)).total_bytes for batch in (1, 2))
    if one > capacity_bytes:
        return 0
    if two <= one:
        return setup.batch_per_gpu  # nothing known grows with the batch
    return 1 + int((capacity_bytes - one) / (two - one))


def advice(setup: Setup, capacity_bytes: float) -> tuple[str, ...]:
    """Say what would make training fit, each with its number; nothing where it fits.

    Parameters
    ----------
    setup : Setup
    capacity_bytes : float
        Memory of the GPU; bytes.
    """
    if memory(setup).total_bytes <= capacity_bytes:
        return ()
    return tuple(_proposals(setup, capacity_bytes))


def _proposals(setup: Setup, capacity_bytes: float) -> Iterator[str]:
    batch = largest_batch(setup, capacity_bytes)
    if batch:
        whole = setup.batch_per_gpu * setup.options.accumulate
        yield (
            f"a batch of at most {batch} per GPU instead of {setup.batch_per_gpu}: with "
            f"{-(-whole // batch)} accumulated micro-batches the global batch stays"
        )
    else:
        least = memory(_with_batch(setup, 1)).total_bytes
        yield f"no smaller batch: even one sample per GPU takes {format_bytes(least)}"
    for words, other in _variants(setup):
        yield _verdict(words, memory(other).total_bytes, capacity_bytes)
    if setup.ranks > 1:
        words = (
            f"FSDP (ZeRO-3), which shards parameters, gradients and optimizer over {setup.ranks}"
        )
        yield _verdict(words, _sharded_bytes(setup), capacity_bytes)


def _variants(setup: Setup) -> Iterator[tuple[str, Setup]]:
    options = setup.options
    if _has_buckets(setup) and not options.gradient_as_bucket_view:
        views = replace(options, gradient_as_bucket_view=True)
        yield "gradient_as_bucket_view=True", replace(setup, options=views)
    if ITEM_BYTES[setup.precision] > ITEM_BYTES["bf16"] and setup.activations_bytes is None:
        yield "bf16 activations (autocast)", replace(setup, precision="bf16")


def _verdict(words: str, nbytes: float, capacity_bytes: float) -> str:
    enough = "fits" if nbytes <= capacity_bytes else "not enough alone"
    return f"{words}: {format_bytes(nbytes)} of {format_bytes(capacity_bytes)}, {enough}"


def _sharded_bytes(setup: Setup) -> float:
    """FSDP with full sharding, the units being our layers."""
    use, tensors = memory(setup), setup.workload.tensors
    units = [sum(tensors[i].nbytes for i in layer.tensors) for layer in setup.workload.layers]
    gathered = GATHERED_UNITS * max(units)
    return use.states_bytes / setup.ranks + gathered + use.activations_bytes


def _has_buckets(setup: Setup) -> bool:
    return setup.strategy == "ddp" and setup.ranks > 1


def _buckets_bytes(setup: Setup, gradients_bytes: float, numel: int) -> float:
    if setup.ranks == 1:
        return 0.0
    if setup.strategy == "data_parallel":
        return gradients_bytes
    compressed = 0 if setup.hook == "none" else ITEM_BYTES[setup.hook] * numel
    return compressed + (0.0 if setup.options.gradient_as_bucket_view else gradients_bytes)


def _activations_bytes(setup: Setup) -> float:
    kept = setup.activations_bytes
    if kept is None:
        kept = activation_bytes(
            setup.workload,
            setup.batch_per_gpu,
            setup.precision,
            fused_attention=setup.fused_attention,
        )
    if setup.strategy == "data_parallel" and setup.ranks > 1:
        outputs = setup.ranks * setup.batch_per_gpu * setup.workload.output_elements
        kept += 2 * outputs * ITEM_BYTES[setup.precision]
    return kept


def _with_batch(setup: Setup, batch: int) -> Setup:
    """Return the setup with another batch; measured activations grow with it."""
    measured = setup.activations_bytes
    if measured is not None:
        measured *= batch / setup.batch_per_gpu
    return replace(setup, batch_per_gpu=batch, activations_bytes=measured)


def _check(setup: Setup) -> None:
    faults = [
        Fault(name, repr(value), "a whole number, 1 or more")
        for name, value in (("ranks", setup.ranks), ("batch_per_gpu", setup.batch_per_gpu))
        if value < 1
    ]
    if setup.strategy not in ("ddp", "data_parallel"):
        allowed = allowed_names(("ddp", "data_parallel"), setup.strategy)
        faults.append(Fault("strategy", repr(setup.strategy), allowed))
    if setup.precision not in ITEM_BYTES:
        faults.append(
            Fault("precision", repr(setup.precision), allowed_names(ITEM_BYTES, setup.precision))
        )
    if faults:
        raise InputError(faults)
