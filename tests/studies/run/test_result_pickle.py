"""Results can be sent to another process or kept in a file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import perfmodel
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.report.run.text import to_json
from perfmodel.report.tuning_text import tuned_json
from perfmodel.simulate.engine.engine import simulate
from perfmodel.studies.compare import compare
from perfmodel.studies.comparison import to_json as compared_json
from perfmodel.studies.run.collective import collective_rows
from perfmodel.studies.sweep import run_sweep, variants
from perfmodel.studies.tune.run import tune_scenario
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    RankClass,
    StepPlan,
    Stream,
    Task,
)


def scenario(*overrides: str) -> Any:
    return perfmodel.load_scenario("resnet50-dgx-a100", ["scale.gpus=[1]", *overrides])


def simulated() -> Any:
    """Of one all-reduce."""
    work = Collective("all_reduce", 1 << 20, "dp", "bucket")
    plan = StepPlan(
        "step",
        (RankClass("all", range(8)),),
        (Stream("comm", "comm"),),
        (Communicator("dp", (range(8),)),),
        (Task("a", "communication", "all", "comm", work, ()),),
        8,
    )
    return simulate(plan, make_machine(build_topology("dgx-a100"), load_library("nccl")))


RESULTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "run": (lambda: perfmodel.run(scenario()), to_json),
    "simulation": (
        simulated,
        lambda run: (run.step_times_s, run.timeline, run.counted.wire_bytes.tolist()),
    ),
    "tune": (lambda: tune_scenario(scenario("cluster.nodes=1")), tuned_json),
    "compare": (
        lambda: compare({"a": scenario(), "b": scenario("training.batch_per_gpu=8")}),
        compared_json,
    ),
    "sweep": (
        lambda: run_sweep(
            variants(scenario("sweep={grid: {training.batch_per_gpu: [8, 16]}}")), jobs=1
        ),
        lambda swept: (swept.variants, swept.answers, swept.fields),
    ),
    "collective": (
        lambda: collective_rows(build_topology("dgx-a100"), sizes=[1024]),
        lambda rows: rows,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_is_the_same_after_pickling(kind: str) -> None:
    make, shown = RESULTS[kind]
    result = make()
    assert shown(pickle.loads(pickle.dumps(result))) == shown(result)


def test_a_topology_is_the_same_after_pickling() -> None:
    topology = build_topology("dgx-a100", hosts=2, fabric="one-switch")
    back = pickle.loads(pickle.dumps(topology))
    assert back.ranks == topology.ranks
    assert back.arcs.names == topology.arcs.names
