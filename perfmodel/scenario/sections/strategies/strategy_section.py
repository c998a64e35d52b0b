"""The strategy section of a scenario: one class for each strategy."""

from __future__ import annotations

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


def _ddp_unless_named(value: object) -> object:
    value = {"kind": value} if isinstance(value, str) else value
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
