"""Options made by hand, and a plan file that is quick to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.scenario import Scenario, load_scenario, scenario_digest
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.plan.model import Cost, PlanOption, PlanResult, Step, Training
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.sweep import store

PLAN = """\
# Which of these should train it?
perfmodel: 1
model: {name: bert-base, sequence_length: 128}
compute: {precision: fp16, optimizer: adamw, optimizer_kernels: fused, cuda_graphs: true}
cluster: {node: dgx-a100}
training: {batch_per_gpu: 8}
plan:
  target: {samples: 40e6}
  deadline: 5 h
  budget: 100 USD
  failures: {mtbf_per_node: 10 d, storage_bandwidth: 1 GB/s, restart: 10 min, runs: 50}
  candidates:
    - name: rented
      node: dgx-a100
      fabric: rail-optimised
      nodes: [1, 2]
      price_per_gpu_hour: 2.00 USD/h
    - name: bought
      node: v100-x8-25g
      fabric: leaf-spine
      nodes: [1, 2]
      purchase: {price_per_node: 100_000 USD, years: 4, utilisation: 0.5}
      power: {factor: 1.5, pue: 1.2, energy_price: 0.20 USD/kWh}
    - {name: typo, node: dgx-a10, nodes: [1]}
    - {name: full, node: dgx-a100, nodes: [1], set: {training.batch_per_gpu: 100000}}
  upgrades:
    - name: faster
      set: {what_if.network_bandwidth: 4}
      candidates: [bought]
      price_per_node: 500 USD
"""
"""Two candidates that work, one that is not found and one that does not fit."""


SIMULATED: dict[tuple[str, str], Result] = {}
"""By scenario and options: plans differ in what they make of steps more than in the steps."""


def run_once(scenario: Scenario, **options: Any) -> Result:
    """Answer a scenario, from memory if a plan before had the same step."""
    key = scenario_digest(scenario), repr(options)
    if key not in SIMULATED:
        SIMULATED[key] = run_scenario(scenario, **options)
    return SIMULATED[key]


@pytest.fixture(autouse=True)
def each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the steps of plans once in all tests of this folder."""
    monkeypatch.setattr(store, "run_scenario", run_once)


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, PlanResult]:
    """The plan file's scenario and its answer."""
    path = tmp_path_factory.mktemp("plan") / "mine.yaml"
    path.write_text(PLAN, encoding="utf-8")
    scenario = load_scenario(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "run_scenario", run_once)
        return scenario, plan_scenario(scenario, jobs=1)


@pytest.fixture
def option() -> Callable[..., PlanOption]:
    """Maker of options that run and fit."""

    def make(
        wall_s: float,
        cost: float | None = None,
        gpus: int = 8,
        *,
        name: str = "a",
        interval: tuple[float, float] | None = None,
    ) -> PlanOption:
        step = Step(1.0, None, 8.0, 8, 0.0, "compute", 1e9, True, 1.0, 0.5)
        training = Training(100.0, 10, wall_s, wall_s, interval, 1.0)
        ends = None
        if interval is not None and cost is not None:
            ends = cost * interval[0] / wall_s, cost * interval[1] / wall_s
        bill = Cost(cost, 0.0, ends, None, None, 1.0, 1e3)
        return PlanOption(name, "dgx-a100", "none", gpus // 8, gpus, "ok", "", step, training, bill)

    return make


@pytest.fixture
def plan_file(tmp_path) -> Callable[..., str]:
    """Writer of a plan file, by default a sound one."""

    def write(text: str = PLAN, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write
