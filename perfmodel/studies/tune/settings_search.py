"""`tune_settings`: the best settings of a strategy, and Horovod's fusion threshold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.scenario import ClusterSize, Scenario, change_scenario, scenario_digest
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.studies.run.run import name_machine
from perfmodel.studies.run.steps.sized_job import SizedJob, prepare
from perfmodel.studies.tune.model import (
    MIN_GAIN,
    STEP_ROUNDING,
    Fusion,
    Horovod,
    Progress,
    Tuned,
)
from perfmodel.training.ddp.options import MIB
from perfmodel.training.memory_use import StepOptions
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.strategy import Setting
from perfmodel.training.words import Words, words_of
from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

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


@dataclass(frozen=True, kw_only=True)
class SettingsTuning(Tuned):
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
    `words`: what the user's program is told to train with the best settings.
    """

    strategy: str
    kind: str
    fields: tuple[str, ...]
    default: Trial
    requested: Trial | None
    best: Trial | None
    trials: tuple[Trial, ...] = field(repr=False)
    refused: int
    section: Values
    words: Mapping[str, Words]

    @property
    def gain(self) -> float:
        """How much shorter the best step is than the default's, as a share of that."""
        default_s, best_s = self.default.step_time_s, (self.best or self.default).step_time_s
        return 0.0 if best_s is None or default_s is None else 1.0 - best_s / default_s

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


# ---------------------------------------------------------------- search over a few settings

Choice = tuple[Any, ...]
"""A value for each setting, in their order."""

MOST_COMBINATIONS = 40
"""Combinations up to which all are tried; beyond, settings are tried one after the other."""
MOST_ROUNDS = 3
"""Rounds over all settings, unless one changes nothing."""
MOST_HALVINGS = 2
"""Times that the values next to the best one are brought nearer."""

BINARY_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
WHOLE_FROM_MIB = 4
"""Size from which whole MiB are near enough."""

Cost = Callable[[Choice], float]
"""Seconds of a step; infinite where it cannot be."""


def search(settings: Sequence[Setting], starts: Sequence[Choice], cost: Cost) -> Choice:
    """Return the choice with the least cost of all that are tried; the first of them, if several.

    Parameters
    ----------
    settings : sequence of Setting
    starts : sequence of Choice
        Tried first; the search sets out from the best of them.
    cost : callable
        Of a choice; it is asked for one more than once.
    """
    best = min(starts, key=cost)
    grids = [setting.values for setting in settings]
    if math.prod(map(len, grids)) <= MOST_COMBINATIONS:
        best = min([best, *itertools.product(*grids)], key=cost)
    else:
        for _ in range(MOST_ROUNDS):
            before = best
            for place, grid in enumerate(grids):
                best = min([best, *(_with(best, place, value) for value in grid)], key=cost)
            if best == before:
                break
    for place, setting in enumerate(settings):
        if setting.unit is not None and best[place] is not None:
            best = _refine(setting, place, best, cost)
    return best


def _with(choice: Choice, place: int, value: object) -> Choice:
    return (*choice[:place], value, *choice[place + 1 :])


def _refine(setting: Setting, place: int, best: Choice, cost: Cost) -> Choice:
    """Try values halfway to the neighbours of the best one, by ratio, ever nearer."""
    values = sorted({*setting.values, best[place]} - {None})
    for _ in range(MOST_HALVINGS):
        at = values.index(best[place])
        near = [
            _between(low, high, setting.unit)
            for low, high in itertools.pairwise(values[max(0, at - 1) : at + 2])
            if low > 0
        ]
        values = sorted({*values, *near})
        best = min([best, *(_with(best, place, value) for value in near)], key=cost)
    return best


def _between(low: float, high: float, unit: str | None) -> float:
    """The geometric mean in few digits: whole MiB or KiB, or two digits of others."""
    middle = math.sqrt(low * high)
    if unit == "bytes":
        step = MIB if middle > WHOLE_FROM_MIB * MIB else 1024
        return float(max(1, round(middle / step)) * step)
    rounded = float(f"{middle:.2g}")
    return int(rounded) if unit == "elements" else rounded


