"""How local SGD is set up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.training.ddp.options import DdpOptions


@dataclass(frozen=True, slots=True)
class LocalSgdOptions:
    """Options of local SGD.

    `period`: optimizer steps from one average of all ranks to the next.
    `levels`: period and ranks of smaller groups that average, growing.
    `warmup_steps`: steps before it, which all-reduce gradients.
    `gradient_ranks`: ranks that all-reduce gradients in each step (post-local SGD); None: none.
    `ddp`: options of DistributedDataParallel, which holds the buckets then.
    """

    period: int = 4
    levels: tuple[tuple[int, int], ...] = ()
    warmup_steps: int = 0
    gradient_ranks: int | None = None
    ddp: DdpOptions = DdpOptions()  # noqa: RUF009 (immutable)

    @property
    def accumulate(self) -> int:
        """Micro-batches per round: one for each optimizer step."""
        return math.lcm(self.period, *(period for period, _ in self.levels))

    @property
    def hooked(self) -> DdpOptions:
        """Options of DistributedDataParallel with the hook of post-local SGD."""
        return DdpOptions(
            bucket_cap_bytes=self.ddp.bucket_cap_bytes,
            gradient_as_bucket_view=self.ddp.gradient_as_bucket_view,
            broadcast_buffers=self.ddp.broadcast_buffers,
            hook=CastHook(kind="allreduce"),
        )

    def averaged_ranks(self, step: int, ranks: int) -> int | None:
        """Ranks of each group that averages parameters after a step of the round; None: none do.

        The longest period that ends decides (``_find_process_group`` in
        hierarchical_model_averager.py).
        """
        if step % self.period == 0:
            return ranks
        for period, size in reversed(self.levels):
            if step % period == 0:
                return min(size, ranks)
        return None

    def groups(self, size: int, ranks: int, field: str) -> tuple[range, ...]:
        """Consecutive groups of a size.

        Raises `InputError`: ranks that cannot be split into them.
        """
        size = min(size, ranks)
        if ranks % size:
            allowed = f"a number that divides the {ranks} GPUs"
            raise InputError(Fault(f"strategy.{field}", str(size), allowed))
        return tuple(range(first, first + size) for first in range(0, ranks, size))
