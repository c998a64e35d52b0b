"""Which algorithm a library takes by size and number of ranks, where its file says so."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfmodel.files import Count, Spec


class Rule(Spec):
    """Algorithms of groups with fewer than `below` ranks (no number: all that are left).

    The first algorithm serves sizes below the first of `sizes` (bytes), and so on; the last all
    others.
    """

    below: Count | None = None
    sizes: tuple[Count, ...] = ()
    algorithms: Annotated[tuple[str, ...], Field(min_length=1)]


def _sound(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    bounds = [rule.below for rule in rules[:-1]]
    if (
        rules[-1].below is not None
        or None in bounds
        or bounds != sorted(bounds, key=lambda b: b or 0)
    ):
        raise ValueError("rules by rising 'below', the last one without")
    for rule in rules:
        if len(rule.algorithms) != len(rule.sizes) + 1 or list(rule.sizes) != sorted(rule.sizes):
            raise ValueError("rising 'sizes', and one algorithm more than there are sizes")
    return rules


class Decision(Spec):
    """Rules of one operation, for small groups first.

    `counts` says what a size is: the whole of a collective as nccl-tests counts it, or one rank's
    part of it. `odd` replaces algorithms where the number of ranks is no power of two.
    """

    counts: Literal["whole", "part"]
    odd: dict[str, str] = {}
    rules: Annotated[tuple[Rule, ...], Field(min_length=1), AfterValidator(_sound)]


def decided(decision: Decision, nbytes: float, ranks: int) -> str:
    """Return the algorithm for a size and a number of ranks.

    Parameters
    ----------
    decision : Decision
    nbytes : float
        As nccl-tests counts it.
    ranks : int
    """
    size = nbytes if decision.counts == "whole" else nbytes / ranks
    rule = next(rule for rule in decision.rules if rule.below is None or ranks < rule.below)
    name = rule.algorithms[bisect_right(rule.sizes, size)]
    return name if ranks & (ranks - 1) == 0 else decision.odd.get(name, name)
