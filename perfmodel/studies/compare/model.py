"""Results of a comparison, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.scenario import Scenario
from perfmodel.studies.run.result.model import Result, SizeResult

Ends = tuple[float, float]
"""Low and high end of an 80 % interval."""


@dataclass(frozen=True, slots=True)
class Side:
    """One column of a comparison.

    `label`: name of the scenario, or what was set.
    `scenario`: for its main size only.
    """

    label: str
    scenario: Scenario
    result: Result

    @property
    def point(self) -> SizeResult:
        """Result at the main size."""
        return self.result.main


def same_samples(side: Side, other: Side) -> bool:
    """Whether samples are of the same kind, so that rates can be compared."""
    return side.result.samples == other.result.samples


def same_batch(side: Side, other: Side) -> bool:
    """Whether steps of both train the same number of samples."""
    return side.point.global_batch == other.point.global_batch


@dataclass(frozen=True, slots=True)
class Change:
    """Ratio of a quantity of one side to that of the first side.

    Parameters
    ----------
    ratio : float
        1 is no change.
    interval : (low, high) or None
        Of the ratio, 80 %; None where a side has none.
    """

    ratio: float
    interval: Ends | None

    @property
    def within(self) -> bool:
        """Whether the interval contains a ratio of 1, no change."""
        return self.interval is not None and self.interval[0] <= 1.0 <= self.interval[1]


@dataclass(frozen=True, slots=True)
class SideDifference:
    """Differences between one side and the first.

    `step`, `throughput`: of the step time and of the samples per second.
    `exposed_s`: by how much longer the exposed communication is; seconds.
    `parts_s`: by how much longer each part of the step is; they add up to the difference of the
        steps.
    `same_samples`: whether samples are of the same kind, so that throughputs can be compared.
    `same_batch`: whether a step trains the same number of samples.
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
        """Whether the step has another bottleneck."""
        return self.bottleneck[0] != self.bottleneck[1]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that differs, and its values as written; "default" where it is not written.

    `reader`: the only one that reads it, where that is not the step itself.
    """

    name: str
    values: tuple[str, ...]
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """Results of one of the common what-ifs, on every side.

    `what`: description.
    `what_if`: fields of ``what_if``.
    `steps_s`: step times; None where a simulation failed.
    `messages`: why it failed.
    `shares`: share of the difference between this side and the first that the what-if removes. More
        than one where it reverses the difference; None for the first side, and where there is no
        difference.
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
    differences : tuple of SideDifference
        One for each side but the first.
    what_ifs : tuple of WhatIfResult
        The attribution; empty if it was not requested.
    """

    sides: tuple[Side, ...]
    fields: tuple[Field, ...]
    differences: tuple[SideDifference, ...]
    what_ifs: tuple[WhatIfResult, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions, each once: of the comparison, then of the sides, labelled if not of all."""
        return tuple(
            f"{', '.join(labels)}: {line}" if labels else line
            for labels, line in self.labelled_assumptions
        )

    @property
    def labelled_assumptions(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """As `assumptions`, beside the labels of the sides; none for what holds for all."""
        own = [RATIOS] if any(each.step.interval is not None for each in self.differences) else []
        own += [SHARES] if self.what_ifs else []
        labels_of: dict[str, list[str]] = {}
        for side in self.sides:
            for line in dict.fromkeys(side.result.assumptions):
                labels_of.setdefault(line, []).append(side.label)
        count = len(self.sides)
        shared = [
            (() if len(labels) == count else tuple(labels), line)
            for line, labels in labels_of.items()
        ]
        return (*(((), line) for line in own), *shared)


RATIOS = (
    "Intervals of changes compare like ends with like for what both sides share: the same model on "
    "the same GPU, networks of one kind. All else is taken as independent."
)
SHARES = (
    "Each what-if stands alone: savings overlap where one thing hides another, so they need not "
    "add up to the step, nor shares to the difference."
)
