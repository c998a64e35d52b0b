"""`tune_settings`: the best settings of the strategy of a scenario."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.scenario import ClusterSize, Scenario, change_scenario, scenario_digest
from perfmodel.studies.run.prepared import PreparedSize, prepare
from perfmodel.studies.run.run import name_machine
from perfmodel.studies.tune.choice.recommendation import WORTH
from perfmodel.studies.tune.settings.grid_search import Choice, search
from perfmodel.studies.tune.settings.model import SettingsTuning, Trial
from perfmodel.training.memory.use import StepOptions
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import Setting
from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

SAME = 1e-3
"""Relative difference of steps that is no reason to change one more setting."""

Progress = Callable[[str], None]


@dataclass
class _Trials:
    """Choices of settings that were tried, and what became of them.

    `refused`: choices that do not hold together.
    """

    prepared: PreparedSize
    settings: tuple[Setting, ...]
    say: Progress
    default: Choice
    trials: dict[Choice, Trial | None] = field(default_factory=dict)
    by_options: dict[StepOptions, Trial] = field(default_factory=dict)

    def section(self, choice: Choice) -> dict[str, Any]:
        """The strategy section with a choice of settings, as a file has it."""
        own = self.prepared.job.scenario.origin.content["strategy"]
        names = {setting.field for setting in self.settings}
        others = {name: value for name, value in own.items() if name not in names}
        return {**others, **self.values(choice)}

    def changed(self, choice: Choice) -> Scenario:
        """Return the scenario with a choice of settings.

        Raises `InputError`: they do not hold together.
        """
        return change_scenario(self.prepared.job.scenario, {"strategy": self.section(choice)})

    def values(self, choice: Choice) -> Mapping[str, Any]:
        """Settings of a choice that are not the library's defaults, as a file has them."""
        return {
            setting.field: _written(setting, value)
            for setting, value, usual in zip(self.settings, choice, self.default, strict=True)
            if value != usual
        }

    def trial(self, choice: Choice, *, anyway: bool = False) -> Trial | None:
        """Simulate a choice, if it fits or `anyway`; None where it does not hold together."""
        if choice not in self.trials:
            try:
                self.trials[choice] = self._simulate(choice, anyway)
            except InputError:
                if anyway:
                    raise
                self.trials[choice] = None
        return self.trials[choice]

    def cost(self, choice: Choice) -> float:
        """Time of a step; infinite where it does not fit; seconds."""
        trial = self.trial(choice)
        if trial is None or not trial.fits or trial.step_time_s is None:
            return math.inf
        return trial.step_time_s

    def _simulate(self, choice: Choice, anyway: bool) -> Trial:
        job = self.prepared.job
        options = job.strategy.options(self.changed(choice).strategy)
        if options in self.by_options:
            return replace(self.by_options[options], values=self.values(choice))
        chosen = copy(self.prepared.sized)
        chosen.job = replace(job, chosen=options)
        gpus = [each.gpu for each in self.prepared.sized.disturbances if each.gpu is not None]
        memory = chosen.memory(gpus)
        step_s = exposed_s = None
        if memory.fits or anyway:
            self.say(f"{len(self.by_options) + 1} settings simulated")
            stepped = self.prepared.step(options)
            step_s, exposed_s = stepped.step_time_s, stepped.exposed_comm_s
        trial = Trial(self.values(choice), step_s, exposed_s, memory.total_bytes, memory.fits)
        self.by_options[options] = trial
        return trial


def _written(setting: Setting, value: Any) -> Any:
    """A value as a file has it."""
    if not isinstance(value, float):
        return value
    if setting.unit == "seconds":
        return f"{value * 1e3:.12g} ms"
    unit, scale = next(each for each in _BINARY if value % each[1] == 0 and (value or each[1] == 1))
    return f"{value / scale:.12g} {unit}"


_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def tune_settings(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    size: ClusterSize | None = None,
    progress: Progress | None = None,
) -> SettingsTuning:
    """Find the settings of a strategy that make a step shortest, among those that fit.

    Parameters
    ----------
    scenario : Scenario
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    size : ClusterSize, optional
        Default: the main size of the scenario.
    progress : callable, optional
        Called with the next stage, in words.

    Raises
    ------
    InputError
        A strategy without settings, one GPU, or a scenario that does not hold.
    """
    row = STRATEGIES.get(scenario.strategy.kind)
    if row is None or row.settings is None:
        tuned = [kind for kind, each in STRATEGIES.items() if each.settings or each.has_buckets]
        allowed = f"one that can be tuned: {', '.join(tuned)}"
        raise scenario.fault("strategy.kind", repr(scenario.strategy.kind), allowed)
    prepared = prepare(scenario, profile=profile, size=size)
    if prepared.size.gpus < 2:
        allowed = "2 or more: one GPU communicates nothing, so that settings change nothing"
        raise scenario.fault("cluster.nodes", "1 GPU in all", allowed)
    settings = row.settings(prepared.job.workload, scenario.strategy)
    default = _choice_of(
        settings, type(scenario.strategy).model_validate({"kind": scenario.strategy.kind})
    )
    trials = _Trials(prepared, settings, progress or (lambda _: None), default)
    own = _choice_of(settings, scenario.strategy)
    for start in (default, own):
        trials.trial(start, anyway=True)
    search(settings, list(dict.fromkeys((default, own))), trials.cost)
    return _assemble(trials, own)


def _choice_of(settings: Sequence[Setting], section: Any) -> Choice:
    return tuple(getattr(section, setting.field) for setting in settings)


def _choose(trials: _Trials) -> Choice | None:
    """The default, unless another saves enough; else the fewest changes for the shortest step."""
    costs = {choice: trials.cost(choice) for choice in trials.trials}
    least_s = min(costs.values())
    if math.isinf(least_s):
        return None
    if costs[trials.default] * (1 - WORTH) <= least_s:
        return trials.default
    good = [choice for choice, step_s in costs.items() if step_s <= least_s * (1 + SAME)]
    return min(good, key=lambda choice: (len(trials.values(choice)), costs[choice]))


def _assemble(trials: _Trials, own: Choice) -> SettingsTuning:
    prepared, job = trials.prepared, trials.prepared.job
    default, requested = trials.trials[trials.default], trials.trials[own]
    assert default is not None
    chosen = _choose(trials)
    spell = job.strategy.own_words
    distinct = {id(trial): trial for trial in trials.by_options.values()}
    return SettingsTuning(
        scenario=job.scenario,
        workload=job.workload.name,
        machine=name_machine(prepared.machine.topology, prepared.size),
        gpus=prepared.size.gpus,
        nodes=prepared.size.nodes,
        strategy=job.strategy.name,
        kind=job.scenario.strategy.kind,
        fields=tuple(setting.field for setting in trials.settings),
        default=default,
        requested=None if own == trials.default else requested,
        best=None if chosen is None else trials.trials[chosen],
        trials=tuple(sorted(distinct.values(), key=lambda each: each.step_time_s or math.inf)),
        refused=sum(trial is None for trial in trials.trials.values()),
        section={} if chosen is None else trials.section(chosen),
        own_words=spell(trials.changed(chosen).strategy) if spell and chosen is not None else (),
        assumptions=job.strategy.assumptions,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(job.scenario),
            "simulated_settings": str(len(distinct)),
        },
    )
