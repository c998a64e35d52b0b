"""The table of strategies: one row for each `kind` of the scenario's strategy section."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.training.averaging.strategy import LOCAL_SGD
from perfmodel.training.ddp.strategy import DDP
from perfmodel.training.fusion.strategy import HOROVOD, PRIORITY
from perfmodel.training.onebit.strategy import ONEBIT
from perfmodel.training.servers.data_parallel import DATA_PARALLEL
from perfmodel.training.servers.parameter_server import PARAMETER_SERVER
from perfmodel.training.sharded.fsdp.strategy import FSDP
from perfmodel.training.sharded.megatron.strategy import MEGATRON
from perfmodel.training.sharded.redundancy import ZERO_REDUNDANCY
from perfmodel.training.sharded.zero.strategy import ZERO
from perfmodel.training.strategy import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "ddp": DDP,
    "data_parallel": DATA_PARALLEL,
    "fsdp": FSDP,
    "horovod": HOROVOD,
    "priority": PRIORITY,
    "parameter_server": PARAMETER_SERVER,
    "zero": ZERO,
    "zero_redundancy": ZERO_REDUNDANCY,
    "megatron": MEGATRON,
    "local_sgd": LOCAL_SGD,
    "onebit": ONEBIT,
}
