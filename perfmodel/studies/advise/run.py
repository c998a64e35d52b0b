"""`advise_scenario`: simulate changes of a scenario alone, then the best few together."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfmodelError
from perfmodel.scenario import Scenario, change_scenario, scenario_digest
from perfmodel.studies.advise.changes import (
    find_adapter,
    hourly_price,
    list_power_limits,
    list_settings,
    list_upgrades,
)
from perfmodel.studies.advise.model import (
    Advice,
    Proposed,
    Touches,
    Trial,
    joined_fields,
)
from perfmodel.studies.compare import gain_of
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.one_loop_size import simulate_loop_size
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.sized_job import SizedJob, prepare, size_job
from perfmodel.studies.run.usage import Memory
from perfmodel.studies.sweep.executor import check_backend, map_unordered
from perfmodel.studies.sweep.run import Progress
from perfmodel.studies.sweep.variants import without_curve
from perfmodel.studies.tune.model import MIN_GAIN
from perfmodel.timeline import Timeline
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.words import Words, words_of
from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

MOST_TOGETHER = 4
"""Changes of a proposal: what a person can make and check at once."""
MOST_TRIALS = 6
"""Changes that are tried beside the best, at each level of what they touch."""


Outcome = tuple[SizeResult | None, Memory | None, str]
"""Point, memory and message of a scenario with changes, as a `Trial` has them."""


def simulate_changed(
    number: int,
    scenario: Scenario,
    profile: Profile | None,
    base_bytes: float,
    *,
    with_limits: bool = False,
    with_ends: bool = True,
) -> tuple[int, Outcome]:
    """Simulate the main size of a scenario, if it fits; `number`: for the caller alone.

    `with_limits`: whether its bottleneck is looked for, which takes as long as all else.
    `with_ends`: whether its interval is; of what is only compared the step is enough.

    What leaves no room for CUDA, NCCL and the allocator does not fit, unless it takes no more than
    `base_bytes`, as the scenario itself does.
    """
    try:
        sized = prepare(scenario, profile=profile)
        memory = sized.memory()
        if not memory.fits or (memory.tight and memory.total_bytes > base_bytes):
            return number, (None, memory, "")
        simulate = simulate_size if sized.job.strategy.loops is None else simulate_loop_size
        point = simulate(sized, with_first=False, with_limits=with_limits, with_ends=with_ends)
    except PerfmodelError as error:
        return number, (None, None, str(error))
    return number, (_light(point), memory, "")


def _light(point: SizeResult) -> SizeResult:
    """Drop what only a report of one step shows, so that many results are small."""
    return replace(point, timeline=Timeline(()), buckets=(), links=())


@dataclass
class _Trials:
    """Simulates changes of one scenario; each combination once.

    `simulated`, `total`: simulations done, and expected in all.
    """

    scenario: Scenario
    base: SizeResult
    profile: Profile | None
    jobs: int | None
    progress: Progress | None
    total: int
    simulated: int = 0
    trials: dict[frozenset[str], Trial] = field(default_factory=dict)

    def all_of(self, proposals: Sequence[Proposed]) -> list[Trial]:
        """Simulate changes alone, in processes."""
        calls, trials, most = [], dict[int, Trial](), self.base.memory.total_bytes
        for number, proposal in enumerate(proposals):
            try:
                calls.append(
                    (number, apply_changes(self.scenario, (proposal,)), self.profile, most)
                )
            except PerfmodelError as error:
                trials[number] = self._keep((proposal,), (None, None, str(error)))
        for number, outcome in map_unordered(simulate_changed, calls, jobs=self.jobs):
            trials[number] = self._keep((proposals[number],), outcome)
        return [trials[number] for number in range(len(proposals))]  # as listed, not as they end

    def of(self, changes: tuple[Proposed, ...], *, with_limits: bool = False) -> Trial:
        """Simulate a step with changes together.

        `with_limits`: again, with its interval and its bottleneck.
        """
        known = self.trials.get(frozenset(change.text for change in changes))
        if known is not None and not with_limits:
            return known
        try:
            changed = apply_changes(self.scenario, changes)
        except PerfmodelError as error:
            return Trial(changes, None, None, None, str(error))
        _, outcome = simulate_changed(
            0,
            changed,
            self.profile,
            self.base.memory.total_bytes,
            with_limits=with_limits,
            with_ends=with_limits,
        )
        return self._keep(changes, outcome)

    def _keep(self, changes: tuple[Proposed, ...], outcome: Outcome) -> Trial:
        point, memory, message = outcome
        trial = Trial(
            changes, point, memory, None if point is None else gain_of(self.base, point), message
        )
        self.trials[frozenset(change.text for change in changes)] = trial
        self.simulated += 1
        if self.progress is not None:
            self.progress(min(self.simulated, self.total), self.total)
        return trial


def apply_changes(scenario: Scenario, changes: Sequence[Proposed]) -> Scenario:
    """Return the scenario with changes.

    Raises `InputError`: they do not hold together.
    """
    return change_scenario(scenario, joined_fields(changes))


def advise_scenario(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Say what to change in a scenario.

    Parameters
    ----------
    scenario : Scenario
        Its main size is looked at; with strategy ``auto`` the parallel layout that it chooses.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    jobs : int, optional
        Processes; default: one per physical core, for what is worth them.
    progress : callable, optional
        Called with (simulations done, about how many in all).

    Raises
    ------
    InputError
        A name that does not resolve or a size that does not fit.
    """
    check_backend("loky", None, jobs)
    result = run_scenario(without_curve(scenario), profile=profile)
    if result.search is not None:
        # As if given by flags: commands that run a proposal have to name the layout, too.
        layout = result.search.winner.changes
        scenario = change_scenario(scenario, layout, flags=tuple(layout))
    single = without_curve(scenario)
    inputs = resolve_scenario(single, profile, None)
    size, node = inputs.sizes[-1], inputs.node
    sized = size_job(inputs, size)
    proposals = [
        *scan_settings(sized),
        *list_settings(single, inputs.workload, sized.job.gpu, size.gpus),
        *list_upgrades(single, node, size, result.routing_cost),
    ]
    limits = tuple(list_power_limits(single, node))
    most = len(proposals) + len(limits) + len(LEVELS) * MOST_TRIALS
    trials = _Trials(single, _light(result.main), profile, jobs, progress, most)
    alone = _without_dearer(trials.all_of(proposals))
    power = tuple(each for each in trials.all_of(limits) if each.point is not None)
    running = [each for each in alone if each.point is not None]
    together = tuple(_combine(trials, running))
    rate, count = find_adapter(node) if size.nodes > 1 else (None, 0)
    full_W = (
        sized.job.gpu.power_W
        if isinstance(node, Topology)
        else node.power_limit or load_gpu(node.gpu).power_W
    )
    if progress is not None:
        progress(most, most)
    return Advice(
        scenario=single,
        workload=result.workload,
        machine=result.machine,
        topology=result.topology,
        samples=result.samples,
        base=trials.base,
        adapter_Bps=rate,
        adapters=count,
        trials=tuple(sorted(running, key=lambda trial: -trial.ratio)),
        together=together,
        power=power,
        full_power_W=full_W,
        too_big=tuple(each for each in alone if each.memory and each.point is None),
        refused=tuple(each for each in alone if each.memory is None),
        hourly=hourly_price(scenario, size),
        words=_words(single, together[0]) if together and not sized.job.gpu.accelerator else {},
        simulated=trials.simulated,
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(single),
            "fidelity": result.provenance["fidelity"],
            "profile": result.provenance["profile"],
            "python": platform.python_version(),
        },
    )


