"""Parts of a pipeline that differ in names only: one plan of theirs is the plan of each."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.scenario.load import load_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.training.parallel import alike_parts
from perfmodel.training.pipeline.stage_workload import ModelPart

PIPELINE = """# how long?
perfmodel: 1
model: {name: gpt3-1.3b, sequence_length: 512}
compute: {precision: bf16, recompute: selective}
strategy: %s
parallel:
  {tensor: 2, vocabulary_multiple: 128, pipeline: {stages: 4, schedule: interleaved, chunks: 3}}
cluster: {node: dgx-a100, nodes: 2, fabric: rail-optimised}
training: {batch_per_gpu: 1}
"""

WHOLE_PARAMETERS = "reshard_after_forward: false, reshard_after_backward: false"


def sized(tmp_path: Path, strategy: str) -> SizedJob:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE % strategy)
    resolved = resolve_scenario(load_scenario(str(path)), None, None)
    return size_job(resolved, resolved.sizes[-1])


@pytest.mark.parametrize(
    "strategy",
    [
        "{kind: megatron, accumulate: 4, use_distributed_optimizer: true}",
        "{kind: ddp, accumulate: 4}",
        f"{{kind: fsdp, accumulate: 4, sync: last, {WHOLE_PARAMETERS}}}",
    ],
)
def test_alike_parts_have_the_plans_made_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    made: list[ModelPart] = []
    numbers = itertools.count()

    def noted(part: ModelPart) -> Hashable:
        made.append(part)
        return original(part)

    original = alike_parts._likeness
    monkeypatch.setattr(alike_parts, "_likeness", noted)
    shared = sized(tmp_path, strategy).plan_for(None)
    assert len({original(part) for part in made}) == 3 < len(made) == 12
    monkeypatch.setattr(alike_parts, "_likeness", lambda _: next(numbers))
    assert sized(tmp_path, strategy).plan_for(None) == shared


def test_parts_that_differ_in_times_are_planned_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[ModelPart] = []
    original = alike_parts._likeness
    monkeypatch.setattr(
        alike_parts, "_likeness", lambda part: (parts.append(part), original(part))[1]
    )
    sized(tmp_path, "{kind: megatron, accumulate: 4}").plan_for(None)
    part = parts[1]
    slower = replace(part.times, backward_s=part.times.backward_s * (1 + 1e-12))
    assert original(replace(part, times=slower)) != original(part) == original(parts[2])
