"""How DeepSpeed's 1-bit optimizers are set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError

OneBitOptimizer = Literal["adam", "zero_one_adam", "lamb"]


@dataclass(frozen=True, slots=True)
class OneBitOptions:
    """Options of ``OneBitAdam``, ``ZeroOneAdam`` and ``OneBitLamb`` (DeepSpeed 0.14.5).

    `freeze_step`: steps of the warm-up, which reduce whole gradients.
    `local_steps`: optimizer steps of a round, which exchanges once; more than 1 with 0/1 Adam only.
    `accumulate`: micro-batches of a round.
    Raises `InputError`: counts that do not fit each other.
    """

    optimizer: OneBitOptimizer = "adam"
    freeze_step: int = 100_000
    local_steps: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.local_steps > 1 and self.optimizer != "zero_one_adam":
            raise InputError(Fault("local_steps", str(self.local_steps), "1, or zero_one_adam"))
        if self.local_steps < 1 or self.accumulate < 1 or self.accumulate % self.local_steps:
            steps = f"a multiple of local_steps, {self.local_steps}, above zero"
            raise InputError(Fault("accumulate", str(self.accumulate), steps))
