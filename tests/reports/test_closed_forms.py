"""Closed forms against the schedules' own counts, textbook formulas and bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfmodel.collectives import catalog
from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import InputError
from reports.oracle import closed_forms

ALL = [(op, name) for op, makers in catalog.ALGORITHMS.items() for name in makers]


def counts(op: str, name: str, fewest: int) -> list[int]:
    """Numbers of ranks that an algorithm allows."""
    tried = [*range(fewest, 18), 24, 31, 32]
    return [ranks for ranks in tried if catalog.allows(op, name, ranks) is None]


def test_every_form_is_of_an_algorithm_and_every_algorithm_has_one() -> None:
    named = [(op, name) for op, rows in closed_forms.FORMS.items() for name in rows]
    assert set(named) == set(ALL)


def _power(ranks: int) -> int:
    return 1 << (ranks.bit_length() - 1)


def _evenly(op: str, name: str, ranks: int) -> tuple[Schedule, int, dict[str, Any]]:
    """A schedule whose chunks divide evenly, its size, and what its closed form must know."""
    size = 4 * 64 * ranks * _power(ranks)
    own: dict[str, Any] = {}
    if name in {"tree", "chain", "switch", "nvls", "nvls_tree", "collnet", "collnet_direct"}:
        own = {"piece_bytes": size // (16 if name in {"tree", "chain", "switch"} else 4 * ranks)}
    told = dict(own)
    if name == "server" and ranks > 2:
        own, told = {"servers": (0, ranks - 1)}, {"servers": 2}
    return catalog.make(op, name, ranks, size, **own), size, told


@pytest.mark.parametrize(("op", "name"), ALL)
def test_steps_and_bytes_are_the_rounds_own(op: str, name: str) -> None:
    for ranks in counts(op, name, 1):
        schedule, size, own = _evenly(op, name, ranks)
        places, number = ranks + schedule.switches, 0
        sent, added = np.zeros(places), np.zeros(places)
        for part in schedule.rounds():
            number += 1
            sent += np.bincount(part.src, part.nbytes, places)
            added += np.bincount(part.dst, part.nbytes * part.reduce, places)
        form = closed_forms.form(op, name, ranks, size, **own)
        assert form.steps == number, ranks
        assert form.sent_bytes == pytest.approx(sent[:ranks].max()), ranks
        gamma = closed_forms.closed_form_s(
            op, name, ranks, size, alpha_s=0, beta_s_per_B=0, gamma_s_per_B=1, **own
        )
        assert gamma == pytest.approx(added[:ranks].max()), ranks


@pytest.mark.parametrize(("op", "name"), ALL)
def test_closed_form_is_the_phases_on_shared_ports(op: str, name: str) -> None:
    """Each repeat costs alpha and what the busiest port carries, in or out."""
    alpha, beta = 3e-6, 1e-9
    for ranks in counts(op, name, 2):
        schedule, size, own = _evenly(op, name, ranks)
        expected = 0.0
        for phase in schedule.phases:
            ends = (phase.src, phase.dst)
            ports = [np.bincount(each, phase.nbytes)[:ranks].max() for each in ends]
            expected += phase.repeat * (alpha + max(ports) * beta)
        actual = closed_forms.closed_form_s(
            op, name, ranks, size, alpha_s=alpha, beta_s_per_B=beta, **own
        )
        assert actual == pytest.approx(expected, rel=1e-12), ranks
        bound = closed_forms.lower_bound_s(op, name, ranks, size, alpha_s=alpha, beta_s_per_B=beta)
        assert 0 < bound <= actual * (1 + 1e-12), ranks


@pytest.mark.parametrize("ranks", [2, 4, 16, 64, 256])
def test_textbook_formulas_for_powers_of_two(ranks: int) -> None:
    """Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, sections 4 and 5."""
    log, share, size = math.log2(ranks), (ranks - 1) / ranks, 1 << 20
    a, b, c = 1e-6, 1e-10, 3e-11
    textbook = {
        ("all_reduce", "ring"): 2 * (ranks - 1) * a + share * size * (2 * b + c),
        ("all_reduce", "recursive_doubling"): log * (a + size * (b + c)),
        ("all_reduce", "halving_doubling"): 2 * log * a + share * size * (2 * b + c),
        ("all_reduce", "rabenseifner"): 2 * log * a + share * size * (2 * b + c),
        ("all_reduce", "binomial"): 2 * log * (a + size * b) + log * size * c,
        ("reduce_scatter", "ring"): (ranks - 1) * a + share * size * (b + c),
        ("reduce_scatter", "recursive_halving"): log * a + share * size * (b + c),
        ("all_gather", "ring"): (ranks - 1) * a + share * size * b,
        ("all_gather", "recursive_doubling"): log * a + share * size * b,
        ("all_gather", "bruck"): log * a + share * size * b,
        ("broadcast", "binomial"): log * (a + size * b),
        ("reduce", "binomial"): log * (a + size * (b + c)),
        ("all_to_all", "pairwise"): (ranks - 1) * (a + size / ranks * b),
        ("all_to_all", "bruck"): log * (a + size / 2 * b),
    }
    for (op, name), expected in textbook.items():
        actual = closed_forms.closed_form_s(
            op, name, ranks, size, alpha_s=a, beta_s_per_B=b, gamma_s_per_B=c
        )
        assert actual == pytest.approx(expected, rel=1e-12), (op, name)


def test_two_level_rings_cost_what_their_levels_cost() -> None:
    """2(g-1) + 2(k-1) steps; 2(g-1)/g S inside and 2(k-1)/k S/g across."""
    inside, across, size = 8, 4, 1 << 20
    expected = 2 * (inside - 1) / inside * size + 2 * (across - 1) / across * size / inside
    for name, own in (("hierarchical", {"group_size": 8}), ("torus", {"columns": 8})):
        assert closed_forms.form("all_reduce", name, 32, size, **own).steps == 2 * 7 + 2 * 3
        actual = closed_forms.form("all_reduce", name, 32, size, **own).sent_bytes
        assert actual == pytest.approx(expected)


def test_a_server_carries_all_workers_and_as_many_servers_as_ranks_a_ring() -> None:
    size = 1 << 20
    one = closed_forms.closed_form_s("all_reduce", "server", 8, size, alpha_s=0, beta_s_per_B=1)
    assert one == 2 * 7 * size
    every = closed_forms.closed_form_s(
        "all_reduce", "server", 8, size, alpha_s=0, beta_s_per_B=1, servers=8
    )
    assert every == closed_forms.closed_form_s(
        "all_reduce", "ring", 8, size, alpha_s=0, beta_s_per_B=1
    )


def test_rings_lose_to_doubling_in_latency_and_win_in_bytes_on_odd_ranks() -> None:
    small = {"alpha_s": 1e-5, "beta_s_per_B": 0.0}
    large = {"alpha_s": 0.0, "beta_s_per_B": 1e-9}
    for ranks in (7, 12, 100):
        ring, halving = (
            [
                closed_forms.closed_form_s("all_reduce", name, ranks, 1 << 20, **w)
                for w in (small, large)
            ]
            for name in ("ring", "halving_doubling")
        )
        assert halving[0] < ring[0]
        assert halving[1] > ring[1]


@pytest.mark.parametrize(("op", "name"), ALL)
def test_doubling_bandwidth_and_halving_latency_halves_the_time(op: str, name: str) -> None:
    ranks = 2 if op == "send" else 8
    once = closed_forms.closed_form_s(op, name, ranks, 12345, alpha_s=2e-6, beta_s_per_B=2e-9)
    twice = closed_forms.closed_form_s(op, name, ranks, 12345, alpha_s=1e-6, beta_s_per_B=1e-9)
    assert once == 2 * twice


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'ring'"):
        closed_forms.form("all_reduce", "rign", 4, 16)
