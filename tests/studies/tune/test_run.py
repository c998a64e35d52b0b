"""Tuning small models against every partition there is, each simulated in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.caps import (
    Cuts,
    as_bytes,
    assign_buckets,
    caps_mb,
    find_windows,
    list_uniform_partitions,
    order_gradients,
    with_caps,
)
from perfmodel.studies.tune.evaluator import FEWER_TOLERANCE, make_evaluator
from perfmodel.studies.tune.model import STEP_ROUNDING, STEP_TOLERANCE, TuneResult
from perfmodel.studies.tune.run import list_sizes, tune_scenario

AllCuts = Callable[[int], Iterator[Cuts]]
Made = Callable[..., Scenario]

ELEMENTS = st.lists(st.integers(1_000, 3_000_000), min_size=2, max_size=7)
SMALL = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def steps_of_all_lists(scenario: Scenario, all_cuts: AllCuts) -> list[float]:
    """Step times of all groups of neighbours."""
    prepared = prepare(scenario)
    gradients = order_gradients(prepared.job.workload, prepared.job.options)
    found = []
    for cuts in all_cuts(len(gradients)):
        windows = find_windows(gradients, gradients.groups(cuts))
        assert windows is not None
        options = with_caps(prepared.job.options, as_bytes(caps_mb(windows)))
        found.append(prepared.step(options).step_time_s)
    return found


def steps_of_all_caps(scenario: Scenario) -> list[float]:
    """Step times of all partitions that one cap makes, and of PyTorch's default."""
    prepared = prepare(scenario)
    workload, options = prepared.job.workload, prepared.job.options
    partitions = list_uniform_partitions(workload, order_gradients(workload, options), options)
    settings = [with_caps(options, for_all=as_bytes((one.cap_mb,))[0]) for one in partitions]
    return [prepared.step(each).step_time_s for each in (options, *settings)]


def is_sound(found: TuneResult, scenario: Scenario) -> None:
    """What holds whatever the scenario."""
    best = found.best_list.step_time_s
    caps = steps_of_all_caps(scenario)
    assert best <= min(caps) * (1 + STEP_ROUNDING)
    allowed = FEWER_TOLERANCE if scenario.library.name == "gloo" else STEP_TOLERANCE
    assert min(caps[1:]) * (1 - STEP_ROUNDING) <= found.best_uniform.step_time_s
    assert found.best_uniform.step_time_s <= min(caps[1:]) * (1 + allowed)
    assert found.least_uniform_s == pytest.approx(min(caps[1:]), rel=1e-9)
    assert best <= found.best_integer_list.step_time_s * (1 + STEP_ROUNDING)
    assert best <= found.default.step_time_s * (1 + STEP_ROUNDING)
    assert all(cap == int(cap) for cap in found.best_integer_list.bucket_cap_mb_list or ())
    if found.lower_bound_s is not None:
        assert found.lower_bound_s <= best


# ---------------------------------------------------------------- against all partitions


@pytest.mark.slow
@SMALL
@given(ELEMENTS, st.data())
def test_the_list_is_the_best_of_all_groups(
    made: Made, all_cuts: AllCuts, elements: list[int], data: st.DataObject
) -> None:
    """One dtype, one all-reduce at a time, nothing fed back: dynamic programming is exact."""
    times = st.lists(st.floats(0.01, 20), min_size=len(elements), max_size=len(elements))
    scenario = made(
        elements, data.draw(times), library=data.draw(st.sampled_from(["plain", "nccl"]))
    )
    found = tune_scenario(scenario)
    assert found.exact
    assert found.best_list.step_time_s == pytest.approx(
        min(steps_of_all_lists(scenario, all_cuts)), rel=1e-9
    )
    is_sound(found, scenario)


