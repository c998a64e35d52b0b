"""Horovod and priority scheduling as rows of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.strategy import HorovodStrategy, PriorityStrategy
from perfmodel.training.ddp.options import MIB
from perfmodel.training.fusion.horovod import horovod_plan
from perfmodel.training.fusion.priority import priority_plan
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.strategy import Setting, Strategy
from perfmodel.workload.model import ITEM_BYTES


def horovod_memory(setup: Setup) -> MemoryUse:
    """Add up what Horovod keeps on a GPU.

    The fusion buffer has the whole threshold, however little is fused; compression adds a copy of
    all gradients in 16 bits. Gradients alone travel in place.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use, options = replicated(setup), setup.options
    assert isinstance(options, HorovodStrategy)
    if setup.ranks == 1:
        return use
    half = ITEM_BYTES["fp16"]
    cast = [tensor for tensor in setup.trained if ITEM_BYTES[tensor.dtype] > half]
    compressed = half * sum(tensor.numel for tensor in cast) if options.compression == "fp16" else 0
    return replace(use, buckets_bytes=options.fusion_threshold + compressed)


def horovod_settings(*_: object) -> tuple[Setting, ...]:
    """What HOROVOD_AUTOTUNE tunes too, but for the cache (parameter_manager.cc)."""
    thresholds = (0.0, *(float(mib * MIB) for mib in (1, 4, 16, 32, 64, 128, 256, 512)))
    cycles = (0.5e-3, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3)
    return (
        Setting("fusion_threshold", thresholds, "bytes"),
        Setting("cycle_time", cycles, "seconds"),
        Setting("allreduce", ("flat", "torus")),
    )


def horovod_words(section: HorovodStrategy) -> tuple[str, ...]:
    """Environment variables of a section."""
    return (
        f"HOROVOD_FUSION_THRESHOLD={round(section.fusion_threshold)}",
        f"HOROVOD_CYCLE_TIME={section.cycle_time * 1e3:g}",
        *(("HOROVOD_TORUS_ALLREDUCE=1",) if section.allreduce == "torus" else ()),
    )


HOROVOD = Strategy(
    "Horovod",
    horovod_plan,
    horovod_memory,
    assumptions=(
        (
            "Horovod: a cycle of the background thread has begun half a cycle before backward, the "
            "mean of all that can be; with NCCL, issuing reductions takes the thread no time."
        ),
        (
            "Horovod: ranks agree in each cycle by an all-reduce of a bit for each tensor, as long "
            "as one of the controller's library on this network; HOROVOD_AUTOTUNE and "
            "HOROVOD_HIERARCHICAL_ALLREDUCE (MPI between hosts) are not modelled."
        ),
    ),
    settings=horovod_settings,
    own_words=horovod_words,
)


def priority_settings(*_: object) -> tuple[Setting, ...]:
    """The two numbers that ByteScheduler tunes, and P3's order against the usual one."""
    pieces = (2e5, 1e6, 4e6, 16e6, 64e6, 256e6)
    return (
        Setting("partition_size", pieces, "bytes"),
        Setting("credit", (None, *pieces), "bytes"),
        Setting("order", ("priority", "fifo")),
    )


def priority_words(section: PriorityStrategy) -> tuple[str, ...]:
    """Environment variables of ByteScheduler, which counts parameters."""
    item = ITEM_BYTES["fp32"]
    return (
        f"BYTESCHEDULER_PARTITION={round(section.partition_size / item)}",
        f"BYTESCHEDULER_CREDIT={round(section.credit_bytes / item)}",
    )


PRIORITY = Strategy(
    "priority scheduling",
    priority_plan,
    replicated,
    assumptions=(
        (
            "Priority scheduling: the order of pieces is decided with times of layers and "
            "all-reduces that do not slow each other down; agreeing on it takes no time, and each "
            "layer's update takes its share of the optimizer's."
        ),
    ),
    settings=priority_settings,
    own_words=priority_words,
)
