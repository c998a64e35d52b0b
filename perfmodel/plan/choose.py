"""Which options answer which question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from perfmodel.plan.model import Answers, Option


def pareto(options: Iterable[Option]) -> tuple[Option, ...]:
    """Options that no other is both as quick and as cheap as, and better in one; quickest first.

    Options without a price are left out.
    """
    priced = [option for option in options if option.cost is not None]
    front: list[Option] = []
    for option in sorted(priced, key=_quick_then_cheap):
        alike = bool(front) and _quick_then_cheap(option) == _quick_then_cheap(front[-1])
        if alike or not front or _cost(option) < _cost(front[-1]):
            front.append(option)
    return tuple(front)


def ladder(options: Iterable[Option]) -> tuple[Option, ...]:
    """Smallest clusters by deadline: each is quicker than all with as many GPUs or fewer.

    The first takes longest; for a deadline take the first one that meets it.
    """
    found: list[Option] = []
    for option in sorted(options, key=lambda o: (o.gpus or 0, o.wall_s, _cost(o))):
        if not found or option.wall_s < found[-1].wall_s:
            found.append(option)
    return tuple(found)


def choose(options: Sequence[Option], deadline_s: float | None, budget: float | None) -> Answers:
    """Answer what is asked of options that run and fit.

    Parameters
    ----------
    options : sequence of Option
        With status "ok".
    deadline_s : float or None
        Against expected wall times; seconds.
    budget : float or None
    """
    in_time = [o for o in options if deadline_s is not None and o.wall_s <= deadline_s]
    priced = [o for o in options if o.cost is not None]
    in_budget = [o for o in priced if budget is not None and _cost(o) <= budget]
    return Answers(
        smallest_in_time=_best(in_time, lambda o: (o.gpus or 0, _cost(o), o.wall_s)),
        cheapest_in_time=_best(
            [o for o in in_time if o.cost is not None], lambda o: (_cost(o), o.wall_s)
        ),
        fastest_in_budget=_best(in_budget, _quick_then_cheap),
        fastest=_best(options, _quick_then_cheap),
        cheapest=_best(priced, lambda o: (_cost(o), o.wall_s)),
        pareto=pareto(options),
        ladder=ladder(options),
    )


def _quick_then_cheap(option: Option) -> tuple[float, float]:
    return option.wall_s, _cost(option)


def _cost(option: Option) -> float:
    return math.inf if option.cost is None else option.cost


def _best(options: Sequence[Option], key: Callable[[Option], tuple[float, ...]]) -> Option | None:
    return min(options, key=key, default=None)
