"""The assumptions of a tuning, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.studies.tune.evaluator import Evaluator
from perfmodel.studies.tune.model import CurvePoint


def assumptions(
    evaluator: Evaluator, exact: bool, curve: Sequence[CurvePoint], curve_error: float
) -> tuple[str, ...]:
    """Return the assumptions that the result depends on.

    `exact`: whether the list is proven to be the best.
    `curve_error`: largest relative error that the curve may have where it was not simulated.
    """
    simulated = sum(point.simulated for point in curve)
    lines = [
        _describe_caps(len(curve)),
        _describe_curve(evaluator, simulated, len(curve), curve_error),
        _describe_list(evaluator, exact),
    ]
    if evaluator.gradients.reverse_filled:
        lines.append(
            "PyTorch does not rebuild these buckets: they are filled in the order of registration "
            "and launched in the reverse."
        )
    if evaluator.prepared.alternatives:
        lines.append(
            "On a quicker or a slower network nothing was simulated: steps there are those on the "
            "likely one, longer or shorter by what the all-reduces add bucket by bucket. All sizes "
            "are taken to be quicker or slower together."
        )
    lines += _describe_profile(evaluator)
    if not evaluator.gradients.single_dtype:
        lines.append("The caps of a list hold for the first, second ... bucket of each dtype.")
    return tuple(lines)


def _describe_profile(evaluator: Evaluator) -> tuple[str, ...]:
    """Say which buckets are beyond what the profile was measured with."""
    prepared = evaluator.prepared
    profile, size = prepared.sized.ensemble.profile, prepared.size
    if profile is None:
        return ()
    from perfmodel.calibrate.sampling import CollectiveRequest, describe_beyond

    return describe_beyond(
        profile,
        (
            CollectiveRequest("all_reduce", bucket.nbytes, size.gpus, size.nodes)
            for outcome in evaluator.outcomes.values()
            for bucket in outcome.buckets
        ),
    )


def _describe_caps(points: int) -> str:
    if points == 1:
        return "Whatever the cap, the buckets are the same."
    return (
        f"One cap for all can make {points} different partitions into buckets; the curve has a "
        "point for each."
    )


def _describe_curve(evaluator: Evaluator, simulated: int, points: int, curve_error: float) -> str:
    if simulated == points:
        return (
            "This was simulated in full." if points == 1 else "All of them were simulated in full."
        )
    were = "was" if simulated == 1 else "were"
    how = f"{simulated} of them {were} simulated in full. "
    if evaluator.reasons:
        return (
            f"{how}The steps of the others are estimates, up to "
            f"{100 * evaluator.surrogate_error:.2g} % off where they were checked, because "
            f"{' and '.join(evaluator.reasons)}: a better cap may be among them, and only "
            "what was simulated is recommended."
        )
    return (
        f"{how}The steps of the others follow, bucket by bucket, from times of all-reduces of "
        f"{evaluator.allreduce.computed_sizes} sizes; between these times were interpolated, which "
        f"may put a step on the curve off by up to {percent(curve_error)}. What is "
        "recommended was simulated."
    )


def percent(fraction: float) -> str:
    """Format a small fraction in per cent, at least 0.01 %.

    Examples
    --------
    >>> percent(0.00123), percent(1e-9)
    ('0.12 %', '0.01 %')
    """
    return f"{100 * max(fraction, 1e-4):.2g} %"


def _describe_list(evaluator: Evaluator, exact: bool) -> str:
    if exact:
        return "The list is the best of all groups of neighbouring gradients (dynamic programming)."
    if evaluator.reasons:
        return "The list is the best that was simulated; no cap that was simulated is better."
    if evaluator.surrogate.slowdown > 1:
        return (
            "The list was found by dynamic programming. All-reduces slow compute down, so that it "
            "is not proven to be the best of all; no cap for all is better."
        )
    return (
        "The list is the best of all groups of neighbouring gradients (dynamic programming), as "
        "far as interpolated times of all-reduces are right."
    )
