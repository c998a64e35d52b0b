"""A spot offer: nodes come and go, the job restarts with those that are there."""

from __future__ import annotations

import heapq
import math
import random
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import CandidateSection, FailureSection, TargetSection, load_scenario
from perfmodel.studies.plan.model import Step, Upkeep
from perfmodel.studies.plan.time_to_train import (
    compute_cost,
    expected_wall_s,
    simulate_walls,
    summarise,
    train,
    upkeep_of,
)

HOUR_S, DAY_S = 3600.0, 86400.0
FAILURES = FailureSection(mtbf_per_node="264 d", checkpoint_write="30 s", restart="5 min")
OFFERS = [(16, "2 d", "6 h"), (16, "12 h", "1 h"), (8, "1 d", "12 h"), (4, "6 h", "2 h")]


def rented(every: str, back: str) -> CandidateSection:
    spot = {"interrupted_every": every, "back_after": back}
    return CandidateSection.model_validate(
        {"name": "a", "node": "n", "nodes": [1], "price_per_gpu_hour": "1 USD/h", "spot": spot}
    )


def upkeep(nodes: int, every: str, back: str) -> Upkeep:
    return upkeep_of(FAILURES, rented(every, back), nodes, 1.0, 0.0)


def walk(work_s: float, kept: Upkeep, seed: int) -> float:
    """One training, node by node: each has a clock of its own for leaving and coming back."""
    offer, draw = kept.capacity, random.Random(seed)
    assert offer is not None
    there = set(range(offer.nodes))
    events = [(draw.expovariate(1 / offer.stays_s), node, "turn") for node in there]
    events += [(draw.expovariate(1 / offer.mtbf_s), node, "fail") for node in there]
    heapq.heapify(events)
    now_s, saved_s, restart_s = 0.0, 0.0, 0.0
    while True:
        at_s, node, what = heapq.heappop(events)
        if what == "fail":
            heapq.heappush(events, (at_s + draw.expovariate(1 / offer.mtbf_s), node, "fail"))
            if node not in there:
                continue
        speed = len(there) / offer.nodes
        now_s += restart_s
        while speed and saved_s < work_s:  # to the next checkpoint, and the next
            part_s = min(kept.interval_s, (work_s - saved_s) / speed)
            if now_s + part_s + kept.write_s > at_s:
                break
            now_s, saved_s = now_s + part_s + kept.write_s, saved_s + part_s * speed
            if work_s - saved_s < 1e-6:
                return now_s
        now_s, restart_s = at_s, kept.restart_s
        if what == "turn":
            there ^= {node}
            mean_s = offer.stays_s if node in there else offer.away_s
            heapq.heappush(events, (at_s + draw.expovariate(1 / mean_s), node, "turn"))


@pytest.mark.parametrize("offer", OFFERS)
def test_the_formula_and_simulated_trainings_agree(offer: tuple[int, str, str]) -> None:
    kept, work_s = upkeep(*offer), 60 * DAY_S
    found = summarise(*simulate_walls(work_s, kept, runs=200, seed=1))
    assert expected_wall_s(work_s / kept.share, kept) == pytest.approx(found.mean_s, rel=0.02)


@pytest.mark.parametrize("offer", OFFERS[:3])
def test_trainings_are_those_of_nodes_with_clocks_of_their_own(offer: tuple[int, str, str]) -> None:
    kept, work_s = upkeep(*offer), 10 * DAY_S
    walked = [walk(work_s, kept, seed) for seed in range(60)]
    found = summarise(*simulate_walls(work_s, kept, runs=400, seed=1))
    error_s = math.hypot(np.std(walked) / math.sqrt(60), found.error_s)
    assert abs(np.mean(walked) - found.mean_s) < 4 * error_s
    assert error_s < 0.02 * found.mean_s


def test_an_offer_that_hardly_changes_is_none() -> None:
    calm = upkeep(8, "36000 d", "1 s")
    plain = upkeep_of(FAILURES, CandidateSection(name="a", node="n", nodes=[1]), 8, 1.0, 0.0)
    assert calm.share == pytest.approx(1)
    assert calm.mtbf_s == pytest.approx(plain.mtbf_s, rel=0.02)


def test_nodes_that_are_there_are_paid_for() -> None:
    candidate = rented("18 h", "6 h")
    kept = upkeep_of(FAILURES, candidate, 4, 1.0, 0.0)
    step = Step(1.0, None, 100.0, 100, 0.0, "compute", 1e9, True)
    training = train(step, TargetSection(samples=1e8), 1e8, kept)
    assert not isinstance(training, str)
    bill = compute_cost(candidate, training, nodes=4, gpus_per_node=8, gpu_W=None)
    assert bill.machines == pytest.approx(0.75 * 32 * training.wall_s / HOUR_S)
    assert training.goodput < 0.75


def test_it_needs_checkpoints(tmp_path: Path) -> None:
    text = """\
# Is it worth it?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16, optimizer: sgd-momentum}
cluster: {node: dgx-a100}
training: {batch_per_gpu: 8}
plan:
  target: {samples: 1e6}
  candidates:
    - {name: a, node: dgx-a100, nodes: [1], spot: {interrupted_every: 1 d, back_after: 1 h}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=r"spot: found no 'failures'; allowed: 'failures' beside"):
        load_scenario(tmp_path / "mine.yaml")
