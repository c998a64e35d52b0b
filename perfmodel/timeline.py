"""Spans of a run, simulated or measured, with the same columns so that both can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Span(NamedTuple):
    """One task as it ran (a named tuple: a run makes thousands).

    Parameters
    ----------
    name, kind, rank_class, stream : str
        Copied from the task; `kind` is "forward", "backward", "copy", "optimizer",
        "communication", "issue" or "wait".
    step : int
        Step of the run, from 0.
    start_s, end_s : float
        Seconds since the start of the run.
    ready_s : float
        End of the last task that it depends on; from then on it waits in its queue.
    nbytes : int
        Bytes that a communication moves; 0 for compute.
    bucket : int, optional
    micro_batch : int
    work_s : float
        Time of a compute task without slowdowns, seconds; 0 for communication.
    op, communicator : str
        Of a communication, as its task has them; empty for compute.
    dtype : str, optional
        Of the elements that a communication moves, where they have one.
    role : str, optional
        What the task does, where its kind does not say it; copied from it.
    issues : str
        Of the host's work, the name of the task that it issues; copied from the task.
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
    work_s: float = 0.0
    op: str = ""
    communicator: str = ""
    dtype: str | None = None
    role: str | None = None
    issues: str = ""


class GroupOfClass(NamedTuple):
    """The group of a communicator that the first rank of a class is in.

    `ranks`: how many; `first`: the first of them.
    """

    ranks: int
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of a run in order of their start.

    `first_rank`: of each rank class, where known.
    `groups`: by rank class and communicator.
    `stream_kinds`: of each stream by its name, where known.
    `classes`: rank classes (or workers, and servers) in the order of the plan, where known.
    """

    spans: tuple[Span, ...]
    first_rank: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[tuple[str, str], GroupOfClass] = field(default_factory=dict)
    stream_kinds: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def step(self, index: int) -> Timeline:
        """Spans of one step."""
        return replace(self, spans=tuple(span for span in self.spans if span.step == index))

    def table(self) -> pd.DataFrame:
        """One row per span."""
        import pandas as pd

        columns = list(Span._fields)
        return pd.DataFrame(
            [[getattr(span, name) for name in columns] for span in self.spans], columns=columns
        )


def covered_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals; seconds."""
    return math.fsum(stop - start for start, stop in union(intervals))


def exposed_s(busy: Iterable[tuple[float, float]], cover: Iterable[tuple[float, float]]) -> float:
    """Length of the time in `busy` but not in `cover` (exposed communication); seconds."""
    cover = list(cover)
    return covered_s([*busy, *cover]) - covered_s(cover)


def exposed(
    busy: Iterable[tuple[float, float]], cover: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Intervals of the time in `busy` but not in `cover`, in order of time; seconds.

    Examples
    --------
    >>> exposed([(0.0, 5.0)], [(1.0, 2.0), (4.0, 9.0)])
    [(0.0, 1.0), (2.0, 4.0)]
    """
    bounds = [-math.inf, *(end for shield in union(cover) for end in shield), math.inf]
    gaps = list(zip(bounds[::2], bounds[1::2], strict=True))
    return [
        (max(start, low), min(stop, high))
        for start, stop in union(busy)
        for low, high in gaps
        if low < stop and start < high and start < stop
    ]


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join intervals that overlap.

    Examples
    --------
    >>> union([(1, 2), (0, 5), (3, 4), (6, 7)])
    [(0, 5), (6, 7)]
    """
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def assign_lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Distribute spans over as few lanes as possible so that none overlap within a lane.

    A stream with one worker needs one lane; concurrent transfers get lanes of their own. Ends
    and starts that differ by less than a picosecond (rounding of sums) count as equal.
    """
    spread: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        for lane in spread:
            if lane[-1].end_s <= span.start_s + 1e-12:
                lane.append(span)
                break
        else:
            spread.append([span])
    return spread
