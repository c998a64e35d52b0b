"""Published steps of a strategy beside their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfmodel.studies.run.evidence import Setting

Quantity = Literal["step", "scaled", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("step", "scaled", "memory")
"""What is compared: step time from datasheets; the same with compute scaled so that the table's
smallest run comes out as measured; peak memory of a GPU."""

Ends = tuple[float, float]
"""Low and high end of an 80 % interval."""


@dataclass(frozen=True, slots=True)
class StrategyStep:
    """One published step; seconds and bytes.

    `strategy`: as reports group it: "fsdp", "megatron" ...
    `gpus`: of all nodes.
    `batch`: samples of a GPU and forward pass.
    `samples`: of all GPUs and forward passes of a step.
    `degrees`: how the model is split, in words; empty: it is not.
    `published_s`, `published_bytes`: None where the table does not state it.
    `scaled_s`: with compute scaled to the table's smallest run; None: it is that run, or there is
        none to scale to.
    `memory_kind`: what the peak counts: "allocated", "reserved", "device".
    `unlike`: why the GPU's compute is not that of its data sheet, so that `step` is not compared.
    `presumed`: what of GPU, network and batch the table does not state.
    `undecided`: why the source states too little to predict a step, so that none is compared.
    `intervals`: of predicted step times.
    `sampled`: whether it is predicted also where of tables with many setups a few are.
    `setting`: by which an answer is near it.
    """

    model: str
    strategy: str
    gpu: str
    gpus: int
    batch: int
    precision: str
    recompute: str
    published_s: float | None
    predicted_s: float
    scaled_s: float | None = None
    published_bytes: float | None = None
    predicted_bytes: float = 0.0
    memory_kind: str = ""
    unlike: str = ""
    presumed: str = ""
    undecided: str = ""
    intervals: Mapping[Quantity, Ends] = field(default_factory=dict)
    source: str = ""
    note: str = ""
    samples: int = 1
    degrees: str = ""
    sampled: bool = True
    setting: Setting | None = None

    def pair(self, quantity: Quantity) -> tuple[float, float] | None:
        """Published and predicted number; None where it is not compared."""
        if quantity == "memory":
            published, predicted = self.published_bytes, self.predicted_bytes
        elif self.undecided:
            return None
        elif quantity == "scaled":
            published, predicted = self.published_s, self.scaled_s or 0.0
        else:
            published, predicted = self.published_s, 0.0 if self.unlike else self.predicted_s
        return (published, predicted) if published and predicted else None


@dataclass(frozen=True, slots=True)
class StrategyTable:
    """Published steps of one source.

    `left_out`: rows that no scenario can express: reason and how many.
    """

    id: str
    steps: Sequence[StrategyStep]
    left_out: Mapping[str, int] = field(default_factory=dict)
