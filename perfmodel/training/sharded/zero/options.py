"""How ZeRO is set up, with DeepSpeed's own names and defaults (``runtime/zero/config.py``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.errors import Fault, InputError

BUCKET_ELEMENTS = 500_000_000
"""``reduce_bucket_size``."""

PREFETCH_ELEMENTS = 50_000_000
"""``stage3_prefetch_bucket_size``."""

PERSISTENT_ELEMENTS = 100_000
"""``stage3_param_persistence_threshold``."""

LIVE_ELEMENTS = 1_000_000_000
"""``stage3_max_live_parameters``, ``stage3_max_reuse_distance`` and ``sub_group_size``."""


@dataclass(frozen=True, slots=True)
class OptimizerOffload:
    """Optimizer states in the memory of the host, or on its NVMe drives (``offload_optimizer``).

    `nvme`: they lie on drives, and are read and written one sub-group after the other.
    `buffer_count`: buffers in host memory, each of which holds one state of a sub-group.
    `pipeline_read`: the next sub-group is read while the CPUs update one.
    `pipeline_write`: the last sub-group is written meanwhile.
    """

    nvme: bool = False
    buffer_count: int = 4
    pipeline_read: bool = False
    pipeline_write: bool = False


@dataclass(frozen=True, slots=True)
class ParameterOffload:
    """Parts of parameters in the memory of the host, or on its drives (``offload_param``).

    `nvme`: they lie on drives, but for sub-groups of `max_in_cpu` elements together.
    `buffer_count`, `buffer_size`: buffers in host memory that parts are read into, and the elements
        of each.
    """

    nvme: bool = False
    buffer_count: int = 5
    buffer_size: int = 100_000_000
    max_in_cpu: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ZeroOptions:
    """Options of ``zero_optimization``; sizes are numbers of elements.

    `stage`: what is split: 1 optimizer states, 2 gradients too, 3 parameters too.
    `overlap_comm`: whether gradients are reduced beside backward. None: as DeepSpeed decides,
        in stage 3 alone.
    `reduce_scatter`: False: each bucket is all-reduced. True in stages 1 and 2: the parts of a
        bucket go to their owners, in one all-reduce of all of them
        (`use_multi_rank_bucket_allreduce`) or in a reduction for each.
    `contiguous_gradients`: gradients are copied into one buffer (two with overlap).
    `round_robin_gradients`: parameters are dealt out to the ranks in turn (stages 1 and 2).
    `max_live_parameters`: no more is prefetched than keeps so many whole.
    `max_reuse_distance`: a parameter stays whole if it is used again within so many elements.
    `param_persistence_threshold`: parameters of so many elements or fewer stay whole.
    `allgather_sequential`: parameters are gathered one by one.
    `hpz_ranks`: ranks that hold a second copy of each parameter between them
        (``zero_hpz_partition_size``); 1: none.
    `offload_optimizer`: the optimizer's states lie in the memory of the host or on drives, and it
        runs on the CPUs. None: all on the GPU.
    `offload_param`: parts of parameters lie in the memory of the host or on drives (stage 3).
    `communication_data_type`: what gradients travel in; None: their own.
    `accumulate`: micro-batches per step.
    Raises `InputError`: counts below 1, or sizes below 0.
    """

    stage: Literal[1, 2, 3] = 2
    reduce_bucket_size: int = BUCKET_ELEMENTS
    reduce_scatter: bool = True
    use_multi_rank_bucket_allreduce: bool = True
    overlap_comm: bool | None = None
    contiguous_gradients: bool = True
    round_robin_gradients: bool = False
    prefetch_bucket_size: int = PREFETCH_ELEMENTS
    param_persistence_threshold: int = PERSISTENT_ELEMENTS
    max_live_parameters: int = LIVE_ELEMENTS
    max_reuse_distance: int = LIVE_ELEMENTS
    sub_group_size: int = LIVE_ELEMENTS
    allgather_sequential: bool = False
    hpz_ranks: int = 1
    offload_optimizer: OptimizerOffload | None = None
    offload_param: ParameterOffload | None = None
    communication_data_type: str | None = None
    accumulate: int = 1

    def within(self, ranks: int) -> ZeroOptions:
        """Return the options where a second copy lies on no more than all ranks.

        Raises `InputError`: ranks that cannot be split into such groups.
        """
        holders = min(self.hpz_ranks, ranks)
        if ranks % holders:
            allowed = f"a divisor of the {ranks} GPUs"
            raise InputError(
                [Fault("strategy.zero_hpz_partition_size", repr(self.hpz_ranks), allowed)]
            )
        return replace(self, hpz_ranks=holders)

    def __post_init__(self) -> None:
        least = {
            "reduce_bucket_size": 1,
            "hpz_ranks": 1,
            "accumulate": 1,
            "sub_group_size": 1,
            "prefetch_bucket_size": 0,
            "param_persistence_threshold": 0,
            "max_live_parameters": 0,
            "max_reuse_distance": 0,
        }
        faults = [
            Fault(name, repr(getattr(self, name)), f"a whole number, {bound} or more")
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        if faults:
            raise InputError(faults)

    @property
    def offloads(self) -> bool:
        """Whether anything lies outside the GPUs."""
        return self.offload_optimizer is not None or self.offload_param is not None

    @property
    def uses_drives(self) -> bool:
        """Whether anything lies on drives."""
        return any(each and each.nvme for each in (self.offload_optimizer, self.offload_param))

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced beside backward."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm
