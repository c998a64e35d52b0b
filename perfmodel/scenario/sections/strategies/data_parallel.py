"""nn.DataParallel in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from perfmodel.files import FileModel


class DataParallelStrategy(FileModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]
    one_node_only: ClassVar[bool] = True
    overlaps: ClassVar[bool] = False
    accumulate: ClassVar[int] = 1
