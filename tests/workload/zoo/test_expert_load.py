"""Expected loads against draws, and against what counting says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.workload.zoo.decoder_sizes import RoutedShape
from perfmodel.workload.zoo.expert_settings import (
    ExpertSettings,
    busiest_load,
    concentration,
    distinct_domains,
    dropped_share,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experts", "ranks", "variation"),
    [(8, 8, 0.5), (64, 8, 1.0), (256, 64, 0.3), (8, 2, 2.0), (256, 32, 4.0)],
)
def test_loads_are_those_of_drawn_shares(experts: int, ranks: int, variation: float) -> None:
    draws = 20_000
    shares = np.random.default_rng(7).dirichlet(
        [concentration(experts, variation)] * experts, draws
    )
    loads = shares * experts
    assert loads.std() == pytest.approx(variation, rel=0.02)
    of_ranks = loads.reshape(draws, ranks, -1).mean(-1)
    assert busiest_load(experts, ranks, variation) == pytest.approx(
        of_ranks.max(1).mean(), rel=0.01
    )
    for capacity in (1.0, 1.25, 2.0):
        drawn = np.maximum(loads - capacity, 0).mean()
        assert dropped_share(experts, variation, capacity) == pytest.approx(drawn, abs=0.005)


def test_two_ranks_of_uniform_shares() -> None:
    """Dirichlet(1, 1) is uniform: its larger share is 3/4 on average, a load of 3/2."""
    variation = (1 / 3) ** 0.5
    assert concentration(2, variation) == pytest.approx(1.0)
    assert busiest_load(2, 2, variation) == pytest.approx(1.5, rel=1e-5)
    # above half of the mean: E[(2 U - 1/2)+] = 9/16
    assert dropped_share(2, variation, 0.5) == pytest.approx(9 / 16, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([8, 16, 64]), st.sampled_from([1, 2, 4, 8]), st.floats(0, 2.5))
def test_bounds_and_growth(experts: int, ranks: int, variation: float) -> None:
    load = busiest_load(experts, ranks, variation)
    assert 1 - 1e-6 <= load <= ranks
    assert busiest_load(experts, ranks, variation + 0.1) >= load * (1 - 1e-6)
    assert busiest_load(experts, 2 * ranks, variation) >= load * (1 - 1e-6)
    routed = RoutedShape(experts, 2, 4)
    for capacity in (0.5, 1.0, 1.5):
        kept = ExpertSettings(capacity=capacity, imbalance=variation).busiest(routed, ranks)
        assert kept <= min(load, capacity) + 1e-6
        assert kept >= 1 - dropped_share(experts, variation, capacity) - 1e-9


@pytest.mark.parametrize(
    ("experts", "top_k", "domains", "groups", "top_groups"),
    [(8, 2, 4, 1, 1), (12, 3, 2, 4, 2), (12, 2, 6, 3, 2), (12, 4, 4, 4, 2)],
)
def test_distinct_domains_are_those_counted(
    experts: int, top_k: int, domains: int, groups: int, top_groups: int
) -> None:
    """All choices of groups and of experts in them, one by one."""
    size, each = experts // groups, experts // domains
    counts = [
        len({expert // each for expert in chosen})
        for held in itertools.combinations(range(groups), top_groups)
        for chosen in itertools.combinations(
            [g * size + i for g in held for i in range(size)], top_k
        )
    ]
    mean = sum(counts) / len(counts)
    assert distinct_domains(experts, top_k, domains, groups, top_groups) == pytest.approx(mean)
