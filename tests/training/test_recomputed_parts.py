"""Parts of a pipeline, some of whose blocks are recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.scenario.load import load_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
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


def sized(tmp_path: Path, strategy: str, recompute: str = "selective") -> SizedJob:
    path = tmp_path / "pipeline.yaml"
    path.write_text((PIPELINE % strategy).replace("RECOMPUTE", recompute))
    resolved = resolve_scenario(load_scenario(str(path)), None, None)
    return size_job(resolved, resolved.sizes[-1])


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