@pytest.mark.slow
@SMALL
@given(ELEMENTS, st.data(), st.sampled_from([1.0, 1.3]), st.floats(1, 30))
def test_the_surrogate_is_the_reference(
    made: Made, elements: list[int], data: st.DataObject, slowdown: float, cap_mb: float
) -> None:
    """One all-reduce at a time, the host ahead of the device, and chunks of equal bytes."""
    times = st.lists(st.floats(0.01, 20), min_size=len(elements), max_size=len(elements))
    sixteens = [16 * (count // 16) for count in elements]
    scenario = made(sixteens, data.draw(times), slowdown=slowdown)
    evaluator = make_evaluator(prepare(scenario))
    options = evaluator.uniform_options(cap_mb)
    groups = assign_buckets(evaluator.workload, options)
    evaluator.time_allreduces(groups)
    expected = prepare(scenario, fidelity="reference").step(options).step_time_s
    assert evaluator.predict_step_s(groups) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@SMALL
@given(ELEMENTS, st.data())
def test_slowed_compute_costs_no_percent(
    made: Made, all_cuts: AllCuts, elements: list[int], data: st.DataObject
) -> None:
    times = st.lists(st.floats(0.01, 20), min_size=len(elements), max_size=len(elements))
    scenario = made(elements, data.draw(times), slowdown=data.draw(st.floats(1.01, 1.5)))
    found = tune_scenario(scenario)
    assert not found.exact
    assert found.best_list.step_time_s <= 1.01 * min(steps_of_all_lists(scenario, all_cuts))
    is_sound(found, scenario)


@pytest.mark.slow
@settings(SMALL, max_examples=4)
@given(st.lists(st.integers(1_000, 3_000_000), min_size=2, max_size=5), st.data())
def test_two_workers_cost_no_percent(
    made: Made, all_cuts: AllCuts, elements: list[int], data: st.DataObject
) -> None:
    """Gloo reduces two buckets at a time, which share the network."""
    times = st.lists(st.floats(0.01, 40), min_size=len(elements), max_size=len(elements))
    scenario = made(elements, data.draw(times), library="gloo")
    found = tune_scenario(scenario)
    assert found.best_list.step_time_s <= 1.01 * min(steps_of_all_lists(scenario, all_cuts))
    is_sound(found, scenario)


@pytest.mark.slow
@settings(SMALL, max_examples=6)
@given(st.lists(st.integers(1_000, 3_000_000), min_size=3, max_size=6), st.data())
def test_two_dtypes_share_the_list(made: Made, elements: list[int], data: st.DataObject) -> None:
    count = len(elements)
    times = data.draw(st.lists(st.floats(0.01, 20), min_size=count, max_size=count))
    dtypes = data.draw(st.lists(st.sampled_from(["fp32", "fp16"]), min_size=count, max_size=count))
    scenario = made(elements, times, dtypes=dtypes)
    is_sound(tune_scenario(scenario), scenario)


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy.hook=fp16",),
        ("strategy.gradient_as_bucket_view=true", "strategy.static_graph=true"),
        ("strategy.find_unused_parameters=true",),
        ("strategy.accumulate=3", "strategy.broadcast_buffers=true"),
        ("events=[{slow: {ranks: [1], by: 1.5}}]",),
        ("events=[{degrade: {link: 'n1/nic0 -> *', by: 3}}]",),
        ("events=[{jitter: {kind: normal, cv: 0.02, per: step}}]", "cluster.nodes=2"),
        ("fidelity=message", "cluster.nodes=2"),
        ("what_if.network_bandwidth=infinite",),
    ],
    ids=lambda overrides: overrides[0],
)
def test_what_the_recurrence_leaves_out_is_simulated(
    made: Made, all_cuts: AllCuts, overrides: tuple[str, ...]
) -> None:
    scenario = made([2_000_000, 600_000, 40_000, 900_000, 5_000], [5, 3, 2, 4, 1], *overrides)
    found = tune_scenario(scenario)
    is_sound(found, scenario)
    assert found.best_list.step_time_s <= 1.01 * min(steps_of_all_lists(scenario, all_cuts))


# ---------------------------------------------------------------- shipped scenarios


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [("model.name=resnet18",), ("model.name=vgg16", "cluster.nodes=4"), ("model.name=alexnet",)],
)
def test_no_cap_is_better_on_a_real_model(overrides: tuple[str, ...]) -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", ["scale=null", *overrides])
    found = tune_scenario(scenario)
    is_sound(found, scenario)
    curve = {point.bucket_cap_mb: point for point in found.curve}
    prepared = prepare(scenario)
    for cap in list(curve)[::23]:
        stepped = prepared.step(with_caps(prepared.job.options, for_all=as_bytes((cap,))[0]))
        assert curve[cap].step_time_s == pytest.approx(stepped.step_time_s, rel=5e-3)
        assert curve[cap].exposed_comm_s == pytest.approx(stepped.parts.exposed_comm_s, rel=2e-2)


@pytest.mark.slow
def test_the_answer_is_what_running_the_scenario_says() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet", ["scale=null"])
    found = tune_scenario(scenario)
    caps = ", ".join(f"{cap} MiB" for cap in found.best_list.bucket_cap_mb_list or ())
    ran = run_scenario(
        load_scenario("bucket-size-slow-ethernet", ["scale=null", f"strategy.bucket_caps=[{caps}]"])
    ).main
    assert ran.step_time_s == found.best_list.step_time_s
    assert ran.exposed_comm_s == found.best_list.exposed_comm_s
    assert ran.first_step_time_s == found.best_list.first_step_time_s
    assert [b.nbytes for b in ran.buckets] == [b.nbytes for b in found.best_list.buckets]
    assert found.default.step_time_s == run_scenario(scenario).main.step_time_s


@pytest.mark.slow
def test_the_scenarios_own_caps_are_compared_with() -> None:
    scenario = load_scenario(
        "bucket-size-slow-ethernet", ["scale=null", "strategy.bucket_cap=2 MiB"]
    )
    found = tune_scenario(scenario)
    assert found.requested is not None
    assert found.requested.step_time_s == run_scenario(scenario).main.step_time_s
    assert found.regret(found.requested) > found.regret(found.default) > 0


# ---------------------------------------------------------------- what cannot be tuned


@pytest.mark.parametrize(
    ("name", "overrides", "field"),
    [
        ("dataparallel-dgx1", (), "strategy.kind"),
        ("bucket-size-slow-ethernet", ("scale=null", "cluster.nodes=1"), "cluster.nodes"),
    ],
)
def test_what_has_no_buckets_is_refused(name: str, overrides: Any, field: str) -> None:
    with pytest.raises(InputError, match=field):
        tune_scenario(load_scenario(name, overrides))


def test_a_node_without_a_way_is_refused_as_run_does() -> None:
    """With the event that cuts it off, before anything is searched."""
    lost = load_scenario("bucket-size-slow-ethernet", ["events=[{lose: {nic: n0/nic0}}]"])
    for answer in (run_scenario, tune_scenario):
        with pytest.raises(InputError, match=r"events\.0: found n0/nic0 lost"):
            answer(lost)


def test_sizes_without_buckets_are_left_out() -> None:
    sizes = list_sizes(load_scenario("bucket-size-slow-ethernet"))
    assert [size.gpus for size in sizes] == [2, 4, 8]
