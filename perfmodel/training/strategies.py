"""The table of strategies: one row for each `kind` of the scenario's strategy section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.training.strategy import Strategy

_ROWS: Mapping[str, str] = {
    "ddp": "ddp.strategy:DDP",
    "data_parallel": "data_parallel:DATA_PARALLEL",
    "fsdp": "fsdp.strategy:FSDP",
    "horovod": "horovod:HOROVOD",
    "priority": "priority:PRIORITY",
    "parameter_server": "parameter_server:PARAMETER_SERVER",
    "zero": "zero.strategy:ZERO",
    "zero_redundancy": "ddp.strategy:ZERO_REDUNDANCY",
    "megatron": "megatron:MEGATRON",
    "local_sgd": "local_sgd:LOCAL_SGD",
    "onebit": "onebit:ONEBIT",
}
"""Where each row stands in this package: a run imports the one that it trains with."""


class _Strategies(Mapping[str, "Strategy"]):
    """Rows by `kind`, each imported when it is first looked up."""

    def __getitem__(self, kind: str) -> Strategy:
        module, _, name = _ROWS[kind].partition(":")
        row: Strategy = getattr(import_module(f"{__package__}.{module}"), name)
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(_ROWS)

    def __len__(self) -> int:
        return len(_ROWS)


STRATEGIES: Mapping[str, Strategy] = _Strategies()
