"""No buckets beat the lower bound: neighbours or not, one all-reduce at a time or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.caps import (
    Cuts,
    GradientOrder,
    as_bytes,
    caps_mb,
    find_windows,
    with_caps,
)
from perfmodel.studies.tune.evaluator import make_evaluator
from perfmodel.studies.tune.exact import lower_bound_s, minorants
from perfmodel.studies.tune.run import tune_scenario
from perfmodel.studies.tune.surrogate import StepSurrogate, buckets_of_groups

AllCuts = Callable[[int], Iterator[Cuts]]
Made = Callable[..., Scenario]
MADE = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@MADE
@given(
    st.lists(st.integers(1_000, 4_000_000), min_size=2, max_size=5),
    st.sampled_from(["plain", "nccl", "gloo", "mpi"]),
    st.sampled_from([1.0, 1.2, 1.5]),
    st.data(),
)
def test_no_list_is_below(
    made: Made, all_cuts: AllCuts, elements: list[int], library: str, slowdown: float, data: Any
) -> None:
    times = st.lists(st.floats(0.01, 30), min_size=len(elements), max_size=len(elements))
    scenario = made(elements, data.draw(times), library=library, slowdown=slowdown)
    prepared = prepare(scenario)
    evaluator = make_evaluator(prepared)
    bound_s = lower_bound_s(evaluator.surrogate, evaluator.allreduce, evaluator.workers)
    for cuts in all_cuts(len(evaluator.gradients)):
        windows = find_windows(evaluator.gradients, evaluator.gradients.groups(cuts))
        assert windows is not None
        options = with_caps(prepared.job.options, as_bytes(caps_mb(windows)))
        assert prepared.step(options).step_time_s >= bound_s


@pytest.mark.slow
@MADE
@given(st.data())
def test_no_groups_of_strangers_are_below(made: Made, data: Any) -> None:
    """Groups that no cap makes, by the recurrence, which is the simulation's."""
    elements = data.draw(st.lists(st.integers(1_000, 4_000_000), min_size=2, max_size=9))
    count = len(elements)
    times = data.draw(st.lists(st.floats(0.01, 30), min_size=count, max_size=count))
    scenario = made(elements, times, slowdown=data.draw(st.sampled_from([1.0, 1.3])))
    evaluator = make_evaluator(prepare(scenario))
    bound_s = lower_bound_s(evaluator.surrogate, evaluator.allreduce, evaluator.workers)
    for _ in range(20):
        labels = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        members: dict[int, list[int]] = {}
        for tensor, label in zip(evaluator.gradients.tensors, labels, strict=True):
            members.setdefault(label, []).append(tensor)
        groups = tuple(tuple(group) for group in members.values())
        exact = evaluator.surrogate.step_s(
            buckets_of_groups(evaluator.surrogate, groups), evaluator.allreduce.compute
        )
        assert exact >= bound_s


@pytest.mark.parametrize("name", ["resnet50-dgx-a100", "bucket-size-slow-ethernet"])
def test_it_is_near(name: str) -> None:
    """Where communication hides, and where it does not."""
    found = tune_scenario(load_scenario(name, ["scale=null", "cluster.nodes=4"]))
    assert found.lower_bound_s is not None
    assert found.lower_bound_s <= found.best_list.step_time_s <= 1.03 * found.lower_bound_s


def test_a_step_without_communication_is_its_compute(made: Made) -> None:
    found = tune_scenario(
        made(
            [10_000, 20_000],
            [40, 30],
            "what_if.network_bandwidth=infinite",
            "what_if.network_latency=0",
            "what_if.launch=0",
        )
    )
    assert found.lower_bound_s == pytest.approx(found.best_list.step_time_s, rel=1e-3)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1e-6, 1)), min_size=1, max_size=8))
def test_lines_lie_below_all_points(points: list[tuple[float, float]]) -> None:
    lines = list(minorants(points))
    assert len(lines) >= 2
    for a, b in lines:
        assert a >= 0
        assert b >= 0
        assert all(a + b * x <= y * (1 + 1e-9) + 1e-12 for x, y in points)


def test_lines_touch_the_hull() -> None:
    """Points on 1 + x are on one line; one above them changes nothing."""
    assert (1.0, 1.0) in list(minorants([(1.0, 2.0), (3.0, 4.0), (2.0, 9.0)]))


class TwoSizes:
    """All-reduces of 100 to 200 bytes that take 3 s at least, and a link that takes s per byte."""

    scale = 1.0

    def __init__(self, wire_s_per_byte: float) -> None:
        self.wire_s_per_byte = wire_s_per_byte
        self.computed: list[int] = []

    def lower_bounds(self) -> list[tuple[int, int, float]]:
        return [(100, 200, 3.0), (200, 200, 3.0)]

    def compute(self, nbytes: int) -> float:
        self.computed.append(nbytes)
        return 3.0


@pytest.mark.parametrize(
    ("wire_s_per_byte", "workers", "bound_s", "computed"),
    [
        (0.001, 1, 2 + 3.0, [150]),  # the link passes 100 B in 0.1 s: one all-reduce takes 3 s
        (0.001, 2, 2 + 1.5, [150]),  # of which two go on at a time
        (0.05, 1, 1 + 10.0, []),  # the link passes 200 B in 10 s, however they are reduced
        (0.05, 2, 1 + 10.0, []),  # and two all-reduces share it
        (
            0.013,
            2,
            1 + 2.6,
            [],
        ),  # the link, 2.6 s for 200 B, is more than 3 s / 2 and less than 3 s
    ],
)
def test_the_higher_of_two_bounds_applies(
    wire_s_per_byte: float, workers: int, bound_s: float, computed: list[int]
) -> None:
    """Two gradients of 100 B that are ready after 1 s and 2 s; all other work takes no time.

    What is ready from gradient k on takes at least as long as the busiest link needs for its
    bytes, and as the quickest all-reduces need over those that go on at a time.
    """
    gradients = GradientOrder((0, 1), (100, 100), ("fp32", "fp32"), reverse_filled=False)
    surrogate = StepSurrogate(gradients, 0.0, (1.0, 2.0), 2.0, (0.0, 0.0), 0.0, 1.0)
    times: Any = TwoSizes(wire_s_per_byte)
    assert lower_bound_s(surrogate, times, workers) == pytest.approx(bound_s)
    lower_bound_s(surrogate, times, workers, best_s=100.0, at_most=1)
    assert times.computed == computed
