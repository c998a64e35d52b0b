"""The result of tuning the settings of a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.scenario import Scenario

Values = Mapping[str, Any]
"""Fields of the strategy's section and their values, as a file has them; only those that differ
from the library's defaults."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of settings.

    `step_time_s`, `exposed_comm_s`: of the settled step; None: not simulated, as it does not fit.
    `memory_bytes`: of the fullest GPU.
    `fits`: whether that is within its memory.
    """

    values: Values
    step_time_s: float | None
    exposed_comm_s: float | None
    memory_bytes: float
    fits: bool


@dataclass(frozen=True)
class SettingsTuning:
    """The answer of ``perfmodel tune`` for a strategy without DDP's buckets.

    `strategy`: its name, for people; `kind`: its name in a file.
    `fields`: what was tuned.
    `default`: the library's defaults; simulated even if it does not fit.
    `requested`: the scenario's own settings, where they differ.
    `best`: the shortest step of all that fit, the default's own where it is as good; None: nothing
        that was tried fits.
    `trials`: all that were tried, the shortest step first.
    `refused`: choices that do not hold together.
    `section`: the scenario's strategy section with the best settings, as a file has it.
    `own_words`: the best settings as the library takes them.
    """

    scenario: Scenario = field(repr=False)
    workload: str
    machine: str
    gpus: int
    nodes: int
    strategy: str
    kind: str
    fields: tuple[str, ...]
    default: Trial
    requested: Trial | None
    best: Trial | None
    trials: tuple[Trial, ...] = field(repr=False)
    refused: int
    section: Values
    own_words: tuple[str, ...]
    assumptions: tuple[str, ...]
    provenance: Mapping[str, str]

    @property
    def gain(self) -> float:
        """How much shorter the best step is than the default's, as a share of that."""
        if self.best is None:
            return 0.0
        best_s, default_s = self.best.step_time_s, self.default.step_time_s
        assert best_s is not None
        assert default_s is not None
        return 1.0 - best_s / default_s

    @property
    def keep(self) -> bool:
        """Whether the library's defaults are as good as any, and fit."""
        return self.best is self.default

    @property
    def simulated(self) -> int:
        """Choices whose step was simulated."""
        return sum(trial.step_time_s is not None for trial in self.trials)

    @property
    def too_large(self) -> int:
        """Choices that do not fit the memory of a GPU."""
        return sum(not trial.fits for trial in self.trials)
