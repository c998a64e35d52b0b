"""DeepSpeed's 1-bit optimizers in a scenario."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from perfmodel.files import FileModel
from perfmodel.scenario.sections.strategies.counts import MicroSteps
from perfmodel.units import MOST_COUNT


class OneBitStrategy(FileModel):
    """``OneBitAdam``, ``ZeroOneAdam`` or ``OneBitLamb`` of DeepSpeed, over NCCL.

    They are optimizers as much as strategies: `compute.optimizer` is Adam's for the states that
    they share. The first step is one of the warm-up, which reduces whole gradients.
    """

    kind: Literal["onebit"]
    keeps_masters: ClassVar[bool] = True
    one_node_only: ClassVar[bool] = False
    overlaps: ClassVar[bool] = False
    optimizer: Literal["adam", "zero_one_adam", "lamb"] = "adam"
    freeze_step: Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)] = Field(
        default=100_000,
        description="steps of the warm-up, before momenta are compressed (var_freeze_step)",
    )
    local_steps: MicroSteps = Field(
        default=1,
        description="steps from one exchange to the next (zero_one_adam: local_step_interval, "
        "which grows from 1 to local_step_clipper, 16)",
    )
    accumulate: MicroSteps = Field(
        default=1,
        description="gradient_accumulation_steps, times 'local_steps' where there are several",
    )

    @model_validator(mode="after")
    def _check_local_steps(self) -> OneBitStrategy:
        if self.local_steps > 1 and self.optimizer != "zero_one_adam":
            raise ValueError("'local_steps' with 'optimizer: zero_one_adam' only")
        if self.accumulate % self.local_steps:
            raise ValueError(
                "an 'accumulate' that 'local_steps' divides: it counts the micro-steps of them all"
            )
        return self
