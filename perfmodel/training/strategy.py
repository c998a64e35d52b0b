"""What a strategy is to the rest of the package: how it plans a step and what it keeps in memory.

A new strategy is a module or folder beside this one that defines a `Strategy`, a section class in
``perfmodel/scenario/sections/strategy.py``, and a row in ``perfmodel/training/strategies.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.scenario.sections.strategy import Hook
from perfmodel.training.ddp.buckets import Bucket, Iteration
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.forward_backward import CoreWork
from perfmodel.training.memory import MemoryUse, Setup
from perfmodel.training.step_plan import StepPlan
from perfmodel.workload.model import LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a strategy's plan of one step depends on, besides its options.

    `item_bytes`: bytes per element of activations.
    `bucket_copy_Bps`: rate of copies to and from buckets. Default: `times.copy_Bps`.
    `others`: as the parameters of `perfmodel.training.ddp.step_plan.ddp_plan`.
    """

    workload: Workload
    times: LayerTimes
    ranks: int
    batch_per_gpu: int
    iteration: Iteration
    hook: Hook
    item_bytes: int
    comm_workers: int
    blocking_wait: bool
    kernel_s: float
    segments: int
    host_s: float
    bucket_copy_Bps: float | None
    cast_Bps: float | None
    core: CoreWork


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table of strategies.

    `name`: for people.
    `options`: from the section of the scenario to options of the strategy.
    `plan`: one training step.
    `memory`: bytes on the fullest GPU.
    `buckets`: gradient buckets of the steady state in launch order. None: the strategy has none, so
        that there are no bucket caps to tune.
    `assumptions`: of its plan, as sentences.
    """

    name: str
    options: Callable[[Any], DdpOptions]
    plan: Callable[[StepRequest, DdpOptions], StepPlan]
    memory: Callable[[Setup], MemoryUse]
    buckets: Callable[[Workload, DdpOptions], tuple[Bucket, ...]] | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def has_buckets(self) -> bool:
        """Whether there are bucket caps to tune."""
        return self.buckets is not None
