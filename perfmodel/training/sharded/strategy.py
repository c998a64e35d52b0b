"""Fully sharded training as a row of the table of strategies."""

from __future__ import annotations

from perfmodel.scenario.sections.strategies.fsdp import FsdpStrategy
from perfmodel.training.sharded.fsdp import fsdp_plan
from perfmodel.training.sharded.memory import fsdp_memory
from perfmodel.training.sharded.options import FsdpOptions
from perfmodel.training.strategy import Strategy


def _options(section: FsdpStrategy) -> FsdpOptions:
    return FsdpOptions(
        version=section.version,
        wrap=section.wrap,
        reshard_after_forward=section.reshard_after_forward,
        regather_ranks=section.regather_gpus,
        shard_ranks=section.shard_gpus,
        backward_prefetch=section.backward_prefetch,
        limit_all_gathers=section.limit_all_gathers,
        param_dtype=section.param_dtype,
        reduce_dtype=section.reduce_dtype,
        accumulate=section.accumulate,
        reduce_each=section.reduce_each,
    )


def _held_dtype(options: FsdpOptions) -> str | None:
    return options.param_dtype


FSDP = Strategy(
    "fully sharded data parallel", _options, fsdp_plan, fsdp_memory, held_dtype=_held_dtype,
    lighter=({}, {"reshard_after_forward": True}),
)  # fmt: skip
