"""Advice on a scenario, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Literal

from perfmodel.files import as_json, attributes
from perfmodel.scenario import Scenario, scenario_digest
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.comparison import Change
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.usage import Memory
from perfmodel.studies.tune.model import MIN_GAIN
from perfmodel.topology.model import Topology
from perfmodel.training.words import Words
from perfmodel.workload.model import Sample

Touches = Literal["nothing", "rounding", "training", "hardware"]
"""What a change costs beside memory: nothing; other rounding; the batch, or information of
gradients, so that the loss has to be watched; or money."""

TOUCHES: tuple[Touches, ...] = ("nothing", "rounding", "training", "hardware")
"""From the cheapest to the dearest."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """One thing to change.

    `text`: as a person would say it ("fp16 hook").
    `fields`: dotted fields of the scenario and their values, as written in a file.
    `about`: what it changes; of the same only one is proposed at a time.
    `note`: what it costs beside memory, in words; "" for nothing.
    `price`: once, for the whole cluster; None where none is stated.
    `rent`: more of it for each hour of the cluster.
    `limit_W`: power that each board may draw with it; None where it sets no limit.
    `is_plural`: whether `text` names several things, which "save" and do not "saves".
    `takes_article`: whether `text` takes "the" within a sentence.
    """

    text: str
    fields: Mapping[str, Any]
    about: str
    touches: Touches = "nothing"
    note: str = ""
    price: Money | None = None
    rent: Money | None = None
    limit_W: float | None = None
    is_plural: bool = False
    takes_article: bool = False


def joined_fields(changes: Sequence[Proposed]) -> dict[str, Any]:
    """Fields of changes together: whole sections first, then fields of them."""
    fields = {name: value for change in changes for name, value in change.fields.items()}
    return dict(sorted(fields.items(), key=lambda each: each[0].count(".")))


@dataclass(frozen=True, slots=True)
class Trial:
    """One change, or several together, simulated.

    `point`: None where it does not fit or cannot be.
    `memory`: of the fullest GPU; None where it cannot be.
    `gain`: samples per second over those of the scenario, with the 80 % interval of that ratio,
        in which errors that both share cancel; None without a point.
    `message`: why it cannot be.
    """

    changes: tuple[Proposed, ...]
    point: SizeResult | None
    memory: Memory | None
    gain: Change | None
    message: str = ""

    @property
    def text(self) -> str:
        """All changes."""
        return " + ".join(change.text for change in self.changes)

    @property
    def touches(self) -> Touches:
        """The dearest that any change touches."""
        return max((change.touches for change in self.changes), key=TOUCHES.index)

    @property
    def ratio(self) -> float:
        """Samples per second over those of the scenario; 0 where it does not run."""
        return 0.0 if self.gain is None else self.gain.ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 80 % interval of that ratio; None where it is not known."""
        return None if self.gain is None else self.gain.interval

    @property
    def sure(self) -> bool:
        """Whether it gains over the whole interval."""
        return (self.interval or (self.ratio,))[0] > 1.0

    @property
    def saves(self) -> float:
        """Share of the time per sample that it saves."""
        return 1.0 - 1.0 / self.ratio if self.ratio else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change in a scenario.

    Parameters
    ----------
    scenario : Scenario
        Whose main size is meant.
    workload, machine : str
    topology : Topology
        Of that size.
    samples : Sample
    base : SizeResult
        The scenario as it is.
    adapter_Bps : float or None
        Rate of a host's network adapter by its data sheet; None on one host.
    adapters : int
        Of each host.
    trials : tuple of Trial
        Each change alone that runs, the largest gain first.
    together : tuple of Trial
        The best few together, each simulated as a whole: of those that leave training as it is but
        for rounding; also of those that change the batch or lose information; also of hardware.
        Only those that gain more than the one before.
    power : tuple of Trial
        Lower limits on the power of boards, which save energy for time.
    full_power_W : float or None
        What a board may draw as it is; None where no data sheet says it.
    too_big : tuple of Trial
        Changes that do not fit the memory of a GPU.
    refused : tuple of Trial
        Changes that cannot be made here.
    hourly : Money or None
        Price of the cluster, where the scenario states one.
    words : mapping of str to Words
        What the user's program is told to train with the best proposal; none without one.
    simulated : int
    """

    scenario: Scenario
    workload: str
    machine: str
    topology: Topology
    samples: Sample
    base: SizeResult
    adapter_Bps: float | None
    adapters: int
    trials: tuple[Trial, ...]
    together: tuple[Trial, ...]
    power: tuple[Trial, ...]
    full_power_W: float | None
    too_big: tuple[Trial, ...]
    refused: tuple[Trial, ...]
    hourly: Money | None
    words: Mapping[str, Words]
    simulated: int
    provenance: Mapping[str, str]

    @property
    def best(self) -> Trial | None:
        """The best that leaves training as it is, else the cheapest that gains; None if none."""
        return next(iter(self.together), None)

    def energy_ratio(self, trial: Trial) -> float:
        """Energy of a sample under a limit over that of now, each board at its limit's power."""
        limit_W = trial.changes[0].limit_W
        assert limit_W is not None  # trials of `power` are of limits
        assert self.full_power_W is not None  # else no limit was tried
        return limit_W / self.full_power_W / trial.ratio

    @property
    def thrifty(self) -> tuple[Trial, ...]:
        """Limits on power that save a larger share of energy than they cost of the speed."""
        return tuple(
            trial for trial in self.power if 1.0 - self.energy_ratio(trial) > 1.0 - trial.ratio
        )

    @property
    def worth(self) -> tuple[Trial, ...]:
        """Changes alone that gain 1 % or more."""
        return tuple(trial for trial in self.trials if trial.ratio >= 1.0 + MIN_GAIN)


