"""The strategy section of a scenario: one class for each strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from perfmodel.scenario.sections.base import OrName
from perfmodel.scenario.sections.strategies.auto import AutoStrategy
from perfmodel.scenario.sections.strategies.data_parallel import DataParallelStrategy
from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.scenario.sections.strategies.fsdp import FsdpStrategy
from perfmodel.scenario.sections.strategies.horovod import HorovodStrategy
from perfmodel.scenario.sections.strategies.local_sgd import LocalSgdStrategy
from perfmodel.scenario.sections.strategies.megatron import MegatronStrategy
from perfmodel.scenario.sections.strategies.onebit import OneBitStrategy
from perfmodel.scenario.sections.strategies.parameter_server import ParameterServerStrategy
from perfmodel.scenario.sections.strategies.priority import PriorityStrategy
from perfmodel.scenario.sections.strategies.zero import ZeroStrategy
from perfmodel.scenario.sections.strategies.zero_redundancy import ZeroRedundancyStrategy

_OTHER_NAMES = {
    "bytescheduler": "'priority', whose defaults are ByteScheduler's",
    "p3": "'priority' with 'partition_size: 200 kB' and 'credit: 200 kB'",
    "hsdp": "'fsdp' with 'shard_gpus'",
    "fsdp1": "'fsdp' with 'version: 1'",
    "fsdp2": "'fsdp' with 'version: 2'",
    "zero1": "'zero' with 'stage: 1'",
    "zero2": "'zero' with 'stage: 2'",
    "zero3": "'zero' with 'stage: 3'",
    "deepspeed": "'zero'",
    "zerooffload": "'zero' with 'offload_optimizer'",
    "zeroinfinity": "'zero' with 'stage: 3', 'offload_param' and 'offload_optimizer'",
    "postlocalsgd": "'local_sgd' with 'warmup_steps'",
    "onebitadam": "'onebit'",
    "distributedoptimizer": "'megatron' with 'use_distributed_optimizer: true'",
    "pipeline": "a strategy beside 'parallel.pipeline', which splits the model",
    "tensor": "a strategy beside 'parallel.tensor', which splits the model",
}
"""What people call strategies that have another name here, and how they are written."""


def _ddp_unless_named(value: object) -> object:
    value = {"kind": value} if isinstance(value, str) else value
    kind = value.get("kind") if isinstance(value, Mapping) else None
    folded = re.sub(r"[^a-z0-9]", "", kind.lower()) if isinstance(kind, str) else ""
    if folded in _OTHER_NAMES:
        raise ValueError(_OTHER_NAMES[folded])
    return {"kind": "ddp", **value} if isinstance(value, Mapping) else value


StrategySection = Annotated[
    Annotated[
        DdpStrategy
        | DataParallelStrategy
        | ParameterServerStrategy
        | FsdpStrategy
        | HorovodStrategy
        | PriorityStrategy
        | ZeroStrategy
        | MegatronStrategy
        | ZeroRedundancyStrategy
        | LocalSgdStrategy
        | OneBitStrategy
        | AutoStrategy,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_ddp_unless_named),
    OrName(),
]
"""The strategies by `kind`, which may stand alone; DDP without one. Each class has a row of the
same kind in `perfmodel.training.strategies` (but `auto`, for which a study puts another in its
place), and says `accumulate`, `one_node_only`, and whether its communication `overlaps` layers."""
