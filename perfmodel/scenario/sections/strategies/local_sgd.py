"""Local SGD in a scenario: parameters are averaged now and then instead of gradients always."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from perfmodel.files import Bytes, Count, FileModel
from perfmodel.scenario.sections.base import Switch
from perfmodel.scenario.sections.strategies.counts import MOST_MICRO_STEPS, MicroSteps
from perfmodel.units import MOST_COUNT


class AveragingLevel(FileModel):
    """Groups of consecutive GPUs that average their parameters more often than all do."""

    period: MicroSteps
    gpus: Annotated[Count, Field(ge=2)]


class LocalSgdStrategy(FileModel):
    """Local SGD: each GPU, or each group of GPUs, takes steps of its own between averages.

    PyTorch's ``PeriodicModelAverager`` with `period`, ``HierarchicalModelAverager`` with `levels`
    below it; with `gradient_gpus` post-local SGD (``post_localSGD_hook`` in
    DistributedDataParallel). What `run` calls a step is a round of optimizer steps after which the
    pattern repeats.
    """

    kind: Literal["local_sgd"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    period: MicroSteps = Field(default=4, description="optimizer steps per average of all GPUs")
    levels: tuple[AveragingLevel, ...] = Field(
        default=(), description="smaller groups that average more often, growing"
    )
    warmup_steps: Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)] = Field(
        default=0, description="steps before it average all gradients (start_localSGD_iter)"
    )
    gradient_gpus: Annotated[Count, Field(ge=2)] | None = Field(
        default=None,
        description="consecutive GPUs that average gradients in each step; default: none do",
    )
    bucket_cap: Bytes | None = Field(default=None, description="as in kind: ddp")
    gradient_as_bucket_view: Switch = False
    broadcast_buffers: Switch = True

    @property
    def accumulate(self) -> int:
        """Micro-batches per round: one for each optimizer step."""
        return math.lcm(self.period, *(level.period for level in self.levels))

    @model_validator(mode="after")
    def _check_levels(self) -> LocalSgdStrategy:
        periods = [*(level.period for level in self.levels), self.period]
        sizes = [level.gpus for level in self.levels]
        if any(b <= a for a, b in itertools.pairwise(periods)):
            raise ValueError("'levels' of growing periods, all below 'period'")
        if any(b <= a for a, b in itertools.pairwise(sizes)):
            raise ValueError("'levels' of growing groups")
        if self.accumulate > MOST_MICRO_STEPS:
            raise ValueError(f"periods that repeat together after {MOST_MICRO_STEPS} steps at most")
        if self.gradient_gpus is None:
            with_ddp = {"bucket_cap", "gradient_as_bucket_view", "broadcast_buffers"}
            for name in sorted(with_ddp & self.model_fields_set):
                raise ValueError(f"no {name!r} without 'gradient_gpus': nothing has buckets")
        return self
