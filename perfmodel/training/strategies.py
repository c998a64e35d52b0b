"""The table of strategies: one row for each `kind` of the scenario's strategy section."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.training.averaging.strategy import LOCAL_SGD
from perfmodel.training.ddp.strategy import DDP
from perfmodel.training.servers.data_parallel import DATA_PARALLEL
from perfmodel.training.sharded.strategy import FSDP
from perfmodel.training.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "ddp": DDP,
    "data_parallel": DATA_PARALLEL,
    "fsdp": FSDP,
    "local_sgd": LOCAL_SGD,
}
