"""How unevenly tokens fall on experts: expected loads of the busiest rank, and tokens dropped.

Experts' shares of the tokens are taken to be Dirichlet distributed, all alike, so that one number
says how uneven they are: the coefficient of variation of an expert's load. Shares of ranks, which
hold several experts each, are then Dirichlet distributed, too, and the expected largest share is
that of gamma variables over their mean, an integral of one dimension. The noise of a finite number
of tokens is left out: a rank has thousands.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.arrays import round_bits

GRID = 4096
"""Points of the integral; ten times as many change its result by less than 1e-6."""
TAIL = 12.0
"""Standard deviations about the mean that it spans, and some more for exponential tails."""
LEAST_VARIATION = 1e-4
"""Below, loads are taken to be equal."""


def concentration(experts: int, variation: float) -> float:
    """Parameter of the Dirichlet distribution whose loads have a coefficient of variation.

    A load of mean 1 has the variance (E - 1) / (E a + 1).
    """
    return ((experts - 1) / variation**2 - 1) / experts


def busiest_load(experts: int, ranks: int, variation: float) -> float:
    """Expected load of the busiest of so many ranks with as many experts each, over the mean.

    `variation`: coefficient of variation of an expert's load, below the root of `experts` - 1.
    """
    if ranks == 1 or variation < LEAST_VARIATION:
        return 1.0
    from scipy import special  # rarely needed

    shape = concentration(experts, variation) * experts / ranks
    # the largest of gamma variables is independent of their sum: its mean over that of the sum
    lowest = max(0.0, shape - TAIL * math.sqrt(shape))
    span = shape + TAIL * (math.sqrt(shape) + math.log(ranks * GRID)) - lowest
    edges = np.linspace(0.0, 1.0, GRID + 1)
    # squares put points close together near zero, where small shapes have their mass
    points = lowest + span * ((edges[:-1] + edges[1:]) / 2) ** 2
    beyond = 1.0 - special.gammainc(shape, points) ** ranks
    largest = lowest + float(np.sum(beyond * span * np.diff(edges**2)))
    return min(float(ranks), float(round_bits(np.array([largest / shape]))[0]))


def dropped_share(experts: int, variation: float, capacity: float) -> float:
    """Share of tokens beyond what each expert takes: `capacity` times the mean load.

    A load X has a beta distribution; E[(X - c)+] = E[X; X > c] - c P(X > c).
    """
    if variation < LEAST_VARIATION or capacity >= experts:
        return max(0.0, 1.0 - capacity)
    from scipy import special  # rarely needed

    a = concentration(experts, variation)
    rest = a * (experts - 1)
    limit = capacity / experts
    load_beyond = 1.0 - special.betainc(a + 1, rest, limit)
    return float(load_beyond - capacity * (1.0 - special.betainc(a, rest, limit)))


def distinct_domains(
    experts: int, top_k: int, domains: int, groups: int = 1, top_groups: int = 1
) -> float:
    """Expected number of domains (nodes, ranks) that a token's experts stand in.

    A token takes `top_k` of the experts of `top_groups` of `groups`, each choice as likely; domains
    hold as many experts each, of whole groups or within one.
    """
    each, size = experts // domains, experts // groups
    pool = top_groups * size

    def missed(absent: int) -> float:
        """Chance that no expert is among so many of the pool."""
        return math.comb(pool - absent, top_k) / math.comb(pool, top_k)

    if each <= size:
        return domains * top_groups / groups * (1.0 - missed(each))
    held = groups // domains
    selections = math.comb(groups, top_groups)
    touched = sum(
        math.comb(held, chosen)
        * math.comb(groups - held, top_groups - chosen)
        / selections
        * (1.0 - missed(chosen * size))
        for chosen in range(1, min(held, top_groups) + 1)
    )
    return domains * touched
