"""Priority scheduling in a scenario."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from perfmodel.files import Bytes, FileModel
from perfmodel.scenario.sections.strategies.counts import MicroSteps


class PriorityStrategy(FileModel):
    """Gradients cut to pieces, and sent by what the next forward needs first.

    ByteScheduler's defaults are a million fp32 parameters a piece and four pieces of credit; P3 has
    50,000 parameters (200 kB) and a credit of one piece.
    """

    kind: Literal["priority"]
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True
    partition_size: Bytes = Field(default=4e6, description="tensors are cut to such pieces")
    credit: Bytes | None = Field(
        default=None, description="pieces in flight, which none can overtake; default: four"
    )
    order: Literal["priority", "fifo"] = Field(
        default="priority", description="fifo: pieces in the order in which they get ready"
    )
    accumulate: MicroSteps = 1