# ---------------------------------------------------------------- gains of several changes together

NARROW_SHARE = 0.5
"""Share of the width of one change's interval below which that of several asks for a reason."""
WIDE_LOG_WIDTH = math.log(1.1)
"""Width of an interval, in its logarithm, from which on it is worth a sentence."""


@dataclass(frozen=True, slots=True)
class StepsAtEnd:
    """Steps with one uncertain number at one end: as it is, with one change, with all; seconds.

    `alone`, `together`: gains of one change and of all; samples per second over those as it is.
    """

    base_s: float
    alone_s: float
    together_s: float
    alone: float
    together: float


@dataclass(frozen=True, slots=True)
class NarrowGain:
    """A proposal whose gain is surer than that of one of its changes alone.

    `origin`: what moves the gain of that change most.
    `least`, `most`: at the end of it where the change alone gains less, and at the other.
    """

    together: Trial
    alone: Trial
    origin: str
    least: StepsAtEnd
    most: StepsAtEnd


def find_narrow_gains(advice: Advice) -> Iterator[NarrowGain]:
    """Yield each proposal with an interval much narrower than that of a change in it."""
    alone = {trial.text: trial for trial in advice.trials}
    for together in advice.together:
        parts = (alone[change.text] for change in together.changes if change.text in alone)
        widest = max(parts, key=_width, default=None)
        is_one = len(together.changes) < 2 or together.interval is None
        if widest is None or is_one or _width(widest) < WIDE_LOG_WIDTH:
            continue
        if _width(together) < NARROW_SHARE * _width(widest):
            yield _reason(advice.base, widest, together)


def _width(trial: Trial) -> float:
    """Return the width of a gain's interval, in its logarithm; 0 where it is not known."""
    low, high = trial.interval or (1.0, 1.0)
    return math.log(high / low)


