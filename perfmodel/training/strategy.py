"""What a strategy is to the rest of the package: how it plans a step and what it keeps in memory.

A new strategy is a module or folder beside this one that defines a `Strategy`, a section class in
``perfmodel/scenario/strategies``, and a row in ``perfmodel/training/strategies.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from perfmodel.errors import raise_faults
from perfmodel.topology.model import Drives, Gpu
from perfmodel.training.ddp.buckets import Bucket, Iteration
from perfmodel.training.memory_use import MemoryUse, Setup, StepOptions, count_faults
from perfmodel.training.plan.step_plan import LoopPlan, Op, StepPlan
from perfmodel.workload.kernels.float8_layers import Float8, gathered_weights
from perfmodel.workload.memory.optimizer_states import shares_of_step
from perfmodel.workload.model import LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class CoreWork:
    """Work of backward on a core of its process, where layers run elsewhere.

    `layer_s`: for each layer: Python, autograd.
    `gradient_s`: for each gradient: autograd, DDP's hook.
    `copies_Bps`: rate at which gradients are copied to their buckets.
    """

    layer_s: float = 0.0
    gradient_s: float = 0.0
    copies_Bps: float = math.inf

    def of(self, layers: int, gradients: int, nbytes: float) -> float:
        """Work for some layers and their gradients; seconds."""
        return layers * self.layer_s + gradients * self.gradient_s + nbytes / self.copies_Bps


NO_CORE_WORK = CoreWork()

CollectiveTime = Callable[[Op, int, str | None], float]
"""Time of a collective of so many bytes among all ranks, alone on the network, by the job's library
or another by name; seconds."""


def _instant(*_: object) -> float:
    """Time of collectives where no machine is known; seconds."""
    return 0.0


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a strategy's plan of one step depends on, besides its options.

    `times`: of one micro-batch of `batch_per_gpu` samples on one GPU.
    `ranks`: GPUs, all alike.
    `batch_per_gpu`: samples per GPU and micro-batch.
    `iteration`: whether buckets are the initial or the rebuilt ones. With ``static_graph`` the
        first iteration reduces after backward.
    `item_bytes`: bytes per element of inputs and outputs.
    `comm_workers`: all-reduces in progress at once: 1 for NCCL's stream, 2 for Gloo's worker
        threads.
    `blocking_wait`: the host waits for each all-reduce before it issues the copy back (Gloo),
        instead of letting the device wait (NCCL).
    `kernel_s`: least device time of a copy kernel, one per parameter, which small gradients are
        bound by; seconds.
    `segments`: tasks per pass that layers are merged into at most (more where buckets end).
    `host_s`: work of the process of a rank at the end of a step, after the last gradient; seconds.
    `bucket_copy_Bps`: rate of copies to and from buckets; by default `times.copy_Bps`.
    `cast_Bps`: the hook converts gradients at this rate (of their own bytes) beside the device's
        work. By default the device does, at the rate of its copies.
    `core`: work of backward on a core of each rank's process.
    `host_link_Bps`: rate of copies between a GPU and the memory of its host, one way, while all
        GPUs of the host copy. None: there is no way.
    `host_optimizer_s`: time of the optimizer on the host's CPUs, of all parameters, while those of
        the host's other ranks run; seconds.
    `drives`: NVMe drives of the host, at the rates of one GPU while all read or all write. None:
        there are none.
    `host_memory_Bps`: rate at which the host's CPUs read and write its memory, of one GPU while the
        optimizers of all run there.
    `nodes`: hosts that the ranks are on, equally many on each.
    `optimizer`: "sgd", "sgd-momentum", "adam", "adamw"; for those that run it on CPUs.
    `ready_order`: order in which gradients got ready (see `perfmodel.training.ddp.buckets`).
    `ranks_per_host`: GPUs of each host that the job has.
    `collective_s`: time of collectives alone, for strategies whose choices depend on it.
    `expert_copies`: ranks that hold the same experts, and average their gradients, where ranks
        share experts; None: all of `ranks` do.
    `gpu`: for matrix products of hooks; by default memory alone bounds them.
    `float8`: how linear layers run in fp8; None where they do not.
    Raises `InputError`: ranks or batch below 1.
    """

    workload: Workload
    times: LayerTimes
    ranks: int
    batch_per_gpu: int
    iteration: Iteration = "steady"
    item_bytes: int = 4
    comm_workers: int = 1
    blocking_wait: bool = False
    kernel_s: float = 0.0
    segments: int = 128
    host_s: float = 0.0
    bucket_copy_Bps: float | None = None
    cast_Bps: float | None = None
    core: CoreWork = NO_CORE_WORK
    host_link_Bps: float | None = None
    host_optimizer_s: float = 0.0
    host_memory_Bps: float = math.inf
    drives: Drives | None = None
    ready_order: Sequence[int] | None = None
    ranks_per_host: int = 1
    collective_s: CollectiveTime = _instant
    nodes: int = 1
    optimizer: str = "sgd-momentum"
    gpu: Gpu | None = None
    expert_copies: int | None = None
    float8: Float8 | None = None

    @property
    def gathered_narrow(self) -> frozenset[int]:
        """Parameters that are gathered in fp8."""
        return gathered_weights(self.workload, self.float8)

    def host_copy_s(self, nbytes: float) -> float:
        """Time of a copy between a GPU and the memory of its host, while all others copy, too."""
        assert self.host_link_Bps is not None
        return nbytes / self.host_link_Bps

    def __post_init__(self) -> None:
        raise_faults(count_faults(self.ranks, self.batch_per_gpu))