# ---------------------------------------------------------------- `tune_settings`

SETTING_TOLERANCE = 1e-3
"""Relative difference of steps that is no reason to change one more setting."""


@dataclass
class _Trials:
    """Choices of settings that were tried, and what became of them.

    `trials`: by choice; None where its settings do not hold together.
    """

    sized: SizedJob
    settings: tuple[Setting, ...]
    say: Progress
    default: Choice
    trials: dict[Choice, Trial | None] = field(default_factory=dict)
    by_options: dict[StepOptions, Trial] = field(default_factory=dict)

    def section(self, choice: Choice) -> dict[str, Any]:
        """The strategy section with a choice of settings, as a file has it."""
        own = self.sized.job.scenario.origin.strategy
        tuned = {setting.field for setting in self.settings}
        return {k: value for k, value in own.items() if k not in tuned} | self.values(choice)

    def changed(self, choice: Choice) -> Scenario:
        """Return the scenario with a choice of settings.

        Raises `InputError`: they do not hold together.
        """
        return change_scenario(self.sized.job.scenario, {"strategy": self.section(choice)})

    def values(self, choice: Choice) -> dict[str, Any]:
        """Settings of a choice that are not the library's defaults, as a file has them."""
        return {
            setting.field: _written(setting, value)
            for setting, value, usual in zip(self.settings, choice, self.default, strict=True)
            if value != usual
        }

    def cost(self, choice: Choice) -> float:
        """Time of a step; infinite where it does not hold together or fit; seconds."""
        if choice not in self.trials:
            try:
                self.trials[choice] = self.simulate(choice)
            except InputError:
                self.trials[choice] = None
        trial = self.trials[choice]
        step_s = trial.step_time_s if trial is not None and trial.fits else None
        return math.inf if step_s is None else step_s

    def simulate(self, choice: Choice, *, anyway: bool = False) -> Trial:
        """Simulate a choice, if it fits or `anyway`.

        Raises `InputError`: it does not hold together.
        """
        options = self.sized.job.strategy.options(self.changed(choice).strategy)
        if options in self.by_options:
            return replace(self.by_options[options], values=self.values(choice))
        memory = self.sized.with_options(options).memory()
        times_s: tuple[float | None, float | None] = (None, None)
        if memory.fits or anyway:
            self.say(f"{len(self.by_options) + 1} settings simulated")
            stepped = self.sized.step(options)
            times_s = stepped.step_time_s, stepped.parts.exposed_comm_s
        trial = Trial(self.values(choice), *times_s, memory.total_bytes, memory.fits)
        self.by_options[options] = trial
        return trial


def _written(setting: Setting, value: Any) -> Any:
    """Return a value as a file has it."""
    if not isinstance(value, float):
        return value
    if setting.unit == "seconds":
        return f"{value * 1e3:.12g} ms"
    unit, scale = next(
        each for each in BINARY_UNITS if value % each[1] == 0 and (value or each[1] == 1)
    )
    return f"{value / scale:.12g} {unit}"


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
        tuned = [kind for kind, each in STRATEGIES.items() if each.settings or each.buckets]
        raise scenario.fault(
            "strategy.kind",
            repr(scenario.strategy.kind),
            f"one that can be tuned: {', '.join(tuned)}",
        )
    sized = prepare(scenario, profile=profile, size=size)
    scenario.refuse_if(
        sized.size.gpus < 2,
        "cluster.nodes",
        "1 GPU in all",
        "2 or more: one GPU communicates nothing, so that settings change nothing",
    )
    settings = row.settings(
        scenario.strategy, scenario.data_ranks(sized.size.gpus), sized.size.nodes
    )
    default, own = (
        tuple(getattr(section, setting.field) for setting in settings)
        for section in (
            type(scenario.strategy).model_validate({"kind": scenario.strategy.kind}),
            scenario.strategy,
        )
    )
    trials = _Trials(sized, settings, progress or (lambda _: None), default)
    starts = list(dict.fromkeys((default, own)))
    simulated = {start: trials.simulate(start, anyway=True) for start in starts}
    trials.trials.update(simulated)
    search(settings, starts, trials.cost)
    return _assemble(trials, simulated[default], None if own == default else simulated[own])


