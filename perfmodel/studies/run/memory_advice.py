"""What would make a training fit on its GPUs: changes of the scenario, each simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.files import FileModel
from perfmodel.scenario import Scenario, batch_per_gpu, change_scenario
from perfmodel.studies.run.steps.simulate_step import MANY_RANKS
from perfmodel.studies.run.steps.sized_job import SizedJob, simulate_reported
from perfmodel.studies.run.usage import Memory
from perfmodel.training.strategies import STRATEGIES
from perfmodel.units import format_bytes, format_time

MOST_SIMULATED = 8
"""Changes that fit are simulated, at most so many: those that leave the least memory over."""
MOST_SIMULATED_LARGE = 2
"""The same on `MANY_RANKS` or more, where each takes seconds and up to two gigabytes."""


@dataclass(frozen=True, slots=True)
class Change:
    """Another way to train the same batch.

    `text`: how a person would write it.
    `fields`: dotted fields of the scenario and their values, as written in a file.
    `about`: what it changes: two changes of the same are not combined.
    """

    text: str
    fields: Mapping[str, Any]
    about: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change, or several, with the job and the memory that it makes."""

    changes: tuple[Change, ...]
    sized: SizedJob
    memory: Memory

    @property
    def text(self) -> str:
        """All changes."""
        return " with ".join(change.text for change in self.changes)


def advise(sized: SizedJob, memory: Memory, step_s: float, *, timed: bool) -> tuple[str, ...]:
    """Propose what makes training fit, quickest first, then what does not suffice alone.

    Where nothing suffices alone, the quickest pair is proposed.

    `step_s`: of the scenario as it is, if it fitted.
    `timed`: whether steps of what fits are simulated.
    """
    if memory.fits or sized.job.chosen is not None:
        return memory.advice
    single = list(_candidates(sized, [(change,) for change in _changes(sized)]))
    fitting = [each for each in single if each.memory.fits]
    lines = [_verdict(each) for each in single if not each.memory.fits]
    if not fitting:
        pairs = combinations([each.changes[0] for each in single], 2)
        both = list(_candidates(sized, [(a, b) for a, b in pairs if a.about != b.about]))
        fitting = [each for each in both if each.memory.fits]
        if both and not fitting:
            least = min(both, key=lambda each: _needed_bytes(each.memory, sized.memory()))
            lines.append(f"no two of them suffice together: {_verdict(least)}")
    return (*_in_order(fitting, step_s, timed=timed), *lines, *memory.advice)


def _in_order(fitting: Sequence[Candidate], step_s: float, *, timed: bool) -> list[str]:
    """Phrase what fits, in the order of the time of a step, or of memory."""
    fullest = sorted(fitting, key=lambda each: -each.memory.total_bytes)
    if not timed:
        return [_verdict(each) for each in fullest]
    is_large = any(each.sized.size.gpus >= MANY_RANKS for each in fullest)
    most = MOST_SIMULATED_LARGE if is_large else MOST_SIMULATED
    steps = [(_step_s(each.sized), each) for each in fullest[:most]]
    untimed = fullest[most:MOST_SIMULATED]
    return [
        *(
            f"{_verdict(each)}; a step takes {format_time(time_s)} instead of {format_time(step_s)}"
            for time_s, each in sorted(steps, key=lambda pair: pair[0])
        ),
        *(f"{_verdict(each)}; its step was not simulated on so many GPUs" for each in untimed),
    ]


def _verdict(candidate: Candidate) -> str:
    memory = candidate.memory
    of_all = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}"
    too_small = f"but more than the host's {' and '.join(memory.overfull)} can hold"
    verdicts = (
        (memory.fits_gpu and memory.overfull, too_small),
        (not memory.fits, "not enough alone"),
        (memory.tight, "fits, but tightly"),
        (True, "fits"),
    )
    return f"{candidate.text}: {of_all}, {next(text for holds, text in verdicts if holds)}"


def _step_s(sized: SizedJob) -> float:
    if sized.size.gpus >= MANY_RANKS:  # whose collectives would fill the memory for all of them
        sized = sized.with_own_times()
    return simulate_reported(sized).step_time_s


# ---------------------------------------------------------------- changes


