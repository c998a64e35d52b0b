"""Spans of a run, simulated or measured: the same columns, so that comparing is a join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Span:
    """One task as it ran.

    Parameters
    ----------
    name, kind, rank_class, stream : str
        Copied from the task; `kind` is "forward", "backward", "copy", "optimizer",
        "communication", "issue" or "wait".
    step : int
        Which step of the run, from 0.
    start_s, end_s : float
        Seconds since the start of the run.
    ready_s : float
        When everything it depends on had ended; waiting in its queue began.
    nbytes : int
        Bytes that a communication moves; 0 for compute.
    bucket : int, optional
    micro_batch : int
    """

    name: str
    kind: str
    rank_class: str
    stream: str
    step: int
    start_s: float
    end_s: float
    ready_s: float
    nbytes: int = 0
    bucket: int | None = None
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of a run in order of their start."""

    spans: tuple[Span, ...]

    def step(self, index: int) -> Timeline:
        """Spans of one step."""
        return Timeline(tuple(span for span in self.spans if span.step == index))

    def table(self) -> pd.DataFrame:
        """One row per span."""
        import pandas as pd  # noqa: PLC0415  (1 s of import that most commands do not need)

        columns = list(Span.__slots__)
        return pd.DataFrame(
            [[getattr(span, name) for name in columns] for span in self.spans], columns=columns
        )


def covered_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals; seconds."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def exposed_s(busy: Iterable[tuple[float, float]], cover: Iterable[tuple[float, float]]) -> float:
    """Length of what `busy` covers and `cover` does not (exposed communication); seconds."""
    cover = list(cover)
    return covered_s([*busy, *cover]) - covered_s(cover)
