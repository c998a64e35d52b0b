"""What to recommend: nothing that may be slower than PyTorch's default, or hardly quicker.

The default needs no upkeep when the model changes, so that another setting has to earn its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.studies.tune.choice.robustness import WITHIN
from perfmodel.studies.tune.model import Choice, Recommendation

WORTH = WITHIN
"""Gain below which PyTorch's default is kept: caps within it count as good as the best, too."""
ROUNDING = 1e-9


def recommend(
    default: Choice, requested: Choice | None, candidates: Iterable[Choice]
) -> Recommendation:
    """Choose what to paste.

    `requested`: the scenario's own caps, if it has any.
    `candidates`: what was tuned, in the order in which to offer them; the best one comes first.
    """
    worthwhile = [choice for choice in candidates if choice.gains[0] >= WORTH]
    sure = [choice for choice in worthwhile if _is_sure(choice)]
    unsure = min(
        (choice for choice in worthwhile if not _is_sure(choice)),
        key=lambda choice: choice.step_time_s,
        default=None,
    )
    own_s = default.step_time_s if requested is None else requested.step_time_s
    better = [choice for choice in sure if choice.step_time_s < own_s]
    best_s = min((choice.step_time_s for choice in better), default=own_s)
    if requested is not None and own_s <= min(default.step_time_s, best_s * (1 + WORTH)):
        return Recommendation((), requested, unsure)
    better.sort(key=lambda choice: choice.step_time_s > best_s * (1 + ROUNDING))
    return Recommendation(tuple(dict.fromkeys(better)), None, unsure)


def _is_sure(choice: Choice) -> bool:
    """Whether a setting is quicker than the default anywhere in the interval, noise or not."""
    return min(choice.gains) > 0.0 and choice.gains[0] > choice.noise