def _candidates(sized: SizedJob, changes: Sequence[tuple[Change, ...]]) -> Iterator[Candidate]:
    """Make the jobs of changes that the scenario allows and that take less memory."""
    now = sized.memory()
    strategies = []  # of the jobs so far: settings that are defaults make the same one again
    for each in changes:
        try:
            changed = _changed(sized, each)
            memory = changed.memory()
        except PerfmodelError:
            continue  # a change that this model, GPU or cluster does not allow
        scenario = changed.job.scenario
        setting = (scenario.strategy, scenario.compute, scenario.training)
        still_fits = memory.fits_gpu or not now.fits_gpu
        is_lighter = still_fits and _needed_bytes(memory, now) < _needed_bytes(now, now)
        if is_lighter and setting not in strategies:
            strategies.append(setting)
            yield Candidate(each, changed, memory)


def _needed_bytes(memory: Memory, now: Memory) -> float:
    """Bytes of what there is too little of at present: of a GPU, or where it suffices of a host."""
    of_host = now.fits_gpu and now.overfull
    return memory.host_bytes + memory.drive_bytes if of_host else memory.total_bytes


def _changed(sized: SizedJob, changes: Sequence[Change]) -> SizedJob:
    scenario = sized.job.scenario
    ordered = sorted(changes, key=lambda each: each.about != "strategy")
    fields = {name: value for change in ordered for name, value in change.fields.items()}
    changed = change_scenario(scenario, fields)
    return sized.with_scenario(changed, batch_per_gpu(changed, sized.size.gpus))


def _changes(sized: SizedJob) -> Iterator[Change]:
    compute = sized.job.scenario.compute
    yield from _strategy_changes(sized.job.scenario)
    kinds = (kind for kind in ("selective", "operations", "full") if kind != compute.recompute)
    rows = (
        *((True, "compute.recompute", kind, "recompute") for kind in kinds),
        (
            compute.offload_activations == "none",
            "compute.offload_activations",
            "overlapped",
            "offload",
        ),
        (compute.precision in ("fp32", "tf32"), "compute.precision", "bf16", "precision"),
    )
    for may_change, field, value, about in rows:
        if may_change:
            yield Change(f"{field}: {value}", {field: value}, about)
    smaller = _smaller_batch(sized)
    if smaller is not None:
        yield smaller


def _strategy_changes(scenario: Scenario) -> Iterator[Change]:
    """Lighter settings of the strategy, and other strategies with theirs."""
    own = scenario.strategy
    for kind, settings in (
        (kind, each) for kind, row in STRATEGIES.items() for each in row.lighter
    ):
        phrase = ", ".join(f"{name}: {_word(value)}" for name, value in settings.items())
        if kind != own.kind:
            accumulate = {"accumulate": own.accumulate} if own.accumulate > 1 else {}
            text = f"strategy.kind: {kind}" + (f", {phrase}" if phrase else "")
            yield Change(text, {"strategy": {"kind": kind, **settings, **accumulate}}, "strategy")
        elif any(_written(getattr(own, name)) != value for name, value in settings.items()):
            fields = {f"strategy.{name}": value for name, value in settings.items()}
            yield Change(f"strategy.{phrase}", fields, "strategy")


def _written(section: object) -> object:
    return section.model_dump(exclude_unset=True) if isinstance(section, FileModel) else section


def _word(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_word(each)}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _smaller_batch(sized: SizedJob) -> Change | None:
    """Return the largest micro-batch that fits with the same samples a step, or else the least."""
    scenario, now = sized.job.scenario, sized.job.scenario.accumulate
    if "accumulate" not in type(scenario.strategy).model_fields:
        return None
    change = None
    for batch in (each for each in range(sized.batch - 1, 0, -1) if sized.batch % each == 0):
        steps = now * sized.batch // batch
        states_batch = scenario.training.batch_per_gpu is not None
        fields = {"training.batch_per_gpu": batch} if states_batch else {}
        fields["strategy.accumulate"] = steps
        text = f"{batch} samples per GPU at a time, {steps} times a step (strategy.accumulate)"
        change = Change(text, fields, "batch")
        if any(each.memory.fits for each in _candidates(sized, [(change,)])):
            break
    return change
