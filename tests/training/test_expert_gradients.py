"""Gradients of experts are averaged by those that hold the same ones, all others by everyone."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.megatron import megatron_memory, megatron_plan
from perfmodel.training.memory_use import Setup
from perfmodel.training.parallel_layout import ParallelLayout, mix_step, stage_memory
from perfmodel.training.plan.builder import EXPERT_COPIES, GROUP
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.expert_settings import ExpertSettings

REPLICAS, EXPERT = 16, 8


@pytest.fixture(scope="module")
def share() -> Workload:
    return load_workload(
        "mixtral-8x7b", dtype="bf16", sequence_length=512, shard=Shard(expert=EXPERT)
    )


def trained(share: Workload, *, of_experts: bool) -> int:
    tensors = (share.tensors[index] for index in share.ready_order)
    return sum(tensor.numel for tensor in tensors if tensor.of_experts == of_experts)


def request(share: Workload) -> StepRequest:
    layers = len(share.layers)
    none, nothing = np.zeros(layers), np.zeros(layers, dtype=np.int64)
    times = LayerTimes(
        none, none, nothing, nothing, 0.0, 0.0, 1, 1e12, "none", weight_gradient_s=none
    )
    return StepRequest(share, times, REPLICAS, 1, expert_copies=REPLICAS // EXPERT)


@pytest.mark.parametrize("splits", [False, True])
def test_bytes_by_communicator(share: Workload, splits: bool) -> None:
    """A reduction moves each gradient once, in bf16, but for padding; so does the gather."""
    options = MegatronStrategy(
        kind="megatron", use_distributed_optimizer=splits, overlap_grad_reduce=True
    )
    plan = megatron_plan(request(share), options)
    moved: dict[tuple[str, str], int] = {}
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        if work.nbytes > 64:
            key = work.communicator, work.op
            moved[key] = moved.get(key, 0) + work.nbytes
    ops = ["reduce_scatter", "all_gather"] if splits else ["all_reduce"]
    wanted = {
        (communicator, op): 2 * trained(share, of_experts=of_experts)
        for communicator, of_experts in ((GROUP, False), (EXPERT_COPIES, True))
        for op in ops
    }
    assert moved == pytest.approx(wanted, rel=1e-4)


def test_optimizer_states_are_split_among_those_that_hold_the_same(share: Workload) -> None:
    """12 bytes a parameter (two states and an fp32 copy) over the ranks that share it."""
    setup = Setup(
        share,
        "bf16",
        "adam",
        REPLICAS,
        1,
        MegatronStrategy(kind="megatron", use_distributed_optimizer=True),
        expert_copies=REPLICAS // EXPERT,
    )
    dense = trained(share, of_experts=False) / REPLICAS
    experts = trained(share, of_experts=True) / (REPLICAS // EXPERT)
    assert megatron_memory(setup).optimizer_bytes == pytest.approx(12 * (dense + experts), rel=1e-3)


def mixed(share: Workload, parallel_layout: ParallelLayout, micro_batches: int) -> StepPlan:
    options = MegatronStrategy(
        kind="megatron", use_distributed_optimizer=True, overlap_grad_reduce=True
    )
    plan = mix_step(
        parallel_layout,
        request(share),
        lambda part, count: megatron_plan(part, options.model_copy(update={"accumulate": count})),
        micro_batches,
        "bf16",
        NO_RECOMPUTE,
        None,
    )
    check_plan(plan)
    return plan


def test_without_other_degrees_holders_of_the_same_experts_stand_apart(share: Workload) -> None:
    """Megatron-Core's order: neighbours share experts; every eighth rank has the same ones."""
    plan = mixed(share, ParallelLayout(Shard(expert=8)), 1)
    groups = {each.name: each.groups for each in plan.communicators}
    assert groups["expert"] == (tuple(range(8)), tuple(range(8, 16)))
    assert groups[EXPERT_COPIES] == tuple((rank, rank + 8) for rank in range(8))