def _reason(base: SizeResult, alone: Trial, together: Trial) -> NarrowGain:
    points = [point for point in (base, alone.point, together.point) if point is not None]
    more, most = (point.global_batch / base.global_batch for point in points[1:])
    found = []
    for origin in (each.origin for each in base.uncertainties or () if each.is_shared):
        ends_s = zip(*(_ends_s(point, origin) for point in points), strict=True)
        ends = (StepsAtEnd(a, b, c, more * a / b, most * a / c) for a, b, c in ends_s)
        found.append(NarrowGain(together, alone, origin, *sorted(ends, key=attrgetter("alone"))))
    return max(found, key=lambda each: each.most.alone / each.least.alone)


def _ends_s(point: SizeResult, origin: str) -> tuple[float, float]:
    """Return the step at the low and the high end of an uncertain number; seconds.

    Both are the likely step where the number has no part in it.
    """
    own = (each for each in point.uncertainties or () if each.origin == origin)
    return next(((each.low_s, each.high_s) for each in own), (point.step_time_s,) * 2)


# ---------------------------------------------------------------- advice as plain data


def to_json(advice: Advice) -> dict[str, Any]:
    """Write advice as plain data; times in seconds, sizes in bytes, gains as ratios."""
    document = {
        "scenario": advice.scenario.name,
        "scenario_sha256": scenario_digest(advice.scenario),
        **attributes(advice, "workload machine"),
        "samples": str(advice.samples),
        **attributes(advice, "adapter_Bps adapters"),
        "base": _point(advice.base),
        "changes": [_trial(trial, advice) for trial in advice.trials],
        "together": [_trial(trial, advice) for trial in advice.together],
        "power_limits": [
            _trial(trial, advice) | {"energy_ratio": advice.energy_ratio(trial)}
            for trial in advice.power
        ],
        "does_not_fit": [_trial(trial, advice) for trial in advice.too_big],
        "refused": [
            {
                "change": trial.text,
                "fields": joined_fields(trial.changes),
                "message": trial.message,
            }
            for trial in advice.refused
        ],
        "hourly": None if advice.hourly is None else asdict(advice.hourly),
        **attributes(advice, "words simulated provenance"),
    }
    return dict(as_json(document, "advice"))


def _point(point: SizeResult) -> dict[str, Any]:
    return {
        **attributes(
            point,
            "gpus global_batch step_time_s interval_s samples_per_s exposed_comm_s bottleneck "
            "bottleneck_path mfu evidence",
        ),
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
        "reliefs": [attributes(each, "what parts saves_s") for each in point.reliefs],
    }


def _trial(trial: Trial, advice: Advice) -> dict[str, Any]:
    gain, base = trial.gain, advice.base.memory.total_bytes
    used = None if trial.memory is None else trial.memory.total_bytes
    return {
        "change": trial.text,
        "fields": joined_fields(trial.changes),
        "about": [change.about for change in trial.changes],
        "touches": trial.touches,
        "notes": [change.note for change in trial.changes if change.note],
        "gain": None if gain is None else gain.ratio,
        "gain_interval": None if gain is None else gain.interval,
        "sure": trial.sure,
        "saves": trial.saves if gain is not None else None,
        "memory_bytes": used,
        "more_memory_bytes": None if used is None else used - base,
        "prices": [asdict(change.price) for change in trial.changes if change.price],
        "rents": [asdict(change.rent) for change in trial.changes if change.rent],
        "point": None if trial.point is None else _point(trial.point),
    }


def advice_rows(advice: Advice) -> list[dict[str, Any]]:
    """Return one row per change and proposal that runs, with the interval of its gain."""
    return [
        {
            "change": trial.text,
            "kind": kind,
            "gain": trial.ratio,
            **dict(zip(("gain_low", "gain_high"), trial.interval or (None, None), strict=True)),
            **attributes(trial, "sure touches"),
            **attributes(trial.point, "step_time_s samples_per_s"),
            "memory_bytes": trial.point.memory.total_bytes,
            "bottleneck": trial.point.bottleneck or None,
        }
        for kind, trial in (
            *(("alone", each) for each in advice.trials),
            *(("together", each) for each in advice.together),
        )
        if trial.point is not None
    ]
