"""Priority scheduling against the theory of one machine with release and delivery times."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.strategies.strategy import PriorityStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.priority import Partition, cut_bytes, priority_plan, send_order
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
RATE = 1e9
MS = 1e-3


def model_of(sizes: list[int]) -> Workload:
    tensors = tuple(ParameterTensor(f"w{i}", (size,)) for i, size in enumerate(sizes))
    return Workload("toy", tensors, tuple(Layer(f"layer{i}", (i,)) for i in range(len(sizes))))


def times(forward_s: list[float], backward_s: list[float]) -> LayerTimes:
    ones = np.ones(len(forward_s), dtype=np.int64)
    return LayerTimes(
        np.array(forward_s), np.array(backward_s), ones, ones, 0.0, 0.0, 1, 1e15, "test"
    )


def collective_s(op: str, nbytes: int, library: str | None) -> float:
    return nbytes / RATE


def make_plan(
    sizes: list[int], forward_s: list[float], backward_s: list[float], **options: Any
) -> StepPlan:
    request = StepRequest(
        model_of(sizes), times(forward_s, backward_s), 4, 1, collective_s=collective_s
    )
    return priority_plan(request, PriorityStrategy(kind="priority").model_copy(update=options))


def run(plan: StepPlan) -> dict[str, tuple[float, float]]:
    """Start and end of each task by name, on one link and one device."""
    free: dict[str, float] = {}
    ends: list[float] = []
    spans = {}
    for task in plan.tasks:
        work = task.work
        start = max([free.get(task.stream, 0.0), *(ends[index] for index in task.after)])
        lasts = work.nbytes / RATE if isinstance(work, Collective) else work.duration_s
        ends.append(start + lasts)
        free[task.stream] = ends[-1]
        spans[task.name] = (start, ends[-1])
    return spans


def ends_s(plan: StepPlan) -> float:
    return max(end for _, end in run(plan).values())


def best_s(sizes: list[int], forward_s: list[float], backward_s: list[float]) -> float:
    """Shortest step of all orders, preemption allowed: the maximum over sets of neighbouring layers
    of the least release, their work, and the least delivery (Jackson's bound, which is tight)."""
    count = len(sizes)
    work = [4 * size / RATE for size in sizes]
    release = [sum(backward_s[layer:]) for layer in range(count)]
    delivery = [sum(forward_s[layer:]) for layer in range(count)]
    best = sum(backward_s) + sum(forward_s)
    for r, q in itertools.product(release, delivery):
        members = [i for i in range(count) if release[i] >= r and delivery[i] >= q]
        best = max(best, r + sum(work[i] for i in members) + q if members else 0.0)
    return best


STEPS = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, 3_000_000), min_size=count, max_size=count),
        st.lists(st.floats(0, 20 * MS), min_size=count, max_size=count),
        st.lists(st.floats(0, 20 * MS), min_size=count, max_size=count),
    )
)


@given(STEPS, st.integers(2, 8))
def test_small_pieces_reach_the_best_of_all_orders(
    step: tuple[list[int], list[float], list[float]], credit: int
) -> None:
    """The step is the best there is, but for the pieces in flight that none can overtake."""
    piece = 200_000
    plan = make_plan(*step, partition_size=piece, credit=credit * piece)
    check_plan(plan)
    bound, found = best_s(*step), ends_s(plan)
    assert bound - 1e-9 <= found <= bound + credit * piece / RATE + 1e-9


@given(STEPS)
def test_no_order_of_whole_tensors_is_better_than_pieces_by_priority(
    step: tuple[list[int], list[float], list[float]],
) -> None:
    piece = 200_000
    first = make_plan(*step, partition_size=piece, credit=piece)
    in_turn = make_plan(*step, partition_size=1e12, credit=1e12, order="fifo")
    assert ends_s(first) <= ends_s(in_turn) + piece / RATE + 1e-9


@given(st.integers(1, 3_000_000), st.floats(0, MS), st.floats(0, MS))
def test_one_layer_has_no_order(size: int, forward_s: float, backward_s: float) -> None:
    step = ([size], [forward_s], [backward_s])
    steps = {
        round(ends_s(make_plan(*step, partition_size=piece, order=order)), 9)
        for piece, order in itertools.product((4e4, 1e9), ("priority", "fifo"))
    }
    assert max(steps) - min(steps) <= 2e-9


def test_the_front_layer_overtakes() -> None:
    """8 MB of the last layer travel when the first layer's 4 MB get ready: these go next."""
    back = [Partition(1, part, 1_000_000, 1, 0.0) for part in range(8)]
    pieces = [*back, *(Partition(0, part, 1_000_000, 0, 2.5 * MS) for part in range(4))]
    order = send_order(pieces, lambda nbytes: nbytes / RATE, 1e6)
    assert order == (0, 1, 2, 8, 9, 10, 11, 3, 4, 5, 6, 7)
    with_credit = send_order(pieces, lambda nbytes: nbytes / RATE, 3e6)
    assert with_credit == (0, 1, 2, 3, 4, 8, 9, 10, 11, 5, 6, 7)


def test_a_layer_is_updated_when_its_own_gradients_are_there() -> None:
    """The second layer's 8 MB still travel while the first layer's forward runs."""
    sizes, forward, backward = [1_000_000, 2_000_000], [5 * MS, 5 * MS], [1 * MS, 1 * MS]
    plan = make_plan(sizes, forward, backward, partition_size=1e6, credit=1e6)
    at = run(plan)
    assert at["forward layer0"][0] == pytest.approx(6 * MS)  # 2 of backward, 4 MB from then on
    assert at["forward layer1"][0] == pytest.approx(13 * MS)  # 1 ms, 12 MB in all


@pytest.mark.parametrize("accumulate", [1, 3])
def test_all_gradients_travel_once_a_step(times_of: Times, accumulate: int) -> None:
    model = build_model("resnet18")
    request = StepRequest(model, times_of(model), 4, 8, collective_s=collective_s)
    options = PriorityStrategy(kind="priority", accumulate=accumulate).model_copy(
        update={"partition_size": 1e6}
    )
    plan = priority_plan(request, options)
    check_plan(plan)
    sent = [task.work.nbytes for task in plan.tasks if isinstance(task.work, Collective)]
    assert sum(sent) == model.nbytes
    assert max(sent) <= 1e6
    work = [task.work.duration_s for task in plan.tasks if isinstance(task.work, Compute)]
    layers = len(model.layers)
    sums = (accumulate - 1) * 1.5 * model.nbytes / 1e12
    assert sum(work) == pytest.approx(accumulate * layers * 3 * MS + 1 * MS + sums)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([2, 4]))
def test_pieces_add_up(elements: int, most: int, item: int) -> None:
    pieces = cut_bytes(elements * item, most, item)
    assert sum(pieces) == elements * item
    assert all(0 < piece <= max(most, item) and piece % item == 0 for piece in pieces)


def test_impossible_options_are_named_together() -> None:
    with pytest.raises(InputError) as caught:
        validate_document(
            PriorityStrategy,
            {"kind": "priority", "partition_size": "0 B", "credit": "-1 B", "accumulate": 0},
        )
    assert [fault.field for fault in caught.value.faults] == [
        "partition_size",
        "credit",
        "accumulate",
    ]
