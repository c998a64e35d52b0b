"""Where fidelity "flow" is an approximation, and how far off fidelity "message" it was there.

The differences are those of the scenes in ``reports/oracle/need_not.py``, all of ranks up to eight,
rounded up; ``reports/oracle/fidelities.md`` has them one by one. Those of Gloo are of one and two
all-reduces of 64 KiB to 512 MiB on 4 to 32 ranks against sockets. A test holds all of them to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.collectives.timing.unrolled import places_of
from perfmodel.library.lowering.lowered import Stage

Why = Literal["shared", "staged", "met", "changed", "sockets"]

TIME_TOLERANCE = 1e-9
"""Relative difference in time up to which edges are alike."""


@dataclass(frozen=True, slots=True)
class ApproximationNote:
    """A case in which a fluid is an approximation."""

    why: Why
    text: str
    median: float
    p90: float
    worst: float
    """`median`, `p90` and `worst`: differences from fidelity "message", as parts of the time of a
    collective."""

    def __str__(self) -> str:
        return (
            f"Rates on links (fidelity flow) are an approximation where {self.text}: on small "
            f"machines a collective is off by {100 * self.median:.0f} % in the median, "
            f"{100 * self.p90:.0f} % in one case of ten, {100 * self.worst:.0f} % at worst."
        )


NOTES: Mapping[Why, ApproximationNote] = {
    note.why: note
    for note in (
        ApproximationNote("shared", "unlike edges of a collective share links", 0.01, 0.06, 0.15),
        ApproximationNote(
            "staged", "edges of several stages of a collective share links", 0.02, 0.07, 0.10
        ),
        ApproximationNote("met", "unlike collectives or streams meet on links", 0.01, 0.12, 0.42),
        ApproximationNote("changed", "links change under sends that share them", 0.01, 0.03, 0.28),
        ApproximationNote(
            "sockets", "messages of Gloo are not simulated one by one", 0.01, 0.05, 0.28
        ),
    )
}


def why_approximate(stages: tuple[Stage, ...], rates: tuple[FloatArray, ...]) -> Why | None:
    """Say why a fluid only approximates a collective without other traffic; None if it is exact.

    It is exact where no two edges share a link, and where those that do are alike and start
    together.
    """
    sends = [_sends(stage, rate) for stage, rate in zip(stages, rates, strict=True)]
    if any(_unlike(stage, send) for stage, send in zip(stages, sends, strict=True)):
        return "shared"
    return "staged" if len(stages) > 1 and _overlap(stages) else None


def _overlap(stages: tuple[Stage, ...]) -> bool:
    """Return whether some link serves several stages, and some link several ranks.

    Else no link serves two stages at once: those of one rank follow one another.
    """
    stage_of = [np.full(len(stage.edges.arcs), i) for i, stage in enumerate(stages)]
    ranks = 1 + max(int(max(s.phases[0].src.max(), s.phases[0].dst.max())) for s in stages)
    lengths = [np.diff(stage.edges.pointers) for stage in stages]
    senders = [places_of(stage.phases[0], ranks)[0] for stage in stages]
    owner = list(map(np.repeat, senders, lengths))
    arcs = np.concatenate([stage.edges.arcs for stage in stages])
    return all(_varies(arcs, np.concatenate(values).astype(float)) for values in (stage_of, owner))


def _sends(stage: Stage, rates_Bps: FloatArray) -> tuple[FloatArray, ...]:
    """Return the values that must be equal for edges to be alike, each of shape (edges,)."""
    held = sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(rates_Bps)))
    busy = np.nan_to_num(sending_s(held, rates_Bps))  # equal infinities are alike
    first = np.asarray(stage.phases[0].first, float) if stage.phases else np.zeros(len(rates_Bps))
    return busy, stage.latency_s, first


def _unlike(stage: Stage, sends: tuple[FloatArray, ...]) -> bool:
    """Whether edges share a link and are not all alike, and so get out of step."""
    if np.bincount(stage.edges.arcs).max(initial=0) < 2:
        return False
    return any(bool((np.abs(v - v[0]) > TIME_TOLERANCE * np.abs(v[0])).any()) for v in sends)


def _varies(arcs: IntArray, values: FloatArray) -> bool:
    """Whether the values differ on some link."""
    mean = np.bincount(arcs, weights=values) / np.maximum(np.bincount(arcs), 1)
    return bool((np.abs(values - mean[arcs]) > TIME_TOLERANCE * np.abs(mean[arcs])).any())
