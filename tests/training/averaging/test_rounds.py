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
from perfmodel.simulate.engine.engine import simulate
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.averaging.options import LocalSgdOptions
from perfmodel.training.averaging.rounds import local_sgd_plan
from perfmodel.training.averaging.strategy import local_sgd_memory
from perfmodel.training.memory.use import Setup
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
    0.0,
    "equal",
)
STEP_S = 2e-3 + 4e-3 + 1e-3


def planned(options: LocalSgdOptions, ranks: int = 4, **changes: Any) -> StepPlan:
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
    plan = planned(LocalSgdOptions(period=period), ranks)
    assert averages(plan) == [(0, MODEL.nbytes, ranks)]
    assert plan.samples == period * ranks * 2


def test_levels_average_small_groups_more_often() -> None:
    options = LocalSgdOptions(period=6, levels=((2, 2), (3, 4)))
    nbytes = MODEL.nbytes
    expected = [(0, nbytes, 8), (2, nbytes, 2), (3, nbytes, 4), (4, nbytes, 2)]
    assert averages(planned(options, ranks=8)) == expected


def test_a_round_takes_its_steps_and_one_all_reduce() -> None:
    machine = Machine(
        build_topology("shaped-ethernet", hosts=4, fabric="one-switch"), load_library("plain")
    )

    def time_s(period: int) -> float:
        return simulate(planned(LocalSgdOptions(period=period)), machine, steps=3).step_times_s[-1]

    one, ten = time_s(1), time_s(10)
    assert one > STEP_S
    assert ten - one == pytest.approx(9 * STEP_S)
    alone = simulate(planned(LocalSgdOptions(period=10), ranks=1), machine, steps=3)
    assert alone.step_times_s[-1] == pytest.approx(10 * STEP_S)


def test_post_local_sgd_reduces_gradients_in_groups_each_step() -> None:
    plan = planned(LocalSgdOptions(period=3, gradient_ranks=2))
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    gradients = [work for work in works if work.communicator == "gradient groups"]
    assert sum(work.nbytes for work in gradients) == 3 * MODEL.nbytes
    assert len({work.key for work in works}) == len(works)
    groups = {each.name: each.groups for each in plan.communicators}
    assert groups["gradient groups"] == (range(2), range(2, 4))


def test_groups_that_do_not_divide_are_refused() -> None:
    for options, field in (
        (LocalSgdOptions(gradient_ranks=3), "gradient_gpus"),
        (LocalSgdOptions(period=4, levels=((2, 3),)), "levels"),
    ):
        with pytest.raises(InputError, match=f"strategy.{field}.*divides the 4 GPUs"):
            planned(options)


def test_the_flat_copy_needs_room_that_activations_left() -> None:
    def use(activations: float, options: LocalSgdOptions) -> tuple[float, float]:
        setup = Setup(MODEL, "fp32", "sgd", 4, 2, options=options, activations_bytes=activations)
        memory = local_sgd_memory(setup)
        return memory.gathered_bytes, memory.buckets_bytes

    assert use(0.0, LocalSgdOptions()) == (MODEL.nbytes, 0)
    assert use(1e9, LocalSgdOptions()) == (0, 0)
    assert use(1e9, LocalSgdOptions(gradient_ranks=2)) == (0, MODEL.nbytes)
