"""Why several changes together can gain more surely than one of them alone.

A gain is a ratio of two steps, and what is uncertain moves both. Where both wait for the network
at each of its likely rates, its error cancels in their ratio; a single change after which a quick
network leaves compute as the limit gains less there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.studies.advise.model import Advice, Trial
from perfmodel.studies.run.result.model import SizeResult

NARROWER = 0.5
"""Share of the width of one change's interval below which that of several asks for a reason."""
WIDE = math.log(1.1)
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
        parts = [alone[change.text] for change in together.changes if change.text in alone]
        widest = max(parts, key=_width, default=None)
        if len(together.changes) < 2 or widest is None or _width(widest) < WIDE:
            continue
        assert together.gain is not None
        if together.gain.interval and _width(together) < NARROWER * _width(widest):
            yield _reason(advice.base, widest, together)


def _width(trial: Trial) -> float:
    """Width of the interval of a gain, in its logarithm; 0 where it is not known."""
    if trial.gain is None or trial.gain.interval is None:
        return 0.0
    low, high = trial.gain.interval
    return math.log(high / low)


def _reason(base: SizeResult, alone: Trial, together: Trial) -> NarrowGain:
    assert base.uncertainties is not None  # else no gain had an interval
    shared = [each.origin for each in base.uncertainties if each.is_shared]
    by_origin = {
        origin: sorted(_steps(base, alone, together, origin), key=lambda each: each.alone)
        for origin in shared
    }
    origin = max(shared, key=lambda each: by_origin[each][1].alone / by_origin[each][0].alone)
    return NarrowGain(together, alone, origin, *by_origin[origin])


def _steps(base: SizeResult, alone: Trial, together: Trial, origin: str) -> list[StepsAtEnd]:
    """Steps at the low and at the high end of one uncertain number."""
    assert alone.point is not None
    assert together.point is not None
    points = (base, alone.point, together.point)
    batches = [point.global_batch / base.global_batch for point in points]
    ends = []
    at_both = [_ends_s(point, origin) for point in points]
    for end in (0, 1):
        base_s, alone_s, together_s = (ends_s[end] for ends_s in at_both)
        gains = batches[1] * base_s / alone_s, batches[2] * base_s / together_s
        ends.append(StepsAtEnd(base_s, alone_s, together_s, *gains))
    return ends


def _ends_s(point: SizeResult, origin: str) -> tuple[float, float]:
    """A step at both ends of an uncertain number; the likely one where it has no part in it."""
    for each in point.uncertainties or ():
        if each.origin == origin:
            return each.low_s, each.high_s
    return point.step_time_s, point.step_time_s
