"""The routing of the fabric is named where its collisions cost more than a tenth."""

from __future__ import annotations

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.prepared import prepare
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.routing_cost import MUCH

FABRICS = [
    ("resnet50-dgx-a100", "{kind: rail-optimised}"),
    ("resnet50-dgx-a100", "{kind: leaf-spine}"),
    ("resnet50-dgx-a100", "{kind: leaf-spine, routing: adaptive}"),
    ("resnet50-dgx-a100", "{kind: fat-tree}"),
    ("bert-large-v100-100g", "{kind: leaf-spine, oversubscription: 2}"),
    ("bert-large-v100-100g", "{kind: one-switch}"),
    ("bert-large-v100-100g", "{kind: leaf-spine, routing: rail}"),
]


def all_reduce_s(name: str, fabric: str, nbytes: int) -> float:
    prepared = prepare(load_scenario(name, ("scale=null", f"cluster.fabric={fabric}")))
    timer = UncontendedTimer(prepared.machine)
    return timer.best("all_reduce", nbytes, prepared.sized.allocation.own)[1]


@pytest.mark.parametrize(("name", "fabric"), FABRICS)
def test_the_routing_is_named_where_it_matters(name: str, fabric: str) -> None:
    scenario = load_scenario(name, ("scale=null", f"cluster.fabric={fabric}"))
    result = run_scenario(scenario, with_first=False)
    largest = max(bucket.nbytes for bucket in result.main.buckets)
    adaptive = f"{fabric[:-1]}, routing: adaptive}}"
    ratio = 1.0
    if "routing" not in fabric and "one-switch" not in fabric:  # with one there is no choice
        ratio = all_reduce_s(name, fabric, largest) / all_reduce_s(name, adaptive, largest)
    (note,) = [line for line in result.assumptions if "ECMP" in line] or [""]
    assert bool(note) == (ratio > MUCH)
    assert result.routing_cost == pytest.approx(ratio, rel=0.05)  # of ways that are drawn
    if note:
        assert f"takes {result.routing_cost:.2g} times as long" in note
