"""Published trainings and recorded steps beside predictions, a dataset each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One published number beside the predicted one, in the same unit."""

    name: str
    published: float
    predicted: float
    unit: str
    source: str = ""

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1.0


@dataclass(frozen=True, slots=True)
class Dataset:
    """Published numbers of one kind.

    Parameters
    ----------
    id : str
    title : str
        What is compared.
    cases : sequence of Case
    left_out : mapping of str to int
        Rows that the model cannot express: reason and how many.
    """

    id: str
    title: str
    cases: Sequence[Case]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def median_abs_error(self) -> float | None:
        """Median of absolute relative errors; None where no row could be expressed."""
        return statistics.median(abs(case.error) for case in self.cases) if self.cases else None

    @property
    def p90_abs_error(self) -> float | None:
        """Nine of ten absolute relative errors are no larger; None where there are none."""
        errors = sorted(abs(case.error) for case in self.cases)
        return errors[math.ceil(0.9 * len(errors)) - 1] if errors else None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``perfmodel validate --json``."""
        return {
            "id": self.id,
            "mode": "training",
            "points": len(self.cases),
            "median_abs_error": self.median_abs_error,
            "p90_abs_error": self.p90_abs_error,
            "title": self.title,
            "left_out": dict(self.left_out),
        }
