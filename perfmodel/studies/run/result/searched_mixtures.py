"""How the quickest mixture that fits was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SimulatedMixture:
    """A mixture that was simulated on the way to the quickest one that fits.

    `text`: what it is, in words.
    `changes`: fields of the scenario that make it this mixture, as written in a file.
    `bound_s`: below which its step could not be; seconds.
    `memory_bytes`: of the fullest GPU.
    `parts_s`: of the step: compute, exposed communication by kind, bubble; seconds.
    """

    text: str
    changes: Mapping[str, Any]
    step_time_s: float
    bound_s: float
    memory_bytes: float
    parts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MixtureSearch:
    """How the quickest mixture that fits was found.

    `best`: by growing step time; the first one is the answer.
    `listed`: combinations of what the scenario lists; the other counts add up to it.
    `impossible`: degrees do not divide GPUs, batch or model, or a schedule does not allow them.
    `too_big`: did not fit where that was looked at.
    `bounded`: cannot be quicker, or were not looked at once `simulate` of them were simulated.
    `unproven`: how much quicker than the best, at most, any mixture is that was left out; 0: none.
    """

    best: tuple[SimulatedMixture, ...]
    listed: int
    impossible: int
    too_big: int
    bounded: int
    simulated: int
    unproven: float = 0.0

    @property
    def winner(self) -> SimulatedMixture:
        """The quickest one."""
        return self.best[0]
