"""Local SGD: what a round sends, and how long it takes, against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario.strategies.ddp import AveragingLevel, LocalSgdStrategy
from perfmodel.simulate.engine.engine import simulate
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.local_sgd import local_sgd_memory, local_sgd_plan
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

MODEL = Workload(
    "two",
    (ParameterTensor("a", (1000, 100)), ParameterTensor("b", (300,))),
    (Layer("a", (0,)), Layer("b", (1,))),
)
TIMES = LayerTimes(
    np.full(2, 1e-3),
    np.full(2, 2e-3),
    np.ones(2, int),
    np.ones(2, int),
    0.0,
    1e-3,
    1,
    1e12,
    "equal",
)
STEP_S = 2e-3 + 4e-3 + 1e-3


def planned(options: LocalSgdStrategy, ranks: int = 4, **changes: Any) -> StepPlan:
    plan = local_sgd_plan(StepRequest(MODEL, TIMES, ranks, 2, **changes), options)
    check_plan(plan)
    return plan


def averages(plan: StepPlan) -> list[tuple[int, int, int]]:
    """Step, bytes and ranks of a group of each average."""
    ranks = {each.name: len(each.groups[0]) for each in plan.communicators}
    return [
        (task.micro_batch, task.work.nbytes, ranks[task.work.communicator])
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.name.startswith("average")
    ]


@settings(max_examples=40, deadline=None)
@given(period=st.integers(1, 40), ranks=st.integers(2, 6))
def test_a_round_averages_all_parameters_once(period: int, ranks: int) -> None:
    """Stich, ICLR 2019: communication of a step falls by the period."""
    plan = planned(LocalSgdStrategy(kind="local_sgd", period=period), ranks)
    assert averages(plan) == [(0, MODEL.nbytes, ranks)]
    assert plan.samples == period * ranks * 2


def test_levels_average_small_groups_more_often() -> None:
    options = LocalSgdStrategy(
        kind="local_sgd",
        period=6,
        levels=(AveragingLevel(period=2, gpus=2), AveragingLevel(period=3, gpus=4)),
    )
    nbytes = MODEL.nbytes
    expected = [(0, nbytes, 8), (2, nbytes, 2), (3, nbytes, 4), (4, nbytes, 2)]
    assert averages(planned(options, ranks=8)) == expected


def test_a_round_takes_its_steps_and_one_all_reduce() -> None:
    machine = Machine(
        build_topology("shaped-ethernet", hosts=4, fabric="one-switch"), load_library("plain")
    )

    def time_s(period: int) -> float:
        return simulate(
            planned(LocalSgdStrategy(kind="local_sgd", period=period)), machine, steps=3
        ).step_times_s[-1]

    one, ten = time_s(1), time_s(10)
    assert one > STEP_S
    assert ten - one == pytest.approx(9 * STEP_S)
    alone = simulate(
        planned(LocalSgdStrategy(kind="local_sgd", period=10), ranks=1), machine, steps=3
    )
    assert alone.step_times_s[-1] == pytest.approx(10 * STEP_S)


def test_post_local_sgd_reduces_gradients_in_groups_each_step() -> None:
    plan = planned(LocalSgdStrategy(kind="local_sgd", period=3, gradient_gpus=2))
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    gradients = [work for work in works if work.communicator == "gradient groups"]
    assert sum(work.nbytes for work in gradients) == 3 * MODEL.nbytes
    assert len({work.key for work in works}) == len(works)
    groups = {each.name: each.groups for each in plan.communicators}
    assert groups["gradient groups"] == (range(2), range(2, 4))


def test_groups_that_do_not_divide_are_refused() -> None:
    for options, field in (
        (LocalSgdStrategy(kind="local_sgd", gradient_gpus=3), "gradient_gpus"),
        (
            LocalSgdStrategy(
                kind="local_sgd", period=4, levels=(AveragingLevel(period=2, gpus=3),)
            ),
            "levels",
        ),
    ):
        with pytest.raises(InputError, match=f"strategy.{field}.*divides the 4 GPUs"):
            planned(options)


def test_the_flat_copy_needs_room_that_activations_left() -> None:
    def use(activations: float, options: LocalSgdStrategy) -> tuple[float, float]:
        setup = Setup(MODEL, "fp32", "sgd", 4, 2, options=options, activations_bytes=activations)
        memory = local_sgd_memory(setup)
        return memory.gathered_bytes, memory.buckets_bytes

    assert use(0.0, LocalSgdStrategy(kind="local_sgd")) == (MODEL.nbytes, 0)
    assert use(1e9, LocalSgdStrategy(kind="local_sgd")) == (0, 0)
    assert use(1e9, LocalSgdStrategy(kind="local_sgd", gradient_gpus=2)) == (0, MODEL.nbytes)