def _words(scenario: Scenario, best: Trial) -> dict[str, Words]:
    """Return what programs are told to train with a proposal that runs."""
    assert best.point is not None
    return words_of(apply_changes(scenario, best.changes), best.point.gpus, best.point.nodes)


def _without_dearer(alone: Sequence[Trial]) -> list[Trial]:
    """Leave out adapters that gain no more than the cheaper ones before them, if these run."""

    def offered_rate(trial: Trial) -> float:
        """Rate of the network that a change asks for, in units of the present one; 0 of others."""
        return float(trial.changes[0].fields.get("what_if.network_bandwidth", 0.0))

    kept: list[Trial] = []
    adapters: list[float] = []
    for trial in sorted(alone, key=offered_rate):  # stable: otherwise as listed
        is_adapter = trial.changes[0].about == "network adapter"
        if is_adapter and any(trial.ratio < (1.0 + MIN_GAIN) * ratio for ratio in adapters):
            continue
        kept.append(trial)
        if is_adapter and trial.point is not None:
            adapters.append(trial.ratio)
    return kept


# ---------------------------------------------------------------- the best few together


LEVELS: tuple[tuple[Touches, ...], ...] = (
    ("nothing", "rounding"),
    ("nothing", "rounding", "training"),
    ("nothing", "rounding", "hardware"),
)
"""What changes of a proposal may touch; the second and third also what the first leaves alone."""


