"""Results of a comparison, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.scenario import Scenario, scenario_digest
from perfmodel.studies.run.result import Interval, Result, SizeResult


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
    interval: Interval | None

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
        own = {
            INTERVALS_NOTE: any(each.step.interval is not None for each in self.differences),
            SHARES_NOTE: bool(self.what_ifs),
        }
        labels_of = {
            line: tuple(side.label for side in self.sides if line in side.result.assumptions)
            for line in dict.fromkeys(
                line for side in self.sides for line in side.result.assumptions
            )
        }
        return (
            *(((), line) for line, holds in own.items() if holds),
            *(
                (() if len(labels) == len(self.sides) else labels, line)
                for line, labels in labels_of.items()
            ),
        )


INTERVALS_NOTE = (
    "Intervals of changes compare like ends with like for what both sides share: the same model on "
    "the same GPU, networks of one kind. All else is taken as independent."
)
SHARES_NOTE = (
    "Each what-if stands alone: savings overlap where one thing hides another, so they need not "
    "add up to the step, nor shares to the difference."
)


# ---------------------------------------------------------------- plain data


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Write a comparison as plain data; times in seconds, sizes in bytes."""
    sides = comparison.sides
    document = {
        "sides": [_side(side) for side in sides],
        "fields": [
            {"field": field.name, "values": field.values, "acts_only_in": field.reader}
            for field in comparison.fields
        ],
        "changes": [
            {
                "label": versus.label,
                "step_time": _change(versus.step),
                "samples_per_s": _change(versus.throughput) if versus.same_samples else None,
                "exposed_comm_s": versus.exposed_s,
                "breakdown_s": versus.parts_s,
                "bottleneck": dict(zip(("from", "to"), versus.bottleneck, strict=True))
                | {"moved": versus.moved},
            }
            for versus in comparison.differences
        ],
        "attribution": [
            {
                **attributes(imagined, "what what_if"),
                "sides": [
                    {
                        "label": side.label,
                        "step_time_s": step_s,
                        "saved_s": None if step_s is None else side.point.step_time_s - step_s,
                        "share_of_difference": share,
                        "message": message,
                    }
                    for side, step_s, share, message in zip(
                        sides, imagined.steps_s, imagined.shares, imagined.messages, strict=True
                    )
                ],
            }
            for imagined in comparison.what_ifs
        ],
        "assumptions": comparison.assumptions,
    }
    return dict(as_json(document, "comparison"))


def _side(side: Side) -> dict[str, Any]:
    point, result = side.point, side.result
    return {
        "label": side.label,
        "scenario": result.scenario,
        "scenario_sha256": scenario_digest(side.scenario),
        **attributes(result, "workload machine"),
        **attributes(point, "gpus global_batch"),
        "samples": str(result.samples),
        **attributes(
            point,
            "step_time_s interval_s samples_per_s compute_s comm_s exposed_comm_s breakdown_s "
            "bottleneck communication sent_bytes mfu evidence",
        ),
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
    }


def _change(change: Change) -> dict[str, Any]:
    return {**attributes(change, "ratio interval"), "within_interval": change.within}


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per side: what differs, the figures, and the step under each what-if."""
    return [_csv_row(comparison, at) for at in range(len(comparison.sides))]


def _csv_row(comparison: Comparison, at: int) -> dict[str, Any]:
    row = _side(comparison.sides[at])
    parts, uses = row.pop("breakdown_s"), row.pop("communication")
    low_s, high_s = row.pop("interval_s") or (None, None)
    evidence = row.pop("evidence")
    return {
        **row,
        "rests_on": evidence and evidence.summary,
        **{f"exposed_{use.op}_s": use.exposed_s for use in uses},
        "low_s": low_s,
        "high_s": high_s,
        **{f"{name.replace(' ', '_')}_s": time_s for name, time_s in parts.items()},
        **{field.name: field.values[at] for field in comparison.fields},
        **{f"step_time_s with {each.what}": each.steps_s[at] for each in comparison.what_ifs},
    }


def to_csv(comparison: Comparison) -> str:
    """Write those rows as CSV; empty where a side has no such figure."""
    rows = csv_rows(comparison)
    columns = dict.fromkeys(name for row in rows for name in row)
    return csv_text(columns, ([row.get(name, "") for name in columns] for row in rows))
