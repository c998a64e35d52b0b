"""What a comparison found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.scenario import Scenario
from perfmodel.studies.run.result import Result, SizeResult

Ends = tuple[float, float]
"""Low and high end of an 80 % interval."""


@dataclass(frozen=True, slots=True)
class Side:
    """One column of a comparison.

    Parameters
    ----------
    label : str
        Name of the scenario, or what was set.
    scenario : Scenario
        For the size that it asks about.
    result : Result
    """

    label: str
    scenario: Scenario
    result: Result

    @property
    def point(self) -> SizeResult:
        """The size that is asked about."""
        return self.result.main


def same_samples(one: Side, other: Side) -> bool:
    """Whether samples are the same things, so that rates compare."""
    return one.result.samples == other.result.samples


def same_batch(one: Side, other: Side) -> bool:
    """Whether a step of both trains as many samples."""
    return one.point.global_batch == other.point.global_batch


@dataclass(frozen=True, slots=True)
class Change:
    """How a quantity of one side stands to that of the first side.

    Parameters
    ----------
    ratio : float
        Of the two; 1 is no change.
    interval : (low, high) or None
        Of the ratio, 80 %; None where a side has none.
    """

    ratio: float
    interval: Ends | None

    @property
    def within(self) -> bool:
        """Whether the interval holds no change at all."""
        return self.interval is not None and self.interval[0] <= 1.0 <= self.interval[1]


@dataclass(frozen=True, slots=True)
class Versus:
    """One side against the first.

    Parameters
    ----------
    label : str
    step, throughput : Change
        Of the step time and of the samples per second.
    exposed_s : float
        By how much longer the exposed communication is; seconds.
    parts_s : mapping of str to float
        By how much longer each part of the step is; they add up to the difference of the steps.
    bottleneck : (before, after)
    same_samples : bool
        Whether samples are the same things, so that throughputs compare.
    same_batch : bool
        Whether a step trains as many samples.
    """

    label: str
    step: Change
    throughput: Change
    exposed_s: float
    parts_s: Mapping[str, float]
    bottleneck: tuple[str, str]
    same_samples: bool
    same_batch: bool

    @property
    def moved(self) -> bool:
        """Whether another thing limits the step."""
        return self.bottleneck[0] != self.bottleneck[1]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that differs, and its values as written; "default" where it does not stand."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imagined:
    """One of the classic what-ifs, on every side.

    Parameters
    ----------
    what : str
        In words.
    what_if : mapping
        Fields of ``what_if`` that say it.
    steps_s : tuple of (float or None)
        Step times; None where it could not be worked out.
    messages : tuple of str
        Why.
    shares : tuple of (float or None)
        Of the difference between this side and the first: the part of it that is gone then. More
        than one where it is turned around; None for the first, and where there is no difference.
    """

    what: str
    what_if: Mapping[str, Any]
    steps_s: tuple[float | None, ...]
    messages: tuple[str, ...]
    shares: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scenarios side by side.

    Parameters
    ----------
    sides : tuple of Side
    fields : tuple of Field
    versus : tuple of Versus
        One for each side but the first.
    imagined : tuple of Imagined
        The attribution; empty if it was not asked for.
    """

    sides: tuple[Side, ...]
    fields: tuple[Field, ...]
    versus: tuple[Versus, ...]
    imagined: tuple[Imagined, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the numbers rest on, each once, the comparison's own first; whose, if not all's."""
        own = [RATIOS] if any(one.step.interval is not None for one in self.versus) else []
        own += [SHARES] if self.imagined else []
        whose: dict[str, list[str]] = {}
        for side in self.sides:
            for line in dict.fromkeys(side.result.assumptions):
                whose.setdefault(line, []).append(side.label)
        everywhere = len(self.sides)
        theirs = [
            line if len(labels) == everywhere else f"{', '.join(labels)}: {line}"
            for line, labels in whose.items()
        ]
        return (*own, *theirs)


RATIOS = (
    "Intervals of changes compare like ends with like: all sides are predicted by one model, whose "
    "errors they share. Where machines are of different kinds, or numbers of one side are "
    "measured, this is too narrow. Where steps are random, the means vary independently."
)
SHARES = (
    "Each what-if stands alone: savings overlap where one thing hides another, so they need not "
    "add up to the step, nor shares to the difference."
)