def test_both_stages_that_hold_a_part_average_its_experts(share: Workload) -> None:
    """DualPipe keeps each part twice: stage 0 holds parts 0 and 1, stage 1 holds 1 and 0."""
    plan = mixed(share, ParallelLayout(Shard(expert=EXPERT), 2, "dualpipe"), 8)
    groups = {each.name: each.groups for each in plan.communicators}
    for part in range(2):
        holders = groups[f"{EXPERT_COPIES} of part {part}"]
        assert len(holders) == EXPERT
        for group in holders:
            assert len({rank % EXPERT for rank in group}) == 1  # the same share of the experts
            assert sorted(rank // REPLICAS for rank in group) == [0, 0, 1, 1]
        shared = groups[f"expert of part {part}"]
        assert len(shared) == 2 * REPLICAS // EXPERT
        assert all(len({rank // REPLICAS for rank in group}) == 1 for group in shared)
    moved = [
        task.work.nbytes
        for task in plan.tasks
        if isinstance(task.work, Collective)
        and task.work.op == "reduce_scatter"
        and task.work.communicator.startswith(EXPERT_COPIES)
    ]
    # each part's are reduced once in each of the two classes that hold it
    assert sum(moved) == pytest.approx(2 * 2 * trained(share, of_experts=True), rel=1e-4)


@pytest.mark.parametrize(("schedule", "ways"), [("1f1b", 1), ("dualpipe", 2)])
def test_a_part_is_planned_among_all_that_hold_it(
    share: Workload, schedule: str, ways: int
) -> None:
    asked: list[StepRequest] = []

    def plan(part: StepRequest, count: int) -> StepPlan:
        asked.append(part)
        return megatron_plan(part, MegatronStrategy(kind="megatron", accumulate=count))

    mix_step(
        ParallelLayout(Shard(expert=EXPERT), 2, schedule),
        request(share),
        plan,
        8,
        "bf16",
        NO_RECOMPUTE,
        None,
    )
    assert {part.ranks for part in asked} == {ways * REPLICAS}
    assert {part.expert_copies for part in asked} == {ways * REPLICAS // EXPERT}


def test_states_of_experts_of_two_stages(share: Workload) -> None:
    """A stage holds two parts, each among twice as many: as many states as without a second way."""
    options = MegatronStrategy(kind="megatron", use_distributed_optimizer=True, accumulate=8)
    setup = Setup(share, "bf16", "adam", REPLICAS, 1, options, expert_copies=REPLICAS // EXPERT)
    both, one = (
        stage_memory(setup, megatron_memory, ParallelLayout(Shard(expert=EXPERT), 2, schedule))
        for schedule in ("dualpipe", "1f1b")
    )
    whole = sum(use.optimizer_bytes for use in one)
    assert sum(use.optimizer_bytes for use in both) == pytest.approx(whole, rel=1e-3)
    held = sum(use.parameters_bytes for use in both) / sum(use.parameters_bytes for use in one)
    assert held == pytest.approx(2, rel=1e-3)


def test_tokens_go_along_rails_and_within_nodes() -> None:
    """Eight ranks share experts on two nodes of four: pairs of one place, and those of a node."""
    settings = ExpertSettings(dispatcher="deduplicated", ranks_per_node=4)
    share = load_workload(
        "mixtral-8x7b",
        dtype="bf16",
        sequence_length=512,
        shard=Shard(expert=EXPERT),
        experts=settings,
    )
    groups = {
        each.name: each.groups
        for each in mixed(share, ParallelLayout(share.shard), 1).communicators
    }
    assert groups["expert_node"] == tuple(tuple(range(at, at + 4)) for at in range(0, 16, 4))
    assert groups["expert_rail"] == tuple(
        (start + place, start + place + 4) for start in (0, 8) for place in range(4)
    )
    both_ways = mixed(share, ParallelLayout(share.shard, 2, "dualpipe"), 8)
    streams = {
        (task.work.communicator.partition(" of ")[0], task.stream)
        for task in both_ways.tasks
        if isinstance(task.work, Collective) and task.work.communicator.startswith("expert_")
    }
    # of a pass alone between its kernels, of a pair beside the other's
    assert streams == {
        ("expert_rail", "compute"),
        ("expert_rail", "expert"),
        ("expert_node", "expert_node"),
    }