def _choose(trials: _Trials) -> Choice | None:
    """Return the default, unless another saves enough; else the shortest step, changed least."""
    costs = {choice: trials.cost(choice) for choice in trials.trials}
    least_s = min(costs.values())
    if math.isinf(least_s):
        return None
    if costs[trials.default] * (1 - MIN_GAIN) <= least_s:
        return trials.default
    limit_s = least_s * (1 + SETTING_TOLERANCE)
    good = [choice for choice, step_s in costs.items() if step_s <= limit_s]
    return min(good, key=lambda choice: (len(trials.values(choice)), costs[choice]))


def _assemble(trials: _Trials, default: Trial, requested: Trial | None) -> SettingsTuning:
    sized, job, chosen = trials.sized, trials.sized.job, _choose(trials)
    distinct, size = list(trials.by_options.values()), sized.size
    return SettingsTuning(
        scenario=job.scenario,
        workload=job.workload.name,
        machine=name_machine(sized.machine.topology, sized.size),
        gpus=sized.size.gpus,
        nodes=sized.size.nodes,
        strategy=job.strategy.name,
        kind=job.scenario.strategy.kind,
        fields=tuple(setting.field for setting in trials.settings),
        default=default,
        requested=requested,
        best=None if chosen is None else trials.trials[chosen],
        trials=tuple(sorted(distinct, key=lambda each: each.step_time_s or math.inf)),
        refused=sum(trial is None for trial in trials.trials.values()),
        section={} if chosen is None else trials.section(chosen),
        words={}
        if chosen is None or job.gpu.accelerator
        else words_of(trials.changed(chosen), size.gpus, size.nodes),
        assumptions=job.strategy.assumptions,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(job.scenario),
            "simulated_settings": str(len(distinct)),
        },
    )


# ---------------------------------------------------------------- Horovod's fusion

THRESHOLDS_MB = (0.0, *(2.0**power for power in range(-2, 11)))


def tune_horovod(scenario: Scenario, profile: Profile | None, size: ClusterSize | None) -> Horovod:
    """Return the best fusion threshold of a job, and the step by threshold."""
    own = scenario.strategy
    section: dict[str, Any] = {"kind": "horovod", "accumulate": own.accumulate}
    if isinstance(own, DdpStrategy) and own.hook.kind == "fp16":  # its compression has no other
        section |= {"compression": "fp16"}
    sized = prepare(change_scenario(scenario, {"strategy": section}), profile=profile, size=size)
    options = sized.job.options
    assert isinstance(options, HorovodStrategy)

    def simulate(threshold_mb: float) -> Fusion:
        stepped = sized.step(options.model_copy(update={"fusion_threshold": threshold_mb * MIB}))
        return Fusion(
            threshold_mb,
            stepped.step_time_s,
            stepped.parts.exposed_comm_s,
            sum(isinstance(task.work, Collective) for task in stepped.plan.tasks),
        )

    curve, usual_mb = tuple(map(simulate, THRESHOLDS_MB)), options.fusion_threshold / MIB
    default = next(fusion for fusion in curve if fusion.threshold_mb == usual_mb)
    limit_s = min(fusion.step_time_s for fusion in curve) * (1 + STEP_ROUNDING)
    quickest = [fusion for fusion in curve if fusion.step_time_s <= limit_s]
    nearest = min(quickest, key=lambda fusion: abs(fusion.threshold_mb - usual_mb))
    return Horovod(options.cycle_time, default, nearest, curve, STRATEGIES["horovod"].assumptions)
