"""Groups of ranks against Megatron-Core 0.16.1, and plans laid on the ranks of a layout."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from perfmodel.training.rank_grid import RankGrid, expand_ranks

# what RankGenerator(tp, ep, dp, pp, cp, order).get_ranks returned; for experts with tp of `etp`
RECORDED = json.loads(Path(__file__).with_name("megatron_rank_groups.json").read_text())


def grid_of(case: dict[str, Any]) -> RankGrid:
    return RankGrid(
        case["tp"],
        case.get("cp", 1),
        case["dp"],
        case["pp"],
        case.get("ep", 1),
        tuple(case["order"].split("-")),
        case.get("etp", case["tp"]),
    )


def as_sets(groups: Any) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}


@pytest.mark.parametrize("case", RECORDED["parallel layouts"], ids=str)
def test_groups_are_those_of_megatron(case: dict[str, Any]) -> None:
    grid = grid_of(case)
    assert sorted(grid.tensor_groups) == sorted(map(tuple, case["groups tp"]))
    assert sorted(grid.context_groups) == sorted(map(tuple, case["groups cp"]))
    replicas = grid.numbers.transpose(0, 2, 1).reshape(-1, grid.replicas).tolist()
    assert as_sets(replicas) == as_sets(case["groups dp-cp"])
    stages = grid.numbers.reshape(grid.stages, -1).T.tolist()
    assert sorted(map(tuple, stages)) == sorted(map(tuple, case["groups pp"]))


@pytest.mark.parametrize("case", RECORDED["experts"], ids=str)
def test_experts_are_spread_as_by_megatron(case: dict[str, Any]) -> None:
    grid = grid_of(case)
    assert as_sets(grid.expert_groups) == as_sets(case["groups ep"])
    assert as_sets(grid.expert_replica_groups) == as_sets(case["groups dp"])


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.permutations(["tp", "cp", "ep", "dp", "pp"]),
    st.data(),
)
def test_each_rank_is_in_one_group_of_each_dimension(
    tensor: int, context: int, data: int, stages: int, order: list[str], draw: st.DataObject
) -> None:
    expert_tensor = draw.draw(st.sampled_from([1, tensor]))
    holders = data * context * tensor // expert_tensor
    divisors = [n for n in range(1, holders + 1) if not holders % n]
    expert = draw.draw(st.sampled_from(divisors))
    grid = RankGrid(tensor, context, data, stages, expert, tuple(order), expert_tensor)
    kinds = {
        "tensor": (grid.tensor_groups, tensor),
        "context": (grid.context_groups, context),
        "expert": (grid.expert_groups, expert),
        "copies": (grid.expert_replica_groups, grid.expert_copies),
    }
    for groups, size in kinds.values():
        assert sorted(rank for group in groups for rank in group) == list(range(grid.ranks))
        assert {len(group) for group in groups} == {size}
    # experts are shared among replicas of the same stage and place in the tensor group
    place = {
        rank: (stage, at)
        for stage, replicas in enumerate(grid.numbers.tolist())
        for ranks in replicas
        for at, rank in enumerate(ranks)
    }
    if expert_tensor == tensor:
        assert all(len({place[rank] for rank in group}) == 1 for group in grid.expert_groups)
    assert all(len({place[rank][0] for rank in group}) == 1 for group in grid.expert_groups)


def test_experts_that_no_group_divides_are_refused() -> None:
    with pytest.raises(InputError, match=r"parallel\.expert: found 3; allowed: a divisor of 8"):
        RankGrid(data=4, context=2, expert=3)


def test_neighbours_of_a_host_are_counted() -> None:
    assert RankGrid(tensor=4, data=8).replicas_per_host(8) == 2
    assert RankGrid(tensor=8, data=8).replicas_per_host(8) == 1
    assert (
        RankGrid(
            tensor=2, data=2, stages=8, order=("tp", "pp", "cp", "ep", "dp")
        ).replicas_per_host(8)
        == 1
    )


def small_plan(replicas: int) -> StepPlan:
    """A compute, a call of its tensor group and an all-reduce of two stages."""
    tasks = []
    for stage in range(2):
        name = f"stage {stage}"
        own = len(tasks)
        tasks += [
            Task("forward", "forward", name, "compute", Compute(1e-3)),
            Task(
                "call",
                "communication",
                name,
                "compute",
                Collective("all_reduce", 8, f"calls {stage}", f"call {stage}"),
                (own,),
            ),
            Task(
                "reduce",
                "communication",
                name,
                "comm",
                Collective(
                    "broadcast",
                    8,
                    f"ranks of part {stage}",
                    f"reduce {stage}",
                    root=stage * replicas,
                ),
                (own + 1,),
            ),
        ]
    ends = [range(stage * replicas, (stage + 1) * replicas) for stage in range(2)]
    return StepPlan(
        "two stages",
        tuple(RankClass(f"stage {stage}", ranks) for stage, ranks in enumerate(ends)),
        (Stream("compute", "compute"), Stream("comm", "comm")),
        tuple(Communicator(f"calls {stage}", (range(2),), "tensor") for stage in range(2))
        + tuple(Communicator(f"ranks of part {s}", (ranks,)) for s, ranks in enumerate(ends)),
        tuple(tasks),
        samples=2 * replicas,
    )


def test_a_plan_is_laid_on_all_ranks() -> None:
    grid = RankGrid(tensor=2, context=3, data=2, stages=2)
    plan = expand_ranks(small_plan(grid.replicas), grid)
    check_plan(plan)
    ranks = [rank for each in plan.classes for rank in each.ranks]
    assert Counter(ranks) == Counter(range(24))
    groups = {each.name: each.groups for each in plan.communicators}
    assert groups["calls 0"] + groups["calls 1"] == grid.tensor_groups
    assert len(groups["ranks of part 1"]) == 2
    assert groups["ranks of part 1"][1] == tuple(range(13, 24, 2))
    assert {task.work.root for task in plan.tasks if isinstance(task.work, Collective)} == {0, 12}
    assert plan.samples == small_plan(grid.replicas).samples // 3


def test_a_plain_plan_stays_as_it_is() -> None:
    plan = small_plan(4)
    assert expand_ranks(plan, RankGrid(data=8)) is plan
