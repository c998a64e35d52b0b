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
from perfmodel.training import parallel_layout
from perfmodel.training.pipeline.stage_workload import ModelPart
from perfmodel.training.plan.step_plan import Compute

PIPELINE = """# how long?
perfmodel: 1
model: {name: gpt3-1.3b, sequence_length: 512}
compute: {precision: bf16, recompute: RECOMPUTE}
strategy: %s
parallel:
  {tensor: 2, vocabulary_multiple: 128, pipeline: {stages: 4, schedule: interleaved, chunks: 3}}
cluster: {node: dgx-a100, nodes: 2, fabric: rail-optimised}
training: {batch_per_gpu: 1}
"""

WHOLE_PARAMETERS = "reshard_after_forward: false, reshard_after_backward: false"


def sized(tmp_path: Path, strategy: str, recompute: str = "selective") -> SizedJob:
    path = tmp_path / "pipeline.yaml"
    path.write_text((PIPELINE % strategy).replace("RECOMPUTE", recompute))
    resolved = resolve_scenario(load_scenario(str(path)), None, None)
    return size_job(resolved, resolved.sizes[-1])


@pytest.mark.slow
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

    original = parallel_layout._likeness
    monkeypatch.setattr(parallel_layout, "_likeness", noted)
    shared = sized(tmp_path, strategy).plan_for(None)
    assert len({original(part) for part in made}) == 3 < len(made) == 12
    monkeypatch.setattr(parallel_layout, "_likeness", lambda _: next(numbers))
    assert sized(tmp_path, strategy).plan_for(None) == shared


def test_the_first_blocks_of_each_part_are_recomputed(tmp_path: Path) -> None:
    """As memory counts them: of two blocks of each part one runs forward in backward again."""
    strategy = "{kind: megatron, accumulate: 4}"

    def backward_s(recompute: str) -> dict[str, float]:
        total_s: dict[str, float] = {}
        for task in sized(tmp_path, strategy, recompute).plan_for(None).tasks:
            if task.kind == "backward" and isinstance(task.work, Compute):
                before_s = total_s.get(task.rank_class, 0.0)
                total_s[task.rank_class] = before_s + task.work.duration_s
        return total_s

    none_s, one_s, all_s = map(backward_s, ("none", "{blocks: 1}", "full"))
    assert all_s == pytest.approx(backward_s("{blocks: 2}"), rel=1e-12)
    for stage, plain_s in none_s.items():
        assert one_s[stage] - plain_s == pytest.approx((all_s[stage] - plain_s) / 2, rel=1e-9)
        assert one_s[stage] > plain_s * 1.1


def test_parts_that_differ_in_times_are_planned_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[ModelPart] = []
    original = parallel_layout._likeness
    monkeypatch.setattr(
        parallel_layout, "_likeness", lambda part: (parts.append(part), original(part))[1]
    )
    sized(tmp_path, "{kind: megatron, accumulate: 4}").plan_for(None)
    part = parts[1]
    slower = replace(part.times, backward_s=part.times.backward_s * (1 + 1e-12))
    assert original(replace(part, times=slower)) != original(part) == original(parts[2])
