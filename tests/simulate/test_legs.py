"""Algorithms of several stages on a mesh of links of any speed, a link to each ordered pair.

No two edges share a link, so that both fidelities must agree: ranks pass from stage to stage one by
one, and wait for what data they add to.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))

from oracle.machines import drawn, with_credits
from oracle.scenes import Launch, Scene, collective, play

from perfmodel.library.machine import Machine

MOST = 10
RANKS = {
    ("all_reduce", "hierarchical"): (4, 8),
    ("all_reduce", "torus"): (4, 8, 9),
    ("all_reduce", "halving_doubling"): range(2, MOST),
    ("all_reduce", "recursive_doubling"): range(2, MOST),
    ("all_reduce", "rabenseifner"): (2, 4, 8),
    ("all_reduce", "binomial"): range(2, MOST),
    ("reduce_scatter", "recursive_halving"): range(2, MOST),
    ("all_gather", "recursive_doubling"): (2, 4, 8),
    ("all_gather", "bruck"): range(2, MOST),
    ("all_to_all", "pairwise"): range(2, MOST),
    ("all_to_all", "bruck"): range(2, MOST),
    ("broadcast", "binomial"): range(2, MOST),
    ("reduce", "binomial"): range(2, MOST),
}


def mesh(ranks: int, credits: int, rng: np.random.Generator) -> Machine:
    links = [
        (f"n0/gpu{a}", f"n0/gpu{b}", float(rng.uniform(1e9, 9e10)), float(rng.uniform(0, 1e-5)))
        for a, b in itertools.permutations(range(ranks), 2)
    ]
    return Machine(drawn(links), with_credits(credits))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("op", "algorithm"), RANKS)
def test_flow_equals_message(op: str, algorithm: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for ranks in RANKS[op, algorithm]:
        machine = mesh(ranks, int(rng.choice([1, 2, 4])), rng)
        way = collective(
            machine, op, 32 * ranks * int(rng.integers(1, 50_000)), range(ranks), algorithm
        )
        scene = Scene("mesh", "mesh", machine, (Launch(0.0, way, op, ranks),))
        flow, message = (play(fidelity, scene)[0] for fidelity in ("flow", "message"))
        assert flow == pytest.approx(message, rel=1e-9), ranks


def test_a_fold_that_swaps_halves_is_never_too_quick() -> None:
    """Rabenseifner, no power of two: a rank waits for both halves of what it was sent, not one."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ranks = int(rng.choice([3, 5, 6, 7, 9]))
        machine = mesh(ranks, 2, rng)
        way = collective(machine, "all_reduce", 32 * ranks * 9999, range(ranks), "rabenseifner")
        scene = Scene("mesh", "mesh", machine, (Launch(0.0, way, "all_reduce", ranks),))
        flow, message = (play(fidelity, scene)[0] for fidelity in ("flow", "message"))
        assert message * (1 - 1e-9) <= flow <= message * 1.2


def test_legs_of_as_many_edges_as_they_have_after_rates_changed() -> None:
    """A second reduction changes rates in the first leg, whose four edges end before two begin."""
    machine = mesh(8, 2, np.random.default_rng(5))
    way = collective(machine, "reduce", 8 * 4_000_000, range(8), "binomial")
    alone = play("flow", Scene("mesh", "mesh", machine, (Launch(0.0, way, "reduce", 8),)))[0]
    launches = tuple(Launch(begin, way, "reduce", 8) for begin in (0.0, alone / 8))
    scene = Scene("mesh", "mesh", machine, launches)
    flow, message = (play(fidelity, scene) for fidelity in ("flow", "message"))
    assert alone < flow[0] <= flow[1]
    assert flow == pytest.approx(message, rel=0.15)