def _combine(trials: _Trials, alone: Sequence[Trial]) -> Iterator[Trial]:
    """Yield the best few together for each level of what they may touch, where it gains more."""
    first: Trial | None = None
    for allowed in LEVELS:
        better = _best_of_level(trials, alone, allowed, first)
        least = (1.0 + MIN_GAIN) * (first.ratio if first else 1.0)
        if better is not None and better.ratio >= least:
            first = better if allowed == LEVELS[0] else first
            yield trials.of(better.changes, with_limits=True)


def _best_of_level(
    trials: _Trials, alone: Sequence[Trial], allowed: Sequence[Touches], start: Trial | None
) -> Trial | None:
    """Add changes that may be made to the best so far, by their gain alone, while they gain."""
    worth = [each for each in alone if each.touches in allowed and each.ratio >= 1.0 + MIN_GAIN]
    worth.sort(key=lambda trial: -trial.ratio)
    if not worth:
        return start
    best = start if start is not None and start.ratio >= worth[0].ratio else worth[0]
    left = MOST_TRIALS
    for (change,) in (each.changes for each in worth):
        used = {other.about for other in best.changes}
        if change.about not in used and len(best.changes) < MOST_TOGETHER and left > 0:
            left -= 1
            joined = trials.of((*best.changes, change))
            best = joined if joined.ratio >= (1.0 + MIN_GAIN) * best.ratio else best
    return _without_idle(trials, best)


def _without_idle(trials: _Trials, best: Trial) -> Trial:
    """Leave out changes without which it gains as much."""
    for change in best.changes:
        rest = tuple(each for each in best.changes if each is not change)
        if rest and (fewer := trials.of(rest)).ratio * (1.0 + MIN_GAIN) > best.ratio:
            best = fewer
    return best


# ---------------------------------------------------------------- values worth simulating in full

CAPS_MIB = (1, 5, 10, 50, 100, 200, 400)
"""Bucket caps around PyTorch's 25 MiB that are tried; `perfmodel tune` looks at every one."""
LEAST_SAVING = 0.002
"""Share of the step that a setting has to save to be simulated in full."""
OTHER_CAPS: Mapping[str, None] = {"strategy.bucket_caps": None, "strategy.first_bucket": None}
"""Fields that a cap for all buckets replaces."""


def scan_settings(sized: SizedJob) -> Iterator[Proposed]:
    """Yield the best value of each setting of the strategy that saves something."""
    scenario = sized.job.scenario
    row = STRATEGIES[scenario.strategy.kind]
    if sized.size.gpus < 2 or row.loops is not None:
        return
    now_s = sized.step().step_time_s
    if row.buckets:
        best = _best(sized, "bucket_cap", [f"{cap} MiB" for cap in CAPS_MIB], now_s)
        if best is not None:
            yield Proposed(
                f"buckets of {best}",
                {"strategy.bucket_cap": best, **OTHER_CAPS},
                "buckets",
                is_plural=True,
            )
    ranks, nodes = scenario.data_ranks(sized.size.gpus), sized.size.nodes
    for setting in row.settings(scenario.strategy, ranks, nodes) if row.settings else ():
        best = _best(
            sized, setting.field, [_written(value, setting.unit) for value in setting.values], now_s
        )
        if best is not None:
            text = f"{setting.field} {str(best).lower() if isinstance(best, bool) else best}"
            yield Proposed(text, {f"strategy.{setting.field}": best}, setting.field)


def _written(value: Any, unit: str | None) -> Any:
    """Return a value as a file has it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and unit == "seconds":
        return f"{value * 1e3:.12g} ms"
    return f"{value / 2**20:.12g} MiB" if is_number and unit == "bytes" else value


def _best(sized: SizedJob, name: str, values: Sequence[Any], now_s: float) -> Any:
    """Return the value with the shortest step, if it saves something; else None."""
    scenario, shortest_s, best = sized.job.scenario, now_s * (1.0 - LEAST_SAVING), None
    clear = OTHER_CAPS if name == "bucket_cap" else {}
    for value in values:
        try:
            step_s = sized.step(
                sized.job.strategy.options(
                    change_scenario(scenario, {f"strategy.{name}": value, **clear}).strategy
                )
            ).step_time_s
        except PerfmodelError:
            continue  # a value that does not go with the others
        if step_s < shortest_s:
            shortest_s, best = step_s, value
    return best
