"""Simulate a rebuilt scenario and set it beside the trace that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.traces.rebuild.layer_profile import Profile

if TYPE_CHECKING:
    from perfmodel.studies.run.result.model import Result, SizeResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """Recorded against simulated; seconds.

    `recorded_s`: median step. `spread_s`: least and greatest step.
    """

    recorded_s: float
    spread_s: tuple[float, float]
    result: Result

    @property
    def point(self) -> SizeResult:
        """The job as large as recorded."""
        return self.result.main

    @property
    def simulated_s(self) -> float:
        """Step time."""
        return self.point.step_time_s

    @property
    def error(self) -> float:
        """Of the simulated step, relative to the recorded median."""
        return self.simulated_s / self.recorded_s - 1


def replay(scenario: Path, profile: Profile, changes: Sequence[str] = ()) -> Comparison:
    """Simulate the scenario of a trace.

    `changes`: fields to set, as ``--set`` has them.
    Raises `InputError`: changes that do not fit.
    """
    result = run_scenario(load_scenario(str(scenario), list(changes)))
    return Comparison(profile.step_s, (min(profile.steps_s), max(profile.steps_s)), result)
