"""How Horovod and priority scheduling are set up, with their own names and defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError

MIB = 1024 * 1024

FUSION_THRESHOLD_BYTES = 128 * MIB
"""Default of HOROVOD_FUSION_THRESHOLD (``BackgroundThreadLoop``, horovod 0.28.1, operations.cc)."""

CYCLE_S = 1e-3
"""Default of HOROVOD_CYCLE_TIME (as above); seconds."""

CACHE_CAPACITY = 1024
"""Default of HOROVOD_CACHE_CAPACITY: responses (horovod 0.28.1, global_state.h)."""

Controller = Literal["mpi", "gloo"]
Route = Literal["flat", "torus"]


@dataclass(frozen=True, slots=True)
class HorovodOptions:
    """Options of ``horovod.torch.DistributedOptimizer`` and of its background thread.

    `fusion_threshold_bytes`: HOROVOD_FUSION_THRESHOLD; 0 fuses nothing.
    `cycle_s`: HOROVOD_CYCLE_TIME; seconds.
    `cache_capacity`: HOROVOD_CACHE_CAPACITY; 0: every cycle gathers requests.
    `controller`: HOROVOD_CONTROLLER: library by which the threads agree on what is ready.
    `allreduce`: "torus" is HOROVOD_TORUS_ALLREDUCE: reduce-scatter in each host, all-reduce across
        hosts, all-gather in each host.
    `compression`: ``Compression.fp16``: each gradient travels in 16 bits.
    `accumulate`: ``backward_passes_per_step``.
    Raises `InputError`: a size or a time below zero, or no micro-batch.
    """

    fusion_threshold_bytes: float = FUSION_THRESHOLD_BYTES
    cycle_s: float = CYCLE_S
    cache_capacity: int = CACHE_CAPACITY
    controller: Controller = "mpi"
    allreduce: Route = "flat"
    compression: Literal["none", "fp16"] = "none"
    accumulate: int = 1

    def __post_init__(self) -> None:
        values = (
            ("fusion_threshold_bytes", self.fusion_threshold_bytes),
            ("cycle_s", self.cycle_s),
            ("cache_capacity", self.cache_capacity),
        )
        faults = [
            Fault(name, repr(value), "a finite number, 0 or more")
            for name, value in values
            if not (math.isfinite(value) and value >= 0)
        ]
        if self.accumulate < 1:
            faults.append(Fault("accumulate", repr(self.accumulate), "1 or more micro-batches"))
        if faults:
            raise InputError(faults)


PARTITION_ELEMENTS, CREDIT_ELEMENTS = 1_000_000, 4_000_000
"""Defaults of BYTESCHEDULER_PARTITION and BYTESCHEDULER_CREDIT: parameters (bytedance/byteps,
branch bytescheduler, bytescheduler/common/bytecore.py)."""
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """Options of priority scheduling (ByteScheduler; P3 with a credit of one partition).

    `partition_bytes`: tensors are cut to pieces of at most this size.
    `credit_bytes`: pieces that are handed to the communication library and have not ended; none of
        them can be overtaken. A piece is sent whenever nothing is in flight.
    `order`: what is sent first of all that is ready: what the next forward needs first, or what was
        ready first.
    `accumulate`: micro-batches per step.
    Raises `InputError`: a size that is not above zero, or no micro-batch.
    """

    partition_bytes: float = PARTITION_ELEMENTS * FP32_BYTES
    credit_bytes: float = CREDIT_ELEMENTS * FP32_BYTES
    order: Literal["priority", "fifo"] = "priority"
    accumulate: int = 1

    def __post_init__(self) -> None:
        sizes = (
            ("partition_bytes", self.partition_bytes),
            ("credit_bytes", self.credit_bytes),
        )
        faults = [
            Fault(name, repr(size), "a finite size above zero")
            for name, size in sizes
            if not (math.isfinite(size) and size > 0)
        ]
        if self.accumulate < 1:
            faults.append(Fault("accumulate", repr(self.accumulate), "1 or more micro-batches"))
        if faults:
            raise InputError(faults)
