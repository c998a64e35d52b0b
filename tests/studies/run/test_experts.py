"""Experts of a scenario: settings reach the rank's share, faults name file, line and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import ClusterSize, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.resolve.training_job import expert_ranks_per_node
from perfmodel.workload import Workload

TEXT = """# How long is a step?
perfmodel: 1
model: {{name: deepseek-v2-lite, dtype: bf16, sequence_length: 512, experts: {{{experts}}}}}
compute: {{precision: bf16, optimizer: adamw}}
strategy: {{kind: megatron}}
parallel: {{expert: {expert}}}
cluster: {{node: dgx-h100, nodes: 4, fabric: rail-optimised}}
training: {{batch_per_gpu: 1}}
"""


def share(folder: Path, experts: str, expert: int) -> Workload:
    path = folder / "experts.yaml"
    path.write_text(TEXT.format(experts=experts, expert=expert), encoding="utf-8")
    return resolve_scenario(load_scenario(str(path)), None, None).share


def sent(workload: Workload) -> list[Any]:
    return [
        call
        for layer in workload.layers
        for call in layer.calls
        if call.op == "all_to_all" and call.dtype in {None, "fp8"}
    ]


def test_settings_reach_the_share_of_a_rank(tmp_path: Path) -> None:
    plain = sent(share(tmp_path, "", 16))
    fp8 = sent(share(tmp_path, "dispatch_dtype: fp8, imbalance: 0.5", 16))
    assert [call.dtype for call in plain[:4]] == [None] * 4
    assert [call.dtype for call in fp8[:4]] == ["fp8", None, None, "fp8"]
    assert fp8[1].elements > 1.1 * plain[1].elements


def test_tokens_travel_beside_the_products_of_another_micro_batch(tmp_path: Path) -> None:
    """What products hide is not waited for: no quicker than them, no slower than without."""
    times_s = []
    for overlap in ("false", "true"):
        path = tmp_path / "experts.yaml"
        text = TEXT.format(experts=f"overlap: {overlap}", expert=16)
        path.write_text(text.replace("batch_per_gpu: 1", "batch_per_gpu: 16"), encoding="utf-8")
        result = run_scenario(load_scenario(str(path))).main
        times_s.append((result.step_time_s, result.compute_s))
    (exposed_s, alone_s), (hidden_s, _) = times_s
    assert alone_s < hidden_s < exposed_s
    assert {call.overlap for call in sent(share(tmp_path, "overlap: true", 16))} == {1.0}


def test_tokens_go_once_to_each_node_of_the_cluster(tmp_path: Path) -> None:
    """6 of 64 experts on 16 GPUs of two nodes: 2 (1 - C(32, 6) / C(64, 6)) nodes."""
    calls = sent(share(tmp_path, "dispatcher: deduplicated", 16))
    missed = 32 * 31 * 30 * 29 * 28 * 27 / (64 * 63 * 62 * 61 * 60 * 59)
    assert calls[0].elements == pytest.approx(512 * 2048 * 2 * (1 - missed))


def test_ranks_of_a_tensor_group_hold_different_experts(tmp_path: Path) -> None:
    """Experts in groups of their own, as Megatron-Core has them: 32 GPUs on end, of 4 nodes.

    With 2 GPUs that share matrices and whole experts, these are more than the 16 replicas.
    """
    path = tmp_path / "experts.yaml"
    text = TEXT.format(experts="dispatcher: deduplicated", expert=32)
    text = text.replace("expert: 32", "expert: 32, tensor: 2, sequence_parallel: true")
    path.write_text(text, encoding="utf-8")
    calls = [
        call
        for layer in resolve_scenario(load_scenario(str(path)), None, None).share.layers
        for call in layer.calls
        if call.group.startswith("expert_") and call.op == "all_to_all"
    ]
    assert [(call.group, call.ranks) for call in calls[:2]] == [
        ("expert_rail", 4),
        ("expert_node", 8),
    ]


@pytest.mark.slow
def test_both_legs_are_one_dimension(tmp_path: Path) -> None:
    """16 GPUs of two nodes: each token once to each node over InfiniBand, then over NVLink."""
    path = tmp_path / "experts.yaml"
    text = TEXT.format(experts="dispatcher: deduplicated", expert=16)
    path.write_text(text, encoding="utf-8")
    parallelism = run_scenario(load_scenario(str(path))).main.parallel_layout
    assert parallelism is not None
    (experts,) = [use for use in parallelism.dimensions if use.dimension == "expert"]
    assert experts.ranks == 16
    assert {"nvlink", "infiniband"} <= set(experts.links)


def test_a_scenario_states_buffers_and_fused_kernels(tmp_path: Path) -> None:
    """Buffers of four times what arrives take longer, kernels fused with the activation less."""
    path = tmp_path / "experts.yaml"
    step_s = []
    for experts in ("", "buffer_factor: 4", "implementation: fused"):
        text = TEXT.format(experts=experts, expert=16)
        path.write_text(text.replace("dgx-h100", "hgx-b200"), encoding="utf-8")
        changes = ["compute={precision: fp8, fp8: {recipe: mxfp8}, cuda_graphs: true}"]
        step_s.append(run_scenario(load_scenario(str(path), changes)).main.step_time_s)
    plain_s, filled_s, fused_s = step_s
    assert fused_s < plain_s < filled_s


@pytest.mark.parametrize(
    ("experts", "expert", "field", "allowed"),
    [
        ("", 3, "parallel.expert", "64 experts"),
        ("imbalance: 0.5", 1, "model.experts.imbalance", "expert: 1"),
        ("overlap: true", 1, "model.experts.overlap", "expert: 1"),
        ("buffer_factor: 8", 1, "model.experts.buffer_factor", "expert: 1"),
        ("buffer_factor: 0.5", 2, "model.experts.buffer_factor", "greater than or equal to 1"),
        ("imbalance: 9", 16, "model.experts.imbalance", "0 to below 7.94"),
        ("pad_to_capacity: true", 2, "model.experts.pad_to_capacity", "a capacity"),
        ("tensor: 2", 2, "model.experts.tensor", "1"),
        ("capacity: -1", 2, "model.experts.capacity", "greater than 0"),
    ],
)
def test_faults_name_field_and_what_is_allowed(
    tmp_path: Path, experts: str, expert: int, field: str, allowed: str
) -> None:
    with pytest.raises(InputError) as raised:
        share(tmp_path, experts, expert)
    assert field in str(raised.value)
    assert allowed in str(raised.value)
    assert "experts.yaml:" in str(raised.value)


def test_parts_of_experts_are_in_the_words_of_the_scenario(tmp_path: Path) -> None:
    """A part for each of two GPUs where four share matrices: no plan is made of that."""
    path = tmp_path / "experts.yaml"
    text = TEXT.format(experts="tensor: 2", expert=2)
    path.write_text(
        text.replace("expert: 2}", "expert: 2, tensor: 4, sequence_parallel: true}"),
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=r"experts\.tensor: found 2; allowed: 1 or 4"):
        resolve_scenario(load_scenario(str(path)), None, None)


@pytest.mark.parametrize(("experts", "own"), [("tensor: 2", 4), ("tensor: 1", 8)])
def test_tokens_go_once_to_each_node_of_groups_of_parts(
    tmp_path: Path, experts: str, own: int
) -> None:
    """Of 16 GPUs of an expert group, every second GPU of a node of 8, or all of them."""
    path = tmp_path / "experts.yaml"
    text = TEXT.format(experts=f"dispatcher: deduplicated, {experts}", expert=16)
    text = text.replace("expert: 16}", "expert: 16, tensor: 2, sequence_parallel: true}")
    path.write_text(text, encoding="utf-8")
    scenario = load_scenario(str(path))
    assert expert_ranks_per_node(scenario, ClusterSize(32, 4, 8)) == own
    # of 8 GPUs, 4 that hold a part each do not divide into groups of 16
    assert expert_ranks_per_node(scenario, ClusterSize(16, 2, 8)) == (None if own == 4 else 8)