def updating_share(request: StepRequest, ranks: int, *, layer_wise: bool = False) -> StepRequest:
    """Return a request whose optimizer has to do what the fullest of the ranks updates.

    `layer_wise`: as in `fullest_share`.
    """
    assert request.gpu is not None
    own_s, operations = shares_of_step(
        request.workload, request.optimizer, ranks, request.gpu, layer_wise=layer_wise
    )
    return replace(
        request,
        times=replace(
            request.times,
            optimizer_s=own_s * request.times.optimizer_s,
            optimizer_kernels=round(operations * request.times.optimizer_kernels),
        ),
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a strategy's section that can be tuned.

    `field`: its name.
    `values`: a coarse grid, by rising value where there is one.
    `unit`: of numbers, which may be tried between those of the grid too; None: there is nothing
        between.
    """

    field: str
    values: tuple[Any, ...]
    unit: Literal["bytes", "seconds", "elements"] | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table of strategies.

    `name`: for people.
    `plan`: one training step, which all ranks share. None: they share none, see `loops`.
    `loops`: workers and servers that loop on their own.
    `memory`: bytes on the fullest GPU. None: it does not say what it keeps.
    `buckets`: gradient buckets of the steady state in launch order. None: the strategy has none, so
        that there are no bucket caps to tune.
    `held_dtype`: of the parameters that layers run with, by its options; None: their own.
    `lighter`: settings of its section that are worth trying where a training does not fit, with
        this strategy or instead of another.
    `assumptions`: of its plan, as sentences.
    `settings`: what can be tuned, from the section, the ranks that average a gradient, and nodes;
        None: nothing beside buckets.
    `bucket_sizes`: from a section and the ranks that average a gradient: the field of the size of
        buckets, with values by rising size and None for what it is by default; None where the
        section states it, or has no buckets.
    `options`: what `plan` and `memory` take, from the section; by default the section itself.
    `remarks`: what its options leave out of a step, as sentences.
    `first_differs`: whether the very first step is another than those after it, by its options.
    """

    name: str
    plan: Callable[[StepRequest, Any], StepPlan] | None
    memory: Callable[[Setup], MemoryUse] | None
    buckets: Callable[[Workload, Any], tuple[Bucket, ...]] | None = None
    held_dtype: Callable[[Any], str | None] = lambda _options: None
    lighter: tuple[Mapping[str, object], ...] = ()
    assumptions: tuple[str, ...] = ()
    loops: Callable[[StepRequest, Any], LoopPlan] | None = None
    settings: Callable[[Any, int, int], tuple[Setting, ...]] | None = None
    bucket_sizes: Callable[[Any, int], Setting | None] | None = None
    options: Callable[[Any], StepOptions] = lambda section: section
    remarks: Callable[[Any], tuple[str, ...]] = lambda _options: ()
    first_differs: Callable[[Any], bool] = lambda _options: True
