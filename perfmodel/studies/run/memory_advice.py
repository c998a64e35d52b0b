"""What would make a training fit on its GPUs: changes of the scenario, each simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.files import FileModel
from perfmodel.scenario import Scenario, batch_per_gpu, change_scenario
from perfmodel.studies.run.steps.simulate_step import MANY_RANKS
from perfmodel.studies.run.steps.sized_job import SizedJob, simulate_settled
from perfmodel.studies.run.usage import Memory
from perfmodel.training.strategies import STRATEGIES
from perfmodel.units import format_bytes, format_time

MOST_SIMULATED = 8
"""Changes that fit are simulated, at most so many: those that leave the least memory over."""
MOST_SIMULATED_LARGE = 2
"""The same on `MANY_RANKS` or more, where each takes seconds and up to two gigabytes."""
MOST_MICRO_BATCHES = 64
"""Of a step that is simulated; one of sharded data parallelism takes 30 ms for each."""


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


Candidate = tuple[tuple[Change, ...], SizedJob, Memory]
"""A change, or several, with the job and the memory that it makes."""


def advise(sized: SizedJob, memory: Memory, step_s: float, *, timed: bool) -> tuple[str, ...]:
    """Propose what makes training fit, quickest first, then what does not suffice alone.

    Where nothing suffices alone, the quickest pair is proposed. Steps are those without
    disturbances that vary: what saves memory changes little of what these cost.

    `step_s`: of the scenario as it is, if it fitted.
    `timed`: whether steps of what fits are simulated.
    """
    if memory.fits or sized.job.chosen is not None:
        return memory.advice
    single = list(_candidates(sized, [(change,) for change in _changes(sized)]))
    fitting = [each for each in single if each[2].fits]
    lines = [_verdict(each) for each in single if not each[2].fits]
    if not fitting:
        pairs = combinations([change for (change,), _, _ in single], 2)
        both = list(_candidates(sized, [(a, b) for a, b in pairs if a.about != b.about]))
        fitting = [each for each in both if each[2].fits]
        if both and not fitting:
            least = min(both, key=lambda each: _needed_bytes(each[2], memory))
            lines.append(f"no two of them suffice together: {_verdict(least)}")
    return (*_in_order(fitting, sized, step_s, timed=timed), *lines, *memory.advice)


def _in_order(
    fitting: Sequence[Candidate], now: SizedJob, step_s: float, *, timed: bool
) -> list[str]:
    """Phrase what fits, in the order of the time of a step, or of memory."""
    fullest = sorted(fitting, key=lambda each: -each[2].total_bytes)
    if not timed:
        return [_verdict(each) for each in fullest]
    are_few = all(each.size.gpus < MANY_RANKS for _, each, _ in fullest)
    most = MOST_SIMULATED if are_few else MOST_SIMULATED_LARGE
    short = [each for each in fullest if each[1].job.options.accumulate <= MOST_MICRO_BATCHES]
    simulated = short[:most]
    takes = "a step takes"
    if now.varies and simulated:
        takes, step_s = f"without what varies {takes}", simulate_settled(now).step_time_s
    steps = [
        (time_s, _verdict(each)) for each in simulated if (time_s := _step_s(each[1])) is not None
    ]
    return [
        *(
            f"{verdict}; {takes} {format_time(time_s)} instead of {format_time(step_s)}"
            for time_s, verdict in sorted(steps, key=itemgetter(0))
        ),
        *(
            f"{_verdict(each)}; its step, of so many GPUs or micro-batches, was not simulated"
            for each in fullest[:MOST_SIMULATED]
            if each not in simulated
        ),
    ]


def _verdict(candidate: Candidate) -> str:
    changes, _, memory = candidate
    verdicts = (
        (
            memory.fits_gpu and memory.overfull,
            f"but more than the host's {' and '.join(memory.overfull)} can hold",
        ),
        (not memory.fits, "not enough alone"),
        (memory.tight, "fits, but tightly"),
        (True, "fits"),
    )
    return (
        f"{' with '.join(change.text for change in changes)}: {format_bytes(memory.total_bytes)} "
        f"of {format_bytes(memory.capacity_bytes)}, "
        f"{next(text for holds, text in verdicts if holds)}"
    )


def _step_s(sized: SizedJob) -> float | None:
    """Return the time of a step; None where its pipeline cannot order what the change asks for."""
    if sized.size.gpus >= MANY_RANKS:  # whose collectives would fill the memory for all of them
        sized = sized.with_own_times()
    try:
        return simulate_settled(sized).step_time_s
    except PerfmodelError:
        return None


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
            yield each, changed, memory


def _needed_bytes(memory: Memory, now: Memory) -> float:
    """Bytes of what there is too little of at present: of a GPU, or where it suffices of a host."""
    of_host = now.fits_gpu and now.overfull
    return memory.host_bytes + memory.drive_bytes if of_host else memory.total_bytes


def _changed(sized: SizedJob, changes: Sequence[Change]) -> SizedJob:
    ordered = sorted(changes, key=lambda each: each.about != "strategy")
    changed = change_scenario(
        sized.job.scenario,
        {name: value for change in ordered for name, value in change.fields.items()},
    )
    return sized.with_scenario(changed, batch_per_gpu(changed, sized.size.gpus))


def _changes(sized: SizedJob) -> Iterator[Change]:
    compute = sized.job.scenario.compute
    yield from _strategy_changes(sized.job.scenario)
    for field, about, values, of_these in _COMPUTE_CHANGES:
        now = getattr(compute, field)
        for value in values if of_these is None or now in of_these else ():
            if value != now:
                yield Change(f"compute.{field}: {value}", {f"compute.{field}": value}, about)
    yield from _smaller_batch(sized)


_COMPUTE_CHANGES = (
    ("recompute", "recompute", ("selective", "operations", "full"), None),
    ("offload_activations", "offload", ("overlapped",), ("none",)),
    ("precision", "precision", ("bf16",), ("fp32", "tf32")),
)
"""Field of ``compute``, what it is about, lighter values, and from which values these are lighter;
None: from all others."""


def _strategy_changes(scenario: Scenario) -> Iterator[Change]:
    """Lighter settings of the strategy, and other strategies with theirs."""
    own = scenario.strategy
    for kind, settings in (
        (kind, each) for kind, row in STRATEGIES.items() for each in row.lighter
    ):
        phrase = ", ".join(f"{name}: {_word(value)}" for name, value in settings.items())
        if kind != own.kind:
            section = {"kind": kind, **settings}
            section |= {"accumulate": own.accumulate} if own.accumulate > 1 else {}
            yield Change(
                ", ".join(filter(None, (f"strategy.kind: {kind}", phrase))),
                {"strategy": section},
                "strategy",
            )
        elif any(_written(getattr(own, name)) != value for name, value in settings.items()):
            yield Change(
                f"strategy.{phrase}",
                {f"strategy.{name}": value for name, value in settings.items()},
                "strategy",
            )


def _written(section: object) -> object:
    return section.model_dump(exclude_unset=True) if isinstance(section, FileModel) else section


def _word(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_word(each)}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _smaller_batch(sized: SizedJob) -> list[Change]:
    """Return the largest micro-batch that fits with the same samples a step, or else the least."""
    scenario, changes = sized.job.scenario, list[Change]()
    batches = (each for each in range(sized.batch - 1, 0, -1) if sized.batch % each == 0)
    for batch in batches if "accumulate" in type(scenario.strategy).model_fields else ():
        steps = scenario.strategy.accumulate * sized.batch // batch
        fields = (
            {"training.batch_per_gpu": batch} if scenario.training.batch_per_gpu is not None else {}
        )
        changes.append(
            Change(
                f"{batch} samples per GPU at a time, {steps} times a step (strategy.accumulate)",
                fields | {"strategy.accumulate": steps},
                "batch",
            )
        )
        if any(memory.fits for _, _, memory in _candidates(sized, [(changes[-1],)])):
            break
    return changes[-1:]
