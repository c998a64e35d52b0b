"""Published trainings and recorded steps beside predictions, a dataset each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfmodel.studies.run.evidence import Setting

Measure = Literal["one_gpu", "many_gpus", "efficiency", "scaled"]
MEASURES: tuple[Measure, ...] = ("one_gpu", "many_gpus", "efficiency", "scaled")
"""What is compared of a published training.

"one_gpu": throughput of one GPU. "many_gpus": throughput of several. "efficiency": of several
against the smallest run of the same model, GPU, batch and precision that the table has, throughput
per GPU. "scaled": throughput of several with compute scaled to the measured rate of one GPU, so
that what is left is communication.
"""

Pair = tuple[float, float]
"""Published and predicted."""


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
class TrainingRun:
    """One published run of a training beside its prediction; samples per second of all GPUs."""

    model: str
    gpu: str
    """As the table names it."""
    nodes: int
    gpus: int
    batch: int
    """Samples of a GPU and step."""
    precision: str
    """Of the matrix work, as predicted."""
    network: str
    """What the gradients cross: "NVLink", "PCIe", "InfiniBand" ... ("one GPU": nothing)."""
    published: float
    predicted: float
    source: str = ""
    base_gpus: int | None = None
    """GPUs of the run that efficiency is counted against; None: the table has none."""
    base: Pair | None = None
    """Throughput of that run, published and predicted."""
    scaled: float | None = None
    """Predicted with compute scaled to the measured rate of one GPU; None: no such rate."""
    intervals: Mapping[Measure, Pair] = field(default_factory=dict)
    """80 % intervals of the predicted numbers, by measure."""
    unlike: str = ""
    """Why predicted compute is not that of the table, so that only `scaled` is compared."""
    setting: Setting | None = None
    """By which an answer is near it."""

    @property
    def efficiency(self) -> Pair | None:
        """Throughput per GPU over that of the smallest run, published and predicted."""
        if self.base is None or self.base_gpus is None:
            return None
        share = self.base_gpus / self.gpus
        return self.published / self.base[0] * share, self.predicted / self.base[1] * share

    def pair(self, measure: Measure) -> Pair | None:
        """Published and predicted number of a measure; None where it is not compared."""
        if measure == "scaled":
            return None if self.scaled is None else (self.published, self.scaled)
        if self.unlike:
            return None
        if measure == "efficiency":
            return self.efficiency
        if (measure == "one_gpu") != (self.gpus == 1):
            return None
        return self.published, self.predicted

    @property
    def case(self) -> Case:
        """Throughput as a case."""
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        gpus = f"{self.gpu} x {self.gpus}{nodes}"
        text = f"{self.model}, {gpus}, batch {self.batch}, {self.precision}"
        return Case(text, self.published, self.predicted, "samples/s", self.source)


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
    runs : sequence of TrainingRun
        Trainings behind the cases, if they are that.
    not_scaled : mapping of str to int
        Runs of several GPUs without a scaling efficiency or without a scaled throughput: reason
        and how many.
    fitted : bool
        Whether shipped constants of compute were fitted to its throughputs of one GPU.
    """

    id: str
    title: str
    cases: Sequence[Case]
    left_out: Mapping[str, int] = field(default_factory=dict)
    runs: Sequence[TrainingRun] = ()
    not_scaled: Mapping[str, int] = field(default_factory=dict)
    fitted: bool = False

    @property
    def median_abs_error(self) -> float | None:
        """Median of absolute relative errors; None where no row could be expressed."""
        return statistics.median(abs(case.error) for case in self.cases) if self.cases else None

    @property
    def p90_abs_error(self) -> float | None:
        """Nine of ten absolute relative errors are no larger; None where there are none."""
        errors = sorted(abs(case.error) for case in self.cases)
        return errors[math.ceil(0.9 * len(errors)) - 1] if errors else None

    @property
    def bias(self) -> float | None:
        """Median of relative errors with their sign; above zero predictions are too large."""
        return statistics.median(case.error for case in self.cases) if self.cases else None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``reports.validation --json``."""
        return {
            "id": self.id,
            "mode": "training",
            "points": len(self.cases),
            "median_abs_error": self.median_abs_error,
            "p90_abs_error": self.p90_abs_error,
            "bias": self.bias,
            "title": self.title,
            "left_out": dict(self.left_out),
            "not_scaled": dict(self.not_scaled),
            "fitted": self.fitted,
        }
