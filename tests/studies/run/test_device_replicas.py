"""Scenarios whose replicas are modules on several GPUs of one process, under DDP."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run.resolve.memory_estimate import estimate_memory
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.resolve.training_job import assign_buckets
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.testing.check_plan import check_plan

TEXT = """# How long?
perfmodel: 1
model: {name: llama3-8b, dtype: bf16, sequence_length: 512}
cluster: {node: dgx-a100, nodes: 2, fabric: rail-optimised}
training: {batch_per_gpu: 1}
compute: {precision: bf16}
strategy: {kind: ddp, accumulate: 2}
parallel: {pipeline: {stages: 4, schedule: sequential}}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = Path(tmp_path_factory.mktemp("replicas")) / "replicas.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_scenario(str(path))


def sized(scenario: Scenario) -> SizedJob:
    inputs = resolve_scenario(scenario, None, None)
    return size_job(inputs, inputs.sizes[-1])


def test_gpus_of_a_process_are_neighbours_and_replicas_reduce_gpu_by_gpu(
    scenario: Scenario,
) -> None:
    job = sized(scenario)
    plan = job.plan_for(None)
    check_plan(plan)
    assert {tuple(each.ranks) for each in plan.classes} == {
        tuple(range(gpu, 16, 4)) for gpu in range(4)
    }
    reducing = [each for each in plan.communicators if each.name.startswith("data parallel")]
    assert {each.groups for each in reducing} == {(tuple(range(gpu, 16, 4)),) for gpu in range(4)}
    assert plan.samples == 16 // 4 * 2
    buckets = assign_buckets(job.job)
    second = [
        job.job.workload.tensors[tensor].name
        for bucket in buckets
        if bucket.device == 1
        for tensor in bucket.tensors
    ]
    assert {name.split(".")[2] for name in second} == {str(block) for block in range(8, 16)}
    memory = estimate_memory(job.job, 16, 1)
    whole = 8.03e9 * 2
    assert len(memory.stages_bytes) == 4
    assert memory.parameters_bytes < whole / 3  # the fullest GPU has embedding or head


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"strategy": {"kind": "fsdp"}}, "parallel.pipeline.schedule"),
        ({"parallel.tensor": 2}, "parallel"),
        ({"parallel.order": "pp-tp-cp-ep-dp"}, "parallel"),
        ({"parallel.pipeline.overlap_p2p": True}, "parallel.pipeline"),
    ],
)
def test_what_no_such_module_has_is_refused(
    scenario: Scenario, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(InputError) as caught:
        change_scenario(scenario, changes)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_one_process_drives_gpus_of_one_node(scenario: Scenario) -> None:
    across = {"cluster.gpus_per_node": 6, "cluster.nodes": 2}
    with pytest.raises(InputError) as caught:
        sized(change_scenario(scenario, across))
    assert [fault.field for fault in caught.value.faults] == ["parallel.pipeline.stages"]
