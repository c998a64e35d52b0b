"""The batch per GPU of each candidate is searched: none is judged by the batch of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.plan.candidates import (
    BATCH,
    PredictedStep,
    StepRequest,
    search_batches,
)
from perfmodel.studies.plan.model import Step

OVERHEAD_S = 0.1
SAMPLE_S = 0.01


def pretend(
    scenario: Scenario, room: dict[str, int]
) -> Callable[[Sequence[StepRequest]], list[PredictedStep]]:
    """Steps of a fixed overhead and a time per sample, on GPUs with room for so many samples."""

    def predict(requests: Sequence[StepRequest]) -> list[PredictedStep]:
        steps = []
        for request in requests:
            batch = request.changes.get(BATCH, scenario.training.batch_per_gpu)
            time_s, all_ = OVERHEAD_S + batch * SAMPLE_S, 8 * batch
            fits = batch <= room[request.candidate.name]
            step = Step(time_s, None, all_ / time_s, all_, 0.0, "compute", 1e9, fits)
            steps.append(PredictedStep(request, scenario, step))
        return steps

    return predict


def chosen(plan_file: Any, text: str, room: dict[str, int]) -> dict[str, Any]:
    scenario = load_scenario(plan_file(text))
    assert scenario.plan is not None
    found = search_batches(scenario, scenario.plan, pretend(scenario, room))
    return {c.name: (c.set or {}).get(BATCH) for c in found.candidates}


BASE = """\
# Which is it?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16, optimizer: sgd-momentum}
cluster: {node: dgx-a100}
training: {batch_per_gpu: 8}
plan:
  target: {samples: 1e6}
  search_batch: true
  candidates:
    - {name: small, node: dgx-a100, nodes: [1]}
    - {name: large, node: dgx-h100, nodes: [1], set: {training.batch_per_gpu: 2}}
    - {name: full, node: dgx-a100, nodes: [1]}
"""
ROOM = {"small": 13, "large": 100, "full": 4}


def test_the_largest_that_fits_and_is_quicker(plan_file: Any) -> None:
    assert chosen(plan_file, BASE, ROOM) == {"small": 12, "large": 96, "full": None}


def test_a_batch_that_needs_more_samples_is_not_chosen(plan_file: Any) -> None:
    text = BASE.replace("1e6}", "1e6, critical_batch: 128}")
    # samples to the target over time are b / (0.1 + 0.01 b) / (1 + 8 b / 128): most at 12.6
    assert chosen(plan_file, text, ROOM | {"small": 100})["small"] in {8, 12, 16}


def test_a_global_batch_is_nobodys_to_choose(plan_file: Any) -> None:
    text = BASE.replace("batch_per_gpu: 8}", "global_batch: 64}").replace(
        ", set: {training.batch_per_gpu: 2}", ""
    )
    with pytest.raises(InputError, match=r"search_batch: found true; allowed: training\.batch"):
        chosen(plan_file, text, ROOM)


@pytest.mark.slow
def test_the_plan_is_that_of_the_batch_it_names(plan_file: Any) -> None:
    kept = [line for line in BASE.splitlines() if "full" not in line]
    text = "\n".join(kept).replace("batch_per_gpu: 8}", "batch_per_gpu: 256}")
    plan = plan_scenario(load_scenario(plan_file(text)), jobs=1)
    said = next(line for line in plan.assumptions if line.startswith("small: the batch per GPU"))
    batch = int(said.split("is ")[1].split(",")[0])
    stated = text.replace("  search_batch: true\n", "").replace(
        "nodes: [1]}", f"nodes: [1], set: {{training.batch_per_gpu: {batch}}}}}"
    )
    again = plan_scenario(load_scenario(plan_file(stated)), jobs=1)
    first, same = plan.options[0], again.options[0]
    assert batch > 256
    assert first.step is not None
    assert first.step.global_batch == 8 * batch
    assert first.wall_s == pytest.approx(same.wall_s)
