"""nn.DataParallel in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from perfmodel.files import FileModel
from perfmodel.scenario.sections.strategies.ddp import Hook


class DataParallelStrategy(FileModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]
    one_node_only: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False
    accumulate: ClassVar[int] = 1
    hook: ClassVar[Hook] = "none"
